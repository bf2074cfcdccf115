"use strict";

// The layers of engines: how time is shared by precision, and the layers one by one.

const { make, coded, number, table, link, parted, columns } = halfwise;
const PRECISIONS = ["FP32", "TF32", "BF16", "FP16", "INT8", "FP8", "mixed", "other", "unknown"];
// Share of a bar that holds a word.
const WIDE = matchMedia("(max-width: 600px)").matches ? 0.3 : 0.14;

// Appends the engines of a device. `shared` is what all engines share, read by `read`.
function layers(root, { engines, delivered }, shared) {
  if (!engines.length) {
    return;
  }
  root.append(make("h3", {}, "Precision"), shares(engines, delivered));
  const place = make("div", { class: "tall" });
  const shown = delivered ?? engines.length - 1;
  const select = make("select", { onchange: () => one(place, engines[select.selectedIndex], shared) },
    engines.map(({ engine }, i) => make("option", { selected: i === shown }, engine + (i === delivered ? " (delivered)" : ""))));
  root.append(make("h3", {}, "Layers"), make("div", { class: "controls" }, make("label", {}, "Engine: ", select)), place);
  one(place, engines[shown], shared);
}

function read({ nodes, names, words }) {
  return { nodes: columns.names(nodes), names: columns.names(names), words };
}

// Returns a bar for each engine, of the time where that was measured, else of the nodes.
function shares(engines, delivered) {
  const timed = engines.some(({ shares: { time } }) => Object.keys(time).length);
  const rows = engines.map((engine, i) => {
    const part = engine.shares[timed ? "time" : "nodes"];
    const total = engine.ms.reduce((sum, ms) => sum + (ms ?? 0), 0);
    return make("div", { class: "share" },
      make("span", { class: "who" }, engine.engine + (i === delivered ? " (delivered)" : "")), bar(part),
      make("span", { class: "much" }, timed && total ? `${number(total)} ms` : ""));
  });
  const used = PRECISIONS.filter((name) => engines.some((engine) => engine.shares[timed ? "time" : "nodes"][name] > 0));
  const keys = used.map((name) => make("span", {}, make("span", { class: `key p-${name.toLowerCase()}` }), name));
  return make("div", { class: "shares" },
    make("p", { class: "note" }, timed ? "Share of the layers' time, by precision." : "Share of the compute nodes, by precision."), rows,
    make("p", { class: "note keys" }, keys));
}

function bar(part) {
  const parts = PRECISIONS.filter((name) => part[name] > 0).map((name) => {
    const words = `${name} ${number(100 * part[name])} %`;
    const piece = make("span", { class: `piece p-${name.toLowerCase()}`, title: words }, part[name] >= WIDE ? words : "");
    piece.style.width = `${100 * part[name]}%`;
    return piece;
  });
  const words = PRECISIONS.filter((name) => part[name] > 0).map((name) => `${name} ${number(100 * part[name])} %`);
  return make("div", { class: "bar", role: "img", "aria-label": words.join(", ") }, parts);
}

function one(place, engine, shared) {
  const total = engine.ms.reduce((sum, ms) => sum + (ms ?? 0), 0);
  const longest = engine.ms.reduce((most, ms) => Math.max(most, ms ?? 0), 0);
  const order = engine.ms.map((_, i) => i).sort((a, b) => (engine.ms[b] ?? 0) - (engine.ms[a] ?? 0));
  const rows = order.map((i) => {
    const nodes = columns.places(engine.nodes[i]).map((node) => shared.nodes[node]);
    const name = engine.name[i] < 0 ? nodes.join(" + ") : shared.names[engine.name[i]];
    const word = (column) => shared.words[engine[column][i]];
    const ms = engine.ms[i];
    return [
      { text: name, node: () => make("span", { class: "layer", title: name }, parted(name)) }, word("type"), word("precision"),
      ms === null ? null : { value: ms, node: () => timed(ms, longest, word("precision")) },
      ms === null || !total ? null : { value: ms / total, text: `${number((100 * ms) / total)} %` },
      { text: nodes.join(" "), node: () => linked(nodes) }, word("types"), word("weights"),
      { text: word("tactic"), node: () => make("span", { class: "layer", title: word("tactic") }, word("tactic")) },
    ];
  });
  const titles = ["layer", { title: "type", wide: true }, "precision", "ms", { title: "of time", wide: true }, "nodes",
    ...["reads → gives", "weights", "kernel"].map((title) => ({ title, minor: true }))];
  const used = titles.map((_, i) => i).filter((i) => rows.some((row) => (row[i]?.text ?? row[i]?.value ?? row[i] ?? "") !== ""));
  place.replaceChildren();
  for (const line of [...engine.findings.map((found) => `Not as requested: ${found}`), ...engine.remarks]) {
    place.append(make("p", { class: "note" }, coded(line)));
  }
  if (!rows.length) {
    place.append(make("p", { class: "note" }, "The inspector reports no layers."));
    return;
  }
  table(place, {
    name: `Layers of ${engine.engine}`, columns: used.map((i) => titles[i]), rows: rows.map((row) => used.map((i) => row[i])),
  });
}

function timed(ms, longest, precision) {
  const line = make("span", { class: `time p-${precision.toLowerCase()}` });
  line.style.width = `${longest ? (100 * ms) / longest : 0}%`;
  return make("span", { class: "timed" }, number(ms), line);
}

function linked(nodes) {
  const more = nodes.length - 2;
  return make("span", { class: "linked" }, nodes.slice(0, 2).map((name) => make("span", {}, link("graph", name, short(name)))),
    more > 0 ? make("span", { title: nodes.join("\n") }, `and ${more} more`) : null);
}

// Returns the end of a long name, which is what tells nodes apart.
function short(name) {
  return name.length > 40 ? `…${name.slice(-39)}` : name;
}

halfwise.layers = Object.assign(layers, { read, linked });
