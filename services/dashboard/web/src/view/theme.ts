// Dark, light, or the system's choice. Charts read their colours from custom properties and are
// notified when these change.

const KEY = "braid.theme";
export type Theme = "auto" | "dark" | "light";

const listeners = new Set<() => void>();

export function theme(): Theme {
  const stored = localStorage.getItem(KEY);
  return stored === "dark" || stored === "light" ? stored : "auto";
}

export function applyTheme(next: Theme): void {
  if (next === "auto") {
    localStorage.removeItem(KEY);
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem(KEY, next);
    document.documentElement.dataset["theme"] = next;
  }
  listeners.forEach((listener) => listener());
}

export function onTheme(listener: () => void): void {
  listeners.add(listener);
}

matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => listeners.forEach((listener) => listener()));

export function colour(property: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(property).trim() || "#888";
}
