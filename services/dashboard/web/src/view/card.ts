// A patient's card: score, name, open alert in words, and the newest values. A value has a colour
// and a shape only while it is abnormal, with the limit beside it.
import { labelOf, priorityOf, scoreOf, show, stayText, styleOf, unknownText, wordsOf } from "../clinical";
import { h, nearRow, setAttribute, setText, type Row } from "../dom";
import type { Alert } from "../gen/braid/alerts/v1/alerts_pb";
import type { Patient } from "../gen/braid/query/v1/query_pb";
import { Metric } from "../gen/braid/vitals/v1/vitals_pb";
import { judge, limitsOf, markOf, scaleOf, type Judgement, type Scale } from "../limits";
import type { Model } from "../model";
import { number, t } from "../text";

const BRIEF: readonly (readonly Metric[])[] = [
  [Metric.HEART_RATE],
  [Metric.RESPIRATION_RATE],
  [Metric.SPO2],
  [Metric.TEMPERATURE],
  [Metric.SYSTOLIC_PRESSURE, Metric.DIASTOLIC_PRESSURE],
];

export function cardRow(model: Model, id: string, select: (patient: string) => void): Row<Patient> {
  const name = h("b", {});
  // Two people may have one name, so there is always a second identifier.
  const second = h("small", { class: "second" });
  const who = h("span", { class: "who" }, h("span", { class: "name" }, name, " ", second));
  const element = h("button", { class: "patient", type: "button", "data-patient": id, onclick: () => select(id) }, who);
  const always = (patient: Patient) => {
    setText(name, patient.name || patient.id);
    setText(second, patient.name === "" || patient.name === patient.id ? "" : patient.id);
    setAttribute(second, "data-namesake", model.isNamesake(patient.id));
    setAttribute(element, "data-silent", patient.unknown !== undefined);
    setAttribute(element, "aria-current", patient.id === model.selected ? "true" : null);
    const open = model.alerts.of(id);
    setAttribute(element, "data-alarm", (open.length > 0 || patient.activeAlerts > 0) && worstOf(patient, open).key);
  };
  return nearRow(element, always, () => contentOf(model, id, who));
}

// The list of alerts is a moment ahead of the ward, and bounded.
function worstOf(patient: Patient, open: readonly Alert[]) {
  return priorityOf(Math.max(patient.worstPriority, ...open.map((alert) => alert.priority)));
}

function contentOf(model: Model, id: string, who: HTMLElement) {
  const score = h("span", { class: "score", role: "img" });
  const words = h("span", { class: "words" });
  const why = h("span", { class: "why" });
  const alerts = h("span", { class: "chip", role: "img" });
  const values = BRIEF.map(valueOf);
  const brief = h("span", { class: "brief" }, ...values.map(({ element }) => element));
  who.append(words, why);
  return {
    content: [score, words, why, alerts, brief],
    update(patient: Patient) {
      const outOfDateS = model.outOfDateSinceS();
      const open = model.alerts.of(id);
      const hasAlert = open.length > 0 || patient.activeAlerts > 0;
      const shown = scoreOf(patient.news2, outOfDateS, hasAlert);
      setText(score, shown.text);
      setAttribute(score, "data-risk", shown.risk);
      setAttribute(score, "data-partial", shown.partial);
      setAttribute(score, "aria-label", `NEWS2 ${shown.text}, ${shown.explanation}`);
      const { unknown } = patient;
      const known = outOfDateS === undefined && unknown ? unknownText(unknown, true) : shown.explanation;
      setText(why, [stayText(patient.status), known].filter(Boolean).join(" · "));
      setAttribute(why, "title", unknown ? unknownText(unknown) : null);
      const priority = worstOf(patient, open);
      alerts.hidden = words.hidden = !hasAlert;
      const [first, ...others] = open;
      setText(words, first ? `${wordsOf(first)}${others.length > 0 ? ` · ${t("{count} more", { count: others.length })}` : ""}` : hasAlert ? t("{priority} alert", { priority: priority.label }) : "");
      setAttribute(alerts, "data-priority", priority.key);
      const count = `${Math.max(patient.activeAlerts, open.length)}${patient.activeAlertsMore ? "+" : ""}`;
      setText(alerts, `${priority.mark} ${count}`);
      setAttribute(alerts, "aria-label", t("{count} alerts, worst: {priority}", { count, priority: priority.label }));
      const scale = scaleOf(patient);
      values.forEach((value) => value.update(patient, scale, open));
    },
  };
}

function valueOf(metrics: readonly Metric[]) {
  const [first = Metric.UNSPECIFIED] = metrics;
  const style = styleOf(first);
  const value = h("b");
  const mark = h("span", { class: "mark-of", "aria-hidden": "true" });
  const limit = h("small", { class: "limit" });
  const element = h("span", { class: "v", "data-metric": style.key }, h("i", { title: labelOf(first) }, t(style.short)), h("span", {}, mark, value), limit);
  return {
    element,
    update(patient: Patient, scale: Scale | undefined, open: readonly Alert[]) {
      const newest = (metric: Metric) => patient.latest.find((vital) => vital.metric === metric)?.value;
      setText(value, metrics.map((metric) => show(metric, newest(metric))).join("/"));
      // Too old for the score, as the core judges it. An old value is neither calm nor abnormal.
      const stale = patient.unknown !== undefined || patient.news2?.missing.includes(first) === true;
      setAttribute(value, "data-stale", stale);
      const judged: Judgement = judge(first, stale ? undefined : newest(first), scale, open);
      setAttribute(element, "data-level", judged.level > 0 && judged.level);
      setText(mark, markOf(judged));
      setText(limit, judged.level > 0 ? limitText(first, scale, judged) : "");
    },
  };
}

// limitText is the limit that the value has passed, or both.
export function limitText(metric: Metric, scale: Scale | undefined, { side }: Judgement): string {
  const limits = scale && limitsOf(metric, scale);
  if (!limits) return "";
  const { decimals } = styleOf(metric);
  const low = limits.low === undefined ? "" : number(limits.low, decimals);
  const high = limits.high === undefined ? "" : number(limits.high, decimals);
  if (high === "" || side === "low") return low === "" ? "" : `≥ ${low}`;
  if (low === "" || side === "high") return `≤ ${high}`;
  return `${low}–${high}`;
}
