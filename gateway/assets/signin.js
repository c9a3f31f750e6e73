// The door of a closed gateway: a form for a token. It is kept for this tab only and never part of an address.

import { h } from "./dom.js";

export class SignInPage {
  /** `enter(token)` tries it; its refusal is shown. */
  constructor(enter) {
    this.title = "Sign in";
    this.heading = h("h1", { tabindex: "-1" }, "Sign in");
    this._trouble = h("p", { class: "trouble", role: "alert" });
    this._input = h("input", { type: "password", name: "token", required: true, autocomplete: "off", spellcheck: "false" });
    this._button = h("button", { type: "submit", class: "primary" }, "Sign in");
    this.element = h("form", { class: "card door", on: { submit: (event) => this._submit(event, enter) } },
      this.heading,
      h("p", {}, "This gateway wants a token. ", h("code", {}, "embermesh token create NAME --role operator"),
        " makes one; it is kept until you close this tab."),
      h("label", { class: "field" }, h("span", {}, "Token"), this._input),
      this._trouble,
      h("div", { class: "row end" }, this._button));
  }

  open() {
    this._input.focus();
  }

  close() {}

  async _submit(event, enter) {
    event.preventDefault();
    this._button.disabled = true;
    this._trouble.textContent = "";
    try {
      await enter(this._input.value.trim());
    } catch (error) {
      this._trouble.textContent = error.message;
      this._input.select();
    } finally {
      this._button.disabled = false;
    }
  }
}
