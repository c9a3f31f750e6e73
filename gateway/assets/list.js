// The job list: newest first, page by page, kept fresh while it is looked at.

import { pause } from "./api.js";
import { h, setAttribute, setChildren, setText } from "./dom.js";
import { age, brief, count, doneShare, fraction, moment, percent } from "./format.js";
import { find } from "./search.js";
import { badge, isAtRest, STATES } from "./states.js";

const REFRESH_MS = 3_000;
const COLUMNS = [["Job", ""], ["State", ""], ["Progress", "wide"], ["Loss", "number"], ["AUC", "number"],
  ["Test AUC", "number"], ["Samples/s", "number"], ["Age", "number"]];

export class ListPage {
  constructor({ api, notices }) {
    this._api = api;
    this._notices = notices;
    this._closing = new AbortController();
    this._pages = [""]; // cursor of each page up to this one
    this._rows = new Map();
    this._turn = 0; // answers of a former question are dropped
    this._build();
    this.title = "Jobs";
  }

  /** Shows the list and keeps it fresh until `close`. */
  async open() {
    const { signal } = this._closing;
    while (!signal.aborted) {
      if (!document.hidden) await this._load();
      await pause(REFRESH_MS, signal);
    }
  }

  close() {
    this._closing.abort();
  }

  _build() {
    const asked = () => {
      this._pages = [""];
      this._load();
    };
    this._text = h("input", { type: "search", id: "filter", placeholder: "name or id", autocomplete: "off",
      spellcheck: "false", on: { input: asked } });
    this._state = h("select", { id: "state", on: { change: asked } },
      h("option", { value: "" }, "every state"), ...STATES.map((state) => h("option", { value: state }, state)));
    this._body = h("tbody");
    this._said = h("p", { class: "hint", role: "status" }, "loading…");
    this._newer = h("button", { type: "button", disabled: true, on: { click: () => this._turnBack() } }, "← Newer");
    this._older = h("button", { type: "button", disabled: true, on: { click: () => this._turnOn() } }, "Older →");
    this.heading = h("h1", { tabindex: "-1" }, "Jobs");
    this.element = h("div", { class: "page" },
      h("div", { class: "row apart" }, this.heading,
        h("div", { class: "row", role: "search" },
          h("label", { class: "inline" }, "Filter", this._text), h("label", { class: "inline" }, "State", this._state))),
      h("div", { class: "card scroll" },
        h("table", { class: "jobs" },
          h("caption", { class: "unseen" }, "Jobs, newest first"),
          h("thead", {}, h("tr", {}, ...COLUMNS.map(([name, look]) => h("th", { scope: "col", class: look }, name)))),
          this._body)),
      h("div", { class: "row apart" }, this._said, h("nav", { class: "row", "aria-label": "Pages" }, this._newer, this._older)));
  }

  async _load() {
    this._turn += 1;
    const turn = this._turn;
    const wanted = { text: this._text.value.trim().toLowerCase(), state: this._state.value };
    try {
      const found = await find(this._api, wanted, this._pages.at(-1), this._closing.signal);
      if (turn === this._turn) this._show(found, wanted);
    } catch (error) {
      if (!this._closing.signal.aborted && turn === this._turn) setText(this._said, `not current: ${error.message}`);
    }
  }

  _show({ jobs, next, looked }, wanted) {
    const now = Date.now() / 1000;
    const kept = new Map();
    for (const job of jobs) {
      const row = this._rows.get(job.id) ?? new Row(job);
      row.update(job, now);
      kept.set(job.id, row);
    }
    this._rows = kept;
    setChildren(this._body, [...kept.values()].map((row) => row.element));
    this._next = next;
    this._newer.disabled = this._pages.length === 1;
    this._older.disabled = next === null;
    setText(this._said, this._words(jobs.length, looked, wanted));
  }

  _words(shown, looked, wanted) {
    const page = this._pages.length > 1 ? `page ${this._pages.length}: ` : "";
    if (wanted.text || wanted.state) return `${page}${count(shown)} of ${count(looked)} jobs looked at match`;
    if (shown === 0) return "no jobs yet: embermesh submit FILE starts one";
    return `${page}${count(shown)} ${shown === 1 ? "job" : "jobs"}`;
  }

  _turnOn() {
    this._pages.push(this._next);
    this._turned();
  }

  _turnBack() {
    this._pages.pop();
    this._turned();
  }

  _turned() {
    // A button that gets disabled would drop the focus to the top of the page.
    this.heading.focus();
    this._load();
  }
}

class Row {
  constructor(job) {
    const link = h("a", { href: `#/jobs/${encodeURIComponent(job.id)}` }, job.id);
    this._tenant = h("span", { class: "hint" });
    this._bar = h("progress", { max: 1, "aria-label": `Progress of ${job.id}` });
    this._done = h("span", { class: "done" });
    const cells = COLUMNS.map(([name, look]) => h("td", { class: look, "data-label": name }));
    [this._job, this._state, this._progress, this._loss, this._auc, this._test, this._speed, this._age] = cells;
    this._job.append(link, this._tenant);
    this._progress.append(h("span", { class: "progress" }, this._bar, this._done));
    this.element = h("tr", {}, ...cells);
  }

  update(job, now) {
    const { progress, result } = job;
    const share = doneShare(progress);
    setText(this._tenant, job.tenant && job.tenant !== "default" ? job.tenant : "");
    if (this._shownState !== job.state) {
      this._state.replaceChildren(badge(job.state));
      this._shownState = job.state;
    }
    this._bar.hidden = share === null;
    this._bar.value = share ?? 0;
    setText(this._done, share === null ? `${brief(progress.samples)} samples` : percent(share));
    setText(this._loss, fraction(progress.loss));
    setText(this._auc, fraction(progress.auc));
    setText(this._test, fraction(result?.auc));
    setText(this._speed, isAtRest(job.state) ? "–" : brief(progress.samples_per_second));
    setText(this._age, age(job.created, now));
    setAttribute(this._age, "title", `submitted ${moment(job.created)}`);
  }
}
