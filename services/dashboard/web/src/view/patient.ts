// The selected patient: score, ECG strip, and a row for each vital with trend and present value.
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import { age, clock, labelOf, priorityOf, scoreOf, seconds, show, stateOf, stayText, styleOf } from "../clinical";
import { nowS } from "../clock";
import type { Alert } from "../gen/braid/alerts/v1/alerts_pb";
import { Metric } from "../gen/braid/vitals/v1/vitals_pb";
import type { Model } from "../model";
import { charted, entryOf } from "../catalogue";
import { TrendChart, type Marker } from "./chart";
import { Sweep } from "./sweep";
import { onTheme } from "./theme";
import { judge, limitsOf, markOf, scaleOf, type Limits } from "../limits";
import { many, t, term } from "../text";
import { limitText } from "./card";

export const WINDOWS_S = [300, 1800, 14_400] as const;
const WINDOW_NAMES = [term("5 min"), term("30 min"), term("4 h")] as const;
const ROWS: readonly (readonly Metric[])[] = [
  [Metric.HEART_RATE],
  [Metric.RESPIRATION_RATE],
  [Metric.SPO2],
  [Metric.SYSTOLIC_PRESSURE, Metric.DIASTOLIC_PRESSURE],
  [Metric.TEMPERATURE],
  [Metric.ACTIVITY],
];

// For a patient who was just connected the shortest window begins with the first reading. It is
// never shorter than this.
const YOUNG_S = 60;
// When the last sample is older than this, the head says when it was.
const LATE_S = 5;
// Chunks of the ECG come twice a second or so. Without one for this long the curve has ended.
const ECG_ENDED_S = 5;
// Open alerts named on the panel, the most urgent. Further ones are counted.
const OWN_ALERTS_MAX = 4;
const FACTS = [Metric.CONSCIOUSNESS, Metric.SUPPLEMENTAL_OXYGEN, Metric.BATTERY] as const;
const OWN: readonly Metric[] = [...ROWS.flat(), ...FACTS];

// rowsOf are the metrics of further rows: those with a chart that the patient has.
const rowsOf = (model: Model): Metric[] =>
  charted()
    .map(({ metric }) => metric)
    .filter((metric) => !OWN.includes(metric) && (model.series.has(metric) || model.patient()?.latest.some((vital) => vital.metric === metric)));

// trendMetrics are those whose history the page draws.
export const trendMetrics = (model: Model): Metric[] => [...ROWS.flat(), ...rowsOf(model)];

export interface PatientView {
  readonly element: HTMLElement;
  // draw is called twice a second: the window moves on even when nothing arrives.
  draw(): void;
}

export function patientView(model: Model, loadHistory: (windowS: number) => void): PatientView {
  let windowS: number = WINDOWS_S[0];
  const title = h("h2", {});
  const subtitle = h("span");
  const score = h("span", { class: "score big", role: "img" });
  const scoreText = h("p", { class: "score-text" });
  const state = h("span");
  const windows = h(
    "div",
    { class: "segmented", role: "group", "aria-label": t("Time shown") },
    ...WINDOWS_S.map((s, i) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": s === windowS ? "true" : "false",
          onclick: (event) => {
            windowS = s;
            windows.querySelectorAll("button").forEach((b) => setAttribute(b, "aria-pressed", b === event.currentTarget ? "true" : "false"));
            loadHistory(s);
            draw();
          },
        },
        t(WINDOW_NAMES[i] ?? ""),
      ),
    ),
  );

  const strip = h("div", { class: "strip", role: "img", "aria-label": t("Electrocardiogram, live") });
  const ended = h("span", { class: "strip-ended" });
  const ecgRow = h("div", { class: "ecg" }, h("span", { class: "strip-label" }, t("ECG")), ended, strip);
  const rows = ROWS.map((metrics) => vitalRow(model, metrics));
  const further = new Map<Metric, VitalRow>();
  // Rows of metrics beyond a bed's own come and go with the patient.
  const fitRows = () => {
    const wanted = rowsOf(model);
    for (const [metric, row] of further) row.element.hidden = !wanted.includes(metric);
    const fresh = wanted.filter((metric) => !further.has(metric));
    for (const metric of fresh) {
      const row = vitalRow(model, [metric]);
      further.set(metric, row);
      rows.push(row);
      body.append(row.element);
    }
    if (fresh.length > 0) loadHistory(windowS);
  };
  const own = h("ul", { class: "own-alerts", "aria-label": t("Open alerts of this patient") });
  const ownMore = h("p", { class: "own-more" });
  const ownRows = new KeyedList<Alert>(own, ({ id }) => id, ownAlert);
  const body = h("div", { class: "monitor" }, ecgRow, ...rows.map((row) => row.element));
  const empty = h("p", { class: "empty" }, t("Select a patient to see live vitals."));
  const head = h(
    "header",
    { class: "patient-head" },
    score,
    h("div", { class: "grow" }, title, scoreText, h("p", { class: "about dim" }, subtitle, state)),
    windows,
  );
  const element = h("section", { class: "panel detail", "aria-label": t("Selected patient"), id: "detail", tabindex: "-1" }, head, own, ownMore, body, empty);

  const sweep = new Sweep(strip, model.ecg);
  let shown = "";

  const values = () => {
    const patient = model.patient();
    const selected = model.selected !== "";
    head.hidden = body.hidden = !selected;
    const open = selected ? model.alerts.of(model.selected) : [];
    ownRows.update(open.slice(0, OWN_ALERTS_MAX));
    own.hidden = open.length === 0;
    const more = Math.max(open.length, patient?.activeAlerts ?? 0) - Math.min(open.length, OWN_ALERTS_MAX);
    ownMore.hidden = !selected || more <= 0;
    setText(ownMore, many(more, "{count} more open alert of this patient", "{count} more open alerts of this patient"));
    const hasAlert = open.length > 0 || (patient?.activeAlerts ?? 0) > 0;
    const worst = Math.max(patient?.worstPriority ?? 0, ...open.map(({ priority }) => priority));
    setAttribute(element, "data-alarm", selected && hasAlert && priorityOf(worst).key);
    empty.hidden = selected;
    if (model.selected !== shown) {
      shown = model.selected;
      sweep.clear();
    }
    if (!selected) return;
    fitRows();
    setText(title, patient?.name || model.selected);
    const seen = patient ? seconds(patient.lastSeenUs) : 0;
    const late = seen > 0 && nowS() - seen > LATE_S;
    setText(subtitle, `${model.selected}${patient?.gateway ? ` · ${patient.gateway}` : ""}${late ? ` · ${t("last sample {time}", { time: clock(seen) })}` : ""}`);
    const outOfDateS = model.outOfDateSinceS();
    setAttribute(element, "data-silent", patient?.unknown !== undefined || outOfDateS !== undefined);
    const ecgS = model.ecg.newestS;
    const ecgEnded = ecgS > 0 && nowS() - ecgS > ECG_ENDED_S;
    setAttribute(ecgRow, "data-stale", ecgEnded || outOfDateS !== undefined);
    setText(ended, ecgEnded ? t("ended {time}, {age}", { time: clock(ecgS), age: age(nowS() - ecgS) }) : ecgS === 0 ? t("no ECG") : "");
    const news2 = scoreOf(patient?.news2, outOfDateS, hasAlert);
    setText(score, news2.text);
    setAttribute(score, "aria-label", `NEWS2 ${news2.text}, ${news2.explanation}`);
    setAttribute(score, "data-risk", news2.risk);
    setAttribute(score, "data-partial", news2.partial);
    setText(scoreText, `NEWS2 · ${news2.explanation}${patient?.news2?.redParameter ? ` · ${t("one parameter scores 3")}` : ""}`);
    const facts = FACTS.flatMap((metric) => {
      const value = model.series.get(metric)?.last?.value ?? patient?.latest.find((vital) => vital.metric === metric)?.value;
      if (value === undefined) return [];
      const timeUs = patient?.latest.find((vital) => vital.metric === metric)?.timeUs ?? 0n;
      const old = patient?.unknown || patient?.news2?.stale.includes(metric) ? ` (${age(nowS() - seconds(timeUs))})` : "";
      if (metric === Metric.BATTERY) return `${t("battery {percent} %", { percent: show(metric, value) })}${old}`;
      return `${metric === Metric.CONSCIOUSNESS ? t("consciousness: {level}", { level: show(metric, value).toLowerCase() }) : show(metric, value)}${old}`;
    });
    const stay = stayText(patient?.status);
    setText(state, [...(stay === "" ? [] : [stay]), ...facts].map((fact) => ` · ${fact}`).join(""));
    rows.forEach((row) => row.values());
    setAttribute(strip, "data-time", model.ecg.newestS || null);
  };
  const draw = () => {
    values();
    if (model.selected === "" || !element.checkVisibility()) return;
    const now = nowS();
    const from = Math.max(now - windowS, windowS === WINDOWS_S[0] ? Math.min(now - YOUNG_S, earliest(model)) : 0);
    rows.filter((row) => !row.element.hidden).forEach((row) => row.draw(from, now));
  };
  model.on("samples", values);
  model.on("ward", values);
  model.on("alerts", values);
  onTheme(() => {
    sweep.rebuild();
    rows.forEach((row) => row.rebuild());
    draw();
  });
  return { element, draw };
}

// earliest is the time of the first reading that is drawn.
function earliest(model: Model): number {
  const times = ROWS.flat().map((metric) => model.series.get(metric)?.firstS ?? Infinity);
  return Math.min(...times);
}

function ownAlert(): Row<Alert> {
  const mark = h("span", { class: "chip", role: "img" });
  const text = h("span", {});
  const when = h("span", { class: "dim" });
  const element = h("li", {}, mark, h("span", { class: "grow" }, text, when));
  return {
    element,
    update(alert) {
      const priority = priorityOf(alert.priority);
      setText(mark, priority.mark);
      setAttribute(mark, "data-priority", priority.key);
      setAttribute(mark, "aria-label", priority.label);
      setText(text, alert.summary || alert.rule);
      const sinceS = seconds(alert.sinceUs);
      setText(when, ` · ${age(nowS() - sinceS)} · ${stateOf(alert.state).label.toLowerCase()}`);
    },
  };
}

// markersOf are the beginnings of the patient's alerts about these metrics.
function markersOf(model: Model, metrics: readonly Metric[]): Marker[] {
  const own = model.alerts.values().filter(({ patient, metric }) => patient === model.selected && metrics.includes(metric));
  return own.map(({ sinceUs, priority }) => ({ atS: seconds(sinceUs), mark: priorityOf(priority).mark, colour: `--mark-${priorityOf(priority).key}` }));
}

interface VitalRow {
  readonly element: HTMLElement;
  values(): void;
  draw(fromS: number, toS: number): void;
  rebuild(): void;
}

function vitalRow(model: Model, metrics: readonly Metric[]): VitalRow {
  const first = metrics[0] ?? Metric.UNSPECIFIED;
  const style = styleOf(first);
  const number = h("span", {}, "–");
  const mark = h("span", { class: "mark-of", "aria-hidden": "true" });
  const value = h("span", { class: "value" }, mark, number);
  const limit = h("small", { class: "limit" });
  const note = h("span", { class: "note" });
  const host = h("div", { class: "trend", role: "img", "aria-label": t("{metric}, trend", { metric: labelOf(first) }) });
  const reading = h(
    "div",
    { class: "reading", "data-metric": style.key },
    h("span", { class: "label" }, labelOf(first), " ", h("small", {}, t(style.unit))),
    value,
    limit,
    note,
  );
  const element = h("div", { class: "vital", "data-metric-row": style.key }, host, reading);
  const chart = new TrendChart(host, metrics.length, style.spanMin, style.decimals, entryOf(first)?.occasional && !OWN.includes(first));
  let limits: Limits | undefined;
  return {
    element,
    values() {
      const series = model.of(first);
      const last = series.last;
      // The ward's snapshot shows a value before the first live sample has come.
      const known = model.patient()?.latest.find((vital) => vital.metric === first);
      const timeS = Math.max(last?.timeS ?? 0, known ? seconds(known.timeUs) : 0);
      const text = metrics
        .map((metric) => show(metric, model.of(metric).last?.value ?? model.patient()?.latest.find((vital) => vital.metric === metric)?.value))
        .join("/");
      setText(number, text);
      setAttribute(reading, "data-time", timeS > 0 ? timeS.toFixed(3) : null);
      const passed = nowS() - timeS;
      const staleS = OWN.includes(first) ? series.holeThresholdS() * 2 : (entryOf(first)?.staleAfterS ?? 0);
      const late = passed > Math.max(10, staleS);
      const patient = model.patient();
      const tooOld = patient?.unknown !== undefined || patient?.news2?.stale.includes(first) === true;
      const stale = timeS > 0 && (late || tooOld);
      setAttribute(element, "data-stale", stale);
      const scale = patient && scaleOf(patient);
      const judged = judge(first, stale ? undefined : (series.last?.value ?? known?.value), scale, model.alerts.of(model.selected));
      setAttribute(reading, "data-level", judged.level > 0 && judged.level);
      setText(mark, markOf(judged));
      // The score's limits need its scale; those of the catalogue do not.
      const limitScale = scale ?? (OWN.includes(first) ? undefined : "one");
      limits = limitScale && limitsOf(first, limitScale);
      setText(limit, limitText(first, limitScale, { level: 0, side: undefined }));
      setText(note, timeS === 0 ? t("not measured") : stale ? age(passed) : "");
    },
    draw(fromS, toS) {
      const markers = markersOf(model, metrics).filter(({ atS }) => atS >= fromS && atS <= toS);
      setAttribute(host, "aria-label", markers.length === 0 ? t("{metric}, trend", { metric: labelOf(first) }) : many(markers.length, "{metric}, trend, {count} alert began", "{metric}, trend, {count} alerts began", { metric: labelOf(first) }));
      chart.update(metrics.map((metric) => model.of(metric)), metrics.flatMap((metric) => model.droppedHoles(metric)), fromS, toS, limits, markers);
    },
    rebuild: () => chart.rebuild(),
  };
}
