"use strict";

const { make, section } = halfwise;

section("verdict", (root) => {
  for (const command of root.querySelectorAll(".command")) {
    command.append(copier(command.textContent.trim()));
  }
  // Commands in sentences; one that is only named, such as `halfwise lint`, is not worth copying.
  for (const code of document.querySelectorAll("main :is(p, dd) > code")) {
    if (/^(halfwise|trtexec) \S+ \S/.test(code.textContent)) {
      code.after(" ", copier(code.textContent));
    }
  }
});

function copier(text) {
  return make("button", { type: "button", class: "quiet", onclick: ({ target }) => copy(text, target) }, "Copy");
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Browsers may forbid this to local files; a selected text can still be copied by key.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}
