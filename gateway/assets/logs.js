// The end of a process's log, followed while it is looked at.

import { pause, Problem } from "./api.js";
import { h, setChildren, setText } from "./dom.js";
import { parse } from "./logline.js";

const EVERY_MS = 2_000;
const ROLES = [["trainer", "trainers"], ["sparse-ps", "sparse_ps"], ["dense-ps", "dense_ps"]];

export class LogsPanel {
  constructor(id, api) {
    this._id = id;
    this._api = api;
    this._counts = {};
    this._following = null; // aborts while the panel is open
    this._text = null;
    const again = () => this._restart();
    this._role = h("select", { on: { change: () => this._fillRanks() || again() } },
      ...ROLES.map(([role]) => h("option", { value: role }, role)));
    this._rank = h("select", { on: { change: again } });
    this._tail = h("select", { on: { change: again } },
      ...[200, 1000, 5000].map((lines) => h("option", { value: lines }, `${lines} lines`)));
    this._said = h("span", { class: "hint", role: "status" });
    this._lines = h("pre", { class: "text tall", tabindex: "0", role: "region", "aria-label": "Log" });
    this.element = h("div", {},
      h("div", { class: "row" },
        h("label", { class: "inline" }, "Role", this._role), h("label", { class: "inline" }, "Rank", this._rank),
        h("label", { class: "inline" }, "Tail", this._tail), this._said),
      this._lines);
  }

  update(job) {
    const resources = job.spec.resources ?? {};
    this._counts = Object.fromEntries(ROLES.map(([role, field]) => [role, resources[field] ?? 1]));
    this._fillRanks();
  }

  /** The panel came into sight, or went. */
  show(isShown) {
    if (isShown) this._restart();
    else this.close();
  }

  close() {
    this._following?.abort();
    this._following = null;
  }

  _fillRanks() {
    const wanted = this._counts[this._role.value] ?? 1;
    if (this._rank.options.length === wanted) return;
    const chosen = Math.min(Number(this._rank.value), wanted - 1);
    this._rank.replaceChildren(...Array.from({ length: wanted }, (_, rank) => h("option", { value: rank }, rank)));
    this._rank.value = String(chosen);
  }

  _restart() {
    this.close();
    this._text = null;
    this._following = new AbortController();
    this._follow(this._following.signal);
  }

  async _follow(signal) {
    while (!signal.aborted) {
      if (!document.hidden) await this._read(signal);
      await pause(EVERY_MS, signal);
    }
  }

  async _read(signal) {
    try {
      const text = await this._api.logs(this._id, this._role.value, this._rank.value, this._tail.value, signal);
      if (signal.aborted) return;
      setText(this._said, text === "" ? "it has said nothing yet" : "");
      if (text !== this._text) this._show(text);
    } catch (error) {
      if (signal.aborted) return;
      setText(this._said, error.message);
      if (error instanceof Problem && error.status === 404) this._show("");
    }
  }

  _show(text) {
    const box = this._lines;
    const atEnd = this._text === null || box.scrollTop + box.clientHeight >= box.scrollHeight - 24;
    this._text = text;
    setChildren(box, text.split("\n").filter(Boolean).map((line) => element(parse(line))));
    if (atEnd) box.scrollTop = box.scrollHeight;
  }
}

function element({ time, level, message, more }) {
  return h("span", { class: `line line-${level}` },
    time ? h("span", { class: "line-time" }, `${time} `) : null,
    level ? h("span", { class: "line-level" }, `${level.padEnd(7)} `) : null,
    message,
    more ? h("span", { class: "line-more" }, `  ${more}`) : null);
}
