"use strict";

// Reads the compact forms that `page/columns.py`, `page/plans.py` and `records/curve.py` write.

// Returns front-coded names: each is stored as the number of characters that it shares with the
// previous one, and the rest.
function names(coded) {
  const found = [];
  let before = "";
  for (let i = 0; i < coded.length; i += 2) {
    before = before.slice(0, coded[i]) + coded[i + 1];
    found.push(before);
  }
  return found;
}

// Returns the places that "0-3 7" stands for, or bits in base64 after "~".
function places(text) {
  if (text.startsWith("~")) {
    const bytes = atob(text.slice(1));
    return Array.from({ length: 8 * bytes.length }, (_, i) => i).filter((i) => (bytes.charCodeAt(i >> 3) >> (i & 7)) & 1);
  }
  return text.split(" ").filter(Boolean).flatMap((run) => {
    const [first, last] = run.split("-").map(Number);
    return Array.from({ length: (last ?? first) - first + 1 }, (_, i) => first + i);
  });
}

halfwise.columns = { names, places };
