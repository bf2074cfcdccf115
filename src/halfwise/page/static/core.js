"use strict";

// What every script of the page shares. Text from a run reaches the document by textContent and
// append alone, never as HTML.

const openers = new Map();

// Draws a section: draw(root, data) fills root, the section's body; data is its JSON. Where draw
// returns {open(key)}, links to something in the section call it.
function section(name, draw) {
  const root = document.querySelector(`#${CSS.escape(name)} > .fold > .body`);
  if (root === null) {
    return;
  }
  try {
    const opened = draw(root, data(name));
    if (opened?.open) {
      openers.set(name, opened.open);
    }
  } catch (error) {
    console.error(error);
    root.append(make("p", { class: "caution" }, `This section could not be drawn: ${error}`));
  }
}

// Returns the JSON of a section, null where it has none.
function data(name) {
  const holder = document.getElementById(`data-${name}`);
  return holder === null ? null : JSON.parse(holder.textContent);
}

// Makes an element. Attributes that are null are left out; those that begin with "on" are
// listeners. Children are elements, text, or null for none.
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// The same in SVG.
function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Returns text fit to show: a character that is not plainly visible, such as a mark that reverses
// the writing direction, is replaced. Like `wording.clean`, except that line breaks stay.
function plain(text) {
  return text.replace(/[^\P{C}\n\t\p{Cn}]|[\u2028\u2029]/gu, "\ufffd");
}

// Returns text as children of an element, with its backticked parts as code; options, such as
// --rel-max, do not break at hyphens.
function coded(text) {
  return text.split(/`([^`]+)`/).flatMap((part, i) => (i % 2 ? [make("code", {}, part)] : whole(part)));
}

function whole(text) {
  return text.split(/(?<![\w-])(--[a-z][a-z0-9-]*)/).map((part, i) => (i % 2 ? make("span", { class: "word" }, part) : part));
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  const shown = children.flat().filter((child) => child !== null && child !== undefined);
  element.append(...shown.map((child) => (child instanceof Node ? child : plain(String(child)))));
  return element;
}

// Returns a number as the report words it: three significant digits, all digits before the point
// up to a million; "" for null, which is unknown. Takes the strings that stand for NaN and inf.
function number(value, digits = 3) {
  if (value === null || value === undefined || value === "") {
    return "";
  }
  const x = Number(value);
  if (Number.isNaN(x)) {
    return "NaN";
  }
  if (!Number.isFinite(x)) {
    return x > 0 ? "inf" : "−inf";
  }
  if (x === 0) {
    return "0";
  }
  const size = Math.abs(x);
  if (size >= 1e6 || Math.abs(Number(x.toPrecision(digits))) < 1e-4) {
    const [mantissa, exponent] = x.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`.replaceAll("-", "−");
  }
  const text = size >= 10 ** digits ? x.toFixed(0) : String(Number(x.toPrecision(digits)));
  return text.replace("-", "−");
}

// Returns the fragment that opens `key` in a section.
function fragment(name, key) {
  return `#${name}=${encodeURIComponent(key)}`;
}

// Returns a link to `key` in a section; plain text where the section has nothing to open.
function link(name, key, text = key) {
  if (document.getElementById(name) === null) {
    return make("span", {}, parted(text));
  }
  const href = fragment(name, key);
  // Setting the same address again fires no event.
  const again = () => location.hash === href && follow();
  return make("a", { href, title: key, onclick: again }, parted(text));
}

// Returns a name that breaks after slashes first, but not after the one that begins it.
function parted(text) {
  return text.split(/(?<=\S\/)/).flatMap((part) => [part, make("wbr")]).slice(0, -1);
}

// Shows `key` in a section, and puts it in the address.
function open(name, key) {
  if (location.hash === fragment(name, key)) {
    follow();
  } else {
    location.hash = fragment(name, key);
  }
}

function follow() {
  const found = /^#([a-z0-9-]+)(?:=(.*))?$/s.exec(location.hash);
  const root = found && document.getElementById(found[1]);
  const fold = root?.querySelector(":scope > .fold");
  if (fold) {
    fold.open = true;
  }
  if (!root || found[2] === undefined) {
    return;
  }
  let key = found[2];
  try {
    key = decodeURIComponent(key);
  } catch {
    // Not an encoded name: take it literally.
  }
  root.scrollIntoView();
  openers.get(found[1])?.(key);
}

// Marks the section being read in the contents: the first that reaches below the top.
function mark() {
  const links = [...document.querySelectorAll(".contents a")];
  const read = links.find(({ hash }) => document.querySelector(hash).getBoundingClientRect().bottom > 120);
  links.forEach((each) => (each === read ? each.setAttribute("aria-current", "true") : each.removeAttribute("aria-current")));
}

addEventListener("scroll", mark, { passive: true });
addEventListener("DOMContentLoaded", mark);
addEventListener("hashchange", follow);
// Scripts stand one after another, and sections register while they run.
addEventListener("DOMContentLoaded", follow);
// Paper shows all.
addEventListener("beforeprint", () => {
  document.querySelectorAll(".fold").forEach((fold) => { fold.open = true; });
});

globalThis.halfwise = { section, data, make, draw, plain, coded, number, link, parted, fragment, open };
