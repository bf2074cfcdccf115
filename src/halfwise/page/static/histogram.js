"use strict";

// Magnitudes of a tensor against the range of a format, both as powers of two.

const { draw, make, number } = halfwise;
const WIDTH = 440;
const HEIGHT = 140;
const FOOT = 34;
const TOP = 16;

// Returns a figure. `histogram` has counts of log2 magnitudes from `first` on and the shares of
// what leaves the range; `format` has where that ends, as magnitudes.
halfwise.histogram = (histogram, format, name) => {
  const ends = ["subnormal", "normal", "limit"].map((key) => Math.log2(format[key]));
  const last = histogram.first + histogram.counts.length;
  const low = Math.min(histogram.first, Math.floor(ends[0])) - 1;
  const high = Math.max(last, Math.ceil(ends[2])) + 2;
  const x = (power) => ((power - low) / (high - low)) * WIDTH;
  const most = Math.log10(1 + Math.max(1, ...histogram.counts));
  const floor = HEIGHT - FOOT;
  const y = (count) => floor - (Math.log10(1 + count) / most) * (floor - TOP - 6);
  const told = shares(histogram, format);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Magnitudes of ${name}: ${told}` });
  const zones = [["zero", low, ends[0]], ["subnormal", ends[0], ends[1]], ["range", ends[1], ends[2]], ["beyond", ends[2], high]];
  for (const [kind, from, to] of zones) {
    svg.append(draw("rect", { class: `zone ${kind}`, x: x(from), y: 0, width: x(to) - x(from), height: floor }));
    const shown = kind === "range" ? format.name : { zero: "zero", subnormal: "subnormal", beyond: "inf" }[kind];
    if (x(to) - x(from) > shown.length * 7) {
      svg.append(draw("text", { class: "zone", x: (x(from) + x(to)) / 2, y: 12 }, shown));
    }
  }
  histogram.counts.forEach((count, i) => {
    if (count > 0) {
      const power = histogram.first + i;
      const kind = power + 1 <= ends[0] ? "zero" : power < ends[1] ? "subnormal" : power + 1 > ends[2] ? "beyond" : "range";
      const bar = { class: `bar ${kind}`, x: x(power) + 0.5, y: y(count), width: Math.max(x(power + 1) - x(power) - 1, 1), height: floor - y(count) };
      svg.append(draw("rect", bar, draw("title", {}, `${number(2 ** power)} to ${number(2 ** (power + 1))}: ${count}`)));
    }
  });
  for (const ten of ticks(low + 2, high - 2)) {
    const power = ten / Math.log10(2);
    svg.append(
      draw("line", { class: "tick", x1: x(power), x2: x(power), y1: floor, y2: floor + 4 }),
      draw("text", { class: "tick", x: Math.min(x(power), WIDTH - 16), y: floor + 16 }, number(10 ** ten, 2)),
    );
  }
  svg.append(draw("text", { class: "tick", x: WIDTH / 2, y: HEIGHT - 4 }, "magnitude; heights are logarithms of counts"));
  return make("figure", { class: "histogram" }, svg, make("figcaption", {}, make("code", {}, name), ` ${told}`));
};

function shares({ overflow, flush, subnormal, zeros, samples }, format) {
  const told = [
    [overflow, `beyond ${number(format.limit)}`], [flush, "become zero"], [subnormal, "become subnormal"],
  ].filter(([share]) => share > 0).map(([share, words]) => `${number(100 * share)} % ${words}`);
  const all = told.length ? told.join(", ") : "all within the range";
  return `${all}; ${zeros > 0 ? `${zeros} zeros, ` : ""}${samples} sample${samples === 1 ? "" : "s"}`;
}

// Returns the exponents of powers of ten between powers of two, at most six of them.
function ticks(low, high) {
  const tens = [Math.ceil(low * Math.log10(2)), Math.floor(high * Math.log10(2))];
  const step = Math.max(1, Math.ceil((tens[1] - tens[0]) / 5));
  const found = [];
  for (let ten = Math.ceil(tens[0] / step) * step; ten <= tens[1]; ten += step) {
    found.push(ten);
  }
  return found;
}
