// Readings, gaps and alerts that the register attributes to no patient. They are kept apart until a
// person assigns or discards them; the page says how, and what the list leaves out.
import { h, KeyedList, setText, type Row } from "../dom";
import { clock, seconds } from "../clinical";
import type { Model } from "../model";
import type { ListQuarantineResponse, QuarantineCase } from "../gen/braid/query/v1/query_pb";
import type { Notice } from "../notices";
import { many, t, term } from "../text";

// Cases on the page; the answer may hold more.
const SHOWN_MAX = 20;
const KINDS: Record<string, string> = {
  "unknown-device": term("the sensor is not registered"),
  "not-assigned": term("no patient wore the sensor at the time"),
  "other-gateway": term("the sensor was at another gateway at the time"),
  "unknown-metric": term("the metric is in no catalogue"),
  "in-doubt": term("the time is too uncertain to say whose they are"),
  "not-owned": term("the gateway has nothing to do with the patient"),
  "contradicts-register": term("names another patient or gateway than the register"),
};

export function quarantineView(model: Model): { element: HTMLElement } {
  const count = h("span", { class: "dim" });
  const list = h("ul", { class: "quarantine" });
  const more = h("p", { class: "more" });
  const todo = h(
    "p",
    { class: "dim" },
    t("Register who wore the sensor and take the readings in, or discard them, with:"),
    " ",
    h("code", {}, "braid quarantine assign"),
    ", ",
    h("code", {}, "braid quarantine discard"),
  );
  const element = h(
    "section",
    { class: "panel quarantine-panel", "aria-label": t("Readings of no patient") },
    h("header", {}, h("h2", {}, t("Readings of no patient")), count),
    list,
    more,
    todo,
  );
  const rows = new KeyedList<QuarantineCase>(list, keyOf, row);
  const update = () => {
    const { quarantine } = model;
    element.hidden = quarantine === undefined || quarantine.entries === 0n;
    if (!quarantine) return;
    setText(count, t("{count} kept apart", { count: quarantine.entries }));
    rows.update(quarantine.cases.slice(0, SHOWN_MAX));
    const omitted = omittedText(quarantine);
    more.hidden = omitted === "";
    setText(more, omitted);
  };
  model.on("quarantine", update);
  update();
  return { element };
}

function keyOf({ device, gateway, kind }: QuarantineCase): string {
  return JSON.stringify([device, gateway, kind]);
}

function row(first: QuarantineCase): Row<QuarantineCase> {
  const what = h("p", {});
  const when = h("p", { class: "dim" });
  const element = h("li", { "data-quarantined": first.device }, what, when);
  return {
    element,
    update({ device, gateway, kind, entries, firstUs, lastUs }) {
      setText(what, many(entries, "{device} at {gateway}: {count} entry", "{device} at {gateway}: {count} entries", { device, gateway }));
      const why = t(KINDS[kind] ?? kind);
      setText(when, `${why} · ${t("{from} to {to}", { from: clock(seconds(firstUs)), to: clock(seconds(lastUs)) })}`);
    },
  };
}

// omittedText counts the cases for which the answer or the page has no room.
export function omittedText({ cases, entries, casesOmitted }: ListQuarantineResponse): string {
  const shown = cases.slice(0, SHOWN_MAX);
  const left = casesOmitted + BigInt(cases.length - shown.length);
  const entriesLeft = entries - shown.reduce((sum, it) => sum + it.entries, 0n);
  if (left === 0n) return "";
  return many(left, "{count} more sensor with {entries} entries not shown", "{count} more sensors with {entries} entries not shown", { entries: entriesLeft });
}

// noticesOf is the banner that says that something is kept apart.
export function noticesOf({ entries }: ListQuarantineResponse): Notice[] {
  if (entries === 0n) return [];
  const text = many(entries, "{count} reading, gap or alert belongs to no patient and is kept apart.", "{count} readings, gaps or alerts belong to no patient and are kept apart.");
  return [{ key: "quarantine/entries", severity: "note", text }];
}
