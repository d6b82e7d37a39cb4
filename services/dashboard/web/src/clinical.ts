// Names and formats of metrics, scores and priorities. The server judges them.
import { Metric, Priority } from "./gen/braid/vitals/v1/vitals_pb";
import { AlertState, type Alert } from "./gen/braid/alerts/v1/alerts_pb";
import { Risk, UnknownCause, type News2, type Unknown } from "./gen/braid/query/v1/query_pb";
import { nowMs } from "./clock";

export interface MetricStyle {
  readonly key: string;
  readonly label: string;
  readonly short: string;
  readonly unit: string;
  readonly decimals: number;
  // Custom property of the colour.
  readonly colour: string;
  // The chart never zooms in further than this.
  readonly spanMin: number;
}

const STYLES: Partial<Record<Metric, MetricStyle>> = {
  [Metric.HEART_RATE]: { key: "heart-rate", label: "Heart rate", short: "HR", unit: "bpm", decimals: 0, colour: "--heart", spanMin: 30 },
  [Metric.RESPIRATION_RATE]: { key: "respiration-rate", label: "Respiration", short: "RR", unit: "/min", decimals: 0, colour: "--respiration", spanMin: 10 },
  [Metric.SPO2]: { key: "spo2", label: "SpO₂", short: "SpO₂", unit: "%", decimals: 0, colour: "--oxygen", spanMin: 8 },
  [Metric.TEMPERATURE]: { key: "temperature", label: "Temperature", short: "Temp", unit: "°C", decimals: 1, colour: "--temperature", spanMin: 2 },
  [Metric.SYSTOLIC_PRESSURE]: { key: "systolic-pressure", label: "Blood pressure", short: "BP", unit: "mmHg", decimals: 0, colour: "--pressure", spanMin: 60 },
  [Metric.DIASTOLIC_PRESSURE]: { key: "diastolic-pressure", label: "Diastolic", short: "Dia", unit: "mmHg", decimals: 0, colour: "--pressure", spanMin: 60 },
  [Metric.ACTIVITY]: { key: "activity", label: "Activity", short: "Act", unit: "g", decimals: 2, colour: "--activity", spanMin: 0.5 },
  [Metric.ECG]: { key: "ecg", label: "ECG", short: "ECG", unit: "mV", decimals: 1, colour: "--heart", spanMin: 1.6 },
  [Metric.CONSCIOUSNESS]: { key: "consciousness", label: "Consciousness", short: "ACVPU", unit: "", decimals: 0, colour: "--text", spanMin: 4 },
  [Metric.SUPPLEMENTAL_OXYGEN]: { key: "supplemental-oxygen", label: "Supplemental oxygen", short: "O₂", unit: "", decimals: 0, colour: "--oxygen", spanMin: 1 },
  [Metric.BATTERY]: { key: "battery", label: "Battery", short: "Bat", unit: "%", decimals: 0, colour: "--activity", spanMin: 20 },
};

export function styleOf(metric: Metric): MetricStyle {
  return (
    STYLES[metric] ?? { key: `metric-${metric}`, label: `Metric ${metric}`, short: `${metric}`, unit: "", decimals: 1, colour: "--text", spanMin: 1 }
  );
}

const CONSCIOUSNESS = ["Alert", "New confusion", "Voice", "Pain", "Unresponsive"];

export function show(metric: Metric, value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return "–";
  if (metric === Metric.CONSCIOUSNESS) return CONSCIOUSNESS[value] ?? "–";
  if (metric === Metric.SUPPLEMENTAL_OXYGEN) return value > 0 ? "oxygen" : "room air";
  return value.toFixed(styleOf(metric).decimals);
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
      return { key: "high", label: "High priority", mark: "!!!" };
    case Priority.MEDIUM:
      return { key: "medium", label: "Medium priority", mark: "!!" };
    default:
      return { key: "low", label: "Low priority", mark: "!" };
  }
}

export function stateOf(state: AlertState): { readonly key: string; readonly label: string } {
  switch (state) {
    case AlertState.PENDING:
      return { key: "pending", label: "Pending" };
    case AlertState.ACTIVE:
      return { key: "active", label: "Active" };
    case AlertState.ACKNOWLEDGED:
      return { key: "acknowledged", label: "Acknowledged" };
    case AlertState.LATCHED:
      return { key: "latched", label: "Ended, not acknowledged" };
    default:
      return { key: "resolved", label: "Resolved" };
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
  const also = alert.state === AlertState.LATCHED ? ", ended" : alert.state === AlertState.ACKNOWLEDGED ? ", acknowledged" : "";
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
  [Risk.UNSPECIFIED]: ["unknown", "no score"],
  [Risk.LOW]: ["low", "low risk"],
  [Risk.LOW_MEDIUM]: ["low-medium", "low–medium risk"],
  [Risk.MEDIUM]: ["medium", "medium risk"],
  [Risk.HIGH]: ["high", "high risk"],
};

// unknownText names the beginning and the cause; in a short form where there is little room.
export function unknownText({ sinceUs, because }: Unknown, brief = false): string {
  const sinceS = seconds(sinceUs);
  const time = brief ? clock(sinceS).replace(/:\d\d$/, "") : `${clock(sinceS)} (${age(nowMs() / 1000 - sinceS)})`;
  const since = sinceUs > 0n ? ` since ${time}` : "";
  return `unknown${since}${because ? `: ${because}` : ""}`;
}

// unknownScoreText begins with the parameters that are too old: "SpO2 unknown since 12:03:05".
function unknownScoreText({ stale }: News2, unknown: Unknown): string {
  if (unknown.cause !== UnknownCause.PERSON || stale.length === 0) return unknownText(unknown);
  const names = stale.map((metric) => styleOf(metric).label).join(", ");
  return `${names} ${unknownText({ ...unknown, because: "" })}`;
}

// scoreOf formats a score. An unknown score is never a number, and a lower bound never looks like
// low risk. Beside an open alert no score looks calm or says so.
export function scoreOf(news2: News2 | undefined, outOfDateSinceS?: number, hasAlert = false): ScoreStyle {
  if (outOfDateSinceS !== undefined) {
    return { text: "?", risk: "unknown", partial: true, explanation: `unknown since ${clock(outOfDateSinceS)}: this page is not up to date` };
  }
  if (!news2 || news2.unknown) {
    const least = news2?.atLeast ? `; at least ${news2.atLeast}` : "";
    return { text: "?", risk: "unknown", partial: true, explanation: `${news2?.unknown ? unknownScoreText(news2, news2.unknown) : "unknown"}${least}` };
  }
  const [risk, name] = RISKS[news2.risk] ?? RISKS[Risk.UNSPECIFIED];
  if (!news2.partial && hasAlert && (risk === "low" || risk === "low-medium")) {
    return { text: String(news2.score ?? "?"), risk: "alert", partial: false, explanation: `vital signs score ${news2.score ?? "?"}` };
  }
  if (!news2.partial) return { text: String(news2.score ?? "?"), risk, partial: false, explanation: name };
  const missing = news2.missing.map((metric) => styleOf(metric).label.toLowerCase()).join(", ");
  const least = news2.score ? `at least ${news2.score}, ` : "";
  return { text: news2.score ? `≥${news2.score}` : "?", risk, partial: true, explanation: `${least}partial: no ${missing || "complete set"}` };
}

export function seconds(timeUs: bigint): number {
  return Number(timeUs) / 1e6;
}

export function age(secondsPassed: number): string {
  const s = Math.max(0, secondsPassed);
  if (s < 1.5) return "now";
  if (s < 90) return `${Math.round(s)} s ago`;
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 172_800) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86_400)} days ago`;
}

// Made once, because making a format is expensive.
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });

// clock is the time of day, with the date if it is not today.
export function clock(timeS: number): string {
  const at = new Date(timeS * 1000);
  const time = TIME.format(at);
  return at.toDateString() === new Date(nowMs()).toDateString() ? time : `${DAY.format(at)} ${time}`;
}
