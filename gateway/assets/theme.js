// Dark or light: as the system says, unless the reader chose. The choice is no secret and stays on this machine.

const KEY = "embermesh.theme";

/** Connects the <select> to the page. */
export function connectTheme(select, storage, root) {
  const wear = (choice) => {
    if (choice === "auto") delete root.dataset.theme;
    else root.dataset.theme = choice;
  };
  const kept = storage.getItem(KEY);
  select.value = ["light", "dark"].includes(kept) ? kept : "auto";
  wear(select.value);
  select.addEventListener("change", () => {
    storage.setItem(KEY, select.value);
    wear(select.value);
  });
}
