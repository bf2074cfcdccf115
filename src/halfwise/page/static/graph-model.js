"use strict";

// The graph as data: nodes, tensors, boxes, and the facts about them. Nothing is drawn here.

// Returns the graph of a section's data, with what the data implies: who makes and who reads each
// tensor, which nodes are next to each other, and what lies in each box.
function graphModel(data) {
  const graph = { ...data };
  const size = graph.names.length;
  const lists = (length) => Array.from({ length }, () => []);
  graph.maker = new Array(graph.tensors.length).fill(-1);
  graph.readers = lists(graph.tensors.length);
  graph.gives.forEach((tensors, node) => tensors.forEach((t) => { graph.maker[t] = node; }));
  graph.reads.forEach((tensors, node) => new Set(tensors).forEach((t) => graph.readers[t].push(node)));
  graph.isConstant = new Set(graph.constants);
  graph.owner = new Map(graph.bodies);
  const marked = (...kinds) => new Set([...graph.names.keys()].filter((node) =>
    (graph.facts[node]?.told ?? []).some(([kind]) => kinds.includes(kind))));
  graph.marks = { kept: marked("kept"), repaired: marked("repaired"),
    suspected: marked("suspected", "found"), added: new Set(graph.added) };
  graph.edges = edgesOf(graph);
  graph.around = lists(size);
  graph.edges.forEach(({ from, to }) => {
    graph.around[from].push(to);
    graph.around[to].push(from);
  });
  graph.around = graph.around.map((nodes) => [...new Set(nodes)]);
  graph.layersOf = lists(size);
  graph.layers.forEach((layer, i) => layer.nodes.forEach((node) => graph.layersOf[node].push(i)));
  graph.members = lists(graph.boxes.labels.length);
  graph.place.forEach((box, node) => {
    for (let b = box; b >= 0; b = graph.boxes.parents[b]) {
      graph.members[b].push(node);
    }
  });
  return graph;
}

// An edge goes from the node that makes a tensor to each node that reads it. Nodes in a body read
// what the node with the body passes in.
function edgesOf(graph) {
  const edges = [];
  graph.reads.forEach((tensors, to) => {
    const data = [...new Set(tensors)].filter((t) => !graph.isConstant.has(t));
    data.filter((t) => graph.maker[t] >= 0).forEach((tensor) => edges.push({ from: graph.maker[tensor], to, tensor }));
    if (graph.owner.has(to) && data.every((t) => graph.maker[t] < 0)) {
      edges.push({ from: graph.owner.get(to), to, tensor: -1 });
    }
  });
  return edges;
}

// Returns the box, of those around a node, that hides it: the outermost that is not open; -1 where
// all are open.
function hidingBox(graph, open, node) {
  let hides = -1;
  for (let b = graph.place[node]; b >= 0; b = graph.boxes.parents[b]) {
    if (!open.has(b)) {
      hides = b;
    }
  }
  return hides;
}

// Returns what is seen of the whole graph with some boxes open: items, and edges between them. An
// edge between two items carries every tensor that goes from a node of one to a node of the other.
function folded(graph, open) {
  const shown = graph.names.map((_, node) => {
    const box = hidingBox(graph, open, node);
    return box < 0 ? `n${node}` : `b${box}`;
  });
  return { shown, ...joined(graph, shown, shown) };
}

// Returns the items and edges of the nodes that are told; the others are left out.
function among(graph, nodes) {
  const shown = graph.names.map((_, node) => (nodes.has(node) ? `n${node}` : null));
  return { shown, ...joined(graph, shown, shown.filter((key) => key !== null)) };
}

function joined(graph, shown, keys) {
  const edges = new Map();
  const add = (from, to, tensor) => {
    const key = `${from} ${to}`;
    if (!edges.has(key)) {
      edges.set(key, { from, to, tensors: new Set() });
    }
    edges.get(key).tensors.add(tensor);
  };
  for (const { from, to, tensor } of graph.edges) {
    if (shown[from] !== null && shown[to] !== null && shown[from] !== shown[to]) {
      add(shown[from], shown[to], tensor);
    }
  }
  const ends = [];
  for (const tensor of graph.inputs) {
    const readers = new Set(graph.readers[tensor].map((node) => shown[node]).filter((key) => key !== null));
    readers.forEach((key) => add(`t${tensor}`, key, tensor));
    ends.push(...(readers.size > 0 ? [`t${tensor}`] : []));
  }
  for (const tensor of graph.outputs) {
    if (graph.maker[tensor] >= 0 && shown[graph.maker[tensor]] !== null) {
      add(shown[graph.maker[tensor]], `o${tensor}`, tensor);
      ends.push(`o${tensor}`);
    }
  }
  return { items: [...new Set([...keys, ...ends])], edges: [...edges.values()] };
}

// Returns the nodes at most `steps` edges away from `node`, and those next to a node of `grown`, at
// most `most` of them, nearest first.
function neighbourhood(graph, node, steps, grown, most) {
  const found = new Set([node]);
  let rim = [node];
  for (let step = 0; step < steps && rim.length > 0; step += 1) {
    rim = rim.flatMap((near) => graph.around[near]).filter((next) => {
      const isNew = !found.has(next) && found.size < most;
      return isNew && Boolean(found.add(next));
    });
  }
  // In the order of the requests: a node may be present only because of an earlier one.
  for (const near of grown) {
    for (const next of found.has(near) ? graph.around[near] : []) {
      if (found.size < most) {
        found.add(next);
      }
    }
  }
  return found;
}

// Returns what matches words that were typed: nodes by name, then by operator, then by the tensors
// that they make or read. Each is {node, label, what}.
function matches(graph, typed, most) {
  const wanted = typed.trim().toLowerCase();
  if (wanted === "") {
    return [];
  }
  const rank = (text) => {
    const at = text.toLowerCase().indexOf(wanted);
    return at < 0 ? 9 : text.length === wanted.length ? 0 : at === 0 ? 1 : 2;
  };
  const found = [];
  graph.names.forEach((name, node) => {
    const op = graph.ops[node];
    const best = Math.min(rank(name), rank(op) + 3);
    if (best < 9) {
      found.push({ node, label: name, what: op, best });
    }
  });
  graph.tensors.forEach((name, tensor) => {
    const node = graph.maker[tensor] >= 0 ? graph.maker[tensor] : graph.readers[tensor][0];
    const best = rank(name) + 6;
    if (best < 9 && node !== undefined) {
      found.push({ node, label: name, what: "tensor", best });
    }
  });
  return found.sort((a, b) => a.best - b.best || a.node - b.node).slice(0, most);
}

// Returns the last part of a name, and the one before where the last only repeats the operator.
function short(name, op = "") {
  const parts = name.split("/").filter(Boolean);
  return parts.slice(op !== "" && parts.at(-1)?.startsWith(op) ? -2 : -1).join("/") || name;
}

// Returns a tensor's type and shape in words.
function tensorWords(graph, tensor) {
  const type = graph.types[tensor];
  return [graph.shapes[tensor], type].filter(Boolean).join(" ");
}

Object.assign(halfwise, {
  graph: { graphModel, folded, among, neighbourhood, matches, hidingBox, short, tensorWords },
});
