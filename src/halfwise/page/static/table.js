"use strict";

// Tables: sorted by a click on a heading, saved as CSV, cut if long.

const { make, coded, link, number } = halfwise;
// The strings that stand for numbers that JSON lacks.
const NOT_FINITE = new Set(["NaN", "Infinity", "-Infinity"]);
const MOST = 50;
// A cell of at least this many characters gets more width than its longest word needs.
const PROSE = 24;
// A cell of at least this many characters is cut after some lines; its title and the CSV have all.
const LONG = 240;
const UNKNOWN = new Set(["", "–"]);
// A table of at least this many rows gets a filter.
const MANY = 20;
// In windows narrower than this many pixels, text gets the room of minor columns.
const PHONE = 600;
const UNITS = new Map([
  ["", 1], ["%", 0.01], ["×", 1], ["dB", 1],
  ["byte", 1], ["bytes", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30],
  ["µs", 1e-6], ["ms", 1e-3], ["s", 1],
]);

// Returns what a cell shows: a cell is text, a number, null for unknown, or {text, value, node},
// where `value` is sorted by, and `node` makes an element, such as a link, in place of the text.
function shown(cell) {
  if (cell !== null && typeof cell === "object") {
    return cell.text ?? shown(cell.value ?? null);
  }
  return typeof cell === "number" || NOT_FINITE.has(cell) ? number(cell) : (cell ?? "");
}

// Returns what a cell is sorted by: a number where it begins with one and ends with a known unit.
function rank(cell) {
  const value = cell !== null && typeof cell === "object" ? (cell.value ?? cell.text) : cell;
  if (typeof value === "number") {
    return value;
  }
  const text = String(value ?? "").trim();
  const found = /^[<≤≥]?\s*([-−+]?(?:[\d.]+(?:e[-−+]?\d+)?|inf|Infinity))\s*(\S*)$/.exec(text);
  if (found === null || !UNITS.has(found[2])) {
    return text;
  }
  const digits = found[1].replaceAll("−", "-").replace(/inf$/, "Infinity");
  return Number(digits) * UNITS.get(found[2]);
}

// Numbers come before words, and what is unknown comes last, in both directions.
function compare(a, b, direction) {
  const order = (x) => (x === "" || Number.isNaN(x) ? 2 : typeof x === "number" ? 0 : 1);
  if (order(a) !== order(b) || order(a) === 2) {
    return order(a) - order(b);
  }
  return direction * (typeof a === "number" ? a - b || 0 : a.localeCompare(b, "en", { numeric: true }));
}

// Returns a cell for a CSV file (RFC 4180). Spreadsheets run text that begins like a formula, so
// it gets an apostrophe, unless it is a number.
function csvCell(cell) {
  const raw = cell !== null && typeof cell === "object" ? (cell.value ?? cell.text) : cell;
  const text = String(raw ?? "");
  const safe = /^[=+\-@\t\r\n]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\r\n;\t]/.test(safe) || safe !== safe.trim() ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csv({ columns, rows }) {
  const titles = columns.map((column) => column.title ?? column);
  return [titles, ...rows].map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const plain = name.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 80).replace(/^-|-$/g, "");
  const file = `${plain || "table"}.csv`;
  make("a", { href: address, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// Appends a table to root and returns its element. `columns` are titles or {title, align, minor,
// wide}; `rows` are lists of cells, of which `most` are shown at first. Columns without any are in
// the CSV alone; so are those that are `minor` where not all find room, or only squeezed, and
// `wide` ones on phones. `name` is that of its CSV file and what a screen reader calls it.
function table(root, { name, columns, rows, most = MOST }) {
  const heads = columns.map((column) => (typeof column === "string" ? { title: column } : column));
  const aligned = heads.map((column, i) => column.align ?? (isNumeric(rows, i) ? "right" : "left"));
  const kinds = aligned.map((align, i) => [align, rows.some((row) => shown(row[i]).length > PROSE) ? "prose" : "",
    heads[i].minor ? "minor" : "", heads[i].wide ? "roomy" : ""].filter(Boolean).join(" "));
  const empty = heads.map((_, i) => rows.every((row) => UNKNOWN.has(shown(row[i]))));
  const state = { column: -1, direction: 1, words: "", all: rows.length <= most };
  const body = make("tbody");
  const headings = heads.map((column, i) => {
    const button = make("button", { type: "button", onclick: () => sort(i) }, column.title);
    return make("th", { scope: "col", class: `${aligned[i]}${heads[i].minor ? " minor" : ""}${heads[i].wide ? " roomy" : ""}`, hidden: empty[i] }, column.title === "" ? null : button);
  });

  function fill() {
    const found = state.words === "" ? [...rows] : rows.filter((row) =>
      row.some((cell) => shown(cell).toLowerCase().includes(state.words)));
    if (state.column >= 0) {
      found.sort((a, b) => compare(rank(a[state.column]), rank(b[state.column]), state.direction));
    }
    body.replaceChildren(...(state.all ? found : found.slice(0, most)).map((row) =>
      make("tr", {}, row.map((cell, i) => make("td", { class: kinds[i], hidden: empty[i] }, content(cell))))));
    more.hidden = state.all || found.length <= most;
    more.textContent = `Show all ${found.length} rows`;
  }

  function sort(column) {
    state.direction = state.column === column ? -state.direction : 1;
    state.column = column;
    headings.forEach((heading, i) => heading.removeAttribute("aria-sort"));
    headings[column].setAttribute("aria-sort", state.direction > 0 ? "ascending" : "descending");
    fill();
  }

  function fit() {
    const isWide = () => scroll.scrollWidth > scroll.clientWidth;
    if (fewer !== null) {
      whole.classList.remove("tight");
      whole.classList.toggle("tight", isWide() || innerWidth < PHONE);
    }
    hint.hidden = !isWide();
    scroll.classList.toggle("wide", !hint.hidden);
  }

  const more = make("button", { type: "button", class: "quiet", onclick: () => {
    state.all = true;
    fill();
  } });
  const filter = rows.length < MANY ? null : make("input", { type: "search", placeholder: "Filter",
    "aria-label": `Filter ${name}`, oninput: ({ target }) => {
      state.words = target.value.trim().toLowerCase();
      fill();
    } });
  const save = make("button", { type: "button", class: "quiet", "aria-label": `${name} as CSV`,
    onclick: () => download(name, csv({ columns: heads, rows })) }, "CSV");
  const fewer = heads.some(({ minor }, i) => minor && !empty[i]) ? make("span", { class: "note fewer" }, "More columns in the") : null;
  fill();
  const grid = make("table", {}, make("thead", {}, make("tr", {}, headings)), body);
  const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, grid);
  const hint = make("p", { class: "note wider", hidden: true }, "Scroll sideways for more columns →");
  const whole = make("div", { class: "table" }, hint, scroll, make("div", { class: "tools" }, filter, more, fewer, save));
  root.append(whole);
  // In the next frame: what changes a size while sizes are told is an error.
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(scroll);
  return whole;
}

function content(cell) {
  const text = shown(cell);
  return cell?.node?.() ?? (text.length > LONG ? make("div", { class: "long", title: text }, coded(text)) : coded(text));
}

function isNumeric(rows, i) {
  return rows.some((row) => typeof rank(row[i]) === "number")
    && rows.every((row) => typeof rank(row[i]) === "number" || shown(row[i]) === "");
}

// Gives a table already in the page the same functions as one made by `table`.
function adopt(grid) {
  const columns = [...grid.tHead.rows[0].cells].map((cell) => ({
    title: cell.textContent, align: cell.classList[0], minor: cell.classList.contains("minor"),
  }));
  const rows = [...grid.tBodies[0].rows].map((row) => [...row.cells].map((cell) => (cell.firstElementChild === null
    ? cell.textContent : { text: cell.textContent, node: () => make("span", {}, ...cell.cloneNode(true).childNodes) })));
  if (columns[0].title === "node") {
    rows.forEach((row) => { row[0] = { text: shown(row[0]), node: () => link("graph", shown(row[0])) }; });
  }
  const holder = grid.closest(".scroll");
  const most = Number(grid.dataset.first);
  holder.replaceWith(table(document.createDocumentFragment(), { name: grid.dataset.name, columns, rows, most }));
}

Object.assign(halfwise, { table, csv, rank });
for (const grid of document.querySelectorAll("table[data-name]")) {
  adopt(grid);
}
