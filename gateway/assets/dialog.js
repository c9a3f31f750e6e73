// A question before something changes. Native <dialog>: the focus stays inside, Escape closes, and it goes back after.

import { h } from "./dom.js";

/** Asks; `run(values)` does it and its refusal is shown in place, so that nothing typed is lost.
 *
 * `fields`: elements of `field`. `confirm`: the button's words. Resolves to what `run` gave, or null. */
export function ask({ title, text, fields = [], confirm, danger = false, run }) {
  return new Promise((resolve) => {
    const trouble = h("p", { class: "trouble", role: "alert" });
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, confirm);
    const back = h("button", { type: "button", on: { click: () => box.close() } }, "Back");
    const form = h("form", { method: "dialog" },
      h("h2", { id: "question" }, title),
      ...text.map((line) => h("p", {}, line)),
      ...fields.map((each) => each.element),
      trouble,
      h("div", { class: "row end" }, back, go));
    const box = h("dialog", { "aria-labelledby": "question" }, form);
    let outcome = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      trouble.textContent = "";
      try {
        outcome = await run(Object.fromEntries(fields.map((each) => [each.name, each.value()])));
        box.close();
      } catch (error) {
        trouble.textContent = error.message;
        go.disabled = false;
        go.focus();
      }
    });
    box.addEventListener("close", () => {
      box.remove();
      resolve(outcome);
    });
    document.body.append(box);
    box.showModal();
    (fields[0]?.input ?? back).focus();
  });
}

/** A number to choose; empty means "as it is" where `optional`. */
export function numberField(name, label, { value = "", min = 1, max, optional = false }) {
  const input = h("input", { type: "number", name, value, min, max, step: 1, required: !optional, inputmode: "numeric" });
  return {
    name, input,
    element: h("label", { class: "field" }, h("span", {}, label), input),
    value: () => (input.value === "" ? null : Number(input.value)),
  };
}

/** One of `choices`: [value, words]. */
export function choiceField(name, label, choices, chosen) {
  const input = h("select", { name },
    ...choices.map(([value, words]) => h("option", { value, selected: value === chosen }, words)));
  return {
    name, input,
    element: h("label", { class: "field" }, h("span", {}, label), input),
    value: () => input.value || null,
  };
}
