// Metrics and thresholds of the promises to people.

import { Counter, Trend } from 'k6/metrics';

export const sent = new Counter('readings_sent');
export const stored = new Counter('readings_stored');
export const lost = new Counter('readings_lost');
export const doubled = new Counter('readings_doubled');
// The page's own proof calls a lost reading stored, or has a gap without a cause while nothing is
// lost.
export const disproven = new Counter('proofs_wrong');
// Stored in time for a live stream to have them, and not in it.
export const unseen = new Counter('readings_not_live');
export const live = new Counter('readings_live');
export const broken = new Counter('live_streams_broken');
export const missing = new Counter('alerts_missing');
export const unanswered = new Counter('questions_unanswered');
export const accepted = new Trend('gateway_accepts_ms', true);
export const acknowledged = new Trend('ingest_acknowledges_ms', true);
export const visible = new Trend('reading_on_page_ms', true);
export const alarmed = new Trend('alert_on_page_ms', true);
export const answered = new Trend('page_answers_ms', true);

// Thresholds of a scenario. The limits of `surge` are wider, because it asks for more than a small
// machine has.
export function promises(scenario, plan) {
  const wide = scenario === 'surge' ? 2 : 1;
  return {
    readings_sent: ['count>0'],
    readings_stored: ['count>0'],
    readings_lost: ['count==0'],
    readings_doubled: ['count==0'],
    proofs_wrong: ['count==0'],
    readings_live: ['count>0'],
    readings_not_live: ['count==0'],
    live_streams_broken: ['count==0'],
    questions_unanswered: ['count==0'],
    page_answers_ms: [`p(95)<${1000 * wide}`],
    ...(plan.gateways
      ? { ingest_acknowledges_ms: ['p(99)<1000'] }
      : { gateway_accepts_ms: [`p(99)<${1000 * wide}`], reading_on_page_ms: ['p(95)<5000'] }),
    // The rule wants ten seconds of it.
    ...(plan.ill ? { alerts_missing: ['count==0'], alert_on_page_ms: ['p(95)<15000'] } : {}),
  };
}
