"use strict";

// What nodes and boxes are coloured by. Each measure gives a class and words: no colour stands alone.

const { number } = halfwise;
const TYPES = new Map([
  ["FP32", "fp32"], ["FP16", "fp16"], ["BF16", "bf16"], ["INT8", "int8"], ["TF32", "tf32"],
]);

function typeClass(words) {
  if (words.includes("→")) {
    return "cast";
  }
  return TYPES.get(words.split("/")[0].toUpperCase()) ?? "other";
}

// Returns a class "l0" (least) to "l4" for a number, by the limits between them.
function level(value, limits) {
  return `l${limits.filter((limit) => value >= limit).length}`;
}

// Words for the parts of a box: such as "FP16 12, FP32 2".
function tally(words) {
  const counts = new Map();
  words.filter(Boolean).forEach((word) => counts.set(word, (counts.get(word) ?? 0) + 1));
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function byType(name, title, wordOf) {
  return {
    name,
    title,
    of(nodes) {
      const counts = tally(nodes.map(wordOf));
      // Integers of shapes and indices do not count next to floats.
      const floats = counts.filter(([word]) => typeClass(word) !== "other" && typeClass(word) !== "cast");
      const told = floats.length > 0 ? floats : counts;
      if (told.length === 0) {
        return { shares: [], text: "" };
      }
      const text = told.length === 1 ? told[0][0] : told.map(([word, count]) => `${word} ${count}`).join(", ");
      return { shares: told.map(([word, count]) => ({ cls: typeClass(word), count })), text };
    },
    legend: [["fp32", "FP32"], ["tf32", "TF32"], ["fp16", "FP16"], ["bf16", "BF16"], ["int8", "INT8"],
      ["cast", "Cast"], ["other", "no float"]],
  };
}

function byNumber(name, title, { value, limits, legend, fact = title.toLowerCase(), note = "" }) {
  return {
    name,
    title,
    fact,
    note,
    of(nodes) {
      const found = value(nodes);
      if (found === null) {
        return { shares: [], text: "" };
      }
      return { shares: [{ cls: level(found, limits), count: 1 }], text: number(found) };
    },
    legend: legend.map((label, i) => [`l${i}`, label]),
  };
}

// The largest of a fact over nodes; null where none is known. NaN counts as infinite.
function largest(graph, fact) {
  return (nodes) => {
    const known = nodes.map((node) => graph.facts[node]?.[fact] ?? null).filter((x) => x !== null).map(Number);
    return known.length > 0 ? Math.max(...known.map((x) => (Number.isNaN(x) ? Infinity : x))) : null;
  };
}

// Returns a precision in an engine as a word; "" if there is none.
function engineWord(precision) {
  return { other: "", unknown: "unknown", mixed: "mixed" }[precision ?? "other"] ?? precision.toUpperCase();
}

// Returns the measures for which a graph has data.
function measures(graph) {
  const knows = (fact) => Object.values(graph.facts).some((facts) => facts[fact] !== undefined);
  const found = [byType("precision", "Precision", (node) => graph.precision[node])];
  if (Object.keys(graph.engine).length > 0) {
    found.push(byType("engine", "Precision in the engine", (node) => engineWord(graph.engine[node])));
  }
  if (knows("error")) {
    found.push(byNumber("error", "Error", {
      fact: "largest error", note: `with ${graph.grown}`,
      value: largest(graph, "error"), limits: [1e-4, 1e-3, 1e-2, 1e-1],
      legend: ["below 1e−4 (relative RMS)", "to 1e−3", "to 0.01", "to 0.1", "more"],
    }));
  }
  if (knows("absmax")) {
    const { name, max } = graph.low;
    found.push(byNumber("range", "Range", {
      fact: "largest |x|",
      value: largest(graph, "absmax"), limits: [max / 2 ** 12, max / 2 ** 6, max / 4, max],
      legend: [`|x| below ${number(max / 2 ** 12)}`, `to ${number(max / 2 ** 6)}`, `to ${number(max / 4)}`,
        `to ${number(max)}, the largest ${name.toUpperCase()}`, "beyond"],
    }));
  }
  return found;
}

Object.assign(halfwise.graph, { engineWord, measures, tally });
