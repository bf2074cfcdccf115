"use strict";

// Causes by group and line of code: nodes, numbers, the tensor's histogram, the source.

const { make, coded, section, link, histogram, place } = halfwise;
const MOST = 4;

section("causes", (root, data) => {
  const items = new Map();
  for (const group of data.groups) {
    root.append(drawn(group, data, items));
  }
  return {
    open(key) {
      const item = items.get(key);
      if (item) {
        for (let around = item.element.closest("details"); around; around = around.parentElement.closest("details")) {
          around.open = true;
        }
        item.show();
        item.element.scrollIntoView({ block: "center" });
      }
    },
  };
});

function drawn(group, data, items) {
  const body = make("div", { class: "lines" });
  for (const found of byLine(group.found)) {
    body.append(lineOf(found, data, items));
  }
  if (group.more > 0) {
    body.append(make("p", { class: "note" }, `and ${group.more} more: see run.json`));
  }
  return make("details", { class: `fault ${group.state}`, ontoggle: unfolded },
    make("summary", {}, make("span", { class: "state" }, group.label), " ", group.title), body);
}

// Shows the values of the first place where a group is opened for the first time.
function unfolded({ target }) {
  const first = target.querySelector(".found button[aria-expanded='false']");
  if (target.open && !target.querySelector("figure")) {
    first?.click();
  }
}

// Returns what is found, in lists of one line of code each; of no line, by module class.
function byLine(found) {
  const lists = new Map();
  for (const one of found) {
    const at = one.place;
    const key = at === null ? "" : at.file ? `${at.file}:${at.line}` : at.kind;
    lists.set(key, [...(lists.get(key) ?? []), one]);
  }
  return lists.values();
}

function lineOf(found, data, items) {
  const list = make("ul", { class: "found" });
  const alike = found.every(({ fix }) => fix === found[0].fix);
  const hidden = [];
  for (const [i, one] of found.entries()) {
    const element = item(one, data, alike ? "" : one.fix);
    element.hidden = i >= MOST;
    if (element.hidden) {
      hidden.push(element);
    }
    list.append(element);
    if (one.node !== null && !items.has(one.node)) {
      items.set(one.node, { element, show: all });
    }
  }
  const more = make("button", { type: "button", class: "quiet", onclick: all, hidden: hidden.length === 0 }, `Show all ${found.length}`);

  function all() {
    hidden.forEach((element) => { element.hidden = false; });
    more.hidden = true;
  }

  const from = place(found[0].place);
  const fix = alike && found[0].fix ? make("p", { class: "fix" }, "Usual fix: ", coded(found[0].fix)) : null;
  return make("div", { class: "line" }, from, list, more, fix);
}

function item(one, data, fix) {
  const name = one.place?.module;
  const where = make("p", {},
    one.node === null ? null : make("code", {}, link("graph", one.node)),
    name ? make("span", { class: "note" }, " in ", make("code", {}, name)) : null,
  );
  const told = make("p", {}, coded(one.text));
  const element = make("li", {}, where, told, fix ? make("p", { class: "fix" }, "Usual fix: ", coded(fix)) : null);
  if (one.histogram !== null) {
    const figure = make("div", { hidden: true });
    const button = make("button", {
      type: "button",
      class: "quiet",
      "aria-expanded": "false",
      onclick: () => {
        if (!figure.firstChild) {
          figure.append(histogram(one.histogram, data.format, one.tensor));
        }
        figure.hidden = !figure.hidden;
        button.setAttribute("aria-expanded", String(!figure.hidden));
      },
    }, "Values");
    told.append(button);
    element.append(figure);
  }
  return element;
}
