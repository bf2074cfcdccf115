"use strict";

// The theme's colours, and charts that are drawn anew where these or the width change.

const { make } = halfwise;
const COLOURS = ["ink", "muted", "line", "panel", "accent", "good", "bad", "warn"];
const SERIES = 6;
const redrawn = new Set();

// Returns the colours as canvas takes them: those of COLOURS by name, and `series`.
function theme() {
  const probe = make("span", { hidden: true });
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const named = Object.fromEntries(COLOURS.map((name) => [name, colour(name)]));
  const series = Array.from({ length: SERIES }, (_, i) => colour(`series-${i + 1}`));
  probe.remove();
  return { ...named, series };
}

// Appends a chart to root. `options` are uPlot's, or a function that makes them from the theme;
// their `label` is for screen readers. The width and the colours of the axes may be left out.
function chart(root, options, data) {
  const place = make("div", { class: "chart" });
  root.append(place);
  let drawn = null;

  function redraw() {
    const colours = theme();
    const { label, ...own } = typeof options === "function" ? options(colours) : options;
    drawn?.destroy();
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", label ?? own.title ?? "chart");
    drawn = new uPlot({
      height: 280,
      ...own,
      width: Math.max(place.clientWidth, 200),
      axes: (own.axes ?? [{}, {}]).map((axis) => ({ ...axisColours(colours), ...axis })),
    }, data, place);
  }

  redraw();
  redrawn.add(redraw);
  new ResizeObserver(() => {
    if (place.clientWidth > 0 && place.clientWidth !== drawn.width) {
      drawn.setSize({ width: place.clientWidth, height: drawn.height });
    }
  }).observe(place);
  return { redraw, get plot() { return drawn; } };
}

function axisColours(colours) {
  const lines = { stroke: colours.line, width: 1 };
  return { stroke: colours.muted, grid: lines, ticks: lines, font: "12px system-ui", labelFont: "12px system-ui" };
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function choose(name) {
  if (name) {
    document.documentElement.dataset.theme = name;
  } else {
    delete document.documentElement.dataset.theme;
  }
  changed();
}

function changed() {
  button.textContent = isDark() ? "Light" : "Dark";
  redrawn.forEach((redraw) => redraw());
}

const button = document.getElementById("theme");
button.hidden = false;
button.addEventListener("click", () => choose(isDark() ? "light" : "dark"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);

// Paper is white.
let before;
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme;
  choose("light");
});
addEventListener("afterprint", () => choose(before));

// `onTheme(redraw)`: calls `redraw`, which reads `theme()` itself, whenever the colours change.
Object.assign(halfwise, { chart, theme, onTheme: (redraw) => redrawn.add(redraw) });
button.textContent = isDark() ? "Light" : "Dark";
