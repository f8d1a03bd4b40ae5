// Before the first paint: the theme that was chosen here, if any. Else the system's counts.
try {
  const chosen = localStorage.getItem("polyhead-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  /* storage is switched off: the system's theme */
}
