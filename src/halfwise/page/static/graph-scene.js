"use strict";

// Turns what is open or near into what is drawn: items with their words, boxes around them, edges.

const { folded, among, neighbourhood, short, tensorWords } = halfwise.graph;
const MARKS = [["kept", "◆"], ["repaired", "✚"], ["suspected", "!"]];

// Returns the whole graph with `state.open` boxes open.
function wholeScene(graph, state) {
  const { items, edges } = folded(graph, state.open);
  const around = (box) => (box >= 0 ? `c${box}` : null);
  const placed = items.map((key) => {
    const place = Number(key.slice(1));
    const item = itemOf(graph, state, key);
    const inside = { n: () => graph.place[place], b: () => graph.boxes.parents[place] }[key[0]];
    return { ...item, cluster: inside ? around(inside()) : null };
  });
  const boxes = [...state.open].filter((box) => isSeen(graph, state.open, box)).sort((a, b) => a - b).map((box) => ({
    key: `c${box}`, box, label: graph.boxes.labels[box], cluster: around(graph.boxes.parents[box]),
  }));
  const fused = layered(graph, placed);
  return {
    items: fused.items, clusters: [...boxes, ...fused.clusters],
    edges: edges.map((edge) => edgeOf(graph, edge, false)),
  };
}

function isSeen(graph, open, box) {
  for (let b = graph.boxes.parents[box]; b >= 0; b = graph.boxes.parents[b]) {
    if (!open.has(b)) {
      return false;
    }
  }
  return true;
}

// Returns what lies around `state.centre`.
function nearScene(graph, state, most) {
  const nodes = neighbourhood(graph, state.centre, state.steps, state.grown, most);
  const { items, edges } = among(graph, nodes);
  const near = items.map((key) => {
    const node = Number(key.slice(1));
    const more = key[0] === "n" ? graph.around[node].filter((next) => !nodes.has(next)).length : 0;
    return { ...itemOf(graph, state, key), more, cluster: null };
  });
  return { ...layered(graph, near), edges: edges.map((edge) => edgeOf(graph, edge, true)) };
}

// Puts boxes of the engine's layers around their nodes, inside the box that these are in, if any.
// A layer with nodes elsewhere too has a box at each place, which says how many it holds.
function layered(graph, items) {
  const groups = new Map();
  for (const item of items) {
    const layer = item.key[0] === "n" ? layerOf(graph, Number(item.key.slice(1))) : undefined;
    if (layer !== undefined) {
      const key = `l${layer} ${item.cluster ?? ""}`;
      groups.set(key, [...(groups.get(key) ?? []), item]);
    }
  }
  const fused = [...groups].filter(([, found]) => found.length > 1);
  const around = new Map(fused.flatMap(([key, found]) => found.map((item) => [item.key, key])));
  return {
    items: items.map((item) => ({ ...item, cluster: around.get(item.key) ?? item.cluster })),
    clusters: fused.map(([key, found]) => {
      const { name, nodes } = graph.layers[layerOf(graph, Number(found[0].key.slice(1)))];
      const part = found.length < nodes.length ? ` (${found.length} of ${nodes.length} nodes)` : "";
      return { key, box: null, label: `layer${part} ${name}`, cluster: found[0].cluster };
    }),
  };
}

// Returns the layer that a node is drawn in: the first, where several compute it.
function layerOf(graph, node) {
  return graph.layersOf[node][0];
}

function itemOf(graph, state, key) {
  const place = Number(key.slice(1));
  if (key[0] === "t" || key[0] === "o") {
    const kind = key[0] === "t" ? "input" : "output";
    const lines = [graph.tensors[place], tensorWords(graph, place)];
    return { key, kind, lines, shares: [], marks: [], title: graph.tensors[place] };
  }
  const nodes = key[0] === "b" ? graph.members[place] : [place];
  const measured = state.measure.of(nodes);
  const marks = MARKS.map(([name, sign]) => ({
    name, sign, count: nodes.filter((node) => graph.marks[name].has(node)).length,
  })).filter(({ count }) => count > 0);
  const words = key[0] === "b" ? boxWords(graph, place) : nodeWords(graph, place);
  return { key, ...words, shares: measured.shares, marks, lines: [...words.lines, measured.text] };
}

function nodeWords(graph, node) {
  const op = graph.ops[node];
  const added = graph.marks.added.has(node);
  return {
    kind: added && op === "Cast" ? "cast" : "node",
    lines: [op, short(graph.names[node], op)],
    title: graph.names[node],
  };
}

function boxWords(graph, box) {
  const label = graph.boxes.labels[box];
  return { kind: "box", lines: [label, `${graph.members[box].length} nodes`], title: label };
}

function edgeOf(graph, { from, to, tensors }, isLabelled) {
  const known = [...tensors].filter((tensor) => tensor >= 0);
  const names = known.slice(0, 5).map((t) => `${graph.tensors[t]} ${tensorWords(graph, t)}`);
  const more = known.length > 5 ? [`and ${known.length - 5} more tensors`] : [];
  const label = !isLabelled ? "" : known.length === 1 ? tensorWords(graph, known[0]) : `${known.length} tensors`;
  return { from, to, label, title: [...names, ...more].join("\n") || "in its body" };
}

Object.assign(halfwise.graph, { wholeScene, nearScene, MARKS });
