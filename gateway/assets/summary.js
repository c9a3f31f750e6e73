// Where a job stands, in figures.

import { h, setAttribute, setText } from "./dom.js";
import { age, brief, count, doneShare, duration, fraction, moment, percent } from "./format.js";
import { isAtRest } from "./states.js";

const TILES = ["Samples", "Samples/s", "Time left", "Loss", "AUC", "Test AUC", "Rows", "Lag", "Processes", "Attempt",
  "Checkpoint", "Age"];

export class Summary {
  constructor() {
    this._bar = h("progress", { max: 1, "aria-label": "Progress" });
    this._done = h("span", { class: "done" });
    this._line = h("div", { class: "progress progress-big" }, this._bar, this._done);
    this._tiles = new Map();
    this.element = h("section", { class: "card", "aria-label": "Summary" }, this._line,
      h("dl", { class: "tiles" }, ...TILES.map((name) => this._tile(name))));
  }

  update(job, now) {
    const { progress, result, checkpoint } = job;
    const share = doneShare(progress);
    this._line.hidden = share === null;
    this._bar.value = share ?? 0;
    setText(this._done, percent(share));
    const { trainers, sparse_ps: shards, dense_ps: blocks } = job.spec.resources ?? {};
    const still = isAtRest(job.state);
    this._set("Samples", brief(progress.samples), progress.total_samples
      ? `${count(progress.samples)} of ${count(progress.total_samples)}` : count(progress.samples));
    this._set("Samples/s", still ? "–" : brief(progress.samples_per_second));
    this._set("Time left", still ? "–" : timeLeft(progress));
    this._set("Loss", fraction(progress.loss), "log loss of the recent samples, before they were learnt");
    this._set("AUC", fraction(progress.auc), "of the recent samples, before they were learnt");
    this._set("Test AUC", fraction(result?.auc), result ? `on ${count(result.samples)} held-out rows, log loss ${
      fraction(result.logloss)}` : "when training is complete");
    this._set("Rows", brief(progress.rows), `${count(progress.rows)} embedding rows`);
    this._set("Lag", brief(progress.lag), "messages behind, where the source is a stream");
    this._set("Processes", `${trainers} + ${shards} + ${blocks}`, "trainers + sparse-PS + dense-PS");
    this._set("Attempt", String(job.generation), `generation; ${job.restarts} restarts by failures`);
    this._set("Checkpoint", checkpoint ? `${age(checkpoint.created, now)} ago` : "–", checkpoint?.id ?? "");
    this._set("Age", age(job.created, now), `submitted ${moment(job.created)}`);
  }

  _tile(name) {
    const value = h("dd");
    const tile = h("div", { class: "tile" }, h("dt", {}, name), value);
    this._tiles.set(name, { tile, value });
    return tile;
  }

  _set(name, text, more = "") {
    const { tile, value } = this._tiles.get(name);
    setText(value, text);
    setAttribute(tile, "title", more || null);
  }
}

function timeLeft({ samples, total_samples: total, samples_per_second: speed }) {
  return total && speed > 0 ? duration(Math.max(0, total - samples) / speed) : "–";
}
