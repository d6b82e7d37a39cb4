// The ward: a card for each patient in the server's order, open high alerts first, and a search.
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import { priorityOf, scoreOf, show, styleOf, unknownText, wordsOf } from "../clinical";
import { Metric, Priority } from "../gen/braid/vitals/v1/vitals_pb";
import type { Patient } from "../gen/braid/query/v1/query_pb";
import type { Model } from "../model";
import { finds } from "../search";
import { HeldOrder, Hold } from "./hold";

const BRIEF = [Metric.HEART_RATE, Metric.RESPIRATION_RATE, Metric.SPO2, Metric.TEMPERATURE, Metric.SYSTOLIC_PRESSURE] as const;

export function wardView(model: Model, choose: (patient: string) => void): { element: HTMLElement; tick(): void; stop(): void } {
  const list = h("div", { class: "patients", role: "group", "aria-label": "Patients, open high alerts first, then unknown, then worst first" });
  const count = h("span", { class: "dim" });
  const empty = h("p", { class: "empty" });
  const unassigned = h("p", { class: "left-out dim fine" });
  // Takes the place of the count while rows that are held would stand elsewhere.
  const held = h("button", {
    type: "button",
    class: "held",
    onclick: () => {
      order.release();
      update();
      list.scrollTop = 0;
    },
  });
  const search = h("input", { type: "search", class: "search", placeholder: "Find a patient  /", "aria-label": "Find a patient", "aria-keyshortcuts": "/", spellcheck: "false", autocomplete: "off" });
  const element = h("section", { class: "panel ward", "aria-label": "Ward" }, h("header", {}, h("h2", {}, "Ward"), count, held), search, list, empty, unassigned);
  // A search ends with the choice, because it would hide other patients who fall ill.
  const select = (patient: string) => {
    if (search.value !== "") order.release();
    search.value = "";
    choose(patient);
    update();
    list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  };
  const order = new HeldOrder<Patient>(({ id }) => id);
  const hold = new Hold(element, () => update());
  const rows = new KeyedList<Patient>(list, (patient) => patient.id, (patient) => card(model, patient.id, select));

  list.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step === 0) return;
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    buttons[Math.max(0, Math.min(buttons.length - 1, at + step))]?.focus();
    event.preventDefault();
  });
  search.addEventListener("input", () => {
    order.release();
    update();
  });
  search.addEventListener("keydown", (event) => {
    const first = list.querySelector<HTMLButtonElement>("button");
    if (event.key === "Escape") {
      search.value = "";
      order.release();
    }
    else if (event.key === "ArrowDown") first?.focus();
    else if (event.key === "Enter") first?.click();
    else return;
    event.preventDefault();
    update();
  });
  // From anywhere but a field for text.
  const seek = (event: KeyboardEvent) => {
    const writes = event.target instanceof Element && event.target.closest("input, select, textarea");
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || writes) return;
    search.focus();
    event.preventDefault();
  };
  document.addEventListener("keydown", seek);

  const update = () => {
    const all = model.patients;
    const shown = all.filter((patient) => finds(search.value, patient.name, patient.id));
    const now = order.of(shown, hold.held());
    rows.update(now.rows);
    const isHeld = now.moved || now.waiting.length > 0;
    held.hidden = !isHeld;
    count.hidden = isHeld;
    const top = shown[0];
    const isUrgent = top !== undefined && top.worstPriority === Priority.HIGH && now.rows[0]?.id !== top.id;
    setAttribute(held, "data-priority", isUrgent ? "high" : null);
    setText(held, isUrgent ? `!!! ${top.name || top.id} is first, show` : now.waiting.length > 0 ? `${now.waiting.length} new, show` : "New order, show");
    empty.hidden = shown.length > 0;
    const leftOut = model.patientsUnassigned;
    setText(empty, all.length > 0 ? "No patient has this name." : leftOut > 0 ? "Nobody wears a sensor." : "Waiting for the first sample.");
    unassigned.hidden = leftOut === 0;
    setText(unassigned, `${leftOut} ${leftOut === 1 ? "patient" : "patients"} without a sensor not listed; see \`braid register list\`.`);
    const unknown = all.filter((patient) => patient.unknown).length;
    const omitted = model.patientsOmitted;
    const parts = [
      shown.length < all.length ? `${shown.length} of ${all.length}` : `${all.length}, worst first`,
      unknown > 0 && `${unknown} unknown`,
      omitted > 0 && `${omitted} more not shown`,
    ];
    setText(count, all.length === 0 ? "" : parts.filter(Boolean).join(" · "));
    setAttribute(count, "data-partial", shown.length < all.length || omitted > 0);
  };
  model.on("ward", update);
  update();
  return { element, tick: update, stop: () => document.removeEventListener("keydown", seek) };
}

function card(model: Model, id: string, select: (patient: string) => void): Row<Patient> {
  const score = h("span", { class: "score" });
  const name = h("b", {});
  // Two people may have one name, so there is always a second identifier.
  const second = h("small", { class: "second" });
  const label = h("span", { class: "name" }, name, " ", second);
  const words = h("span", { class: "words" });
  const why = h("span", { class: "why" });
  const alerts = h("span", { class: "chip" });
  const values = BRIEF.map((metric) => ({
    metric,
    value: h("b"),
  }));
  const brief = h(
    "span",
    { class: "brief" },
    ...values.map(({ metric, value }) => h("span", { class: `v ${styleOf(metric).key}` }, h("i", {}, styleOf(metric).short), value)),
  );
  const element = h(
    "button",
    { class: "patient", type: "button", "data-patient": id, onclick: () => select(id) },
    score,
    h("span", { class: "who" }, label, words, why),
    alerts,
    brief,
  );
  return {
    element,
    update(patient) {
      const outOfDateS = model.outOfDateSinceS();
      const open = model.alerts.of(id);
      const hasAlert = open.length > 0 || patient.activeAlerts > 0;
      const shown = scoreOf(patient.news2, outOfDateS, hasAlert);
      setText(score, shown.text);
      setAttribute(score, "data-risk", shown.risk);
      setAttribute(score, "data-partial", shown.partial);
      setAttribute(score, "aria-label", `NEWS2 ${shown.text}, ${shown.explanation}`);
      setText(name, patient.name || patient.id);
      setText(second, patient.name === "" || patient.name === patient.id ? "" : patient.id);
      setAttribute(second, "data-namesake", model.isNamesake(patient.id));
      const { unknown } = patient;
      setAttribute(element, "data-silent", unknown !== undefined);
      setText(why, outOfDateS === undefined && unknown ? unknownText(unknown, true) : shown.explanation);
      setAttribute(why, "title", unknown ? unknownText(unknown) : null);
      setAttribute(element, "aria-current", patient.id === model.selected ? "true" : null);
      // The list of alerts is a moment ahead of the ward, and bounded.
      const priority = priorityOf(Math.max(patient.worstPriority, ...open.map((alert) => alert.priority)));
      alerts.hidden = !hasAlert;
      setAttribute(element, "data-alarm", hasAlert && priority.key);
      const [first, ...others] = open;
      words.hidden = !hasAlert;
      setText(words, first ? `${wordsOf(first)}${others.length > 0 ? ` · ${others.length} more` : ""}` : hasAlert ? `${priority.label} alert` : "");
      setAttribute(alerts, "data-priority", priority.key);
      const count = `${Math.max(patient.activeAlerts, open.length)}${patient.activeAlertsMore ? "+" : ""}`;
      setText(alerts, `${priority.mark} ${count}`);
      setAttribute(alerts, "aria-label", `${count} alerts, worst: ${priority.label}`);
      for (const { metric, value } of values) {
        const latest = patient.latest.find((vital) => vital.metric === metric);
        let text = show(metric, latest?.value);
        if (metric === Metric.SYSTOLIC_PRESSURE) {
          text += `/${show(Metric.DIASTOLIC_PRESSURE, patient.latest.find((vital) => vital.metric === Metric.DIASTOLIC_PRESSURE)?.value)}`;
        }
        setText(value, text);
        // Too old for the score, as the core judges it.
        setAttribute(value, "data-stale", patient.news2?.missing.includes(metric));
      }
    },
  };
}
