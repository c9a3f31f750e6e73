// What just happened, said once: in a corner for eyes, in a live region for screen readers.

import { h } from "./dom.js";

const SHOWN_MS = 8_000;

export class Notices {
  constructor(corner, announcer) {
    this._corner = corner;
    this._announcer = announcer;
  }

  /** A line that goes away by itself. */
  say(text) {
    this._show(text, "notice");
  }

  /** A refusal; stays until it is closed. */
  complain(text) {
    this._show(text, "notice notice-bad");
  }

  /** For screen readers alone: what eyes see change on the page. */
  announce(text) {
    if (this._announcer.textContent !== text) this._announcer.textContent = text;
  }

  _show(text, look) {
    const close = h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", on: { click: () => box.remove() } },
      "✕");
    const box = h("div", { class: look }, h("p", {}, text), close);
    this._corner.append(box);
    if (look === "notice") setTimeout(() => box.remove(), SHOWN_MS);
  }
}
