// What a person sets: the theme, which is remembered, and the key, which is not.

import { byId } from "./dom.js";
import { forgetKey, hasKey, onKeyNeeded } from "./server.js";

const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const showTheme = () => byId("theme").setAttribute("aria-checked", isDark());

/** Whether there is a key to forget. */
export const showKey = () => {
  byId("forget").hidden = !hasKey();
};

/** Begins. */
export function watchSettings() {
  byId("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("polyhead-theme", theme);
    } catch {
      /* it holds until the page is left */
    }
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();
  onKeyNeeded(keyTyped);
  byId("forget").addEventListener("click", () => {
    forgetKey();
    showKey();
  });
}

/** The key that a person types; null where they give none. `why` says what is wrong with the one before. */
function keyTyped(why) {
  const [dialog, field] = [byId("key"), byId("key-value")];
  byId("key-why").textContent = why || "Whoever runs it can give you one.";
  field.value = "";
  let typed = null;
  byId("key-form").onsubmit = (event) => {
    event.preventDefault();
    typed = field.value.trim() || null;
    if (typed !== null) dialog.close();
  };
  byId("key-cancel").onclick = () => dialog.close();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      field.value = "";
      resolve(typed);
    };
    dialog.showModal();
  });
}
