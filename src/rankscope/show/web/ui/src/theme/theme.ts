/** Light or dark: the system's choice unless the reader made one. The choice is kept where the browser lets it be. */
export type Theme = "system" | "light" | "dark";

const KEY = "rankscope.theme";
const listeners = new Set<() => void>();
const systemDark = (): MediaQueryList => matchMedia("(prefers-color-scheme: dark)");

export function currentTheme(): Theme {
  const chosen = document.documentElement.dataset["theme"];
  return chosen === "light" || chosen === "dark" ? chosen : "system";
}

export function isDark(): boolean {
  const theme = currentTheme();
  return theme === "dark" || (theme === "system" && systemDark().matches);
}

export function setTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Storage may be forbidden for a local file; the choice then lasts as long as the page.
  }
  for (const tell of listeners) tell();
}

export function startTheme(): void {
  let kept: string | null = null;
  try {
    kept = localStorage.getItem(KEY);
  } catch {
    kept = null;
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset["theme"] = kept;
  const tellAll = (): void => listeners.forEach((tell) => tell());
  systemDark().addEventListener("change", tellAll);
  let before: string | undefined;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset["theme"];
    document.documentElement.dataset["theme"] = "light"; // paper is white
    tellAll();
  });
  addEventListener("afterprint", () => {
    if (before === undefined) delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = before;
    tellAll();
  });
}

/** Calls back when the colors change; returns how to stop. */
export function onThemeChange(tell: () => void): () => void {
  listeners.add(tell);
  return () => listeners.delete(tell);
}

export function color(variable: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}
