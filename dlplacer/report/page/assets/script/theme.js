// Light or dark: the system's choice until the reader chooses. Drawings on canvases take their colours from the CSS.

const THEMES = ["auto", "light", "dark"];
let ink = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["surface", "raised", "line", "faint", "text", "muted", "accent", "critical", "transfer", "idle", "bound", "window"];
  ink = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  ink.font = style.getPropertyValue("--font").trim();
  ink.dark = style.getPropertyValue("--dark").trim() === "1";
}

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  readTheme();
  emit("theme");
}

// A file opened from disk may be denied storage; the choice then lasts as long as the page.
function remembered(key) {
  try {
    return localStorage.getItem(`dlplacer.${key}`);
  } catch {
    return null;
  }
}

function remember(key, value) {
  try {
    localStorage.setItem(`dlplacer.${key}`, value);
  } catch {
    // Nothing to do: storage is only a convenience.
  }
}

function themeButton() {
  let chosen = THEMES.includes(remembered("theme")) ? remembered("theme") : "auto";
  const label = () => ({ auto: "◐", light: "☀", dark: "☾" })[chosen];
  const title = () => `Theme: ${chosen} (T)`;
  const toggle = button(label(), title(), () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    remember("theme", chosen);
    setTheme(chosen);
    toggle.textContent = label();
    toggle.title = title();
  }, { id: "theme", className: "icon" });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(chosen));
  if (chosen !== "auto") document.documentElement.dataset.theme = chosen;
  readTheme();
  return toggle;
}
