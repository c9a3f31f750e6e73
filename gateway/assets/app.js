// The console's one composition root: parts, routes (#/jobs, #/jobs/ID), and who sits here.

import { Api, Problem } from "./api.js";
import { h, setText } from "./dom.js";
import { History } from "./history.js";
import { JobPage } from "./job.js";
import { ListPage } from "./list.js";
import { Notices } from "./notices.js";
import { Session } from "./session.js";
import { SignInPage } from "./signin.js";
import { connectTheme } from "./theme.js";

const HISTORIES = 20; // jobs whose curves are kept while other pages are looked at

class App {
  constructor() {
    this._main = byId("main");
    this._who = byId("who");
    this._signOut = byId("sign-out");
    this._session = new Session(sessionStorage);
    this._api = new Api(this._session, () => this._shut());
    this._notices = new Notices(byId("notices"), byId("announcer"));
    this._histories = new Map();
    this._page = null;
    this._signOut.addEventListener("click", () => this._forget());
    addEventListener("hashchange", () => this._go());
    connectTheme(byId("theme"), localStorage, document.documentElement);
  }

  async start() {
    try {
      await this._meet();
      this._go();
    } catch (error) {
      if (!(error instanceof Problem && error.status === 401)) this._put(new TroublePage(error.message, () => this.start()));
    }
  }

  /** Asks the gateway whom it takes us for. */
  async _meet() {
    this._session.me = await this._api.me();
    const { subject, tenant, role } = this._session.me;
    setText(this._who, this._session.token ? `${subject} · ${role}${tenant === "*" ? "" : ` · ${tenant}`}` : "open gateway");
    this._signOut.hidden = this._session.token === "";
  }

  _go() {
    if (this._session.me === null) return;
    const parts = location.hash.replace(/^#\/?/, "").split("/").map(decode);
    const shared = { api: this._api, session: this._session, notices: this._notices, historyOf: (id) => this._history(id) };
    this._put(parts[0] === "jobs" && parts[1] ? new JobPage(parts[1], shared) : new ListPage(shared));
  }

  _put(page) {
    this._page?.close();
    const isFirst = this._page === null;
    this._page = page;
    this._main.replaceChildren(page.element);
    document.title = `${page.title} · Embermesh`;
    if (!isFirst) page.heading.focus();
    scrollTo(0, 0);
    Promise.resolve(page.open()).catch((error) => {
      if (page === this._page && !(page instanceof SignInPage)) this._put(new TroublePage(error.message, () => this._go()));
    });
  }

  /** The gateway refused the token, or there is none. */
  _shut() {
    if (this._page instanceof SignInPage) return;
    this._session.token = "";
    setText(this._who, "");
    this._signOut.hidden = true;
    this._put(new SignInPage((token) => this._enter(token)));
  }

  async _enter(token) {
    this._session.token = token;
    try {
      await this._meet();
    } catch (error) {
      this._session.token = "";
      throw error;
    }
    this._go();
  }

  _forget() {
    this._histories.clear();
    this._shut();
  }

  _history(id) {
    const kept = this._histories.get(id) ?? new History();
    this._histories.delete(id);
    this._histories.set(id, kept); // the youngest is the last
    if (this._histories.size > HISTORIES) this._histories.delete(this._histories.keys().next().value);
    return kept;
  }
}

class TroublePage {
  constructor(message, again) {
    this.title = "Trouble";
    this.heading = h("h1", { tabindex: "-1" }, "That did not work");
    this.element = h("div", { class: "card door" }, this.heading,
      h("p", { class: "trouble", role: "alert" }, message),
      h("div", { class: "row end" }, h("a", { href: "#/jobs" }, "All jobs"),
        h("button", { type: "button", class: "primary", on: { click: again } }, "Try again")));
  }

  open() {}

  close() {}
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function byId(id) {
  return document.getElementById(id);
}

new App().start();
