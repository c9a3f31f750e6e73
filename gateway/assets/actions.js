// What may be asked of a job. Whatever changes what runs is confirmed first; a refusal is shown in the gateway's words.

import { newKey, pause } from "./api.js";
import { ask, choiceField, numberField } from "./dialog.js";
import { h, setAttribute } from "./dom.js";
import { count, moment } from "./format.js";
import { refusal } from "./states.js";

const LOOK_MS = 5_000; // how long a job that is over is left alone
const VERBS = [["checkpoint", "Checkpoint", ""], ["pause", "Pause…", ""], ["resume", "Resume…", ""],
  ["scale", "Scale…", ""], ["restore", "Restore…", ""], ["cancel", "Cancel…", "danger"]];
const CONDITIONAL = ["scale", "restore"]; // the others are meant whatever became of the job meanwhile

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
    const counts = countsOf(job);
    await this._confirmed("scale", {
      title: `Scale ${job.id}`,
      text: [job.state === "paused" ? "It resumes with these numbers of processes."
        : "A checkpoint is taken first; then all its processes start again from it."],
      fields: counts.map(({ name, words, present, max }) => numberField(name, words, { value: present, max })),
      confirm: "Scale",
    }, (values) => {
      const changed = counts.filter(({ name, present }) => values[name] !== present);
      // Nothing but present numbers: takes back what was asked for before.
      return Object.fromEntries((changed.length > 0 ? changed : counts).map(({ name }) => [name, values[name]]));
    });
  }

  async pause() {
    const job = this._latest();
    await this._confirmed("pause", {
      title: `Pause ${job.id}?`,
      text: ["A checkpoint is taken; then its processes end and others may use their room. Resume goes on from there."],
      confirm: "Pause the job",
    }, () => undefined);
  }

  async resume() {
    const job = this._latest();
    await this._confirmed("resume", {
      title: `Resume ${job.id}?`,
      text: [job.state === "paused" ? "Its processes start again from where it was paused."
        : "The pause is taken back; the job goes on as it is."],
      confirm: "Resume the job",
    }, () => undefined);
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
    await this._confirmed("restore", {
      title: `Restore ${job.id}`,
      text: ["What was trained after the checkpoint is left behind. Empty fields stay as they are."],
      fields: [
        choiceField("checkpoint", "From checkpoint", choices, checkpoint?.id ?? choices[0]?.[0]),
        ...countsOf(job).map(({ name, words, present, max }) => numberField(name, `${words} (now ${present})`,
          { max, optional: true })),
      ],
      confirm: "Restore",
      danger: true,
    }, (values) => values);
  }

  /** One decision has one key, however often it is tried, and is meant for the job as the user sees it. */
  async _confirmed(verb, question, bodyOf) {
    const { id } = this._latest();
    const key = newKey();
    const conditional = CONDITIONAL.includes(verb);
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

/** The numbers of processes that a user may choose: name in the API, words, present number, bound. */
function countsOf(job) {
  const { trainers, sparse_ps: shards, dense_ps: blocks, placement } = job.spec.resources;
  return [
    { name: "trainers", words: "Trainers", present: trainers, max: 1024 },
    { name: "sparse_ps", words: "Sparse-PS", present: shards, max: 1024 },
    { name: "dense_ps", words: "Dense-PS", present: blocks, max: 64 },
  ].filter(({ name }) => name !== "sparse_ps" || placement !== "embedded"); // there each trainer has one shard
}
