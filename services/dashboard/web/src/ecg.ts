// The ECG between arrival and screen. Chunks arrive in bursts; the sweep must run evenly.
//
// Readings lie in a ring by their absolute index on the device's clock (time / period). So late and
// repeated chunks fall into place, and an unwritten slot is a hole. The playhead follows the newest
// reading by LAG_MS when chunks arrive regularly. It waits when it catches up and jumps when it is
// too far behind.

// 16384 readings are 65 s at 250 Hz; older ones are overwritten.
const RING = 16_384;
const LAG_MS = 1_300;
const LAG_MS_MAX = 4_000;
// The playhead runs at most this much faster or slower to return to LAG_MS.
const CORRECTION_MAX = 0.08;

export class EcgBuffer {
  readonly #values = new Float32Array(RING);
  readonly #indexes = new Float64Array(RING).fill(-1);
  #newest = -1;
  #playhead = -1;
  #waiting = true;
  periodMs = 4;

  // newestS is the time of the newest reading by the device's clock; 0 before the first.
  get newestS(): number {
    return this.#newest < 0 ? 0 : (this.#newest * this.periodMs) / 1000;
  }

  add(startUs: number, periodUs: number, values: readonly number[]): void {
    if (periodUs <= 0) return;
    if (periodUs / 1000 !== this.periodMs) this.clear(periodUs / 1000);
    const first = Math.round(startUs / periodUs);
    values.forEach((value, i) => {
      const index = first + i;
      this.#values[index % RING] = value;
      this.#indexes[index % RING] = index;
    });
    this.#newest = Math.max(this.#newest, first + values.length - 1);
  }

  clear(periodMs = this.periodMs): void {
    this.periodMs = periodMs;
    this.#indexes.fill(-1);
    this.#newest = -1;
    this.#playhead = -1;
    this.#waiting = true;
  }

  // advance moves the playhead by the time passed and calls draw for every reading passed over;
  // null is a hole.
  advance(passedMs: number, draw: (index: number, value: number | null) => void): void {
    if (this.#newest < 0) return;
    const lagTarget = LAG_MS / this.periodMs;
    if (this.#playhead < 0) this.#playhead = this.#newest - lagTarget;
    const lag = this.#newest - this.#playhead;
    if (lag * this.periodMs > LAG_MS_MAX) this.#playhead = this.#newest - lagTarget;
    if (this.#waiting && lag < lagTarget * 0.6) return;
    this.#waiting = false;
    const correction = Math.max(-CORRECTION_MAX, Math.min(CORRECTION_MAX, (lag - lagTarget) / lagTarget));
    const to = this.#playhead + (passedMs / this.periodMs) * (1 + correction);
    if (to >= this.#newest) this.#waiting = true;
    const end = Math.min(Math.floor(to), this.#newest);
    for (let index = Math.floor(this.#playhead) + 1; index <= end; index++) {
      const at = index % RING;
      draw(index, this.#indexes[at] === index ? (this.#values[at] ?? null) : null);
    }
    this.#playhead = Math.min(to, this.#newest);
  }
}
