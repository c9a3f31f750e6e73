// The complete checkpoints of a job, newest first, each with a way back to it.

import { h, setChildren, setText } from "./dom.js";
import { age, count, moment, size } from "./format.js";
import { refusal } from "./states.js";

const COLUMNS = [["Checkpoint", ""], ["Age", "number"], ["Samples", "number"], ["Rows", "number"], ["Size", "number"],
  ["Manifest", ""], ["", ""]];

export class CheckpointsPanel {
  /** `restore(checkpoint)` asks for a restore from it; `refused()` says why the caller may not. */
  constructor(id, api, { restore, refused }) {
    this._id = id;
    this._api = api;
    this._restore = restore;
    this._refused = refused;
    this._newest = undefined; // id of the newest one that was listed
    this._isShown = false;
    this._rows = new Map(); // by id
    this._job = null;
    this._body = h("tbody");
    this._said = h("p", { class: "hint", role: "status" });
    this._table = h("table", { class: "narrow-cards" },
      h("caption", { class: "unseen" }, "Checkpoints, newest first"),
      h("thead", {}, h("tr", {}, ...COLUMNS.map(([name, look]) => h("th", { scope: "col", class: look },
        name || h("span", { class: "unseen" }, "Action"))))),
      this._body);
    this.element = h("div", { class: "scroll tall" }, this._said, this._table);
  }

  update(job) {
    this._job = job;
    const newest = job.checkpoint?.id ?? null;
    if (this._isShown && newest !== this._newest) this._load();
    this._body.querySelectorAll("button").forEach((button) => this._allow(button));
  }

  show(isShown) {
    this._isShown = isShown;
    if (isShown && this._job) this._load();
  }

  async _load() {
    this._newest = this._job.checkpoint?.id ?? null;
    try {
      const known = await this._api.checkpoints(this._id);
      setText(this._said, known.length > 0 ? "" : this._none());
      this._table.hidden = known.length === 0;
      const now = Date.now() / 1000;
      // One that stays keeps its row, so that a new checkpoint takes nobody's focus away.
      this._rows = new Map(known.reverse().map((one) => [one.id, this._rows.get(one.id) ?? this._row(one)]));
      for (const one of known) setText(this._rows.get(one.id).children[1], age(one.created, now));
      setChildren(this._body, [...this._rows.values()]);
    } catch (error) {
      this._newest = undefined; // the next look tries again
      setText(this._said, error.message);
    }
  }

  _none() {
    return this._job.spec.checkpoint ? "no checkpoints yet" : "the job's spec has no checkpoint section";
  }

  _row(checkpoint) {
    const back = h("button", { type: "button", class: "small", "aria-label": `Restore from ${checkpoint.id}…`,
      on: { click: () => this._restore(checkpoint) } }, "Restore…");
    this._allow(back);
    const texts = [checkpoint.id, "", count(checkpoint.samples), count(checkpoint.rows),
      size(checkpoint.bytes), checkpoint.uri];
    const cells = texts.map((text, place) => h("td", { class: COLUMNS[place][1], "data-label": COLUMNS[place][0] }, text));
    cells[1].title = moment(checkpoint.created);
    cells[5].classList.add("uri");
    return h("tr", {}, ...cells, h("td", {}, back));
  }

  _allow(button) {
    const why = this._refused() || refusal("restore", this._job);
    button.disabled = why !== "";
    button.title = why;
  }
}
