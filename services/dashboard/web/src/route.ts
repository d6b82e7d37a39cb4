// The page's own addresses. Each screen has one that can be shared; the server opens the page at
// each (`SCREENS` in `page.rs`).

export const SCREENS = ["ward", "patients", "alerts", "paths", "fleet", "manage"] as const;
export type Screen = (typeof SCREENS)[number];

export interface Route {
  readonly screen: Screen;
  // Empty: no patient. The screen `patients` has one always.
  readonly patient: string;
  // An alert to show; empty: none.
  readonly alert: string;
  // A list of the administration, and one of its entries; empty: none.
  readonly section: string;
  readonly item: string;
}

export const to = (screen: Screen, patient = "", alert = ""): Route => ({ screen, patient, alert, section: "", item: "" });
export const manage = (section = "", item = ""): Route => ({ screen: "manage", patient: "", alert: "", section, item });

// routeOf reads an address. Links of messages and of Grafana are of the form
// `/#patient=ID&alert=ID`.
export function routeOf({ pathname, hash }: { readonly pathname: string; readonly hash: string }): Route {
  const linked = new URLSearchParams(hash.slice(1));
  const patient = linked.get("patient") ?? "";
  const alert = linked.get("alert") ?? "";
  if (patient !== "") return to("patients", patient, alert);
  if (alert !== "") return to("alerts", "", alert);
  const [, first = "", ...rest] = pathname.split("/").map(decoded);
  const screen = SCREENS.find((name) => name === first) ?? "ward";
  if (screen === "manage") return manage(rest[0], rest[1]);
  if (screen === "alerts") return to("alerts", "", rest[0]);
  if (screen === "patients" && rest[0]) return to("patients", rest[0], rest[1]);
  return to(screen === "patients" ? "ward" : screen);
}

export function pathOf({ screen, patient, alert, section, item }: Route): string {
  return ["", screen, patient, alert, section, item].filter((part, i) => i === 0 || part !== "").map(encodeURIComponent).join("/");
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
