"use strict";

// The error after each node, along the graph.

const { make, section, number, table, scatter, link, columns } = halfwise;
const BORN = 0.2;  // As `fixing/propagation.py` has it: what is read has less than this part.

section("depth", (root, data) => {
  const nodes = columns.names(data.names).map((name, i) => ({
    name, place: i + 1, depth: data.depth[i], error: Number(data.error[i]), inherited: Number(data.inherited[i]),
  }));
  const points = nodes.map((node) => ({
    x: node.place, y: node.error, of: node, hollow: !isBorn(node), large: node.name === data.origin,
    label: node.name === data.origin ? data.label : null,
  }));
  const told = make("div", { class: "told", "aria-live": "polite" });
  root.append(make("p", { class: "note" }, `Relative RMS error after compute nodes on one sample, with ${data.grown}. `
    + "Filled: the inputs have less than a fifth of that error, so it may start there."));
  scatter(root, () => ({
    label: `Relative error along ${nodes.length} nodes`, height: 300, small: points.length > 300,
    x: { title: "place in the graph", integer: true }, y: { title: "relative RMS error", log: true },
    groups: [{ shape: "circle", colour: 0, points }],
  }), (point) => tell(told, point?.of ?? null));
  root.append(told);
  tell(told, null);
  list(root, nodes);
});

function isBorn({ error, inherited }) {
  return error > 0 && inherited <= error * BORN && Number.isFinite(inherited);
}

function tell(told, node) {
  told.replaceChildren(...(node === null ? ["Point at a node, or use the arrow keys."] : [
    link("graph", node.name),
    `: error ${number(node.error)}, ${number(node.inherited)} in its inputs; depth ${node.depth}`,
  ]));
}

function list(root, nodes) {
  const order = [...nodes].sort((a, b) => gain(b) - gain(a));
  const rows = order.map((node) => [
    { text: node.name, node: () => link("graph", node.name) }, node.place, node.depth, node.error, node.inherited,
    node.inherited > 0 && Number.isFinite(node.error) ? node.error / node.inherited : null,
  ]);
  const details = make("details", { class: "tall" }, make("summary", {}, "Nodes by how much they add"));
  root.append(details);
  table(details, {
    name: "Error along the graph", rows,
    columns: [{ title: "node", align: "left" }, { title: "place", minor: true }, "depth", "error", "of its inputs", "times"],
  });
}

function gain({ error, inherited }) {
  return error === inherited ? 0 : error - inherited;
}
