"use strict";

// The judged samples: images and waves of some, the errors of all.

const { make, draw, section, number, table } = halfwise;
const HEIGHT = 60;
const FEW = 10;

section("samples", (root, { over, rows, previews }) => {
  for (const [why, title] of [["worst", "Worst"], ["typical", "Median error"]]) {
    const found = previews.filter((one) => one.why === why);
    if (found.length) {
      root.append(make("h3", {}, title), make("div", { class: "previews" }, ...found.map((one) => figure(one, over))));
    }
  }
  if (rows.length) {
    table(root, { name: "Samples", columns: ["sample", `error / ${over}`], rows, most: FEW });
  }
});

function figure(one, over) {
  const label = `${one.input} of ${one.sample}`;
  const seen = one.kind === "image"
    ? make("img", { src: `data:image/png;base64,${one.png}`, alt: label })
    : wave(one, label);
  const error = one.excess === null ? "" : `${number(one.excess)} × ${over}`;
  const told = [make("span", { class: "sample", title: one.sample }, one.sample), `${one.input} ${one.shape}`, error];
  return make("figure", {}, seen, make("figcaption", {}, ...told.flatMap((text) => [text, make("br")])));
}

function wave({ low, high }, label) {
  const least = Math.min(...low);
  const span = Math.max(...high) - least || 1;
  const y = (value) => HEIGHT - ((value - least) / span) * HEIGHT;
  const points = [...high.map((value, i) => [i, y(value)]), ...low.map((value, i) => [i, y(value) + 0.5]).reverse()];
  return draw("svg", { viewBox: `0 0 ${low.length - 1} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    draw("polygon", { points: points.map((point) => point.join(",")).join(" ") }));
}
