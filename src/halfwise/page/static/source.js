"use strict";

// The line of code that a node comes from.

const { make } = halfwise;

// Returns the line that a node comes from, or its module's class; null if neither is known.
halfwise.place = (place) => {
  if (!place || !(place.kind || place.file)) {
    return null;
  }
  const kind = place.kind.split(".").pop();
  const words = place.file ? line(place, kind) : make("p", { title: place.kind }, kind);
  return make("div", { class: "place" }, words);
};

function line({ file, line: at, function: name, text }, kind) {
  const short = file.split(/[/\\]/).pop();
  return make("div", { class: "source" },
    make("p", { class: "file", title: `${file}:${at}` }, make("code", {}, `${short}:${at}`), ` in ${name}`, kind ? `, ${kind}` : ""),
    text ? make("pre", { tabindex: "0" }, make("code", {}, text)) : null,
  );
}
