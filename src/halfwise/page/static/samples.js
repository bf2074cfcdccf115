"use strict";

// The judged samples: images of some, the errors of all.

const { make, section, number, table } = halfwise;
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
  const seen = make("img", { src: `data:image/png;base64,${one.png}`, alt: label });
  const error = one.excess === null ? "" : `${number(one.excess)} × ${over}`;
  const told = [make("span", { class: "sample", title: one.sample }, one.sample), `${one.input} ${one.shape}`, error];
  return make("figure", {}, seen, make("figcaption", {}, ...told.flatMap((text) => [text, make("br")])));
}
