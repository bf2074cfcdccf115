"use strict";

// Where a node comes from: the line of code, and the calls that lead to it.

const { make } = halfwise;

// Returns the line that a node comes from, with its calls to unfold; null if none is known.
halfwise.place = (place, frames) => {
  if (!place || !(place.kind || place.frames.length)) {
    return null;
  }
  const own = place.own === null ? null : frames[place.own];
  const kind = place.kind.split(".").pop();
  const parts = [own === null ? make("p", { title: place.kind }, kind) : line(own, kind)];
  const calls = place.frames.map((i) => frames[i]);
  if (calls.length > (own === null ? 0 : 1)) {
    const list = make("ol", { class: "calls" }, ...calls.map((frame) => make("li", { class: frame === own ? "own" : null }, line(frame))));
    parts.push(make("details", {}, make("summary", {}, own === null ? "Calls in the framework" : `How ${place.module || "it"} gets there`), list));
  }
  return make("div", { class: "place" }, ...parts);
};

function line({ file, line: at, function: name, text }, kind) {
  const short = file.split(/[/\\]/).pop();
  return make("div", { class: "source" },
    make("p", { class: "file", title: `${file}:${at}` }, make("code", {}, `${short}:${at}`), ` in ${name}`, kind ? `, ${kind}` : ""),
    text ? make("pre", { tabindex: "0" }, make("code", {}, text)) : null,
  );
}
