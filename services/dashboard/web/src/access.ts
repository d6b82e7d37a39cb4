// A gateway's report of an access: bytes of the month, the cap, the price and the rules in force.
import { age } from "./clinical";
import { AccessRank, type AccessUse } from "./gen/braid/paths/v1/paths_pb";

// A gateway at rest reports each five minutes.
const REPORT_OLD_S = 900;

const RANKS: Record<number, string> = {
  [AccessRank.ACTIVE]: "active",
  [AccessRank.SPILL]: "spill",
  [AccessRank.STANDBY]: "standby",
  [AccessRank.FORBIDDEN]: "forbidden",
};

export function gigabytes(bytes: number): string {
  if (bytes < 999_500) return `${(bytes / 1e3).toFixed(bytes < 9_950 ? 1 : 0)} kB`;
  if (bytes < 999.5e6) return `${(bytes / 1e6).toFixed(bytes < 9.95e6 ? 1 : 0)} MB`;
  return `${(bytes / 1e9).toFixed(2)} GB`;
}

// monthText says what the access carried since its reset day, and what is left of its cap.
export function monthText(access: AccessUse): string {
  const used = Number(access.monthBytes);
  // Without a name the day begins in UTC.
  const resetDay = `day ${access.resetDay}${access.timeZone === "" ? "" : ` (${access.timeZone})`}`;
  const day = access.resetDay > 0 ? ` until ${resetDay}` : "";
  if (access.capBytes === undefined) return `${gigabytes(used)} ${access.resetDay > 0 ? `since ${resetDay}` : "this month"}, no cap`;
  const cap = Number(access.capBytes);
  if (used >= cap) return `${gigabytes(used)} of ${gigabytes(cap)}: the cap is reached${day}`;
  return `${gigabytes(used)} of ${gigabytes(cap)}, ${gigabytes(cap - used)} left${day}`;
}

// costText is the price of the month so far, in the currency of the installation; empty without a
// price.
export function costText({ monthBytes, pricePerGb }: AccessUse): string {
  return pricePerGb > 0 ? `costs ${((Number(monthBytes) / 1e9) * pricePerGb).toFixed(2)} so far` : "";
}

// useText is the month of the access with its price, and the age of the report where the month may
// have changed since.
export function useText(access: AccessUse, passedS: number): string {
  const reported = passedS > REPORT_OLD_S ? `reported ${age(passedS)}` : "";
  return [monthText(access), costText(access), reported].filter((text) => text !== "").join(" · ");
}

// rulesText names the rules whose flows may use the access, with their modes.
export function rulesText({ rules, rank }: AccessUse): string {
  const named = rules.filter(({ rule }) => rule !== "").map(({ rule, mode }) => `${rule} (${mode})`);
  const free = rules.filter(({ rule }) => rule === "").map(({ mode }) => `no rule (${mode})`);
  const parts = [[...named, ...free].join(", "), RANKS[rank] ?? ""];
  return parts.filter((part) => part !== "").join(" · ");
}

// capShare is the used part of the cap, 0 without one.
export function capShare({ monthBytes, capBytes }: AccessUse): number {
  return capBytes === undefined ? 0 : Number(monthBytes) / Math.max(1, Number(capBytes));
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

export function versionText(version: number): string {
  return version > 0 ? `steering v${version}` : "no steering document";
}
