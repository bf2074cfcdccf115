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
  root.append(make("p", { class: "note" }, "Error on the samples of the search, divided by what is allowed. Circles are "
    + "the emulation; the diamond is the engine, filled where it passes."));
  const told = make("div", { class: "told", "aria-live": "polite" });
  const emulated = builds.filter((build) => build.predicted !== null).map((build) => ({
    x: build.build, y: Number(build.predicted), of: build, hollow: true,
  }));
  const measured = builds.filter((build) => build.measured !== null).map((build) => ({
    x: build.build, y: Number(build.measured), of: build, hollow: build.fails,
    large: build.delivered, label: build.delivered ? "delivered" : null,
  }));
  scatter(root, () => ({
    label: `Emulation against engine of ${builds.length} builds`, height: 260,
    x: { title: "build", integer: true, span: builds.map(({ build }) => build) },
    y: { title: "error / allowed", log: true },
    limit: { value: 1, text: "allowed" },
    groups: [{ shape: "circle", colour: 0, points: emulated }, { shape: "diamond", colour: 1, points: measured }],
  }), (point) => told.replaceChildren(point === null ? "Point at a mark, or use the arrow keys." : tell(point.of)));
  told.textContent = "Point at a mark, or use the arrow keys.";
  root.append(told);
  table(root, {
    name: "Emulation against engine",
    columns: ["build", "what", "kept", { title: "emulated", minor: true }, "engine", "ms"],
    rows: builds.map((build) => [build.build, build.what, build.kept, bound(build.predicted), bound(build.measured), bound(build.ms)]),
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

function bound(value) {
  return value === null ? null : Number(value);
}

function tell({ build, what, predicted, measured, ms }) {
  return [
    `Build ${build}: ${what}`,
    predicted === null ? null : `emulated ${number(predicted)}`,
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
