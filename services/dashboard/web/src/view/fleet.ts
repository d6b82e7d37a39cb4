// The data of every gateway's accesses, those nearest to their cap first.
import { byUrgency, capShare, hasCap, rulesText, useText, versionText } from "../access";
import { nowS } from "../clock";
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import type { Model } from "../model";
import { finds } from "../search";
import { many, t } from "../text";
import type { PathTrack } from "../tracks";

// Accesses on the page; a search finds the others.
const SHOWN_MAX = 40;
// A cap of which this part is used stands out.
const NEAR_CAP = 0.8;

export function fleetView(model: Model): { element: HTMLElement; draw(): void } {
  const count = h("span", { class: "dim" });
  const search = h("input", { type: "search", class: "search", placeholder: t("Find a gateway"), "aria-label": t("Find a gateway"), spellcheck: "false", autocomplete: "off" });
  const list = h("ul", { class: "accesses", "aria-label": t("Data of all gateways") });
  const more = h("p", { class: "more" });
  const empty = h("p", { class: "empty" });
  const element = h("section", { class: "panel fleet-panel", "aria-label": t("Data of all gateways") }, h("header", {}, h("h2", {}, t("Data of all gateways")), count), h("div", { class: "find" }, search), list, more, empty);
  const rows = new KeyedList<PathTrack>(list, keyOf, accessRow);
  const draw = () => {
    if (!element.isConnected) return;
    const tracks = [...model.paths.values()].filter((track) => track.access !== undefined);
    setText(count, countText(tracks));
    const found = byUrgency(tracks).filter((track) => finds(search.value, track.gateway, track.name));
    rows.update(found.slice(0, SHOWN_MAX));
    const left = found.length - SHOWN_MAX;
    more.hidden = left <= 0;
    setText(more, t("{count} more with smaller parts of their caps not shown; find them by name", { count: left }));
    empty.hidden = found.length > 0;
    setText(empty, tracks.length === 0 ? t("No gateway has reported its data yet.") : t("No gateway has this name."));
  };
  search.addEventListener("input", draw);
  return { element, draw };
}

function keyOf({ gateway, name }: PathTrack): string {
  return JSON.stringify([gateway, name]);
}

function countText(tracks: readonly PathTrack[]): string {
  const gateways = new Set(tracks.map(({ gateway }) => gateway)).size;
  const near = tracks.filter(({ access }) => access && capShare(access) >= NEAR_CAP).length;
  const parts = [many(gateways, "{count} gateway", "{count} gateways"), near > 0 && t("{count} near a cap", { count: near })];
  return gateways === 0 ? "" : parts.filter(Boolean).join(" · ");
}

function accessRow(first: PathTrack): Row<PathTrack> {
  const version = h("span", { class: "dim" });
  const month = h("p", {});
  const bar = h("span", {});
  const cap = h("div", { class: "cap" }, bar);
  const rules = h("p", { class: "dim" });
  const element = h("li", { "data-gateway": first.gateway, "data-access": first.name }, h("p", {}, h("b", {}, `${first.gateway} ${first.name}`), " ", version), month, cap, rules);
  return {
    element,
    update(track) {
      const { access, accessAtS } = track;
      if (!access) return;
      setText(version, versionText(track));
      setText(month, useText(access, nowS() - accessAtS));
      const share = capShare(access);
      cap.hidden = !hasCap(access);
      bar.style.width = `${Math.min(100, share * 100)}%`;
      setAttribute(element, "data-cap", share >= 1 ? "reached" : share >= NEAR_CAP ? "near" : null);
      setText(rules, rulesText(access));
    },
  };
}
