// The alerts that the page holds, bounded: the least important leave first and are counted.
//
// The server sends the whole list with every new stream, then every change. With each ward view it
// also sends how many alerts are open by priority. If that number differs from the held alerts for
// longer than a moment, the list is requested again. So an omitted alert comes in as soon as there
// is room, and an alert whose end was missed does not stay.
import { AlertState, type Alert, type AlertCount } from "./gen/braid/alerts/v1/alerts_pb";
import type { Priority } from "./gen/braid/vitals/v1/vitals_pb";
import { awaits } from "./clinical";

// Open alerts held. Beyond it the least important ones leave and are counted.
export const OPEN_MAX = 1_000;
// The bound holds whenever the book is read. Between two reads a storm may exceed it by so many,
// because finding the least important one takes long.
const SURPLUS_MAX = 1_000;
// Resolved alerts held; the oldest leave.
const RESOLVED_MAX = 50;
// A list is made a moment before it arrives. It does not undo changes that are younger than this.
const FRESH_MS = 5_000;
// Totals are made a moment before or after the change that they count. Only a difference that
// lasts this long counts.
const DIFFERENCE_MS = 2_500;

export interface Omitted {
  readonly priority: Priority;
  readonly count: number;
}

const isOpen = ({ state }: Alert) => state !== AlertState.RESOLVED && state !== AlertState.PENDING;

// stage is how far people have dealt with an alert: active, then ended, then acknowledged.
const stage = ({ state }: Alert) => (state === AlertState.ACTIVE ? 2 : state === AlertState.LATCHED ? 1 : 0);

// moreImportant orders by importance, as the server does: priority, stage, newest.
function moreImportant(a: Alert, b: Alert): number {
  return b.priority - a.priority || stage(b) - stage(a) || Number(b.sinceUs - a.sinceUs);
}

// moreUrgent orders for people: unacknowledged first, then by priority, then active before ended,
// then the newest.
function moreUrgent(a: Alert, b: Alert): number {
  return Number(awaits(b.state)) - Number(awaits(a.state)) || moreImportant(a, b);
}

export class AlertBook {
  readonly #held = new Map<string, { readonly alert: Alert; readonly atMs: number }>();
  readonly #omitted = new Map<Priority, number>();
  #sorted: readonly Alert[] | undefined;
  // The same by patient.
  #byPatient: Map<string, Alert[]> | undefined;
  #differsSinceMs = 0;
  // A whole list has arrived.
  isListed = false;
  // Nothing was put since the bound was applied.
  #isBound = true;

  has(id: string): boolean {
    this.#bound();
    return this.#held.has(id);
  }

  get(id: string): Alert | undefined {
    return this.#held.get(id)?.alert;
  }

  // of returns the open alerts of one patient, the most urgent first.
  of(patient: string): readonly Alert[] {
    this.#bound();
    if (!this.#byPatient) {
      this.#byPatient = new Map();
      for (const alert of this.open()) {
        const own = this.#byPatient.get(alert.patient);
        if (own) own.push(alert);
        else this.#byPatient.set(alert.patient, [alert]);
      }
    }
    return this.#byPatient.get(patient) ?? [];
  }

  values(): Alert[] {
    this.#bound();
    return this.#all();
  }

  add(alerts: readonly Alert[], nowMs: number): void {
    for (const alert of alerts) this.#put(alert, nowMs);
    if (this.#held.size > OPEN_MAX + SURPLUS_MAX) this.#bound();
  }

  // replace takes the whole list of open alerts, with the number of omitted ones.
  replace(alerts: readonly Alert[], counts: readonly AlertCount[], nowMs: number): void {
    this.isListed = true;
    const listed = new Set(alerts.map(({ id }) => id));
    for (const [id, { alert, atMs }] of this.#held) {
      if (isOpen(alert) && !listed.has(id) && nowMs - atMs > FRESH_MS) this.#held.delete(id);
    }
    this.#omitted.clear();
    for (const { priority, omitted } of counts) if (omitted > 0) this.#omitted.set(priority, omitted);
    // An alert that was held already keeps its time.
    for (const alert of alerts) this.#put(alert, nowMs - FRESH_MS - 1);
    this.#differsSinceMs = 0;
    this.#isBound = false;
  }

  open(): readonly Alert[] {
    this.#bound();
    this.#sorted ??= this.#all().filter(isOpen).sort(moreUrgent);
    return this.#sorted;
  }

  past(count: number): Alert[] {
    this.#bound();
    return this.#past().slice(0, count);
  }

  // omitted counts the alerts that the page does not show, highest priority first.
  omitted(): Omitted[] {
    this.#bound();
    return [...this.#omitted].map(([priority, count]) => ({ priority, count })).sort((a, b) => b.priority - a.priority);
  }

  // disagrees reports whether the totals have differed from the held and omitted alerts for so long
  // that the list must be requested again.
  disagrees(totals: readonly AlertCount[], nowMs: number): boolean {
    const left = new Map(totals.map(({ priority, open }) => [priority, open]));
    const take = (priority: Priority, count: number) => left.set(priority, (left.get(priority) ?? 0) - count);
    for (const { priority } of this.open()) take(priority, 1);
    for (const { priority, count } of this.omitted()) take(priority, count);
    const differs = [...left.values()].some((rest) => rest !== 0) || (this.#omitted.size > 0 && this.open().length < OPEN_MAX / 2);
    if (!differs) this.#differsSinceMs = 0;
    else if (this.#differsSinceMs === 0) this.#differsSinceMs = nowMs;
    else if (nowMs - this.#differsSinceMs > DIFFERENCE_MS) {
      this.#differsSinceMs = nowMs;
      return true;
    }
    return false;
  }

  #all(): Alert[] {
    return [...this.#held.values()].map(({ alert }) => alert);
  }

  #past(): Alert[] {
    return this.#all()
      .filter((alert) => alert.state === AlertState.RESOLVED)
      .sort((a, b) => Number(b.changedUs - a.changedUs));
  }

  #put(alert: Alert, atMs: number): void {
    const known = this.#held.get(alert.id);
    if (known && known.alert.revision >= alert.revision) return;
    this.#held.set(alert.id, { alert, atMs });
    this.#sorted = this.#byPatient = undefined;
    this.#isBound = false;
  }

  #bound(): void {
    if (this.#isBound) return;
    this.#isBound = true;
    this.#sorted = this.#byPatient = undefined;
    for (const { id } of this.#past().slice(RESOLVED_MAX)) this.#held.delete(id);
    if (this.#held.size <= OPEN_MAX) return;
    const open = this.#all().filter(isOpen).sort(moreImportant);
    for (const { id, priority } of open.slice(OPEN_MAX)) {
      this.#held.delete(id);
      this.#omitted.set(priority, (this.#omitted.get(priority) ?? 0) + 1);
    }
  }
}
