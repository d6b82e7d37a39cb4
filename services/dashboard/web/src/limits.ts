// Whether a value is abnormal, and the limits beside it. The bands are those of NEWS2 (Royal
// College of Physicians, 2017).
//
// The server judges. The page marks values only while its own points add up to the server's score.
// So a chart of another scale never marks or calms a value. An alert whose condition holds marks
// its metric always.
import { entryOf } from "./catalogue";
import { Metric, Priority } from "./gen/braid/vitals/v1/vitals_pb";
import { AlertState, type Alert } from "./gen/braid/alerts/v1/alerts_pb";
import type { Patient } from "./gen/braid/query/v1/query_pb";

// Values of one band are at most the limit of it and above the limit of the band before.
type Bands = readonly (readonly [most: number, points: number])[];

export type Scale = "one" | "two-air" | "two-oxygen";

const CHART: Partial<Record<Metric, Bands>> = {
  [Metric.RESPIRATION_RATE]: [[8, 3], [11, 1], [20, 0], [24, 2], [Infinity, 3]],
  [Metric.SYSTOLIC_PRESSURE]: [[90, 3], [100, 2], [110, 1], [219, 0], [Infinity, 3]],
  [Metric.HEART_RATE]: [[40, 3], [50, 1], [90, 0], [110, 1], [130, 2], [Infinity, 3]],
  [Metric.TEMPERATURE]: [[35, 3], [36, 1], [38, 0], [39, 1], [Infinity, 2]],
  [Metric.SUPPLEMENTAL_OXYGEN]: [[0, 0], [Infinity, 2]],
  [Metric.CONSCIOUSNESS]: [[0, 0], [Infinity, 3]],
};
const OXYGEN: Record<Scale, Bands> = {
  one: [[91, 3], [93, 2], [95, 1], [Infinity, 0]],
  "two-air": [[83, 3], [85, 2], [87, 1], [Infinity, 0]],
  "two-oxygen": [[83, 3], [85, 2], [87, 1], [92, 0], [94, 1], [96, 2], [Infinity, 3]],
};
const PARAMETERS = [Metric.RESPIRATION_RATE, Metric.SPO2, Metric.SUPPLEMENTAL_OXYGEN, Metric.SYSTOLIC_PRESSURE, Metric.HEART_RATE, Metric.CONSCIOUSNESS, Metric.TEMPERATURE] as const;

const bandsOf = (metric: Metric, scale: Scale) => (metric === Metric.SPO2 ? OXYGEN[scale] : CHART[metric]);

// Readings are rounded to the chart's resolution first.
const rounded = (metric: Metric, value: number) => (metric === Metric.TEMPERATURE ? Math.round(value * 10) / 10 : Math.round(value));

export function points(metric: Metric, value: number, scale: Scale): number {
  const at = rounded(metric, value);
  return bandsOf(metric, scale)?.find(([most]) => at <= most)?.[1] ?? 0;
}

export interface Limits {
  // Undefined: no limit on this side.
  readonly low: number | undefined;
  readonly high: number | undefined;
}

// limitsOf is the band without points.
export function limitsOf(metric: Metric, scale: Scale): Limits | undefined {
  const bands = bandsOf(metric, scale);
  if (!bands) return ofCatalogue(metric);
  const at = bands.findIndex(([, points]) => points === 0);
  if (at < 0) return undefined;
  const step = metric === Metric.TEMPERATURE ? 0.1 : 1;
  const below = at > 0 ? (bands[at - 1]?.[0] ?? 0) + step : undefined;
  const most = bands[at]?.[0] ?? Infinity;
  return { low: below, high: most === Infinity ? undefined : most };
}

// The limit lines of a metric that the score does not judge: the lowest and the highest one.
function ofCatalogue(metric: Metric): Limits | undefined {
  const entry = entryOf(metric);
  const lines = entry?.limits.map(({ value }) => value) ?? [];
  if (!entry || lines.length === 0) return undefined;
  const middle = (entry.lowest + entry.highest) / 2;
  const [low, high] = [Math.min(...lines), Math.max(...lines)];
  if (lines.length > 1) return { low, high };
  return low < middle ? { low, high: undefined } : { low: undefined, high };
}

export interface Judgement {
  // 0: within the limits; 1 to 3: points of the score, or 3 for an open alert of high priority.
  readonly level: 0 | 1 | 2 | 3;
  readonly side: "low" | "high" | undefined;
}

const CALM: Judgement = { level: 0, side: undefined };
const OF_ALERT: Partial<Record<Priority, 1 | 2 | 3>> = { [Priority.HIGH]: 3, [Priority.MEDIUM]: 2, [Priority.LOW]: 1 };

// scaleOf is the scale that the server used, found by its score; undefined: no scale gives it, or
// there is no score.
export function scaleOf({ news2, latest }: Pick<Patient, "news2" | "latest">): Scale | undefined {
  const wanted = news2?.score ?? news2?.atLeast ?? (news2?.unknown ? 0 : undefined);
  if (!news2 || wanted === undefined) return undefined;
  const value = (metric: Metric) => (news2.missing.includes(metric) ? undefined : latest.find((vital) => vital.metric === metric)?.value);
  const onOxygen = (value(Metric.SUPPLEMENTAL_OXYGEN) ?? 0) >= 1;
  const scales: Scale[] = ["one", onOxygen ? "two-oxygen" : "two-air"];
  return scales.find((scale) => PARAMETERS.reduce((sum, metric) => sum + points(metric, value(metric) ?? NaN, scale), 0) === wanted);
}

// judge says whether a value is abnormal. The open alerts are the patient's. An alert whose
// condition has ended waits for a person and marks nothing.
export function judge(metric: Metric, value: number | undefined, scale: Scale | undefined, open: readonly Alert[]): Judgement {
  const raised = Math.max(0, ...open.filter((alert) => alert.metric === metric && alert.state !== AlertState.LATCHED).map(({ priority }) => OF_ALERT[priority] ?? 0));
  if (value === undefined || !Number.isFinite(value)) return { level: raised as Judgement["level"], side: undefined };
  const level = Math.max(raised, scale === undefined ? 0 : points(metric, value, scale)) as Judgement["level"];
  if (level === 0) return CALM;
  const limits = limitsOf(metric, scale ?? "one");
  const at = rounded(metric, value);
  const side = limits?.low !== undefined && at < limits.low ? "low" : limits?.high !== undefined && at > limits.high ? "high" : undefined;
  return { level, side };
}

// markOf is the shape beside an abnormal value, because colour alone must not say it.
export function markOf({ level, side }: Judgement): string {
  if (level === 0) return "";
  const arrow = side === "low" ? "▼" : side === "high" ? "▲" : "●";
  return level === 3 ? arrow + arrow : arrow;
}
