// Readings, gaps and alerts that the register attributes to no patient. They are kept apart until a
// person assigns or discards them; the page says how, and what the list leaves out.
import { h, KeyedList, setText, type Row } from "../dom";
import { clock, seconds } from "../clinical";
import type { Model } from "../model";
import type { ListQuarantineResponse, QuarantineCase } from "../gen/braid/query/v1/query_pb";
import type { Notice } from "../notices";

// Cases on the page; the answer may hold more.
const SHOWN_MAX = 20;
const KINDS: Record<string, string> = {
  "unknown-device": "the sensor is not registered",
  "not-assigned": "no patient wore the sensor at the time",
  "other-gateway": "the sensor was at another gateway at the time",
  "in-doubt": "the time is too uncertain to say whose they are",
  "not-owned": "the gateway has nothing to do with the patient",
  "contradicts-register": "names another patient or gateway than the register",
};

export function quarantineView(model: Model): { element: HTMLElement } {
  const count = h("span", { class: "dim" });
  const list = h("ul", { class: "quarantine" });
  const more = h("p", { class: "more" });
  const todo = h(
    "p",
    { class: "dim" },
    "Register who wore the sensor and take the readings in, or discard them, with ",
    h("code", {}, "braid quarantine assign"),
    " or ",
    h("code", {}, "braid quarantine discard"),
    ".",
  );
  const element = h(
    "section",
    { class: "panel quarantine-panel", "aria-label": "Readings of no patient" },
    h("header", {}, h("h2", {}, "Readings of no patient"), count),
    list,
    more,
    todo,
  );
  const rows = new KeyedList<QuarantineCase>(list, keyOf, row);
  const update = () => {
    const { quarantine } = model;
    element.hidden = quarantine === undefined || quarantine.entries === 0n;
    if (!quarantine) return;
    setText(count, `${quarantine.entries} kept apart`);
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
      setText(what, `${device} at ${gateway}: ${entries} ${entries === 1n ? "entry" : "entries"}`);
      const why = KINDS[kind] ?? kind;
      setText(when, `${why} · ${clock(seconds(firstUs))} to ${clock(seconds(lastUs))}`);
    },
  };
}

// omittedText counts the cases for which the answer or the page has no room.
export function omittedText({ cases, entries, casesOmitted }: ListQuarantineResponse): string {
  const shown = cases.slice(0, SHOWN_MAX);
  const left = casesOmitted + BigInt(cases.length - shown.length);
  const entriesLeft = entries - shown.reduce((sum, it) => sum + it.entries, 0n);
  if (left === 0n) return "";
  return `${left} more ${left === 1n ? "sensor" : "sensors"} with ${entriesLeft} entries not shown`;
}

// noticesOf is the banner that says that something is kept apart.
export function noticesOf({ entries }: ListQuarantineResponse): Notice[] {
  if (entries === 0n) return [];
  const text = `${entries} readings, gaps or alerts belong to no patient and are kept apart.`;
  return [{ key: "quarantine/entries", severity: "note", text }];
}
