// The paths of the selected patient's gateway: rate, round trip, loss, data of the month and rules
// in force, and the demonstration's cut button.
import { rulesText, useText, versionText } from "../access";
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import { nowS } from "../clock";
import { PathState, type Link } from "../gen/braid/paths/v1/paths_pb";
import type { Model } from "../model";
import type { PathTrack } from "../tracks";
import { Sparkline } from "./chart";
import { onTheme } from "./theme";
import { number, t, term } from "../text";

const WINDOW_S = 60;
// Without a report for this long a path is shown as silent.
const SILENT_MS = 6_000;
// A hole in a sparkline.
const HOLE_S = 4;

const NAMES: Record<string, string> = { wifi: "Wi-Fi", lte: "LTE", "5g": "5G", nr: "5G", satellite: term("Satellite"), ethernet: "Ethernet" };

export interface LinkActions {
  readonly mayAct: boolean;
  // loadHistory asks for the reports of one gateway, whose paths are in sight.
  loadHistory(gateway: string, windowS: number): void;
  setLink(gateway: string, name: string, up: boolean): Promise<void>;
}

export interface PathsView {
  readonly element: HTMLElement;
  draw(): void;
  // reload asks for the history again, because a stream was interrupted.
  reload(): void;
}

interface PathItem {
  readonly key: string;
  readonly gateway: string;
  readonly name: string;
  readonly track: PathTrack | undefined;
  readonly link: Link | undefined;
  readonly share: number;
}

export function pathsView(model: Model, actions: LinkActions): PathsView {
  const list = h("div", { class: "paths" });
  const share = h("div", { class: "share", role: "img" });
  const gatewayName = h("span", { class: "dim" });
  const steering = h("span", { class: "dim", "data-steering": "", title: t("Version of the steering document that this gateway has acknowledged.") });
  const empty = h("p", { class: "empty" }, t("No path reports yet."));
  const element = h("section", { class: "panel paths-panel", "aria-label": t("Access paths") }, h("header", {}, h("h2", {}, t("Paths")), gatewayName, steering), share, list, empty);
  const rows = new KeyedList<PathItem>(list, (item) => item.key, (item) => pathRow(item, actions));
  const shares = new KeyedList<PathItem>(share, (item) => item.key, (item) => {
    const bar = h("span", { class: "share-bar", "data-path": item.name });
    return { element: bar, update: (next) => (bar.style.flexGrow = String(Math.max(0.001, next.share))) };
  });

  let loaded = "";
  const draw = () => {
    if (!element.checkVisibility()) return;
    const gateway = model.patient()?.gateway || model.links[0]?.gateway || [...model.paths.values()][0]?.gateway || "";
    const items = itemsOf(model, gateway);
    setText(gatewayName, gateway);
    if (gateway !== loaded && gateway !== "") actions.loadHistory((loaded = gateway), WINDOW_S);
    setText(steering, steeringText(model, gateway));
    empty.hidden = items.length > 0;
    rows.update(items);
    const carrying = items.filter((item) => item.share > 0);
    share.hidden = carrying.length === 0;
    shares.update(carrying);
    setAttribute(share, "aria-label", t("Share of sent bytes: {shares}", { shares: carrying.map((item) => `${label(item.name)} ${Math.round(item.share * 100)} %`).join(", ") }));
  };
  model.on("links", draw);
  return { element, draw, reload: () => (loaded = "") };
}

function itemsOf(model: Model, gateway: string): PathItem[] {
  const names = new Set<string>();
  for (const track of model.paths.values()) if (track.gateway === gateway) names.add(track.name);
  for (const link of model.links) if (link.gateway === gateway || link.gateway === "") names.add(link.name);
  const rate = (name: string) => (silent(model.paths.get(gateway, name)) ? 0 : recentRate(model.paths.get(gateway, name)));
  const total = [...names].reduce((sum, name) => sum + rate(name), 0);
  // Wi-Fi before LTE: the order in which people think of them.
  return [...names]
    .sort((a, b) => Number(b === "wifi") - Number(a === "wifi") || a.localeCompare(b))
    .map((name) => ({
      key: `${gateway}/${name}`,
      gateway,
      name,
      track: model.paths.get(gateway, name),
      link: model.links.find((link) => link.name === name && (link.gateway === gateway || link.gateway === "")),
      share: total > 0 ? rate(name) / total : 0,
    }));
}

// steeringText names the document that the gateway obeys. Its newest report counts: a path that is
// closed keeps the version of its last one.
function steeringText(model: Model, gateway: string): string {
  let newest: PathTrack | undefined;
  for (const track of model.paths.values()) {
    if (track.gateway === gateway && track.heardAtMs > (newest?.heardAtMs ?? -1)) newest = track;
  }
  return newest ? versionText(newest) : "";
}

function silent(track: PathTrack | undefined): boolean {
  return !track || performance.now() - track.heardAtMs > SILENT_MS;
}

function recentRate(track: PathTrack | undefined): number {
  const points = track?.points.slice(-5) ?? [];
  return points.reduce((sum, point) => sum + point.rateBitPerS, 0) / Math.max(1, points.length);
}

function label(name: string): string {
  return t(NAMES[name] ?? name);
}

function condition(item: PathItem): { key: string; text: string } {
  if (item.link && !item.link.up) return { key: "cut", text: t("cut") };
  if (silent(item.track)) return { key: "down", text: t("no reports") };
  switch (item.track?.state) {
    case PathState.AVAILABLE:
      return { key: "up", text: t("in use") };
    case PathState.BACKUP:
      return { key: "standby", text: t("standby") };
    case PathState.SUSPECT:
      return { key: "suspect", text: t("not answering") };
    case PathState.CLOSED:
      return { key: "down", text: t("down") };
    default:
      return { key: "standby", text: t("opening") };
  }
}

function pathRow(first: PathItem, actions: LinkActions): Row<PathItem> {
  let item = first;
  const pill = h("span", { class: "pill" });
  const failure = h("p", { class: "message", role: "alert" });
  const month = h("p", { class: "month" });
  const rules = h("p", { class: "dim" });
  const use = h("div", { class: "use" }, month, rules);
  const button = h("button", {
    type: "button",
    class: "quiet",
    "data-link": first.name,
    onclick: () => {
      button.disabled = true;
      setText(failure, "");
      actions
        .setLink(item.gateway, item.name, !(item.link?.up ?? true))
        .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : t("The link was not changed.")))
        .finally(() => (button.disabled = false));
    },
  });
  const hosts = [0, 1, 2].map(() => h("div", { class: "spark" }));
  const numbers = [0, 1, 2].map(() => h("b", {}));
  const names = [t("rate"), t("round trip"), t("loss")];
  const sparks = [
    new Sparkline(hosts[0] as HTMLElement, "--rate", 20_000),
    new Sparkline(hosts[1] as HTMLElement, "--rtt", 40),
    new Sparkline(hosts[2] as HTMLElement, "--loss", 0.05),
  ];
  onTheme(() => sparks.forEach((spark) => spark.rebuild()));
  const element = h(
    "article",
    { class: "path", "data-path": first.name },
    h("header", {}, h("h3", {}, h("span", { class: "swatch", "data-path": first.name }), label(first.name)), pill, button),
    h("div", { class: "meters" }, ...names.map((name, i) => h("div", { class: "meter" }, h("span", { class: "dim" }, name), numbers[i], hosts[i]))),
    use,
    failure,
  );
  return {
    element,
    update(next) {
      item = next;
      const { key, text } = condition(item);
      setText(pill, text);
      setAttribute(pill, "data-state", key);
      setAttribute(element, "data-state", key);
      button.hidden = !item.link || !actions.mayAct;
      const access = item.track?.access;
      use.hidden = access === undefined;
      if (item.track && access) {
        setText(month, useText(access, nowS() - item.track.accessAtS));
        setText(rules, rulesText(access));
      }
      const up = item.link?.up ?? true;
      setText(button, up ? t("Cut") : t("Restore"));
      setAttribute(button, "aria-label", up ? t("Cut {path}", { path: label(item.name) }) : t("Restore {path}", { path: label(item.name) }));
      const points = item.track?.points ?? [];
      const newest = key === "up" || key === "standby" || key === "suspect" ? points.at(-1) : undefined;
      setText(numbers[0] as HTMLElement, newest ? rateText(newest.rateBitPerS) : "–");
      setText(numbers[1] as HTMLElement, newest && newest.rttMs > 0 ? `${number(newest.rttMs, newest.rttMs < 10 ? 1 : 0)} ms` : "–");
      setText(numbers[2] as HTMLElement, newest ? `${number(newest.loss * 100, newest.loss > 0 && newest.loss < 0.1 ? 1 : 0)} %` : "–");
      const now = nowS();
      const times: number[] = [];
      const table: (number | null)[][] = [[], [], []];
      let previous = Infinity;
      for (const point of points) {
        if (point.timeS < now - WINDOW_S - HOLE_S) continue;
        if (point.timeS - previous > HOLE_S) {
          times.push((point.timeS + previous) / 2);
          table.forEach((column) => column.push(null));
        }
        previous = point.timeS;
        times.push(point.timeS);
        table[0]?.push(point.rateBitPerS);
        table[1]?.push(point.rttMs > 0 ? point.rttMs : null);
        table[2]?.push(point.loss);
      }
      sparks.forEach((spark, i) => spark.update(times, table[i] ?? [], now - WINDOW_S, now));
    },
  };
}

function rateText(bitPerS: number): string {
  if (bitPerS >= 1e6) return `${number(bitPerS / 1e6, 1)} Mbit/s`;
  return `${number(bitPerS / 1e3, bitPerS < 1e4 ? 1 : 0)} kbit/s`;
}
