// What may be asked of a job. Whatever changes what runs is confirmed first; a refusal is shown in the gateway's words.

import { newKey, pause } from "./api.js";
import { ask, choiceField, numberField } from "./dialog.js";
import { h, setAttribute } from "./dom.js";
import { count, moment } from "./format.js";
import { refusal } from "./states.js";

const LOOK_MS = 5_000; // how long a job that is over is left alone
const VERBS = [["checkpoint", "Checkpoint", ""], ["scale", "Scale…", ""], ["restore", "Restore…", ""],
  ["cancel", "Cancel…", "danger"]];

export class Actions {
  /** `latest` gives the newest JobView that the user has seen. */
  constructor({ api, session, notices, latest }) {
    this._api = api;
    this._session = session;
    this._notices = notices;
    this._latest = latest;
    this._wake = null;
    this._taking = false;
    this._buttons = new Map(VERBS.map(([verb, words, look]) => [verb,
      h("button", { type: "button", class: look, disabled: true, on: { click: () => this[verb]() } }, words)]));
    this.element = h("div", { class: "row actions", role: "group", "aria-label": "Actions" }, ...this._buttons.values());
  }

  /** Buttons that the state or the caller's role forbids are off, and say why. */
  update(job) {
    for (const [verb, button] of this._buttons) {
      const why = this._session.refusal("operator") || refusal(verb, job)
        || (verb === "checkpoint" && this._taking ? "one is being taken" : "");
      button.disabled = why !== "";
      setAttribute(button, "title", why || null);
    }
  }

  /** Resolves when this page changed the job, or after a while. */
  changed(signal) {
    const asked = new Promise((resolve) => {
      this._wake = resolve;
    });
    return Promise.race([asked, pause(LOOK_MS, signal)]);
  }

  async checkpoint() {
    const { id } = this._latest();
    this._taking = true;
    this.update(this._latest());
    this._notices.say(`taking a checkpoint of ${id}…`);
    try {
      const taken = await this._api.checkpoint(id);
      this._notices.say(`checkpoint ${taken.id} is complete: ${count(taken.samples)} samples, ${count(taken.rows)} rows`);
    } catch (error) {
      this._notices.complain(`no checkpoint: ${error.message}`);
    } finally {
      this._taking = false;
      this.update(this._latest());
    }
  }

  async scale() {
    const job = this._latest();
    const present = job.spec.resources.trainers;
    await this._confirmed("scale", {
      title: `Scale ${job.id}`,
      text: [`It has ${present} ${present === 1 ? "trainer" : "trainers"}. A checkpoint is taken first; then all its `
        + "processes start again from it."],
      fields: [numberField("trainers", "Trainers", { value: present, max: 1024 })],
      confirm: "Scale",
    }, ({ trainers }) => ({ trainers }));
  }

  async cancel() {
    const job = this._latest();
    await this._confirmed("cancel", {
      title: `Cancel ${job.id}?`,
      text: ["It stops for good, without a last checkpoint. Its checkpoints stay, and Restore can start it again."],
      confirm: "Cancel the job",
      danger: true,
    }, () => undefined);
  }

  /** `checkpoint`: the one to start with in the choice; default: the newest. */
  async restore(checkpoint = null) {
    const job = this._latest();
    let known;
    try {
      known = await this._api.checkpoints(job.id);
    } catch (error) {
      this._notices.complain(`no list of checkpoints: ${error.message}`);
      return;
    }
    const choices = known.reverse().map((each) => [each.id, `${each.id} · ${moment(each.created)} · ${
      count(each.samples)} samples`]);
    const { sparse_ps: shards, dense_ps: blocks, trainers, placement } = job.spec.resources;
    const counts = [["trainers", "Trainers", trainers], ["sparse_ps", "Sparse-PS", shards], ["dense_ps", "Dense-PS", blocks]]
      .filter(([name]) => name !== "sparse_ps" || placement !== "embedded"); // there each trainer has one shard
    await this._confirmed("restore", {
      title: `Restore ${job.id}`,
      text: ["What was trained after the checkpoint is left behind. Empty fields stay as they are."],
      fields: [
        choiceField("checkpoint", "From checkpoint", choices, checkpoint?.id ?? choices[0]?.[0]),
        ...counts.map(([name, words, present]) => numberField(name, `${words} (now ${present})`,
          { max: name === "dense_ps" ? 64 : 1024, optional: true })),
      ],
      confirm: "Restore",
      danger: true,
    }, (values) => values);
  }

  /** One decision has one key, however often it is tried, and is meant for the job as the user sees it. */
  async _confirmed(verb, question, bodyOf) {
    const { id } = this._latest();
    const key = newKey();
    const conditional = verb !== "cancel"; // whatever became of the job meanwhile, it shall end
    const changed = await ask({
      ...question,
      run: (values) => this._api.change(id, verb,
        { body: bodyOf(values), key, version: conditional ? this._latest().version : undefined }),
    });
    if (changed === null) return;
    this._notices.say(`${verb} of ${id} was asked for`);
    this._wake?.();
  }
}
