// The processes of a job and what each says about itself.

import { h, setChildren, setText } from "./dom.js";

const COLUMNS = ["Process", "Phase", "Address", "Says"];

export class ProcessesPanel {
  constructor() {
    this._rows = new Map();
    this._body = h("tbody");
    this._said = h("p", { class: "hint" });
    this._table = h("table", { class: "narrow-cards" },
      h("caption", { class: "unseen" }, "Processes"),
      h("thead", {}, h("tr", {}, ...COLUMNS.map((name) => h("th", { scope: "col" }, name)))), this._body);
    this.element = h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Processes" },
      this._said, this._table);
  }

  update({ members }) {
    const kept = new Map();
    for (const member of members) {
      const name = `${member.role}-${member.rank}`;
      const row = this._rows.get(name) ?? COLUMNS.map((column) => h("td", { "data-label": column }));
      const texts = [name, member.phase, member.address, member.error || says(member.status)];
      row.forEach((cell, place) => setText(cell, texts[place]));
      kept.set(name, row);
    }
    setChildren(this._body, [...kept].map(([name, row]) => (
      this._rows.has(name) ? row[0].parentElement : h("tr", {}, ...row))));
    this._rows = kept;
    this._table.hidden = members.length === 0;
    setText(this._said, members.length === 0 ? "no process of it runs" : "");
  }
}

function says(status) {
  return Object.entries(status)
    .filter(([, value]) => typeof value === "number")
    .map(([name, value]) => `${name} ${Number.isInteger(value) ? value : Number(value.toPrecision(4))}`)
    .join(", ");
}
