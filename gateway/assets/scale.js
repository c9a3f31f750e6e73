// Axes: round numbers that cover the values. Pure.

/** About `wanted` round steps that cover [low, high], never below `floor`: {ticks, low, high, step}. */
export function ticks(low, high, wanted = 4, floor = -Infinity) {
  if (!(high > low)) {
    const room = Math.abs(low) * 0.05 || 1;
    return ticks(Math.max(floor, low - room), high + room, wanted);
  }
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  const found = [];
  for (let place = first; place <= last; place += 1) found.push(place * step);
  return { ticks: found, low: first * step, high: last * step, step };
}

/** Decimals that tell two ticks `step` apart. */
export function decimals(step) {
  for (let digits = 0; digits < 8; digits += 1) {
    if (Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) < 1e-6) return digits;
  }
  return 8;
}

/** A function that writes ticks of one axis: all in one unit, with as many decimals as tell them apart. */
export function tickWriter({ low, high, step }) {
  const most = Math.max(Math.abs(low), Math.abs(high));
  const [size, unit] = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([least]) => most >= 2 * least) ?? [1, ""];
  const digits = decimals(step / size);
  return (value) => (value === 0 ? "0" : (value / size).toFixed(digits) + unit);
}

/** Seconds between time marks, so that at most `most` fit into `span`. */
export function timeStep(span, most) {
  const steps = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  return steps.find((step) => span / step <= most) ?? Math.ceil(span / most);
}
