// Tabs as the ARIA practices describe them: one tab stop, arrow keys between the tabs.

import { h } from "./dom.js";

/** `parts`: [{name, title, element, shown(isShown)}]; the first one is open. */
export function tabs(label, parts) {
  const buttons = parts.map((part) => h("button", {
    type: "button", role: "tab", id: `tab-${part.name}`, "aria-controls": `panel-${part.name}`,
    on: { click: () => open(part), keydown: (event) => move(event, parts.indexOf(part)) },
  }, part.title));
  const panels = parts.map((part) => h("div", {
    role: "tabpanel", id: `panel-${part.name}`, "aria-labelledby": `tab-${part.name}`, class: "panel",
  }, part.element));

  function open(chosen) {
    parts.forEach((part, place) => {
      const isOpen = part === chosen;
      buttons[place].setAttribute("aria-selected", String(isOpen));
      buttons[place].tabIndex = isOpen ? 0 : -1;
      panels[place].hidden = !isOpen;
      part.shown?.(isOpen);
    });
  }

  function move(event, place) {
    const goal = {
      ArrowRight: (place + 1) % parts.length,
      ArrowLeft: (place + parts.length - 1) % parts.length,
      Home: 0,
      End: parts.length - 1,
    }[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    open(parts[goal]);
    buttons[goal].focus();
  }

  open(parts[0]);
  return {
    element: h("section", { class: "tabs card" },
      h("div", { role: "tablist", "aria-label": label, class: "tablist" }, ...buttons), ...panels),
    open: (name) => open(parts.find((part) => part.name === name)),
  };
}
