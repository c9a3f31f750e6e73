// What the charts draw: the figures of one job over time, as this page has seen them. Bounded: an hour takes as much
// memory as a minute, only coarser.

import { isTraining } from "./states.js";

const MOST = 720;

export class History {
  constructor(most = MOST) {
    this._most = most;
    this._spacing = 0; // seconds that two points are apart at least
    this._points = [];
  }

  /** Takes the figures seen at `time` (Unix seconds); figures that are not numbers are gaps. */
  add(time, figures) {
    const last = this._points.at(-1);
    if (last && time - last.time < this._spacing) {
      this._points[this._points.length - 1] = { ...figures, time: last.time };
      return;
    }
    this._points.push({ ...figures, time });
    if (this._points.length > this._most) this._thin();
  }

  /** Points {time, value} of one figure, oldest first; value is null in a gap. */
  of(name) {
    return this._points.map((point) => ({
      time: point.time,
      value: Number.isFinite(point[name]) ? point[name] : null,
    }));
  }

  _thin() {
    const span = this._points.at(-1).time - this._points[0].time;
    this._spacing = (2 * span) / this._most;
    const kept = [];
    for (const point of this._points) {
      if (kept.length === 0 || point.time - kept.at(-1).time >= this._spacing) kept.push(point);
    }
    this._points = kept;
  }
}

/** The figures of a JobView that are drawn. While nothing trains there is no speed. */
export function figuresOf(job) {
  const { loss, auc, samples_per_second: speed, lag, rows } = job.progress;
  return isTraining(job.state) ? { loss, auc, speed, lag, rows } : {};
}
