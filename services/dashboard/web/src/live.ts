// The text of the pill of the connection while the stream is open. It is never "Live" beside a
// warning that contradicts it.
import type { Patient } from "./gen/braid/query/v1/query_pb";
import { OUT_OF_DATE, type Notice } from "./notices";
import { t } from "./text";

// The code of the server's warning that nothing arrives from any gateway.
const PIPELINE = "system/pipeline-silent";

export interface Live {
  readonly state: "live" | "silent" | "lost";
  readonly text: string;
}

export function liveOf(patients: readonly Pick<Patient, "unknown">[], notices: readonly Notice[]): Live {
  const watched = patients.filter((patient) => patient.unknown === undefined).length;
  const isOver = notices.some(({ key }) => key === PIPELINE);
  if (isOver || (patients.length > 0 && watched === 0)) return { state: "lost", text: t("Nobody is watched") };
  if (watched * 2 < patients.length) return { state: "silent", text: t("Live for {watched} of {all}", { watched, all: patients.length }) };
  const isFaulty = notices.some(({ key, severity }) => severity === "critical" && key !== OUT_OF_DATE);
  return isFaulty ? { state: "silent", text: t("Connected, with faults") } : { state: "live", text: t("Live") };
}
