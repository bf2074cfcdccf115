"use strict";

// The controls around the drawing: search, view, measure, steps, scale, legend.

const { make, plain } = halfwise;
const { MARKS } = halfwise.graph;

// Returns the elements of the section: {all, canvas, panel, say(words), update(scene)}.
function elements(graph, kinds, state, { find, redraw, fit, setView, setSteps }) {
  const canvas = make("div", { class: "graph-canvas" });
  dragged(canvas);
  const side = make("div", { class: "graph-panel", role: "region", "aria-label": "Selected", tabindex: 0 });
  const said = make("p", { class: "note", role: "status" });
  const legend = make("ul", { class: "graph-legend", "aria-label": "Legend" });
  const button = (text, label, onclick) => make("button", { type: "button", "aria-label": label, title: label, onclick }, text);
  const whole = button("Whole graph", "The whole graph, folded", () => setView("whole"));
  const near = button("Around a node", "The surroundings of the selected node", () => setView("near"));
  const steps = make("span", {});
  const stepping = make("div", { class: "group" }, button("−", "Fewer steps", () => setSteps(state.steps - 1)), steps,
    button("+", "More steps", () => setSteps(state.steps + 1)));
  const folding = button("Fold all", "Fold all boxes", () => { state.open = new Set(); redraw(); });
  const choice = make("select", { onchange: () => { state.measure = kinds[choice.selectedIndex]; redraw(); } },
    kinds.map(({ title }) => make("option", {}, title)));
  const tools = make("div", { class: "graph-tools" }, search(find),
    make("div", { class: "group", role: "group", "aria-label": "View" }, whole, near), stepping, folding,
    make("label", {}, "Colour by", choice),
    make("div", { class: "group", role: "group", "aria-label": "Zoom" }, make("span", {}, "Zoom"),
      button("−", "Smaller", () => fit(state.used / 1.25)), button("+", "Larger", () => fit(state.used * 1.25)),
      button("Fit", "Fit the width", () => fit(null))));

  function update() {
    const isWhole = state.view === "whole";
    whole.setAttribute("aria-pressed", String(isWhole));
    near.setAttribute("aria-pressed", String(!isWhole));
    stepping.hidden = isWhole;
    folding.hidden = !isWhole;
    steps.textContent = `${state.steps} ${state.steps === 1 ? "step" : "steps"}`;
    const used = new Set([...canvas.querySelectorAll(".stripe")].flatMap((bar) => [...bar.classList]));
    legend.replaceChildren(...state.measure.legend.filter(([cls]) => used.has(cls)).map(([cls, label]) =>
      make("li", {}, make("span", { class: `key ${cls}` }), label)),
    state.measure.note ? make("li", {}, state.measure.note) : "",
    ...MARKS.filter(([name]) => graph.marks[name].size > 0).map(([name, sign]) => make("li", {}, `${sign} ${name}`)),
    canvas.querySelector(".cluster.layer") === null ? "" : make("li", {}, make("span", { class: "key layer" }), "layer of the engine"));
  }

  return {
    all: [tools, legend, said, make("div", { class: "graph-frame" }, canvas, side)],
    canvas, panel: side, update,
    say: (words) => { said.textContent = plain(words); },
  };
}

// Lets the background be dragged; items on it are clicked.
function dragged(canvas) {
  let from = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType === "mouse" && !event.target.closest("[role=button]")) {
      from = { x: event.clientX + canvas.scrollLeft, y: event.clientY + canvas.scrollTop };
      canvas.setPointerCapture(event.pointerId);
    }
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from !== null) {
      canvas.scrollTo(from.x - event.clientX, from.y - event.clientY);
    }
  });
  canvas.addEventListener("lostpointercapture", () => { from = null; });
}

function search(find) {
  const found = make("ul", { class: "graph-found", hidden: true });
  const input = make("input", { type: "search", placeholder: "Find a node, operator or tensor",
    "aria-label": "Find a node, operator or tensor", autocomplete: "off", spellcheck: "false", oninput: list, onfocus: list });
  const whole = make("div", { class: "graph-find", role: "search", onkeydown: moved,
    onfocusout: (event) => { found.hidden = !whole.contains(event.relatedTarget); } }, input, found);

  function list() {
    const results = find(input.value);
    found.replaceChildren(...results.map(({ label, what, go }) => make("li", {}, make("button", { type: "button",
      onclick: () => { found.hidden = true; go(); } }, make("span", {}, label), make("span", { class: "what" }, what)))));
    if (results.length === 0) {
      found.append(make("li", { class: "note" }, "No match."));
    }
    found.hidden = input.value.trim() === "";
  }

  function moved(event) {
    const buttons = [...found.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") {
      found.hidden = true;
      input.focus();
      found.hidden = true;
    } else if (event.key === "Enter" && at < 0) {
      buttons[0]?.click();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const next = buttons[at + (event.key === "ArrowDown" ? 1 : -1)];
      (next ?? input).focus();
    } else {
      return;
    }
    event.preventDefault();
  }

  return whole;
}

Object.assign(halfwise.graph, { elements });
