"use strict";

// The button that changes between light and dark.

const root = document.documentElement;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function choose(name) {
  if (name) {
    root.dataset.theme = name;
  } else {
    delete root.dataset.theme;
  }
  label();
}

function label() {
  button.textContent = isDark() ? "Light" : "Dark";
}

const button = document.getElementById("theme");
button.hidden = false;
button.addEventListener("click", () => choose(isDark() ? "light" : "dark"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);

// Paper is white.
let before;
addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  choose("light");
});
addEventListener("afterprint", () => choose(before));
label();
