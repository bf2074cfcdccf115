"use strict";

// What is known of the node or box that is selected, beside the drawing.

const { make, link, number, place } = halfwise;
const { engineWord, measures, tally, tensorWords } = halfwise.graph;
const FEW = 12;

// Returns the panel's content. `act` has {near(node), show(node), turn(box),
// isOpen(box)}.
function panel(graph, key, act) {
  const at = Number((key ?? "").slice(1));
  switch (key?.[0]) {
    case "n": return nodePanel(graph, at, act);
    case "b": return boxPanel(graph, at, act);
    case "t": return tensorPanel(graph, at, act);
    case "o": return tensorPanel(graph, at, act);
    default: return [make("h3", {}, "Whole graph"),
      make("p", { class: "note" }, `${graph.isOriginal ? "This is the original model. " : ""}Select a node to see what is known of it, or a box to unfold it.`),
      ...summary(graph, [...graph.names.keys()], act)];
  }
}

function nodePanel(graph, node, act) {
  const name = graph.names[node];
  const button = (text, onclick) => make("button", { type: "button", onclick }, text);
  return [
    make("h3", {}, graph.ops[node]),
    make("p", { class: "where" }, name),
    make("div", { class: "acts" }, button("Around it", () => act.near(node)),
      button("In the whole graph", () => act.show(node)),
      graph.marks.suspected.has(node) || graph.marks.kept.has(node) ? causeLink(name) : null),
    facts([...figures(graph, node), ...(graph.facts[node]?.told ?? []), ...fused(graph, node)]),
    ...source(graph, node),
    ...tensors(graph, "Reads", graph.reads[node], (tensor) => (graph.maker[tensor] >= 0 ? [graph.maker[tensor]] : []), act),
    ...tensors(graph, "Gives", graph.gives[node], (tensor) => graph.readers[tensor], act),
  ];
}

function causeLink(name) {
  return document.getElementById("causes") === null ? null : link("causes", name, "Its cause");
}

function facts(rows) {
  return make("dl", {}, rows.filter(([, text]) => text !== "" && text !== null)
    .flatMap(([title, text]) => [make("dt", {}, title), make("dd", {}, text)]));
}

function figures(graph, node) {
  const known = graph.facts[node] ?? {};
  const added = graph.marks.added.has(node) ? "not in the original model" : "";
  const body = graph.owner.has(node) ? `in a body of ${graph.names[graph.owner.get(node)]}` : "";
  const largest = number(known.absmax);
  return [
    ["precision", graph.precision[node]],
    ["in the engine", engineWord(graph.engine[node])],
    ["added", added],
    ["body", body],
    ["error", number(known.error) && `${number(known.error)} relative RMS with ${graph.grown}; ${number(known.inherited)} in its inputs`],
    ["largest |x|", largest && `${largest} in FP32${known.sample ? `, ${known.sample}` : ""}`],
    ["not finite", known.nonfinite ? `${known.nonfinite} values in FP32` : ""],
  ];
}

function fused(graph, node) {
  const layers = graph.layersOf[node].map((i) => graph.layers[i]);
  const others = (layer) => (layer.nodes.length > 1 ? `, of ${layer.nodes.length} nodes` : "");
  return layers.slice(0, FEW).map((layer) => ["layer", `${layer.name} (${layer.type}${others(layer)})`]);
}

function source(graph, node) {
  const at = graph.sources[node];
  if (at === null) {
    return [];
  }
  const { module } = graph.origins[at];
  return [make("h4", {}, "Source"), module ? make("p", { class: "where" }, module) : null, place(graph.origins[at])];
}

function tensors(graph, title, places, nodesOf, act) {
  if (places.length === 0) {
    return [];
  }
  const rows = places.slice(0, FEW).map((tensor) => {
    const nodes = nodesOf(tensor);
    const kind = graph.isConstant.has(tensor) ? "constant" : graph.inputs.includes(tensor) ? "input"
      : graph.outputs.includes(tensor) ? "output" : "";
    return make("li", {}, make("div", { class: "tensor" }, graph.tensors[tensor]),
      make("div", { class: "tensor" }, [tensorWords(graph, tensor), kind].filter(Boolean).join(", ")),
      nodes.slice(0, FEW).map((node) => nodeButton(graph, node, act)), rest(nodes.length));
  });
  return [make("h4", {}, title), make("ul", {}, rows, places.length > FEW ? make("li", {}, rest(places.length)) : null)];
}

function rest(count) {
  return count > FEW ? make("span", { class: "note" }, ` and ${count - FEW} more`) : null;
}

function nodeButton(graph, node, act) {
  return make("button", { type: "button", title: graph.ops[node], onclick: () => act.near(node) }, graph.names[node]);
}

function tensorPanel(graph, tensor, act) {
  const isInput = graph.inputs.includes(tensor);
  const nodes = isInput ? graph.readers[tensor] : [graph.maker[tensor]];
  return [
    make("h3", {}, isInput ? "Input" : "Output"),
    make("p", { class: "where" }, graph.tensors[tensor]),
    facts([["tensor", tensorWords(graph, tensor)]]),
    make("h4", {}, isInput ? "Read by" : "Made by"),
    make("ul", {}, nodes.slice(0, FEW).map((node) => make("li", {}, nodeButton(graph, node, act))),
      nodes.length > FEW ? make("li", {}, rest(nodes.length)) : null),
  ];
}

function boxPanel(graph, box, act) {
  return [
    make("h3", {}, graph.boxes.labels[box]),
    make("div", { class: "acts" }, make("button", { type: "button", onclick: () => act.turn(box) }, act.isOpen(box) ? "Fold" : "Unfold")),
    ...summary(graph, graph.members[box], act),
  ];
}

function summary(graph, nodes, act) {
  const ops = tally(nodes.map((node) => graph.ops[node])).map(([op, count]) => `${count} ${op}`);
  const lists = ["kept", "repaired", "suspected"].map((name) => [name, nodes.filter((node) => graph.marks[name].has(node))]);
  return [
    facts([
      ["nodes", String(nodes.length)],
      ["operators", ops.slice(0, FEW).join(", ") + (ops.length > FEW ? " and others" : "")],
      ...measures(graph).map((measure) => [measure.fact ?? measure.title.toLowerCase(),
        [measure.of(nodes).text, measure.note].filter(Boolean).join(" ")]),
    ]),
    ...lists.filter(([, found]) => found.length > 0).flatMap(([name, found]) => [
      make("h4", {}, `${found.length} ${name}`),
      make("ul", { class: "nodes" }, found.slice(0, FEW).map((node) => make("li", {}, nodeButton(graph, node, act))),
        found.length > FEW ? make("li", {}, rest(found.length)) : null),
    ]),
  ];
}

Object.assign(halfwise.graph, { panel });
