// One figure over time as a line, drawn by hand in SVG at the size it has on the screen.

import { h, s, setText } from "./dom.js";
import { clock } from "./format.js";
import { ticks, tickWriter, timeStep } from "./scale.js";

const HEIGHT = 148;
const MARGIN = { top: 8, right: 10, bottom: 20, left: 52 };
const SHORTEST = 30; // seconds the time axis shows at least

export class Chart {
  /** `format` writes one value; no tick is below `floor`. */
  constructor({ title, format, floor = 0 }) {
    this._title = title;
    this._format = format;
    this._floor = floor;
    this._points = [];
    this._value = h("span", { class: "chart-value" });
    this._svg = s("svg", { class: "chart-plot", role: "img", height: HEIGHT });
    this._cursor = null; // time the pointer is at
    this.element = h("figure", { class: "chart card" },
      h("figcaption", {}, h("span", { class: "chart-title" }, title), this._value), this._svg);
    this._svg.addEventListener("pointermove", (event) => this._point(event));
    this._svg.addEventListener("pointerleave", () => this._unpoint());
    this._observer = new ResizeObserver(() => this._draw());
    this._observer.observe(this._svg);
  }

  /** Draws `points` ({time, value or null}, oldest first). */
  update(points) {
    this._points = points;
    this._draw();
  }

  close() {
    this._observer.disconnect();
  }

  _draw() {
    const width = this._svg.clientWidth;
    if (width === 0) return;
    const known = this._points.filter((point) => point.value !== null);
    this._svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this._svg.setAttribute("aria-label", this._words(known));
    const shown = this._shown(known);
    setText(this._value, shown ? this._format(shown.value) : "–");
    if (known.length === 0) {
      this._svg.replaceChildren(
        s("text", { class: "chart-empty", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no values yet"));
      return;
    }
    const axes = this._axes(known, width);
    this._svg.replaceChildren(
      ...this._grid(axes, width), ...this._times(axes), ...this._lines(axes), ...this._mark(axes, shown));
  }

  _axes(known, width) {
    const values = known.map((point) => point.value);
    const y = ticks(Math.min(...values), Math.max(...values), 3, this._floor);
    const end = this._points.at(-1).time;
    const begin = Math.min(this._points[0].time, end - SHORTEST);
    const right = width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    return {
      ...y, begin, end, right, bottom,
      x: (time) => MARGIN.left + ((time - begin) / (end - begin)) * (right - MARGIN.left),
      y: (value) => bottom - ((value - y.low) / (y.high - y.low)) * (bottom - MARGIN.top),
      time: (x) => begin + ((x - MARGIN.left) / (right - MARGIN.left)) * (end - begin),
    };
  }

  _grid(axes, width) {
    const write = tickWriter(axes);
    return axes.ticks.flatMap((value) => [
      s("line", { class: "chart-grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: axes.y(value), y2: axes.y(value) }),
      s("text", { class: "chart-tick", x: MARGIN.left - 8, y: axes.y(value) + 4, "text-anchor": "end" }, write(value)),
    ]);
  }

  _times(axes) {
    const step = timeStep(axes.end - axes.begin, Math.max(1, Math.floor((axes.right - MARGIN.left) / 90)));
    const found = [];
    for (let time = Math.ceil(axes.begin / step) * step; time <= axes.end; time += step) {
      const x = axes.x(time);
      if (x < MARGIN.left + 24 || x > axes.right - 20) continue;
      found.push(s("text", { class: "chart-tick", x, y: HEIGHT - 5, "text-anchor": "middle" }, clock(time)));
    }
    return found;
  }

  _lines(axes) {
    const runs = [[]];
    for (const { time, value } of this._points) {
      if (value !== null) runs.at(-1).push(`${axes.x(time).toFixed(1)},${axes.y(value).toFixed(1)}`);
      else if (runs.at(-1).length > 0) runs.push([]);
    }
    return runs.filter((run) => run.length > 0).map((run) => (run.length > 1
      ? s("polyline", { class: "chart-line", points: run.join(" ") })
      : s("circle", { class: "chart-dot", cx: run[0].split(",")[0], cy: run[0].split(",")[1], r: 2 })));
  }

  _mark(axes, shown) {
    const dot = s("circle", { class: "chart-dot", cx: axes.x(shown.time), cy: axes.y(shown.value), r: 3 });
    if (this._cursor === null) return [dot];
    const x = axes.x(shown.time);
    const anchor = x > axes.right - 30 ? "end" : x < MARGIN.left + 30 ? "start" : "middle";
    return [
      s("line", { class: "chart-cursor", x1: x, x2: x, y1: MARGIN.top, y2: axes.bottom }),
      s("rect", { class: "chart-plate", x: Math.max(MARGIN.left, Math.min(x - 32, axes.right - 64)), y: HEIGHT - 18,
        width: 64, height: 18 }),
      s("text", { class: "chart-tick", x, y: HEIGHT - 5, "text-anchor": anchor }, clock(shown.time)),
      dot,
    ];
  }

  /** The point at the pointer, else the newest. */
  _shown(known) {
    if (this._cursor === null || known.length === 0) return known.at(-1);
    return known.reduce((best, point) => (
      Math.abs(point.time - this._cursor) < Math.abs(best.time - this._cursor) ? point : best));
  }

  _point(event) {
    const known = this._points.filter((point) => point.value !== null);
    if (known.length === 0) return;
    const box = this._svg.getBoundingClientRect();
    this._cursor = this._axes(known, box.width).time(event.clientX - box.left);
    this._draw();
  }

  _unpoint() {
    this._cursor = null;
    this._draw();
  }

  _words(known) {
    if (known.length === 0) return `${this._title}: no values yet`;
    const values = known.map((point) => point.value);
    const [low, high, last] = [Math.min(...values), Math.max(...values), values.at(-1)].map(this._format);
    return `${this._title}: now ${last}, between ${low} and ${high} since ${clock(known[0].time)}`;
  }
}
