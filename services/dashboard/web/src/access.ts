// A gateway's report of an access: bytes of the month, the cap, the price and the rules in force.
import { age } from "./clinical";
import { AccessRank, type AccessUse } from "./gen/braid/paths/v1/paths_pb";
import { number, t, term } from "./text";

// A gateway at rest reports each five minutes.
const REPORT_OLD_S = 900;

const RANKS: Record<number, string> = {
  [AccessRank.ACTIVE]: term("active"),
  [AccessRank.SPILL]: term("spill"),
  [AccessRank.STANDBY]: term("standby"),
  [AccessRank.FORBIDDEN]: term("forbidden"),
};

export function gigabytes(bytes: number): string {
  if (bytes < 999_500) return `${number(bytes / 1e3, bytes < 9_950 ? 1 : 0)} kB`;
  if (bytes < 999.5e6) return `${number(bytes / 1e6, bytes < 9.95e6 ? 1 : 0)} MB`;
  return `${number(bytes / 1e9, 2)} GB`;
}

// shortCaps are the caps of a week and of a day, as far as there are any.
function shortCaps({ weekBytes, weekCapBytes, dayBytes, dayCapBytes }: AccessUse) {
  return [
    { used: Number(weekBytes), cap: weekCapBytes, when: term("this week") },
    { used: Number(dayBytes), cap: dayCapBytes, when: term("today") },
  ].flatMap(({ used, cap, when }) => (cap === undefined ? [] : [{ used, cap: Number(cap), when }]));
}

// shortText says how much of these caps is used.
export function shortText(access: AccessUse): string {
  const said = shortCaps(access).map(({ used, cap, when }) => {
    const of = `${t(when)} ${t("{count} of {all}", { count: gigabytes(used), all: gigabytes(cap) })}`;
    return used >= cap ? `${of}: ${t("the cap is reached")}` : of;
  });
  return said.join(" · ");
}

// monthText says what the access carried since its reset day, and what is left of its cap.
export function monthText(access: AccessUse): string {
  const used = Number(access.monthBytes);
  // Without a name the day begins in UTC.
  const day = t("day {day}", { day: access.resetDay }) + (access.timeZone === "" ? "" : ` (${access.timeZone})`);
  const until = access.resetDay > 0 ? ` ${t("until {time}", { time: day })}` : "";
  if (access.capBytes === undefined) return t("{used} {since}, no cap", { used: gigabytes(used), since: access.resetDay > 0 ? t("since {time}", { time: day }) : t("this month") });
  const cap = Number(access.capBytes);
  const of = t("{count} of {all}", { count: gigabytes(used), all: gigabytes(cap) });
  if (used >= cap) return `${of}: ${t("the cap is reached")}${until}`;
  return `${of}, ${t("{data} left", { data: gigabytes(cap - used) })}${until}`;
}

// costText is the price of the month so far, in the currency of the installation; empty without a
// price.
export function costText({ monthBytes, pricePerGb }: AccessUse): string {
  return pricePerGb > 0 ? t("costs {cost} so far", { cost: number((Number(monthBytes) / 1e9) * pricePerGb, 2) }) : "";
}

// useText is the month of the access with its price, and the age of the report where the month may
// have changed since.
export function useText(access: AccessUse, passedS: number): string {
  const reported = passedS > REPORT_OLD_S ? t("reported {age}", { age: age(passedS) }) : "";
  return [monthText(access), shortText(access), costText(access), reported].filter((text) => text !== "").join(" · ");
}

// rulesText names the rules whose flows may use the access, with their modes.
export function rulesText({ rules, rank }: AccessUse): string {
  const named = rules.filter(({ rule }) => rule !== "").map(({ rule, mode }) => `${rule} (${mode})`);
  const free = rules.filter(({ rule }) => rule === "").map(({ mode }) => `${t("no rule")} (${mode})`);
  const parts = [[...named, ...free].join(", "), t(RANKS[rank] ?? "")];
  return parts.filter((part) => part !== "").join(" · ");
}

export function hasCap(access: AccessUse): boolean {
  return access.capBytes !== undefined || shortCaps(access).length > 0;
}

// capShare is the used part of the cap that is nearest, 0 without one.
export function capShare(access: AccessUse): number {
  const month = access.capBytes === undefined ? 0 : Number(access.monthBytes) / Math.max(1, Number(access.capBytes));
  return Math.max(month, ...shortCaps(access).map(({ used, cap }) => used / Math.max(1, cap)));
}

interface Track {
  readonly gateway: string;
  readonly name: string;
  readonly access: AccessUse | undefined;
}

// byUrgency has the accesses nearest to their cap first, then those with most bytes.
export function byUrgency<T extends Track>(tracks: readonly T[]): T[] {
  const share = ({ access }: Track) => (access ? capShare(access) : 0);
  const bytes = ({ access }: Track) => Number(access?.monthBytes ?? 0n);
  const name = ({ gateway, name }: Track) => `${gateway} ${name}`;
  return [...tracks].sort((a, b) => share(b) - share(a) || bytes(b) - bytes(a) || name(a).localeCompare(name(b)));
}

export function versionText({ steeringVersion: version, steeringIsOwn }: { readonly steeringVersion: number; readonly steeringIsOwn: boolean }): string {
  if (steeringIsOwn) return t("a steering file of its own");
  return version > 0 ? t("steering v{version}", { version }) : t("no steering document");
}
