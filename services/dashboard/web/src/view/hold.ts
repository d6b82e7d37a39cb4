// Rows do not move under a pointer or a finger.
//
// While a pointer is over a panel, a finger touches it, or a key was just pressed in it, its rows
// keep their places. They change in place, rows that ended stay, and new ones wait. The panel says
// what waits. As a second line of defence a click is refused if the row under it changed a
// moment before.

// A pointer that rests for so long is left there by somebody who went away.
const RESTS_MS = 60_000;
// A second tap comes within this time after the finger was lifted.
const TOUCHED_MS = 2_000;
// A person who works by keyboard reads the row and goes on within this time.
const KEYED_MS = 10_000;
// A click at one point within this time of the last was meant for the same row. A row that came
// under the pointer within it was not seen by the person.
const MEANT_MS = 1_500;
// A resting hand moves a pointer by so many pixels.
const STILL_PX = 8;

export class Hold {
  #overAtMs = -Infinity;
  #fingers = false;
  #touchedAtMs = -Infinity;
  #keyedAtMs = -Infinity;

  // released is called when the hold ends by a movement; otherwise ask `held` again.
  constructor(host: HTMLElement, released: () => void) {
    const over = (event: Event) => {
      if ((event as PointerEvent).pointerType !== "touch") this.#overAtMs = performance.now();
    };
    for (const type of ["pointerover", "pointermove", "pointerdown", "wheel"]) host.addEventListener(type, over, { passive: true });
    host.addEventListener("keydown", () => (this.#keyedAtMs = performance.now()));
    host.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "touch") return;
      this.#overAtMs = -Infinity;
      released();
    });
    host.addEventListener("touchstart", () => (this.#fingers = true), { passive: true });
    for (const type of ["touchend", "touchcancel"]) {
      host.addEventListener(type, (event) => {
        this.#fingers = (event as TouchEvent).targetTouches.length > 0;
        this.#touchedAtMs = performance.now();
      }, { passive: true });
    }
  }

  held(): boolean {
    const nowMs = performance.now();
    return this.#fingers || nowMs - this.#overAtMs < RESTS_MS || nowMs - this.#touchedAtMs < TOUCHED_MS || nowMs - this.#keyedAtMs < KEYED_MS;
  }
}

export interface Rows<T> {
  readonly rows: readonly T[];
  // Items without a row yet, in their order.
  readonly waiting: readonly T[];
  // Rows whose item is another than before.
  readonly changed: readonly T[];
  // Whether the rows stand in another order than the items.
  readonly moved: boolean;
}

// HeldOrder keeps the rows where they stand while they are held.
export class HeldOrder<T> {
  #rows: readonly T[] = [];

  constructor(private readonly key: (item: T) => string) {}

  // gone is the last state of an item that is no longer in the list.
  of(items: readonly T[], held: boolean, gone: (item: T) => T = (item) => item): Rows<T> {
    if (!held || this.#rows.length === 0) {
      this.#rows = items;
      return { rows: items, waiting: [], changed: [], moved: false };
    }
    const now = new Map(items.map((item) => [this.key(item), item]));
    const changed: T[] = [];
    this.#rows = this.#rows.map((row) => {
      const next = now.get(this.key(row)) ?? gone(row);
      if (next !== row) changed.push(next);
      return next;
    });
    const standing = new Set(this.#rows.map(this.key));
    const kept = this.#rows.filter((row) => now.has(this.key(row)));
    const expected = items.filter((item) => standing.has(this.key(item)));
    const moved = kept.some((row, i) => this.key(row) !== this.key(expected[i] as T));
    return { rows: this.#rows, waiting: items.filter((item) => !standing.has(this.key(item))), changed, moved };
  }

  // release takes the next order as it is.
  release(): void {
    this.#rows = [];
  }
}

// guardClicks refuses a click on a row (a child of the list) that the person cannot have meant.
export function guardClicks(list: HTMLElement, refused: () => void): void {
  const rowOf = (target: EventTarget | null) => {
    let element = target instanceof Element ? target : null;
    while (element && element.parentElement !== list) element = element.parentElement;
    return element;
  };
  const at = { x: -Infinity, y: -Infinity, row: null as Element | null };
  let clickedAtMs = -Infinity;
  let clicked: Element | null = null;
  let shiftedAtMs = -Infinity;
  let scrolledAtMs = -Infinity;
  const isThere = ({ clientX, clientY }: MouseEvent) => Math.abs(clientX - at.x) <= STILL_PX && Math.abs(clientY - at.y) <= STILL_PX;
  // The browser sends `pointerover` for another row under a resting pointer after the rows have
  // moved. A person who moves the pointer or scrolls has seen where the rows are.
  const moved = (event: MouseEvent) => {
    const row = rowOf(event.target);
    const rests = event.clientX === at.x && event.clientY === at.y;
    if (!rests) shiftedAtMs = -Infinity;
    else if (at.row !== null && row !== at.row && performance.now() - scrolledAtMs > MEANT_MS) shiftedAtMs = performance.now();
    Object.assign(at, { x: event.clientX, y: event.clientY, row });
  };
  for (const type of ["pointerover", "pointermove"] as const) list.addEventListener(type, moved);
  list.addEventListener(
    "wheel",
    () => {
      scrolledAtMs = performance.now();
      clickedAtMs = -Infinity;
    },
    { passive: true },
  );
  list.addEventListener(
    "click",
    (event) => {
      // A key that presses a button has no place.
      if (event.detail === 0) return;
      const row = rowOf(event.target);
      const nowMs = performance.now();
      const isSecond = nowMs - clickedAtMs < MEANT_MS && row !== clicked && isThere(event);
      if (isSecond || nowMs - shiftedAtMs < MEANT_MS) {
        event.preventDefault();
        event.stopPropagation();
        refused();
        return;
      }
      clickedAtMs = nowMs;
      clicked = row;
      moved(event);
    },
    { capture: true },
  );
}
