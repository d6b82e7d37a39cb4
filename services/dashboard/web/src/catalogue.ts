// The catalogue of metrics that the core knows. The page has its own short words and layout for the
// metrics of a bed; every other metric is shown by its entry.
import type { MetricEntry } from "./gen/braid/query/v1/query_pb";
import { shownLanguage } from "./text";

// UCUM units as people write them. Other units are shown as they are.
const UNITS: Readonly<Record<string, string>> = { Cel: "°C", "[degF]": "°F", "mm[Hg]": "mmHg", "[lb_av]": "lb", "[g]": "g", "{score}": "", "{steps}": "" };

let entries: ReadonlyMap<number, MetricEntry> = new Map();

export function setCatalogue(metrics: readonly MetricEntry[]): void {
  entries = new Map(metrics.map((entry) => [entry.metric, entry]));
}

export const entryOf = (metric: number): MetricEntry | undefined => entries.get(metric);

// charted are the metrics with a chart, in the catalogue's order.
export const charted = (): MetricEntry[] => [...entries.values()].filter(({ chartGroup, waveform }) => chartGroup !== "" && !waveform);

export const wordOf = (names: Readonly<Record<string, string>>): string => names[shownLanguage()] ?? names["en"] ?? "";

export const unitOf = (unit: string): string => UNITS[unit] ?? unit;

// choiceOf is the word for a value of a coded metric.
export function choiceOf(entry: MetricEntry, value: number): string | undefined {
  const choice = entry.choices.find((word) => word.value === value);
  return choice && wordOf(choice.names);
}
