// Who sits here: the token, kept for this tab only, and what the gateway says about its holder.

const TOKEN = "embermesh.token";
const ROLES = ["viewer", "operator", "admin"];

export class Session {
  /** `storage` ends with the tab (sessionStorage). */
  constructor(storage) {
    this._storage = storage;
    this.me = null; // {subject, tenant, role} once the gateway has told
  }

  get token() {
    return this._storage.getItem(TOKEN) ?? "";
  }

  set token(value) {
    if (value) this._storage.setItem(TOKEN, value);
    else this._storage.removeItem(TOKEN);
    this.me = null;
  }

  /** Why the holder may not do what needs `role`; empty when it may. */
  refusal(role) {
    if (this.me === null) return "not signed in";
    const enough = ROLES.indexOf(this.me.role) >= ROLES.indexOf(role);
    return enough ? "" : `your role is ${this.me.role}; this needs ${role}`;
  }
}
