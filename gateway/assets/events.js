// What happened to a job, newest first.

import { h } from "./dom.js";
import { clock, moment } from "./format.js";

const KEPT = 1000; // as many as the gateway keeps

export class EventsPanel {
  constructor() {
    this._list = h("ol", { class: "events" });
    this._seen = new Set();
    this.element = h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Events, newest first" },
      this._list);
  }

  add({ id, time, kind, message }) {
    if (this._seen.has(id)) return;
    this._seen.add(id);
    this._list.prepend(h("li", {},
      h("time", { datetime: new Date(time * 1000).toISOString(), title: moment(time) }, clock(time)),
      h("span", { class: `kind kind-${tone(kind)}` }, kind),
      h("span", { class: "message" }, message)));
    if (this._list.children.length > KEPT) this._list.lastElementChild.remove();
  }
}

function tone(kind) {
  if (kind === "failed" || kind.endsWith("-failed")) return "bad";
  return kind === "restarting" || kind === "replacing" ? "odd" : "plain";
}
