// Notices about the whole system: their sources and their order.
import { WarningSeverity, type SystemWarning } from "./gen/braid/query/v1/query_pb";

export type Severity = "critical" | "warning" | "note";

export interface Notice {
  // Names the cause; unique on the page.
  readonly key: string;
  readonly severity: Severity;
  // One sentence, without the time.
  readonly text: string;
  // By the core's clock, in seconds.
  readonly sinceS?: number | undefined;
}

const ORDER: Record<Severity, number> = { critical: 0, warning: 1, note: 2 };

// An old page must say so before anything else.
export const OUT_OF_DATE = "page/out-of-date";

// inOrder joins the notices of all sources: that the page is out of date, then the most severe
// first, then the oldest.
export function inOrder(sources: Iterable<readonly Notice[]>): Notice[] {
  return [...sources]
    .flat()
    .sort((a, b) => Number(b.key === OUT_OF_DATE) - Number(a.key === OUT_OF_DATE) || ORDER[a.severity] - ORDER[b.severity] || (a.sinceS ?? Infinity) - (b.sinceS ?? Infinity) || a.key.localeCompare(b.key));
}

export function noticeOf({ code, severity, text, sinceUs }: SystemWarning): Notice {
  return {
    key: `system/${code}`,
    severity: severity === WarningSeverity.CRITICAL ? "critical" : severity === WarningSeverity.NOTE ? "note" : "warning",
    text,
    sinceS: sinceUs > 0n ? Number(sinceUs) / 1e6 : undefined,
  };
}
