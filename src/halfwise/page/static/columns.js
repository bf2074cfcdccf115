"use strict";

// Reads what `page/columns.py` and `records/curve.py` write short.

// Returns names that are stored as how many characters each shares with the one before, and the rest.
function names(coded) {
  const found = [];
  let before = "";
  for (let i = 0; i < coded.length; i += 2) {
    before = before.slice(0, coded[i]) + coded[i + 1];
    found.push(before);
  }
  return found;
}

// Returns the places that "0-3 7" stands for.
function places(text) {
  return text.split(" ").filter(Boolean).flatMap((run) => {
    const [first, last] = run.split("-").map(Number);
    return Array.from({ length: (last ?? first) - first + 1 }, (_, i) => first + i);
  });
}

halfwise.columns = { names, places };
