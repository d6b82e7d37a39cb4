// A metric's readings in order of time, with the holes in them.
//
// Readings may arrive late (a gateway replays its journal after a cut) and twice (history and live
// overlap). Times are unique and ascending, whatever the order of arrival.

// At most this many readings are kept, about five hours at one a second; the oldest leave first.
const READINGS_MAX = 20_000;
// Intervals from which the usual one is taken.
const INTERVALS_SAMPLED = 32;
// A hole is this many usual intervals of silence, and never shorter than HOLE_S_MIN.
const HOLE_INTERVALS = 4;
const HOLE_S_MIN = 3;
// Points that are requested of history. A longer series comes as half as many slices, each with its
// least and its greatest reading. So two neighbours may be two slices apart without a hole.
export const POINTS = 600;

export interface Hole {
  readonly fromS: number;
  readonly toS: number;
  // True when the gateway's full journal dropped the stretch: the data will never arrive.
  readonly dropped: boolean;
}

export class Series {
  #times: number[] = [];
  #values: number[] = [];

  get size(): number {
    return this.#times.length;
  }

  get firstS(): number | null {
    return this.#times[0] ?? null;
  }

  get last(): { readonly timeS: number; readonly value: number } | null {
    const timeS = this.#times.at(-1);
    const value = this.#values.at(-1);
    return timeS === undefined || value === undefined ? null : { timeS, value };
  }

  add(timeS: number, value: number): void {
    const newest = this.#times.at(-1);
    if (newest === undefined || timeS > newest) {
      this.#times.push(timeS);
      this.#values.push(value);
    } else {
      const at = lowerBound(this.#times, timeS);
      if (this.#times[at] === timeS) return;
      this.#times.splice(at, 0, timeS);
      this.#values.splice(at, 0, value);
    }
    if (this.#times.length > READINGS_MAX) {
      const surplus = this.#times.length - READINGS_MAX;
      this.#times.splice(0, surplus);
      this.#values.splice(0, surplus);
    }
  }

  // usualIntervalS is the median of the latest intervals.
  usualIntervalS(): number {
    const intervals: number[] = [];
    for (let i = Math.max(1, this.#times.length - INTERVALS_SAMPLED); i < this.#times.length; i++) {
      intervals.push((this.#times[i] ?? 0) - (this.#times[i - 1] ?? 0));
    }
    intervals.sort((a, b) => a - b);
    return intervals[intervals.length >> 1] ?? 1;
  }

  holeThresholdS(): number {
    return Math.max(HOLE_S_MIN, this.usualIntervalS() * HOLE_INTERVALS);
  }

  // window returns readings of a stretch as uPlot wants them: null where a hole begins. Single
  // measurements have no rhythm, and so no holes.
  window(fromS: number, toS: number, occasional = false): { times: number[]; values: (number | null)[]; holes: Hole[] } {
    const threshold = occasional ? Infinity : Math.max(this.holeThresholdS(), (2 * (toS - fromS)) / (POINTS / 2));
    const times: number[] = [];
    const values: (number | null)[] = [];
    const holes: Hole[] = [];
    // One reading before the window, so that the line enters from its edge.
    const start = Math.max(0, lowerBound(this.#times, fromS) - 1);
    let previous: number | undefined;
    for (let i = start; i < this.#times.length; i++) {
      const time = this.#times[i] ?? 0;
      if (time > toS) break;
      if (previous !== undefined && time - previous > threshold) {
        times.push((previous + time) / 2);
        values.push(null);
        if (time > fromS) holes.push({ fromS: previous, toS: time, dropped: false });
      }
      times.push(time);
      values.push(this.#values[i] ?? null);
      previous = time;
    }
    if (previous === undefined && !occasional) holes.push({ fromS, toS, dropped: false });
    else if (previous !== undefined && toS - previous > threshold) holes.push({ fromS: previous, toS, dropped: false });
    return { times, values, holes };
  }
}

// lowerBound is the first index whose element is not less than the value.
export function lowerBound(sorted: readonly number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] ?? 0) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
