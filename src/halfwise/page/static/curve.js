"use strict";

// The cost and results of every plan: an interactive chart, and a table of all.

const { make, section, number, table, scatter, glyph, link, columns } = halfwise;
const MOST_NAMES = 400;
// Largest number of characters in the label of a limit.
const MOST_LIMIT = 30;
// Columns of all plans that are left to wide screens.
const MINOR = new Set(["of", "Casts", "evaluation"]);
const LOOKS = {
  plan: [{ shape: "circle", colour: 0 }, { shape: "square", colour: 2 }],
  bare: [{ shape: "triangle", colour: 3 }, { shape: "wedge", colour: 4 }],
  full: [{ shape: "diamond", colour: "ink" }],
  engine: [{ shape: "bar", colour: 1 }, { shape: "post", colour: 5 }, { shape: "hexagon", colour: 4 }],
};

section("curve", (root, plans) => {
  drawPlans(root, { ...plans, names: columns.names(plans.names) });
});

function drawPlans(root, plans) {
  const groups = looking(plans.groups);
  const points = groups.flatMap((group) => group.points);
  const axes = { x: horizontal(plans).filter(known), y: vertical(plans).filter(known) };
  if (!axes.x.length || !axes.y.length) {
    all(root, groups, plans, null);
    return;
  }
  const state = { x: axes.x[0], y: axes.y[0], hidden: new Set() };

  function known(axis) {
    return points.some((point) => axis.of(point) !== null);
  }

  function view() {
    const { x, y } = state;
    const shown = groups.filter((group) => !state.hidden.has(group)).map((group) => ({
      ...group,
      points: group.points.map((point) => marks(point, x, y, plans)).filter((p) => p.x !== null && p.y !== null),
    }));
    groups.forEach((group) => {
      const here = shown.find(({ name }) => name === group.name);
      buttons.get(group)?.classList.toggle("empty", here !== undefined && !here.points.length);
    });
    const own = shown.find((group) => group.kind === "plan");
    return {
      label: `${y.title} against ${x.title}, ${shown.reduce((n, g) => n + g.points.length, 0)} points`,
      x, y, groups: shown, limit: y.limit,
      lines: own === undefined ? [] : [{ points: best(own.points, y.rises), colour: own.colour }],
    };
  }

  const buttons = new Map();
  const panel = make("div", { class: "picked", "aria-live": "polite" });
  const tools = make("div", { class: "controls" });
  const place = make("div", { class: "plans" });
  root.append(tools, place);
  const holder = make("div");
  place.append(holder, panel);
  const show = (point, fixed) => panel.replaceChildren(...told(point?.of ?? null, fixed, plans));
  const drawn = scatter(holder, view, show);
  for (const [name, word] of [["x", "Across"], ["y", "Up"]]) {
    tools.append(choice(word, axes[name], (axis) => {
      state[name] = axis;
      drawn.redraw();
    }));
  }
  tools.append(legend(groups, state.hidden, buttons, drawn.redraw));
  view();
  show(null, false);
  all(root, groups, plans, (point) => {
    holder.scrollIntoView({ block: "nearest" });
    drawn.fix(null);
    show({ of: point }, true);
  });
}

// Returns the groups with their look; those of one kind differ.
function looking(groups) {
  const seen = {};
  return groups.map((group) => {
    const looks = LOOKS[group.kind];
    seen[group.kind] = (seen[group.kind] ?? -1) + 1;
    const own = { ...group, ...looks[seen[group.kind] % looks.length] };
    return { ...own, points: group.points.map((point) => ({ ...point, group: own })) };
  });
}

function scored(point, name) {
  return numeric(Object.hasOwn(point.scores ?? {}, name) ? point.scores[name] : undefined);
}

function numeric(value) {
  return value === undefined ? null : Number(value);
}

function horizontal({ low }) {
  return [
    { name: "measured time", title: "time of a run, ms", of: (p) => numeric(p.ms) },
    { name: "predicted cost", title: `predicted cost / everything in ${low}`, of: (p) => numeric(p.cost) },
    { name: "nodes kept", title: "nodes kept", of: (p) => numeric(p.count) },
  ];
}

// Errors are of what decides, a metric or thresholds.
function vertical({ metrics, allowed, by_metric }) {
  const named = `allowed: ${allowed}`;
  const limit = { value: 1, text: named.length > MOST_LIMIT ? "allowed" : named };
  const errors = [
    { name: "error, samples of the search", title: "error / allowed, samples of the search", of: (p) => numeric(p.error), bounds: true },
    { name: "error, held-out samples", title: "error / allowed, held-out samples", of: (p) => numeric(p.heldout) },
  ].map((axis) => ({ ...axis, log: true, limit }));
  const beside = by_metric ? "" : "; not the criterion here";
  return [...errors, ...metrics.map(({ name, falls, required }) => ({
    name, title: `${name}, held-out samples${beside}`, of: (p) => scored(p, name), rises: !falls,
    limit: { value: Number(required), text: `${falls ? "at most" : "at least"} ${number(required, 4)}` },
  }))];
}

// Returns a point as the chart draws it.
function marks(point, x, y, plans) {
  const label = [...marked(point), point.name ?? null].filter(Boolean).join(", ");
  return {
    x: x.of(point), y: y.of(point), of: point, label, hollow: point.fails,
    tick: y.bounds && point.bound, large: point.chosen || point.found,
  };
}

// Returns what a point is to the run, in words.
function marked({ chosen, found, fails, group }) {
  const own = group.kind === "engine" ? "delivered" : "this plan";
  const whose = chosen ? own : `plan of ${group.name.split(" ")[0]}`;
  return chosen || found ? [`${whose}${fails ? ", fails" : ""}`] : [];
}

// Returns the steps of the best known plan at each cost; lower bounds prove nothing.
function best(points, rises) {
  const order = points.filter((p) => !p.tick && Number.isFinite(p.y)).sort((a, b) => a.x - b.x);
  const found = [];
  for (const point of order) {
    const last = found.at(-1);
    if (last === undefined || (rises ? point.y > last.y : point.y < last.y)) {
      found.push(...(last === undefined ? [] : [{ x: point.x, y: last.y }]), { x: point.x, y: point.y });
    }
  }
  return found;
}

function choice(word, axes, chosen) {
  const select = make("select", { onchange: () => chosen(axes[select.selectedIndex]) },
    axes.map((axis) => make("option", {}, axis.name)));
  return make("label", {}, `${word}: `, select);
}

function legend(groups, hidden, buttons, redraw) {
  return make("div", { class: "legend", role: "group", "aria-label": "Shown" }, groups.map((group) => {
    const colour = typeof group.colour === "number" ? `series-${group.colour + 1}` : group.colour;
    const button = make("button", { type: "button", class: "quiet", "aria-pressed": "true", onclick: () => {
      hidden[hidden.has(group) ? "delete" : "add"](group);
      button.setAttribute("aria-pressed", String(!hidden.has(group)));
      redraw();
    } }, glyph(group.shape, colour), ` ${group.name} (${group.points.length})`);
    buttons.set(group, button);
    return button;
  }));
}

// Returns what to show about a point; without one, how to select one.
function told(point, fixed, plans) {
  if (point === null) {
    return [
      make("p", { class: "note" }, "Point at a plan to see what it keeps; click or use the arrow keys to hold it."),
      make("p", { class: "note" }, `Allowed: ${plans.allowed}. Filled marks pass; hollow ones fail, or are not known to pass. `
        + "A stroke above a mark says “at least”: not all samples were run. The line joins the best plans."),
    ];
  }
  const names = kept(point, plans);
  const facts = make("dl", { class: "facts" }, listed(point, plans).flatMap(([name, value]) =>
    [make("dt", {}, name), make("dd", {}, value)]));
  const nodes = names.slice(0, fixed ? MOST_NAMES : 8).map((name) =>
    make("li", {}, fixed ? link("graph", name) : name));
  const more = names.length - nodes.length;
  return [
    make("p", {}, make("strong", {}, heading(point))), facts,
    nodes.length ? make("ul", fixed ? { class: "names", tabindex: 0, role: "region", "aria-label": "Nodes" } : { class: "names" }, nodes) : null,
    more > 0 ? make("p", { class: "note" }, `and ${more} more${fixed ? "" : "; a click shows them"}`) : null,
  ].filter(Boolean);
}

function heading({ name, build, count, group }) {
  const nodes = count === undefined ? "" : `${count} ${count === 1 ? "node" : "nodes"} ${group.left ?? "kept"}`;
  return [name, build === undefined ? null : `build ${build}`, nodes].filter(Boolean).join(", ");
}

function listed(point, { low }) {
  const over = (value) => (value === undefined ? "" : `${number(value)} times what is allowed`);
  const facts = [
    ["of", point.group.name],
    ["fails", (point.why ?? []).join("; ")],
    ["tried", point.step ?? ""],
    ["cost", point.cost === undefined ? "" : `${number(point.cost)} × everything in ${low}`],
    ["time", point.ms === undefined ? "" : `${number(point.ms)} ms`],
    ["error", `${point.bound ? "≥ " : ""}${over(point.error)}`],
    ["held out", over(point.heldout)],
    ...Object.entries(point.scores ?? {}).map(([name, value]) =>
      [name, `${number(value, 4)}${point.failed?.includes(name) ? " ✗" : ""}`]),
    ["inside", point.nonfinite ? "NaN or infinite values" : ""],
    ["Casts", number(point.casts ?? null)],
    ["TF32", point.tf32 ? "products that are not low" : ""],
    ["BF16", point.bf16 ? `${point.bf16} of the kept nodes` : ""],
    ["evaluation", number(point.evaluation ?? null)],
  ];
  return facts.filter(([, value]) => value !== "");
}

// Returns the names of the nodes that a point keeps.
function kept({ nodes, group }, { names }) {
  if (!nodes) {
    return [];
  }
  const order = columns.places(group.nodes);
  return columns.places(nodes).map((place) => names[order[place]]);
}

function all(root, groups, plans, show) {
  const { metrics } = plans;
  const points = groups.flatMap((group) => group.points);
  const names = metrics.map(({ name }) => name);
  const bound = ({ error, bound: least }) => (least && error !== undefined
    ? { text: `≥ ${number(error)}`, value: numeric(error) } : numeric(error));
  const rows = points.map((point) => [
    show === null ? heading(point)
      : { text: heading(point), node: () => make("button", { type: "button", class: "quiet", onclick: () => show(point) }, heading(point) || "nothing kept") },
    point.group.name, numeric(point.cost), numeric(point.ms), bound(point), numeric(point.heldout),
    ...names.map((name) => scored(point, name)), numeric(point.casts), numeric(point.evaluation),
    point.fails ? "no" : "yes", marked(point).join(", "),
  ]);
  const titles = ["plan", "of", "cost", "ms", "error / allowed", "held out", ...names, "Casts", "evaluation", "known to pass", ""];
  const used = titles.map((_, i) => i).filter((i) => rows.some((row) => row[i] !== null && row[i] !== ""));
  const details = make("details", { class: "tall" }, make("summary", {}, `All ${points.length} as a table`));
  root.append(details);
  table(details, {
    name: "Plans", columns: used.map((i) => ({ title: titles[i], minor: MINOR.has(titles[i]) })), rows: rows.map((row) => used.map((i) => row[i])),
  });
}
