// One job, live: where it stands, how it got there, and what may be asked of it.

import { Actions } from "./actions.js";
import { Problem } from "./api.js";
import { Chart } from "./chart.js";
import { CheckpointsPanel } from "./checkpoints.js";
import { h, setText } from "./dom.js";
import { EventsPanel } from "./events.js";
import { count, fraction } from "./format.js";
import { figuresOf } from "./history.js";
import { LogsPanel } from "./logs.js";
import { ProcessesPanel } from "./processes.js";
import { badge } from "./states.js";
import { Summary } from "./summary.js";
import { tabs } from "./tabs.js";

export class JobPage {
  constructor(id, { api, session, notices, historyOf }) {
    this._id = id;
    this._api = api;
    this._notices = notices;
    this._closing = new AbortController();
    this._history = historyOf(id);
    this._job = null;
    this.title = id;
    this.heading = h("h1", { tabindex: "-1" }, id);
    this._actions = new Actions({ api, session, notices, latest: () => this._job });
    this._build({ api, session });
  }

  /** Shows the job and follows it until it is over or `close`. Raises Problem when there is no such job. */
  async open() {
    const { signal } = this._closing;
    await this._look();
    for (;;) {
      for await (const { event, data } of this._api.stream(this._id, signal)) await this._take(event, data);
      // Over, but :restore may bring it back: by this page, or by somebody else.
      if (signal.aborted || !(await this._awaken(signal))) return;
    }
  }

  close() {
    this._closing.abort();
    this._charts.forEach(({ chart }) => chart.close());
    this._logs.close();
  }

  _build({ api, session }) {
    this._state = h("span", { class: "state" });
    this._away = h("p", { class: "banner", hidden: true }, "The gateway does not answer; what you see may be old.");
    this._error = h("p", { class: "banner banner-bad", role: "alert", hidden: true });
    this._summary = new Summary();
    this._charts = [
      { name: "loss", chart: new Chart({ title: "Loss", format: fraction }) },
      { name: "auc", chart: new Chart({ title: "AUC", format: fraction }) },
      { name: "speed", chart: new Chart({ title: "Samples/s", format: count }) },
      { name: "lag", chart: new Chart({ title: "Lag, messages", format: count }) },
      { name: "rows", chart: new Chart({ title: "Embedding rows", format: count }) },
    ];
    this._events = new EventsPanel();
    this._logs = new LogsPanel(this._id, api);
    this._checkpoints = new CheckpointsPanel(this._id, api,
      { restore: (checkpoint) => this._actions.restore(checkpoint), refused: () => session.refusal("operator") });
    this._processes = new ProcessesPanel();
    this._spec = h("pre", { class: "text tall", tabindex: "0", role: "region", "aria-label": "Spec" });
    this._tabs = tabs("About the job", [
      { name: "events", title: "Events", element: this._events.element },
      { name: "logs", title: "Logs", element: this._logs.element, shown: (is) => this._logs.show(is) },
      { name: "checkpoints", title: "Checkpoints", element: this._checkpoints.element,
        shown: (is) => this._checkpoints.show(is) },
      { name: "processes", title: "Processes", element: this._processes.element },
      { name: "spec", title: "Spec", element: this._spec },
    ]);
    this.element = h("div", { class: "page" },
      h("a", { class: "back", href: "#/jobs" }, "← All jobs"),
      h("div", { class: "row apart" },
        h("div", { class: "row" }, this.heading, this._state), this._actions.element),
      this._away, this._error, this._summary.element,
      h("div", { class: "charts" }, ...this._charts.map(({ chart }) => chart.element)),
      this._tabs.element);
  }

  async _look() {
    this._show(await this._api.job(this._id, this._closing.signal));
  }

  async _take(event, data) {
    this._away.hidden = event !== "away";
    if (event === "event") this._events.add(data);
    if (event === "job") {
      // The stream leaves the spec out; another version may have another one.
      if (data.version !== this._job.version) await this._look().catch(() => {});
      this._show({ ...data, spec: this._job.spec });
    }
  }

  async _awaken(signal) {
    const before = this._job.version;
    while (!signal.aborted) {
      await this._actions.changed(signal);
      try {
        await this._look();
      } catch (error) {
        if (error instanceof Problem && error.status === 404) throw error;
      }
      if (this._job.version !== before) return true;
    }
    return false;
  }

  _show(job) {
    const before = this._job;
    this._job = job;
    const now = Date.now() / 1000;
    if (before?.state !== job.state) {
      this._state.replaceChildren(badge(job.state));
      document.title = `${job.id} · ${job.state} · Embermesh`;
    }
    if (before && (before.state !== job.state || before.generation !== job.generation)) {
      this._notices.announce(`${job.id} is ${job.state}, attempt ${job.generation}`);
    }
    setText(this._error, job.error);
    this._error.hidden = job.error === "";
    this._history.add(now, figuresOf(job));
    this._draw(job);
    this._summary.update(job, now);
    this._actions.update(job);
    this._logs.update(job);
    this._checkpoints.update(job);
    this._processes.update(job);
    setText(this._spec, JSON.stringify(job.spec, null, 2));
  }

  /** A source without a lag has rows in that place. */
  _draw(job) {
    const hasLag = job.progress.lag !== null || this._history.of("lag").some((point) => point.value !== null);
    for (const { name, chart } of this._charts) {
      chart.element.hidden = name === (hasLag ? "rows" : "lag");
      if (!chart.element.hidden) chart.update(this._history.of(name));
    }
  }
}
