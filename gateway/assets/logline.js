// One line of a log: JSON of our processes in a form to read; anything else as it is.

import { clock } from "./format.js";

const LEVELS = ["debug", "info", "warning", "error", "critical"];
// Of the whole page, not of this line.
const KNOWN = ["ts", "level", "message", "logger", "service", "job", "role", "rank", "generation", "exception"];

/** {time, level, message, more}; what a plain line lacks is empty. */
export function parse(line) {
  const plain = { time: "", level: "", message: line, more: "" };
  if (!line.startsWith("{")) return plain;
  let fields;
  try {
    fields = JSON.parse(line);
  } catch {
    return plain;
  }
  if (typeof fields.message !== "string" || !LEVELS.includes(fields.level)) return plain;
  const others = Object.entries(fields).filter(([name]) => !KNOWN.includes(name));
  const exception = fields.exception ? `\n${fields.exception}` : "";
  return {
    time: Number.isFinite(fields.ts) ? clock(fields.ts) : "",
    level: fields.level,
    message: fields.message + exception,
    more: others.map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" "),
  };
}
