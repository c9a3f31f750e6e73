// Numbers and times as people read them. Pure: `now` and times are Unix seconds.

const NOTHING = "–";
const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** 1234567 -> "1,234,567". */
export function count(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : NOTHING;
}

/** 1234567 -> "1.23 M", for places where the size matters and the digits don't. */
export function brief(value) {
  if (!isNumber(value)) return NOTHING;
  for (const [size, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (Math.abs(value) >= size) return significant(value / (unit === " k" ? 1e3 : size)) + unit;
  }
  return count(value);
}

/** A loss or an AUC: four decimals. */
export function fraction(value) {
  return isNumber(value) ? value.toFixed(4) : NOTHING;
}

/** 0.4567 -> "45.7 %". */
export function percent(share) {
  return isNumber(share) ? `${(share * 100).toFixed(1)} %` : NOTHING;
}

/** Bytes in a unit people read. */
export function size(octets) {
  if (!isNumber(octets)) return NOTHING;
  let value = octets;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

/** A duration in its two biggest units: 3700 -> "1 h 1 m". */
export function duration(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [unit, length] of UNITS) {
    const whole = Math.floor(left / length);
    if (whole > 0 || (unit === "s" && parts.length === 0)) parts.push(`${whole} ${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
    left -= whole * length;
  }
  return parts.join(" ");
}

/** How long ago `then` was. */
export function age(then, now) {
  return isNumber(then) ? duration(now - then) : NOTHING;
}

/** Time of day, in the reader's zone. */
export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString("en-GB");
}

/** Date and time, in the reader's zone. */
export function moment(time) {
  const date = new Date(time * 1000);
  return `${date.toLocaleDateString("sv-SE")} ${date.toLocaleTimeString("en-GB")}`;
}

/** Share of its rows that a job has trained, or null where the total isn't known. */
export function doneShare(progress) {
  return progress.total_samples ? Math.min(1, progress.samples / progress.total_samples) : null;
}

function significant(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
