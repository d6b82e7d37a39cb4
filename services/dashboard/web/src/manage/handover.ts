// The report of a shift for the next one. Each patient has the alerts of the shift, with the people
// who acknowledged them. Arrivals, departures and silences follow. It prints on paper.
import { clock, priorityOf, scoreOf, seconds, stateOf } from "../clinical";
import { nowS } from "../clock";
import { h, setText } from "../dom";
import { AlertState, type Alert } from "../gen/braid/alerts/v1/alerts_pb";
import type { Patient } from "../gen/braid/patients/v1/patients_pb";
import { dayOf, many, minuteOf, t } from "../text";
import { scopeOf } from "../view/silence";
import type { Context } from "./context";
import type { Section } from "./frame";
import { choice } from "./list";
import { placeText, statusText } from "./record";

// Alerts in one answer; older resolved ones are left out, and the report says so.
const ALERTS_MAX = 1_000;
const RECORDS_MAX = 1_000;
const HOURS = ["8", "12", "24"] as const;

export function handoverSection(context: Context): Section {
  const { guarded, query, patients } = context;
  const hours = choice(t("Shift"), HOURS.map((it) => [it, t("the last {hours} h", { hours: it })]), "12");
  const state = h("p", { class: "dim", role: "status" });
  const report = h("div", { class: "handover" });
  const print = h("button", { type: "button", onclick: () => window.print() }, t("Print"));
  const element = h("section", { class: "panel record", "aria-label": t("Handover") }, h("header", {}, h("h2", {}, t("Handover")), h("span", { class: "grow" }), hours, print), state, report);
  let asked = 0;
  const load = async () => {
    const mine = ++asked;
    setText(state, t("Loading…"));
    const fromS = nowS() - Number(hours.value) * 3600;
    try {
      const [open, past, records] = await Promise.all([
        guarded(query.listAlerts({ limit: ALERTS_MAX })),
        guarded(query.listAlerts({ onlyResolved: true, limit: ALERTS_MAX })),
        guarded(patients.listRecords({ includeDeparted: true, limit: RECORDS_MAX })),
      ]);
      if (mine !== asked) return;
      const oldest = past.alerts.at(-1);
      const omitted = open.counts.reduce((sum, it) => sum + it.omitted, 0);
      const isCut = omitted > 0 || records.more || (past.alerts.length >= ALERTS_MAX && oldest !== undefined && seconds(oldest.changedUs) > fromS);
      report.replaceChildren(...reportOf(context, fromS, [...open.alerts, ...past.alerts.filter((it) => seconds(it.changedUs) >= fromS)], records.patients));
      setText(state, isCut ? t("There is more than the report has room for: some alerts or patients are left out.") : "");
    } catch (error) {
      if (mine === asked) setText(state, error instanceof Error ? error.message : String(error));
    }
  };
  hours.addEventListener("change", () => void load());
  return { element, show: () => void load() };
}

function reportOf(context: Context, fromS: number, alerts: readonly Alert[], records: readonly Patient[]): HTMLElement[] {
  const { model, session } = context;
  const by = new Map<string, Alert[]>();
  for (const alert of alerts) by.set(alert.patient, [...(by.get(alert.patient) ?? []), alert]);
  const changed = records.filter(({ statusAtUs, mergedAtUs }) => seconds(statusAtUs) >= fromS || seconds(mergedAtUs) >= fromS);
  const known = new Map(records.map((it) => [it.id, it]));
  const order = [...by.keys()].sort((a, b) => urgency(by.get(b)) - urgency(by.get(a)) || a.localeCompare(b));
  const calm = model.patients.filter(({ id }) => !by.has(id));
  const isOpen = ({ state }: Alert) => state !== AlertState.RESOLVED;
  const openCount = alerts.filter(isOpen).length;
  const at = new Date(nowS() * 1000);
  const head = `${dayOf(new Date(fromS * 1000))} ${minuteOf(new Date(fromS * 1000))} – ${dayOf(at)} ${minuteOf(at)}`;
  return [
    h("p", {}, h("b", {}, head), ` · ${t("by {name}", { name: session.name })}`),
    h("p", {}, `${many(alerts.length, "{count} alert in the shift", "{count} alerts in the shift")}, ${many(openCount, "{count} still open", "{count} still open")}.`),
    ...order.map((patient) => patientBlock(context, patient, by.get(patient) ?? [], known.get(patient))),
    h("h3", {}, t("Arrivals, changes and departures")),
    changed.length === 0 ? h("p", {}, t("None.")) : h("ul", { class: "plain" }, ...changed.map((it) => h("li", {}, `${clock(seconds(it.statusAtUs), minuteOf)} ${it.name || it.id} (${it.id}): ${statusText(it)}`))),
    h("h3", {}, t("Silences in force")),
    model.silences.length === 0
      ? h("p", {}, t("None."))
      : h("ul", { class: "plain" }, ...model.silences.map((it) => h("li", {}, t("{rule} for {patient}", { rule: scopeOf(it)?.rule || t("All"), patient: scopeOf(it)?.patient ? model.labelOf(scopeOf(it)?.patient ?? "") : t("everybody") }), ` · ${t("until {time}", { time: clock(seconds(it.untilUs), minuteOf) })} · ${t("by {name}: {reason}", { name: it.author, reason: it.reason })}`))),
    h("h3", {}, t("Without an alert")),
    h("p", {}, calm.length === 0 ? t("None.") : calm.map(({ id, name }) => (name === "" ? id : `${name} (${id})`)).join(" · ")),
  ];
}

// urgency orders patients: open alerts first, by priority.
function urgency(alerts: readonly Alert[] | undefined): number {
  return Math.max(0, ...(alerts ?? []).map(({ priority, state }) => priority + (state === AlertState.RESOLVED ? 0 : 10)));
}

function patientBlock({ model }: Context, patient: string, alerts: readonly Alert[], record: Patient | undefined): HTMLElement {
  const live = model.patients.find(({ id }) => id === patient);
  const score = live ? scoreOf(live.news2, model.outOfDateSinceS(), alerts.some(({ state }) => state !== AlertState.RESOLVED)) : undefined;
  const facts = [placeText(record?.place), record?.birthDate ?? "", score ? `NEWS2 ${score.text}, ${score.explanation}` : ""].filter(Boolean).join(" · ");
  const sorted = [...alerts].sort((a, b) => Number(a.sinceUs - b.sinceUs));
  return h("div", { class: "handover-patient", "data-handover": patient }, h("h3", {}, patient === "" ? t("Gateways and the system") : model.labelOf(patient)), facts !== "" && h("p", { class: "dim" }, facts), h("ul", { class: "plain" }, ...sorted.map(alertLine)));
}

function alertLine({ priority, summary, rule, sinceUs, state, acknowledgedBy, note }: Alert): HTMLElement {
  const seen = acknowledgedBy === "" ? "" : ` · ${t("acknowledged by {name}", { name: acknowledgedBy })}${note === "" ? "" : `: “${note}”`}`;
  return h("li", {}, h("b", {}, `${priorityOf(priority).mark} `), `${clock(seconds(sinceUs), minuteOf)} ${summary || rule} · ${stateOf(state).label.toLowerCase()}${seen}`);
}
