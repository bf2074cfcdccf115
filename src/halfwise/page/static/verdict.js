"use strict";

const { make, section } = halfwise;

section("verdict", (root) => {
  for (const command of root.querySelectorAll(".command")) {
    const text = command.textContent.trim();
    const button = make("button", { type: "button", class: "quiet", onclick: () => copy(text, button) }, "Copy");
    command.append(button);
  }
});

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Browsers may forbid it to files: what is selected can be copied by key.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}
