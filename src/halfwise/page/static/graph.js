"use strict";

// The section of the graph: controls, drawing, panel, keys.

const { section } = halfwise;
const { drawing, elements, graphModel, hidingBox, matches, measures, nearScene, panel, wholeScene } = halfwise.graph;
const MOST_NEAR = 90;
const MOST_WHOLE = 160;
const MOST_FOUND = 60;
const LEAST_SCALE = 0.75;

section("graph", (root, data) => {
  const graph = graphModel(data);
  const kinds = measures(graph);
  const state = { view: "whole", open: openedFirst(graph), centre: 0, steps: 2, grown: new Set(), selected: null,
    measure: kinds[0], scale: null };
  const parts = elements(graph, kinds, state, { find, redraw, fit, setView, setSteps });
  root.append(...parts.all);

  function redraw({ focus = false, into = state.selected } = {}) {
    const scene = state.view === "whole" ? wholeScene(graph, state) : nearScene(graph, state, MOST_NEAR);
    const drawn = drawing(scene, { selected: state.selected, on: { pick, grow, fold } });
    parts.canvas.replaceChildren(drawn.svg);
    parts.drawn = drawn;
    fit(state.scale);
    parts.update(scene);
    parts.panel.replaceChildren(...panel(graph, state.selected, act).filter(Boolean));
    showItem(parts, into, focus);
  }

  // Draws at a scale; null: so that the width fits, if that is still legible.
  function fit(scale) {
    const { width, height } = parts.drawn.placed;
    const room = parts.canvas.clientWidth - 4;
    const used = scale ?? Math.min(1, Math.max(LEAST_SCALE, room / width));
    state.scale = scale;
    state.used = used;
    parts.drawn.svg.setAttribute("width", width * used);
    parts.drawn.svg.setAttribute("height", height * used);
  }

  function pick(item) {
    state.selected = item.key;
    if (item.kind === "box") {
      turn(Number(item.key.slice(1)));
      return;
    }
    redraw({ focus: true });
  }

  function turn(box) {
    const open = new Set(state.open);
    if (!open.delete(box)) {
      open.add(box);
    }
    const count = wholeScene(graph, { ...state, open }).items.length;
    parts.say(count > MOST_WHOLE ? `${graph.boxes.labels[box]} stays folded: ${count} boxes and nodes are too many to draw. Fold another.` : "");
    state.open = count > MOST_WHOLE ? state.open : open;
    redraw({ focus: true });
  }

  function fold(cluster) {
    state.selected = `b${cluster.box}`;
    turn(cluster.box);
  }

  function grow(item) {
    state.grown.add(Number(item.key.slice(1)));
    state.selected = item.key;
    redraw({ focus: true });
  }

  function near(node) {
    Object.assign(state, { view: "near", centre: node, grown: new Set(), selected: `n${node}`, scale: null });
    redraw();
  }

  function show(node) {
    for (let box = hidingBox(graph, state.open, node); box >= 0; box = hidingBox(graph, state.open, node)) {
      state.open.add(box);
    }
    if (wholeScene(graph, state).items.length > MOST_WHOLE) {
      state.open = boxesAround(graph, node);
    }
    Object.assign(state, { view: "whole", selected: `n${node}` });
    redraw();
  }

  function setView(view) {
    state.view = view;
    state.scale = null;
    if (view === "near" && state.selected?.[0] === "n") {
      state.centre = Number(state.selected.slice(1));
    }
    redraw();
  }

  function setSteps(steps) {
    state.steps = Math.min(9, Math.max(1, steps));
    redraw();
  }

  function find(typed) {
    return matches(graph, typed, MOST_FOUND).map((found) => ({ ...found, go: () => near(found.node) }));
  }

  const act = { near, show, isOpen: (box) => state.open.has(box), turn: (box) => { state.view = "whole"; turn(box); } };
  parts.canvas.addEventListener("keydown", (event) => keyed(event, { parts, state, near, grow, setSteps, act }));
  redraw({ into: firstMarked(graph, state.open) });
  return { open: (key) => opened(graph, key, near, parts) };
});

// Shows what a link names: a node, a tensor or a box.
function opened(graph, key, near, parts) {
  const node = graph.names.indexOf(key);
  const tensor = graph.tensors.indexOf(key);
  const reader = graph.maker[tensor] >= 0 ? graph.maker[tensor] : graph.readers[tensor]?.[0];
  const found = node >= 0 ? node : reader;
  parts.say(found === undefined ? `The graph shown has no ${key}: a repair or rewrite may have replaced it.` : "");
  if (found !== undefined) {
    near(found);
  }
}

// Returns the first item that is or holds a kept node; else a repaired or suspected one; null if none.
function firstMarked(graph, open) {
  for (const name of ["kept", "repaired", "suspected"]) {
    const first = Math.min(...graph.marks[name]);
    if (Number.isFinite(first)) {
      const box = hidingBox(graph, open, first);
      return box < 0 ? `n${first}` : `b${box}`;
    }
  }
  return null;
}

// Opens boxes, largest first, as long as the drawing stays readable.
function openedFirst(graph) {
  const open = new Set();
  const shownWith = (boxes) => new Set(graph.names.map((_, node) => {
    const box = hidingBox(graph, boxes, node);
    return box < 0 ? `n${node}` : `b${box}`;
  }));
  for (let tries = 0; tries < 6; tries += 1) {
    const boxes = [...shownWith(open)].filter((key) => key[0] === "b").map((key) => Number(key.slice(1)));
    const largest = boxes.sort((a, b) => graph.members[b].length - graph.members[a].length)[0];
    if (largest === undefined || shownWith(new Set([...open, largest])).size > 14) {
      break;
    }
    open.add(largest);
  }
  return open;
}

function boxesAround(graph, node) {
  const found = new Set();
  for (let box = graph.place[node]; box >= 0; box = graph.boxes.parents[box]) {
    found.add(box);
  }
  return found;
}

// Scrolls to an item, and lets the keyboard reach it.
function showItem(parts, key, focus) {
  const { svg, placed } = parts.drawn;
  const item = placed.items.find((one) => one.key === key) ?? placed.items[0];
  const element = item && svg.querySelector(`.item[data-key="${item.key}"]`);
  element?.setAttribute("tabindex", 0);
  const scale = svg.width.baseVal.value / placed.width;
  if (item) {
    const top = item.key === key ? item.y * scale - parts.canvas.clientHeight / 2 : 0;
    parts.canvas.scrollTo(item.x * scale - parts.canvas.clientWidth / 2, top);
  }
  if (focus) {
    element?.focus({ preventScroll: true });
  }
}

const ARROWS = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

function keyed(event, { parts, state, near, grow, setSteps, act }) {
  const key = event.target.closest?.(".item")?.dataset.key;
  const item = parts.drawn.placed.items.find((one) => one.key === key);
  if (item === undefined || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  const next = ARROWS[event.key] && nextItem(parts.drawn.placed.items, item, ARROWS[event.key]);
  if (next) {
    parts.drawn.svg.querySelectorAll('.item[tabindex="0"]').forEach((one) => one.setAttribute("tabindex", -1));
    showItem(parts, next.key, true);
  } else if (event.key === "Enter" || event.key === " ") {
    event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  } else if ((event.key === "+" || event.key === "-") && state.view === "near") {
    setSteps(state.steps + (event.key === "+" ? 1 : -1));
  } else if (event.key === "m" && item.more > 0) {
    grow(item);
  } else if (event.key === "n" && item.key[0] === "n") {
    near(Number(item.key.slice(1)));
  } else if (event.key === "w" && item.key[0] === "n") {
    act.show(Number(item.key.slice(1)));
  } else if (!ARROWS[event.key]) {
    return;
  }
  event.preventDefault();
}

// Returns the nearest item in a direction; items off to the side count as further away.
function nextItem(items, from, [dx, dy]) {
  const ahead = items.filter((item) => (item.x - from.x) * dx + (item.y - from.y) * dy > 1);
  const far = (item) => Math.abs((item.x - from.x) * (dx ? 1 : 2)) + Math.abs((item.y - from.y) * (dy ? 1 : 2));
  return ahead.sort((a, b) => far(a) - far(b))[0];
}
