// Names and formats of metrics, scores and priorities. The server judges them.
import { PatientStatus } from "./gen/braid/patients/v1/patients_pb";
import { Metric, Priority } from "./gen/braid/vitals/v1/vitals_pb";
import { choiceOf, entryOf, unitOf, wordOf } from "./catalogue";
import { AlertState, type Alert } from "./gen/braid/alerts/v1/alerts_pb";
import { Risk, UnknownCause, type News2, type Unknown } from "./gen/braid/query/v1/query_pb";
import { nowMs } from "./clock";
import { dayOf, minuteOf, number, t, term, timeOf } from "./text";

export interface MetricStyle {
  readonly key: string;
  readonly label: string;
  readonly short: string;
  readonly unit: string;
  readonly decimals: number;
  // The chart never zooms in further than this.
  readonly spanMin: number;
}

const STYLES: Partial<Record<Metric, MetricStyle>> = {
  [Metric.HEART_RATE]: { key: "heart-rate", label: term("Heart rate"), short: term("HR"), unit: term("bpm"), decimals: 0, spanMin: 30 },
  [Metric.RESPIRATION_RATE]: { key: "respiration-rate", label: term("Respiration"), short: term("RR"), unit: term("/min"), decimals: 0, spanMin: 10 },
  [Metric.SPO2]: { key: "spo2", label: term("SpO₂"), short: term("SpO₂"), unit: "%", decimals: 0, spanMin: 8 },
  [Metric.TEMPERATURE]: { key: "temperature", label: term("Temperature"), short: term("Temp"), unit: "°C", decimals: 1, spanMin: 2 },
  [Metric.SYSTOLIC_PRESSURE]: { key: "systolic-pressure", label: term("Blood pressure"), short: term("BP"), unit: "mmHg", decimals: 0, spanMin: 60 },
  [Metric.DIASTOLIC_PRESSURE]: { key: "diastolic-pressure", label: term("Diastolic"), short: term("Dia"), unit: "mmHg", decimals: 0, spanMin: 60 },
  [Metric.ACTIVITY]: { key: "activity", label: term("Activity"), short: term("Act"), unit: "g", decimals: 2, spanMin: 0.5 },
  [Metric.ECG]: { key: "ecg", label: term("ECG"), short: term("ECG"), unit: "mV", decimals: 1, spanMin: 1.6 },
  [Metric.CONSCIOUSNESS]: { key: "consciousness", label: term("Consciousness"), short: term("ACVPU"), unit: "", decimals: 0, spanMin: 4 },
  [Metric.SUPPLEMENTAL_OXYGEN]: { key: "supplemental-oxygen", label: term("Supplemental oxygen"), short: term("O₂"), unit: "", decimals: 0, spanMin: 1 },
  [Metric.BATTERY]: { key: "battery", label: term("Battery"), short: term("Bat"), unit: "%", decimals: 0, spanMin: 20 },
};

export function styleOf(metric: Metric): MetricStyle {
  const own = STYLES[metric];
  if (own) return own;
  const entry = entryOf(metric);
  if (!entry) return { key: `metric-${metric}`, label: t("Metric {number}", { number: metric }), short: `${metric}`, unit: "", decimals: 1, spanMin: 1 };
  const label = wordOf(entry.names);
  // A twentieth of what a sensor can report, so that noise does not fill the chart.
  const spanMin = (entry.highest - entry.lowest) / 20;
  return { key: entry.key, label, short: label, unit: unitOf(entry.unit), decimals: entry.decimals, spanMin };
}

export const labelOf = (metric: Metric): string => t(styleOf(metric).label);

const CONSCIOUSNESS = [term("Alert"), term("New confusion"), term("Voice"), term("Pain"), term("Unresponsive")];

export function show(metric: Metric, value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return "–";
  if (metric === Metric.CONSCIOUSNESS) return t(CONSCIOUSNESS[value] ?? "–");
  if (metric === Metric.SUPPLEMENTAL_OXYGEN) return value > 0 ? t("oxygen") : t("room air");
  const entry = entryOf(metric);
  return (entry && choiceOf(entry, value)) ?? number(value, styleOf(metric).decimals);
}

export interface PriorityStyle {
  readonly key: "high" | "medium" | "low";
  readonly label: string;
  // Marks of IEC 60601-1-8, because colour alone must not distinguish priorities.
  readonly mark: string;
}

export function priorityOf(priority: Priority): PriorityStyle {
  switch (priority) {
    case Priority.HIGH:
      return { key: "high", label: t("High priority"), mark: "!!!" };
    case Priority.MEDIUM:
      return { key: "medium", label: t("Medium priority"), mark: "!!" };
    default:
      return { key: "low", label: t("Low priority"), mark: "!" };
  }
}

export function stateOf(state: AlertState): { readonly key: string; readonly label: string } {
  switch (state) {
    case AlertState.PENDING:
      return { key: "pending", label: t("Pending") };
    case AlertState.ACTIVE:
      return { key: "active", label: t("Active") };
    case AlertState.ACKNOWLEDGED:
      return { key: "acknowledged", label: t("Acknowledged") };
    case AlertState.LATCHED:
      return { key: "latched", label: t("Ended, not acknowledged") };
    default:
      return { key: "resolved", label: t("Resolved") };
  }
}

// awaits reports whether an alert still needs an acknowledgement.
export function awaits(state: AlertState): boolean {
  return state === AlertState.ACTIVE || state === AlertState.LATCHED;
}

// briefOf is the beginning of a summary: "Fall", or "SpO2 89 %".
export function briefOf({ summary, rule }: Alert): string {
  const text = summary || rule;
  return /^(.+?)(?:: (?!\d)|, |; )/.exec(text)?.[1] ?? text;
}

// wordsOf are the words for an open alert where there is little room: "Fall, 4 min ago".
export function wordsOf(alert: Alert): string {
  const also = alert.state === AlertState.LATCHED ? `, ${t("ended")}` : alert.state === AlertState.ACKNOWLEDGED ? `, ${t("acknowledged")}` : "";
  return `${briefOf(alert)}, ${age(nowMs() / 1000 - seconds(alert.sinceUs))}${also}`;
}

export interface ScoreStyle {
  readonly text: string;
  // "alert": low by the score alone, while an alert is open.
  readonly risk: "low" | "low-medium" | "medium" | "high" | "unknown" | "alert";
  readonly partial: boolean;
  // "partial: no temperature, consciousness", or the name of the risk.
  readonly explanation: string;
}

const RISKS: Record<Risk, readonly [ScoreStyle["risk"], string]> = {
  [Risk.UNSPECIFIED]: ["unknown", term("no score")],
  [Risk.LOW]: ["low", term("low risk")],
  [Risk.LOW_MEDIUM]: ["low-medium", term("low–medium risk")],
  [Risk.MEDIUM]: ["medium", term("medium risk")],
  [Risk.HIGH]: ["high", term("high risk")],
};

// unknownText names the beginning and the cause; in a short form where there is little room.
export function unknownText({ sinceUs, because }: Unknown, brief = false): string {
  const sinceS = seconds(sinceUs);
  const time = brief ? clock(sinceS, minuteOf) : `${clock(sinceS)} (${age(nowMs() / 1000 - sinceS)})`;
  const since = sinceUs > 0n ? t("unknown since {time}", { time }) : t("unknown");
  return because ? `${since}: ${because}` : since;
}

// unknownScoreText begins with the parameters that are too old: "SpO2 unknown since 12:03:05".
function unknownScoreText({ stale }: News2, unknown: Unknown): string {
  if (unknown.cause !== UnknownCause.PERSON || stale.length === 0) return unknownText(unknown);
  const names = stale.map(labelOf).join(", ");
  return `${names} ${unknownText({ ...unknown, because: "" })}`;
}

// scoreOf formats a score. An unknown score is never a number, and a lower bound never looks like
// low risk. Beside an open alert no score looks calm or says so.
export function scoreOf(news2: News2 | undefined, outOfDateSinceS?: number, hasAlert = false): ScoreStyle {
  if (outOfDateSinceS !== undefined) {
    return { text: "?", risk: "unknown", partial: true, explanation: t("unknown since {time}: this page is not up to date", { time: clock(outOfDateSinceS) }) };
  }
  if (!news2 || news2.unknown) {
    const least = news2?.atLeast ? `; ${t("at least {score}", { score: news2.atLeast })}` : "";
    return { text: "?", risk: "unknown", partial: true, explanation: `${news2?.unknown ? unknownScoreText(news2, news2.unknown) : t("unknown")}${least}` };
  }
  const [risk, name] = RISKS[news2.risk] ?? RISKS[Risk.UNSPECIFIED];
  const score = String(news2.score ?? "?");
  if (!news2.partial && hasAlert && (risk === "low" || risk === "low-medium")) {
    return { text: score, risk: "alert", partial: false, explanation: t("vital signs score {score}", { score }) };
  }
  if (!news2.partial) return { text: score, risk, partial: false, explanation: t(name) };
  const missing = news2.missing.map((metric) => labelOf(metric).toLowerCase()).join(", ");
  const least = news2.score ? `${t("at least {score}", { score: news2.score })}, ` : "";
  return { text: news2.score ? `≥${news2.score}` : "?", risk, partial: true, explanation: `${least}${t("partial: no {missing}", { missing: missing || t("complete set") })}` };
}

export function seconds(timeUs: bigint): number {
  return Number(timeUs) / 1e6;
}

export function age(secondsPassed: number): string {
  const s = Math.max(0, secondsPassed);
  if (s < 1.5) return t("now");
  if (s < 90) return t("{count} s ago", { count: Math.round(s) });
  if (s < 5400) return t("{count} min ago", { count: Math.round(s / 60) });
  if (s < 172_800) return t("{count} h ago", { count: Math.round(s / 3600) });
  return t("{count} days ago", { count: Math.round(s / 86_400) });
}

// clock is the time of day, with the date if it is not today.
export function clock(timeS: number, format = timeOf): string {
  const at = new Date(timeS * 1000);
  return at.toDateString() === new Date(nowMs()).toDateString() ? format(at) : `${dayOf(at)} ${format(at)}`;
}

// stayText says that silence of the sensors raises no alert, and why. It is empty for a monitored
// patient.
export function stayText(status: PatientStatus | undefined): string {
  if (status === PatientStatus.PAUSED) return t("monitoring is paused");
  return status === PatientStatus.EXPECTED ? t("expected, not monitored yet") : "";
}
