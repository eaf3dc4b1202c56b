// Light, dark, or as the system has it. Kept in a cookie, so that the server can draw the page right at once: no flash, no inline script.
import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
export const THEMES: readonly Theme[] = ["system", "light", "dark"];

const YEAR = 365 * 24 * 3600;

export const theme = signal<Theme>((document.documentElement.dataset["theme"] as Theme | undefined) ?? "system");

export function setTheme(chosen: Theme): void {
  theme.value = chosen;
  const kept = chosen === "system" ? "theme=; max-age=0" : `theme=${chosen}; max-age=${YEAR}`;
  document.cookie = `${kept}; path=/; samesite=lax`;
  if (chosen === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
}
