"use strict";

// From what is open or near to what is drawn: items with their words, boxes around them, edges.

const { folded, among, neighbourhood, short, tensorWords, tally } = halfwise.graph;
const MARKS = [["kept", "◆"], ["repaired", "✚"], ["suspected", "!"]];

// Returns the whole graph with `state.open` boxes open.
function wholeScene(graph, state) {
  const { items, edges } = folded(graph, state.open);
  const around = (box) => (box >= 0 ? `c${box}` : null);
  return {
    items: items.map((key) => {
      const place = Number(key.slice(1));
      const item = itemOf(graph, state, key);
      const inside = { n: () => graph.place[place], b: () => graph.boxes.parents[place] }[key[0]];
      return { ...item, cluster: inside ? around(inside()) : null };
    }),
    clusters: [...state.open].filter((box) => isSeen(graph, state.open, box)).sort((a, b) => a - b).map((box) => ({
      key: `c${box}`, box, label: boxLabel(graph, box), cluster: around(graph.boxes.parents[box]),
    })),
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

// Returns what lies around `state.centre`; layers of the engine are boxes around their nodes.
function nearScene(graph, state, most) {
  const nodes = neighbourhood(graph, state.centre, state.steps, state.grown, most);
  const { items, edges } = among(graph, nodes);
  const counts = tally([...nodes].map((node) => layerKey(graph, node)));
  const fused = new Set(counts.filter(([, count]) => count > 1).map(([key]) => key));
  return {
    items: items.map((key) => {
      const node = Number(key.slice(1));
      const layer = key[0] === "n" ? layerKey(graph, node) : "";
      const more = key[0] === "n" ? graph.around[node].filter((next) => !nodes.has(next)).length : 0;
      return { ...itemOf(graph, state, key), more, cluster: fused.has(layer) ? layer : null };
    }),
    clusters: [...fused].map((key) => ({
      key, box: null, label: `layer ${graph.layers[Number(key.slice(1))].name}`, cluster: null,
    })),
    edges: edges.map((edge) => edgeOf(graph, edge, true)),
  };
}

// A node that several layers compute is drawn in the first.
function layerKey(graph, node) {
  return graph.layersOf[node].length > 0 ? `l${graph.layersOf[node][0]}` : "";
}

function itemOf(graph, state, key) {
  const place = Number(key.slice(1));
  if (key[0] === "t" || key[0] === "o") {
    const kind = key[0] === "t" ? "input" : "output";
    const lines = [graph.tensorNames[place], tensorWords(graph, place)];
    return { key, kind, lines, shares: [], marks: [], title: graph.tensorNames[place] };
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
  const op = graph.ops[graph.op[node]];
  const added = graph.marks.added.has(node);
  return {
    kind: added && op === "Cast" ? "cast" : "node",
    lines: [op, short(graph.names[node], op)],
    title: graph.names[node],
  };
}

function boxWords(graph, box) {
  const times = graph.boxes.times[box];
  const nodes = `${graph.members[box].length} nodes`;
  return {
    kind: "box",
    lines: [graph.boxes.labels[box], times > 1 ? `× ${times}, ${nodes}` : nodes],
    title: boxLabel(graph, box),
  };
}

function boxLabel(graph, box) {
  const times = graph.boxes.times[box];
  return times > 1 ? `${graph.boxes.labels[box]} × ${times}` : graph.boxes.labels[box];
}

function edgeOf(graph, { from, to, tensors }, isLabelled) {
  const known = [...tensors].filter((tensor) => tensor >= 0);
  const names = known.slice(0, 5).map((t) => `${graph.tensorNames[t]} ${tensorWords(graph, t)}`);
  const more = known.length > 5 ? [`and ${known.length - 5} more tensors`] : [];
  const label = !isLabelled ? "" : known.length === 1 ? tensorWords(graph, known[0]) : `${known.length} tensors`;
  return { from, to, label, title: [...names, ...more].join("\n") || "in its body" };
}

Object.assign(halfwise.graph, { wholeScene, nearScene, boxLabel, MARKS });
