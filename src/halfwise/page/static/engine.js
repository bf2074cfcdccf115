"use strict";

// Real engines, device by device.

const { make, coded, section, number, table, scatter, layers } = halfwise;

section("engine", (root, { devices, shared }) => {
  const known = layers.read(shared);
  const place = make("div");
  const show = (device) => {
    place.replaceChildren();
    place.append(make("p", { class: "about" }, device.about));
    against(place, device);
    layers(place, device, known);
    said(place, device);
  };
  if (devices.length > 1) {
    const select = make("select", { onchange: () => show(devices[select.selectedIndex]) },
      devices.map(({ device }) => make("option", {}, device)));
    root.append(make("div", { class: "controls" }, make("label", {}, "Device: ", select)));
  }
  root.append(place);
  show(devices[0]);
});

// Draws what emulation predicted for each build, and what its engine showed.
function against(root, { builds, outputs }) {
  if (!builds.length) {
    return;
  }
  root.append(make("h3", {}, "Emulation against engine"));
  root.append(make("p", { class: "note" }, "Error on the samples of the search, divided by what is allowed. The bar is what low "
    + "precision explains, circles are the emulations, with fusion and without; the diamond is the engine, filled where it passes."));
  const told = make("div", { class: "told", "aria-live": "polite" });
  const bands = builds.filter(({ least }) => least !== null).map((build) => ({
    points: [{ x: build.build, y: Number(build.least) }, { x: build.build, y: Number(build.most) }], colour: 0, width: 9, faint: true,
  }));
  const emulated = builds.flatMap((build) => build.told.map((error) => ({ x: build.build, y: Number(error), of: build, hollow: true })));
  const measured = builds.filter((build) => build.measured !== null).map((build) => ({
    x: build.build, y: Number(build.measured), of: build, hollow: build.fails,
    large: build.delivered, label: build.delivered ? "delivered" : null,
  }));
  scatter(root, () => ({
    label: `Emulation against engine of ${builds.length} builds`, height: 260, lines: bands,
    x: { title: "build", integer: true, span: builds.map(({ build }) => build) },
    y: { title: "error / allowed", log: true, span: bands.flatMap(({ points }) => points.map(({ y }) => y)) },
    limit: { value: 1, text: "allowed" },
    groups: [{ shape: "circle", colour: 0, points: emulated }, { shape: "diamond", colour: 1, points: measured }],
  }), (point) => told.replaceChildren(point === null ? "Point at a mark, or use the arrow keys." : tell(point.of)));
  told.textContent = "Point at a mark, or use the arrow keys.";
  root.append(told);
  table(root, {
    name: "Emulation against engine",
    columns: ["build", "what", "kept", { title: "emulated, least", minor: true }, { title: "emulated, most", minor: true }, "engine", "ms"],
    rows: builds.map((build) => [build.build, build.what, build.kept, bound(build.least, build.told.at(0)),
      bound(build.most, build.told.at(-1)), bound(build.measured), bound(build.ms)]),
  });
  if (outputs.length) {
    root.append(make("h3", {}, "Delivered engine, by output"));
    table(root, {
      name: "Emulation against engine by output",
      columns: ["output", "max error, emulated", "max error, engine", ...["SNR dB, emulated", "SNR dB, engine"].map((title) => ({ title, minor: true }))],
      rows: outputs.map((row) => row.map((cell, i) => (i ? bound(cell) : cell))),
    });
  }
}

function bound(value, other) {
  const known = value ?? other ?? null;
  return known === null ? null : Number(known);
}

function tell({ build, what, least, most, told, measured, ms }) {
  const range = (a, b) => (number(a) === number(b) ? number(a) : `${number(a)} to ${number(b)}`);
  return [
    `Build ${build}: ${what}`,
    least === null ? (told.length ? `emulated ${range(told[0], told.at(-1))}` : null) : `low precision explains ${range(least, most)}`,
    measured === null ? "no engine was measured" : `the engine has ${number(measured)}`,
    ms === null ? null : `${number(ms)} ms`,
  ].filter(Boolean).join("; ");
}

// Appends what the builder said.
function said(root, { log: { columns, rows } }) {
  if (!rows.length) {
    return;
  }
  root.append(make("h3", {}, "What the builder said"));
  const words = (text) => ({ text, node: () => make("span", { class: "words" }, coded(text)) });
  const own = rows.map(([severity, means, todo, nodes, ...rest]) => [
    severity, words(means), words(todo), { text: nodes.join(" "), node: () => layers.linked(nodes) }, ...rest]);
  const minor = new Set(["severity", "times", "builds"]);
  table(root, { name: "What the builder said", columns: columns.map((title) => ({ title, minor: minor.has(title) })), rows: own });
}
