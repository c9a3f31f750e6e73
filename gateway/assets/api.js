// The REST API as the pages use it: one place that sends the token, keeps deadlines and reads problem+json.

import { messages, textOf } from "./sse.js";

const REQUEST_MS = 30_000;
const CHECKPOINT_MS = 600_000; // :checkpoint answers when the manifest is written
const QUIET_MS = 45_000; // a stream says something every 15 s
const AGAIN_MS = 2_000;

/** A refusal of the gateway, or no gateway; `status` is 0 when nothing answered. */
export class Problem extends Error {
  constructor(status, title, detail, errors = []) {
    super(errors.length > 0 ? errors.join("\n") : detail || title);
    this.status = status;
    this.title = title;
  }
}

/** A key that makes a retry of one decision harmless. randomUUID is missing on plain http. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Api {
  /** `onRefused` is called when the token is missing or no longer valid. */
  constructor(session, onRefused) {
    this._session = session;
    this._onRefused = onRefused;
  }

  me(signal) {
    return this._json("GET", "v1/me", { signal });
  }

  jobs(limit, cursor, signal) {
    const query = new URLSearchParams({ limit, ...(cursor ? { cursor } : {}) });
    return this._json("GET", `v1/jobs?${query}`, { signal });
  }

  job(id, signal) {
    return this._json("GET", jobPath(id), { signal });
  }

  checkpoints(id, signal) {
    return this._json("GET", jobPath(id, "/checkpoints"), { signal });
  }

  async logs(id, role, rank, tail, signal) {
    const query = new URLSearchParams({ role, rank, tail });
    return (await this._fetch("GET", `${jobPath(id, "/logs")}?${query}`, { signal })).text();
  }

  checkpoint(id) {
    return this._json("POST", jobPath(id, ":checkpoint"), { deadline: CHECKPOINT_MS });
  }

  /** `verb` is cancel, pause, resume, scale or restore; `version` is the job's that the user has seen. */
  change(id, verb, { body, key, version }) {
    const headers = { "Idempotency-Key": key };
    if (version !== undefined) headers["If-Match"] = `"${version}"`;
    return this._json("POST", jobPath(id, `:${verb}`), { body, headers });
  }

  /** {event, data} of the job's stream, opened again where it broke off, until the job is over or `signal` aborts.
   * Yields {event: "away"} while the gateway doesn't answer. */
  async *stream(id, signal) {
    let last = "";
    for (;;) {
      try {
        for await (const message of this._messages(id, last, signal)) {
          if (message.event === "event") last = message.id;
          yield { event: message.event, data: JSON.parse(message.data) };
          if (message.event === "end") return;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
        yield { event: "away", data: null };
      }
      await pause(AGAIN_MS, signal);
      if (signal.aborted) return;
    }
  }

  async *_messages(id, last, signal) {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), QUIET_MS);
    try {
      const headers = last ? { "Last-Event-ID": last } : {};
      const both = AbortSignal.any([signal, silence.signal]);
      const response = await this._fetch("GET", jobPath(id, "/stream"), { headers, signal: both, deadline: null });
      yield* messages(this._heard(textOf(response), () => {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), QUIET_MS);
      }));
    } finally {
      clearTimeout(timer);
    }
  }

  async *_heard(chunks, listener) {
    for await (const chunk of chunks) {
      listener();
      yield chunk;
    }
  }

  async _json(method, path, options = {}) {
    const response = await this._fetch(method, path, options);
    try {
      return await response.json();
    } catch {
      throw new Problem(response.status, "Unreadable", `${path}: not an answer of an Embermesh gateway`);
    }
  }

  async _fetch(method, path, { body, headers = {}, signal, deadline = REQUEST_MS }) {
    const signals = [signal, deadline === null ? undefined : AbortSignal.timeout(deadline)].filter(Boolean);
    const token = this._session.token;
    const options = {
      method,
      headers: {
        ...headers,
        ...(token ? { Authorization: `Bearer ${token}` } : {}),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signals.length > 0 ? AbortSignal.any(signals) : undefined,
      credentials: "omit",
      cache: "no-store",
    };
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (signal?.aborted) throw error;
      const late = error.name === "TimeoutError";
      throw new Problem(0, "Unavailable", late ? "the gateway did not answer in time" : "the gateway can't be reached");
    }
    if (!response.ok) throw await this._problem(response);
    return response;
  }

  async _problem(response) {
    if (response.status === 401) this._onRefused();
    const told = await response.json().catch(() => ({}));
    const title = told.title ?? response.statusText;
    return new Problem(response.status, title, told.detail ?? `HTTP ${response.status}`, told.errors ?? []);
  }
}

/** Resolves after `milliseconds`, or at once when `signal` aborts. */
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, signal.aborted ? 0 : milliseconds);
    signal.addEventListener("abort", end);
  });
}

function jobPath(id, rest = "") {
  return `v1/jobs/${encodeURIComponent(id)}${rest}`;
}
