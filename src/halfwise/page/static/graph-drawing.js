"use strict";

// Lays a scene out with dagre, and draws it as SVG.

const { draw } = halfwise;
const LINE = 15;
const PADDING = 8;
const STRIPE = 7;
const HEADING = 14;
const WIDEST = 220;
const NARROWEST = 96;
const FONTS = { plain: "11px system-ui, sans-serif", bold: "600 12px system-ui, sans-serif" };
const pen = document.createElement("canvas").getContext("2d");

function widthOf(text, font) {
  pen.font = FONTS[font];
  return pen.measureText(text).width;
}

// Returns text that fits into `width` pixels, cut in the middle.
function cut(text, width, font) {
  const line = text.replace(/\s+/g, " ").slice(0, 400);
  if (widthOf(line, font) <= width) {
    return line;
  }
  const letters = [...line];
  let least = 0;
  let most = letters.length;
  const shown = (kept) => {
    const head = Math.floor(kept / 2);
    return `${letters.slice(0, head).join("")}…${letters.slice(letters.length - (kept - head)).join("")}`;
  };
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (widthOf(shown(middle), font) <= width) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return shown(least);
}

function measured(item) {
  const marks = item.marks.map(({ name, sign, count }) => `${sign} ${item.kind === "box" ? count : name}`);
  const lines = [...item.lines.filter(Boolean), ...(marks.length > 0 ? [marks.join("  ")] : [])];
  const font = (i) => (i === 0 || (marks.length > 0 && i === lines.length - 1) ? "bold" : "plain");
  const told = lines.map((line, i) => cut(line, WIDEST, font(i)));
  const widest = Math.max(...told.map((line, i) => widthOf(line, font(i))));
  return {
    ...item,
    told,
    marked: marks.length > 0,
    width: Math.max(NARROWEST, Math.ceil(widest) + 2 * PADDING + STRIPE),
    height: told.length * LINE + 2 * PADDING - 4,
  };
}

// Places the items, clusters and edges of a scene: x and y of their centres, points of edges.
function laidOut(scene) {
  const layout = new dagre.graphlib.Graph({ compound: true, multigraph: false });
  layout.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 38, edgesep: 10, marginx: 12, marginy: 12 + HEADING,
    ranker: scene.items.length > 150 ? "tight-tree" : "network-simplex" });
  layout.setDefaultEdgeLabel(() => ({}));
  const items = scene.items.map(measured);
  items.forEach(({ key, width, height }) => layout.setNode(key, { width, height }));
  scene.clusters.forEach(({ key }) => layout.setNode(key, {}));
  [...items, ...scene.clusters].filter(({ cluster }) => cluster !== null)
    .forEach(({ key, cluster }) => layout.setParent(key, cluster));
  scene.edges.forEach(({ from, to, label }) => layout.setEdge(from, to,
    label ? { width: widthOf(label, "plain") + 6, height: LINE, labelpos: "c" } : {}));
  dagre.layout(layout);
  return {
    items: items.map((item) => ({ ...item, ...layout.node(item.key) })),
    clusters: scene.clusters.map((cluster) => ({ ...cluster, ...layout.node(cluster.key) })),
    edges: scene.edges.map((edge) => ({ ...edge, ...layout.edge(edge.from, edge.to) })),
    width: layout.graph().width,
    height: layout.graph().height,
  };
}

// Returns the drawing of a scene. `on` has {pick(item), grow(item), fold(cluster)}; `selected` is
// the key of the selected item.
function drawing(scene, { selected, on }) {
  const placed = laidOut(scene);
  const arrow = draw("marker", { id: "graph-arrow", viewBox: "0 0 8 8", refX: 7.5, refY: 4, markerWidth: 8,
    markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, draw("path", { d: "M0 0 8 4 0 8z", class: "tip" }));
  const svg = draw("svg", { viewBox: `0 0 ${placed.width} ${placed.height}`, width: placed.width,
    height: placed.height, role: "group", "aria-label": "Graph" }, draw("defs", {}, arrow));
  svg.append(...placed.clusters.map((cluster) => drawnCluster(cluster, on)));
  svg.append(...placed.edges.map((edge) => drawnEdge(edge, selected)));
  svg.append(...placed.items.map((item) => drawnItem(item, selected, on)));
  return { svg, placed };
}

function drawnCluster(cluster, on) {
  const { x, y, width, label, box } = cluster;
  const left = x - width / 2;
  const top = y - cluster.height / 2 - HEADING;
  const height = cluster.height + HEADING;
  const title = box === null ? label : `⊟ ${label}`;
  const text = draw("text", { x: left + 6, y: top + 13, class: "label" }, cut(title, width - 12, "plain"));
  const isLayer = box === null;
  const act = () => on.fold(cluster);
  return draw("g", { class: isLayer ? "cluster layer" : "cluster", "data-key": cluster.key,
    ...(isLayer ? {} : { role: "button", tabindex: 0, "aria-label": `Fold ${label}`, onclick: act,
      onkeydown: (event) => pressed(event, act) }) },
  draw("title", {}, isLayer ? label : `Fold ${label}`),
  draw("rect", { x: left, y: top, width, height, rx: 5 }), text);
}

function pressed(event, act) {
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    event.stopPropagation();
    act();
  }
}

function drawnEdge({ from, to, points, label, title, x, y }, selected) {
  const near = selected === from || selected === to;
  const path = draw("path", { d: smooth(points), "marker-end": "url(#graph-arrow)", class: near ? "edge near" : "edge" },
    draw("title", {}, title));
  if (!label) {
    return path;
  }
  return draw("g", {}, path, draw("text", { x, y: y + 4, class: "shape" }, label));
}

// Returns a path through the midpoints of a line's pieces, curved at its bends.
function smooth(points) {
  const at = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const bends = points.slice(1, -1);
  const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  const curves = bends.map((bend, i) => {
    const isLast = i === bends.length - 1;
    return `Q${at(bend)} ${at(isLast ? points[points.length - 1] : middle(bend, bends[i + 1]))}`;
  });
  return `M${at(points[0])}${curves.join("")}${bends.length === 0 ? `L${at(points[points.length - 1])}` : ""}`;
}

function drawnItem(item, selected, on) {
  const { key, kind, x, y, width, height, told, shares, marks, more, title } = item;
  const isSelected = key === selected;
  const state = marks.map(({ name }) => name).join(" ");
  const group = draw("g", { class: `item ${kind} ${state}${isSelected ? " selected" : ""}`, "data-key": key,
    transform: `translate(${(x - width / 2).toFixed(1)} ${(y - height / 2).toFixed(1)})`, tabindex: -1,
    role: "button", "aria-label": [title, ...told.slice(0)].join(", "), "aria-pressed": String(isSelected),
    onclick: () => on.pick(item) });
  const main = shares.length > 0 ? shares.reduce((a, b) => (b.count > a.count ? b : a)).cls : "none";
  group.append(draw("title", {}, title));
  if (kind === "box") {
    group.append(draw("rect", { class: "behind", x: 4, y: -4, width, height, rx: 4 }));
  }
  group.append(draw("rect", { class: "back", width, height, rx: radius(kind, height) }));
  group.append(draw("rect", { class: `tint ${main}`, width, height, rx: radius(kind, height) }));
  group.append(...stripe(shares, height));
  told.forEach((line, i) => {
    const isMarks = item.marked && i === told.length - 1;
    const cls = i === 0 ? "op" : isMarks ? "marks" : "fact";
    group.append(draw("text", { class: cls, x: PADDING + STRIPE, y: PADDING + LINE * i + 9 }, line));
  });
  if (more > 0) {
    group.append(badge(item, on));
  }
  return group;
}

function radius(kind, height) {
  return { node: 3, box: 4, cast: 10 }[kind] ?? height / 2;
}

function stripe(shares, height) {
  const total = shares.reduce((sum, { count }) => sum + count, 0);
  let top = 0;
  return shares.map(({ cls, count }) => {
    const part = (height * count) / total;
    const bar = draw("rect", { class: `stripe ${cls}`, x: 0, y: top, width: STRIPE, height: part });
    top += part;
    return bar;
  });
}

// The button that shows neighbours not yet drawn.
function badge(item, on) {
  const { width, height, more, title } = item;
  const label = `+${more}`;
  const wide = widthOf(label, "plain") + 10;
  const act = (event) => {
    event.stopPropagation();
    on.grow(item);
  };
  return draw("g", { class: "more", role: "button", tabindex: -1, "aria-label": `Show ${more} more next to ${title}`,
    transform: `translate(${width - wide / 2 - 4} ${height - 7})`, onclick: act },
  draw("title", {}, `Show ${more} more next to it`),
  draw("rect", { width: wide, height: 16, rx: 8 }), draw("text", { x: wide / 2, y: 12 }, label));
}

Object.assign(halfwise.graph, { drawing });
