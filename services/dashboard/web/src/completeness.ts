// Until when everything is stored that a patient's gateways took in, in words. Silence is no
// evidence: without an account of a gateway nothing is proven.
import { clock, seconds } from "./clinical";
import type { Proof } from "./gen/braid/query/v1/query_pb";
import { GapCause } from "./gen/braid/vitals/v1/vitals_pb";
import { many, t, term } from "./text";

const CAUSES: Partial<Record<GapCause, string>> = {
  [GapCause.UNSPECIFIED]: term("the gateway lost readings"),
  [GapCause.JOURNAL_FULL]: term("the gateway's journal was full"),
  [GapCause.MEDIUM]: term("the gateway's disk was damaged"),
  [GapCause.NOT_KEPT]: term("the gateway no longer has the readings"),
  [GapCause.SENSOR]: term("the sensor did not deliver readings"),
  [GapCause.KEPT_APART]: term("readings are kept apart"),
  [GapCause.JOURNAL_GONE]: term("the gateway began a new journal"),
  [GapCause.UNEXPLAINED]: term("readings are missing and are asked for again"),
};

export function completenessText(proof: Proof): string {
  const time = clock(seconds(proof.completeUntilUs));
  const gaps = proof.streams.flatMap((stream) => stream.gaps);
  const lost = gaps.filter((gap) => gap.cause !== GapCause.IN_TRANSIT).sort((a, b) => Number(a.fromUs - b.fromUs))[0];
  if (lost) return t("Complete until {time}; {cause}", { time, cause: t(CAUSES[lost.cause] ?? term("readings are missing")) });
  const waiting = proof.streams.reduce((sum, stream) => sum + stream.inTransit, 0n);
  if (waiting > 0n) return many(waiting, "Complete until {time}; {count} reading is on its way", "Complete until {time}; {count} readings are on their way", { time });
  if (proof.completeUntilUs <= proof.fromUs) return t("Completeness is not proven");
  return t("Complete until {time}", { time });
}
