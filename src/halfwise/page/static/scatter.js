"use strict";

// A chart of points to select with the pointer or the keyboard. Groups differ in shape and filling
// too, never in colour alone.

const { make, draw, plain, number, chart } = halfwise;
const NEAR = 22;
const SIZE = 5;
// Corners of each shape, in units of its size.
const SHAPES = {
  square: [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
  diamond: [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]],
  triangle: [[0, -1.15], [1.1, 0.9], [-1.1, 0.9]],
  wedge: [[0, 1.15], [1.1, -0.9], [-1.1, -0.9]],
  post: [[-0.45, -1.3], [0.45, -1.3], [0.45, 1.3], [-0.45, 1.3]],
  hexagon: [[-1.1, 0], [-0.55, -1], [0.55, -1], [1.1, 0], [0.55, 1], [-0.55, 1]],
  bar: [[-1.3, -0.45], [1.3, -0.45], [1.3, 0.45], [-1.3, 0.45]],
};

// Returns the outline of a shape around the origin.
function outline(shape, size) {
  const path = new Path2D();
  const corners = SHAPES[shape];
  if (corners === undefined) {
    path.arc(0, 0, size * 0.95, 0, 2 * Math.PI);
  } else {
    corners.forEach(([x, y], i) => (i ? path.lineTo(x * size, y * size) : path.moveTo(x * size, y * size)));
    path.closePath();
  }
  return path;
}

// Returns the same as a picture for legends; `colour` is the name of one.
function glyph(shape, colour) {
  const look = { stroke: `var(--${colour})`, fill: `var(--${colour})`, "stroke-width": 1.5 };
  const corners = SHAPES[shape];
  const inside = corners === undefined
    ? draw("circle", { r: SIZE, ...look })
    : draw("polygon", { points: corners.map(([x, y]) => `${x * SIZE},${y * SIZE}`).join(" "), ...look });
  return draw("svg", { viewBox: "-8 -8 16 16", width: 16, height: 16, "aria-hidden": "true" }, inside);
}

// Returns the ends of an axis for values; on a logarithmic one whole decades, with one more for
// zeros and one for infinite values.
function span(values, log) {
  const finite = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  const low = finite.length ? Math.min(...finite) : 1;
  const high = finite.length ? Math.max(...finite) : 1;
  const infinite = values.includes(Infinity);
  if (!log) {
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return { low: low - room, high: high + room * (infinite ? 3 : 1), zero: false, infinite };
  }
  const zero = values.includes(0);
  let [first, last] = [Math.floor(Math.log10(low) + 1e-9), Math.ceil(Math.log10(high) - 1e-9)];
  last = Math.max(last, first + 1);
  first -= zero ? 1 : 0;
  last += infinite ? 1 : 0;
  // Marks at the ends are not clipped.
  return { low: 10 ** (first - 0.1), high: 10 ** (last + 0.1), first, last, zero, infinite, log };
}

// Returns where a value stands on an axis: zeros and infinite values at its ends.
function placed(value, { high, first, last, log }) {
  if (value === Infinity) {
    return log ? 10 ** last : high;
  }
  return log && value <= 0 ? 10 ** first : value;
}

function decades({ first, last }, most = 8) {
  const step = Math.max(1, Math.ceil((last - first) / most));
  const found = [];
  for (let i = first; i < last; i += step) {
    found.push(10 ** i);
  }
  return [...found.filter((v) => v < 10 ** last / 10 ** (step / 2)), 10 ** last];
}

function axis({ title, log, integer }, ends, dimension) {
  const own = { label: title, labelSize: 20, labelGap: 2, ...dimension };
  if (!log) {
    const named = (v) => (integer && !Number.isInteger(v) ? "" : number(v, 4));
    return { ...own, values: (_, splits) => splits.map(named) };
  }
  const named = (v) => (v === 10 ** ends.first && ends.zero ? "0" : v === 10 ** ends.last && ends.infinite ? "inf" : number(v));
  return {
    ...own, splits: () => decades(ends), filter: (_, splits) => splits,
    values: (_, splits) => splits.map(named),
  };
}

// Draws all of a view on the canvas of a plot, and returns where its points are, in CSS pixels.
function paint(plot, view, ends, colours, marked) {
  const { ctx } = plot;
  const ratio = plot.pxRatio ?? devicePixelRatio;
  const colour = (name) => (typeof name === "number" ? colours.series[name] : colours[name]);
  const at = (point) => [plot.valToPos(placed(point.x, ends.x), "x", true), plot.valToPos(placed(point.y, ends.y), "y", true)];
  ctx.save();
  ctx.font = `${12 * ratio}px system-ui`;
  ctx.textBaseline = "alphabetic";
  if (view.limit !== undefined && view.limit.value > 0) {
    const y = plot.valToPos(view.limit.value, "y", true);
    stroke(ctx, [[plot.bbox.left, y], [plot.bbox.left + plot.bbox.width, y]], colours.bad, 1.5 * ratio, [6 * ratio, 4 * ratio]);
  }
  for (const { points, colour: name, width, faint } of view.lines ?? []) {
    ctx.globalAlpha = faint ? 0.3 : 1;
    stroke(ctx, points.map(at), colour(name), (width ?? 1.5) * ratio);
  }
  ctx.globalAlpha = 1;
  const shown = [];
  const texts = [];
  for (const group of view.groups) {
    for (const point of group.points) {
      const [x, y] = at(point);
      shape(ctx, x, y, { ...group, ...point, colour: colour(group.colour) }, colours, view.small ? ratio * 0.6 : ratio);
      shown.push({ point, x: x / ratio - plot.bbox.left / ratio, y: y / ratio - plot.bbox.top / ratio });
      if (point.label) {
        texts.push([point.label, x, y]);
      }
    }
  }
  write(ctx, texts, shown, plot.bbox, colours, ratio, named(ctx, view.limit, shown, plot, colours.bad, ratio));
  const own = shown.find(({ point }) => point === marked);
  if (own) {
    ctx.strokeStyle = colours.ink;
    ctx.lineWidth = 2 * ratio;
    ctx.beginPath();
    ctx.arc(own.x * ratio + plot.bbox.left, own.y * ratio + plot.bbox.top, 11 * ratio, 0, 2 * Math.PI);
    ctx.stroke();
  }
  ctx.restore();
  return shown;
}

function stroke(ctx, points, colour, width, dash = []) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.beginPath();
  points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.stroke();
  ctx.setLineDash([]);
}

function shape(ctx, x, y, { shape: name, colour, hollow, large, tick }, colours, ratio) {
  const size = (large ? 1.5 : 1) * SIZE * ratio;
  const path = outline(name, size);
  ctx.save();
  ctx.translate(x, y);
  ctx.strokeStyle = colour;
  ctx.lineWidth = (large ? 2.5 : 1.5) * ratio;
  ctx.fillStyle = hollow ? colours.panel : colour;
  if (tick) {  // The value is a lower bound.
    stroke(ctx, [[0, 0], [0, -2.4 * size]], colour, 1.2 * ratio);
  }
  ctx.fill(path);
  ctx.stroke(path);
  ctx.restore();
}

// Labels the limit at the end of its line that is free of marks; returns the places it takes.
function named(ctx, limit, shown, plot, colour, ratio) {
  if (limit === undefined || limit.value <= 0) {
    return [];
  }
  const { left, top, width, height } = plot.bbox;
  const line = plot.valToPos(limit.value, "y", true);
  const wide = ctx.measureText(limit.text).width;
  const ends = [left + width - wide - 4 * ratio, left + 4 * ratio];
  const open = [-5, 15].flatMap((down) => ends.map((x) => [x, line + down * ratio]))
    .filter(([, base]) => base - 12 * ratio > top && base < top + height);
  const room = 8 * ratio;
  const free = open.find(([x, base]) => shown.every((one) => {
    const [a, b] = [one.x * ratio + left, one.y * ratio + top];
    return a + room < x || x + wide < a - room || b + room < base - 10 * ratio || base + 2 * ratio < b - room;
  }));
  const [x, base] = free ?? open[0] ?? [];
  if (base === undefined) {
    return [];
  }
  ctx.textAlign = "left";
  ctx.fillStyle = colour;
  ctx.fillText(limit.text, x, base);
  return [[x, base, wide]];
}

// Writes text on a background, so lines do not strike it through.
function clear(ctx, text, x, y, colours, ratio) {
  [ctx.strokeStyle, ctx.lineWidth, ctx.lineJoin] = [colours.panel, 3 * ratio, "round"];
  ctx.strokeText(text, x, y);
  ctx.fillText(text, x, y);
}

// Largest number of characters in a label; the panel has all of it.
const LONGEST = 34;

// Writes labels next to their points, and leaves out those that would cover others. A label covers
// a mark only if no other place is free; a stroke connects a distant label to its point.
function write(ctx, texts, shown, box, colours, ratio, taken) {
  const marks = shown.map((one) => [one.x * ratio + box.left, one.y * ratio + box.top]);
  const room = 7 * ratio;
  const places = [-6, 12, -20, 26, -40, 46, -60, 66, -80, 86].flatMap((down) => [[1, down], [-1, down]]);
  ctx.textAlign = "left";
  for (const [whole, x, y] of texts) {
    const letters = [...plain(whole)];
    const text = letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : letters.join("");
    const width = ctx.measureText(text).width;
    const open = places.map(([side, down]) => [x + side * 10 * ratio - (side < 0 ? width : 0), y + down * ratio])
      .filter(([left]) => left >= box.left && left + width <= box.left + box.width)
      .filter(([, base]) => base - 12 * ratio > box.top && base < box.top + box.height)
      .filter(([left, base]) => taken.every(([l, b, w]) => l + w < left || left + width < l || Math.abs(b - base) > 13 * ratio));
    const free = open.find(([left, base]) => marks.every(([a, b]) =>
      a + room < left || left + width < a - room || b + room < base - 10 * ratio || base + 2 * ratio < b - room));
    const [left, base] = free ?? open[0] ?? [];
    if (base !== undefined) {
      taken.push([left, base, width]);
      if (Math.abs(base - y) > 30 * ratio) {
        stroke(ctx, [[x, y], [left > x ? left : left + width, base + (base < y ? 3 : -11) * ratio]], colours.muted, ratio);
      }
      ctx.fillStyle = colours.ink;
      clear(ctx, text, left, base, colours, ratio);
    }
  }
}

// Appends a chart of points to root. `view()` returns what is shown now: {label, height, x, y,
// small, limit: {value, text}, lines: [{points, colour, width, faint}], groups: [{shape, colour,
// points}]}; axes are {title, log, integer, span: values that they hold too}; a point is {x, y,
// hollow, tick, large, label}.
// `pick(point, fixed)` is told which is pointed at, `fixed` where by a click or key; null for none.
function scatter(root, view, pick) {
  let [shown, fixed, marked, now] = [[], null, null, null];
  const holder = make("div", { class: "scatter", tabindex: 0, role: "group", onkeydown: key });
  root.append(holder);
  const drawn = chart(holder, (colours) => {
    now = view();
    holder.setAttribute("aria-label", `${now.label}. Arrow keys go from point to point.`);
    const all = now.groups.flatMap((group) => group.points);
    const limit = now.limit === undefined ? [] : [now.limit.value];
    const ends = {
      x: span([...all.map((p) => p.x), ...(now.x.span ?? [])], now.x.log),
      y: span([...all.map((p) => p.y), ...(now.y.span ?? []), ...limit], now.y.log),
    };
    const scale = (log, { low, high }) => ({ time: false, distr: log ? 3 : 1, range: () => [low, high] });
    return {
      label: now.label,
      height: now.height ?? 340,
      legend: { show: false },
      cursor: { show: false },
      padding: [12, 12, 0, 0],
      scales: { x: scale(now.x.log, ends.x), y: scale(now.y.log, ends.y) },
      axes: [axis(now.x, ends.x, { size: 32 }), axis(now.y, ends.y, { size: 62 })].map((one) => ({
        stroke: colours.muted, font: "12px system-ui", labelFont: "12px system-ui",
        grid: { stroke: colours.line, width: 1 }, ticks: { stroke: colours.line, width: 1 }, ...one,
      })),
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(plot) => { shown = paint(plot, now, ends, colours, marked); }],
        ready: [listen],
      },
    };
  }, [[1, 2], [1, 2]]);

  function listen(plot) {
    const nearest = ({ offsetX, offsetY }) => {
      const far = (one) => Math.hypot(one.x - offsetX, one.y - offsetY);
      const best = shown.reduce((a, b) => (a === null || far(b) < far(a) ? b : a), null);
      return best !== null && far(best) <= NEAR ? best.point : null;
    };
    plot.over.addEventListener("mousemove", (event) => mark(nearest(event) ?? fixed, false));
    plot.over.addEventListener("mouseleave", () => mark(fixed, false));
    plot.over.addEventListener("click", (event) => fix(nearest(event)));
  }

  function mark(point, sure) {
    if (point === marked && !sure) {
      return;
    }
    marked = point;
    drawn.plot.redraw(false);
    pick(point, point !== null && point === fixed);
  }

  function fix(point) {
    fixed = point;
    mark(point, true);
  }

  function key(event) {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === "Escape") {
      fix(null);
    } else if (step && shown.length) {
      event.preventDefault();
      const order = [...shown].sort((a, b) => a.x - b.x || b.y - a.y).map(({ point }) => point);
      const place = order.indexOf(marked);
      fix(order[place < 0 ? (step > 0 ? 0 : order.length - 1) : (place + step + order.length) % order.length]);
    }
  }

  return {
    fix,
    redraw() {
      [fixed, marked] = [null, null];
      drawn.redraw();
      pick(null, false);
    },
  };
}

Object.assign(halfwise, { scatter, glyph });
