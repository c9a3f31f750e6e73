// What a job's state allows. The gateway decides; this only keeps people from asking in vain.

import { h } from "./dom.js";

const FINAL = ["succeeded", "failed", "cancelled"];
const MARKS = { running: "●", starting: "◐", pausing: "◒", stopping: "◑", paused: "‖", pending: "○", succeeded: "✓",
  failed: "✕", cancelled: "–" };
const PAUSES = ["pausing", "paused"];

export const STATES = Object.keys(MARKS);

/** Whether the job is over. */
export function isFinal(state) {
  return FINAL.includes(state);
}

/** Whether it has no processes and nothing more happens by itself. */
export function isAtRest(state) {
  return isFinal(state) || state === "paused";
}

/** Whether all its processes are at work. */
export function isTraining(state) {
  return state === "running" || state === "pausing";
}

/** The state with a mark, so that its colour is never all that tells it. */
export function badge(state) {
  return h("span", { class: `badge badge-${STATES.includes(state) ? state : "other"}` },
    h("span", { "aria-hidden": "true", class: "badge-mark" }, MARKS[state] ?? "?"), state);
}

/** Why `verb` makes no sense for the job now; empty when it does. */
export function refusal(verb, job) {
  if (verb === "cancel") return isFinal(job.state) ? `the job has ${job.state}` : "";
  if (verb === "resume") return PAUSES.includes(job.state) ? "" : "the job is not paused";
  if (!job.spec.checkpoint) return "the job's spec has no checkpoint section";
  if (verb === "checkpoint") return job.state === "running" ? "" : "only a running job takes checkpoints";
  if (verb === "scale") {
    return ["starting", "running", ...PAUSES].includes(job.state) ? "" : "only a running or paused job scales";
  }
  if (job.state === "stopping") return "the job is stopping";
  if (verb === "pause") {
    if (PAUSES.includes(job.state)) return `the job is ${job.state} already`;
    return isFinal(job.state) ? `the job has ${job.state}` : "";
  }
  return job.checkpoint ? "" : "there is no checkpoint yet";
}
