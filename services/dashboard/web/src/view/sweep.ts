// The ECG strip: a sweep over a fixed width, as bedside monitors draw it, with a short blank before
// the pen.
import uPlot from "uplot";
import type { EcgBuffer } from "../ecg";
import { colour } from "./theme";

const WIDTH_S = 6;
const BLANK_S = 0.3;
// ECG paper's large square.
const SQUARE_S = 0.2;
const FRAME_MS = 33;
// With reduced motion the strip moves on in steps.
const FRAME_MS_REDUCED = 1000;
// Without a reading to draw for this long the curve has ended.
const STALLED_MS = 4_000;
// A frame after a longer pause (hidden tab) does not sweep over missed readings.
const PASSED_MS_MAX = 1000;

export class Sweep {
  #plot: uPlot | null = null;
  #periodMs = 0;
  #times: number[] = [];
  #values: (number | null)[] = [];
  #drawnAtMs = 0;
  #movedAtMs = 0;
  // Where the newest reading is drawn; -1: nowhere, or the curve has ended there.
  #pen = -1;
  #top = 1.2;
  #bottom = -0.4;
  readonly #reduced = matchMedia("(prefers-reduced-motion: reduce)");

  constructor(
    private readonly host: HTMLElement,
    private readonly buffer: EcgBuffer,
  ) {
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(host);
    const frame = (nowMs: number) => {
      this.#frame(nowMs);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  clear(): void {
    this.#pen = -1;
    this.#values.fill(null);
    this.#plot?.setData([this.#times, this.#values], true);
  }

  rebuild(): void {
    this.#plot?.destroy();
    this.#plot = null;
  }

  #frame(nowMs: number): void {
    const passedMs = nowMs - this.#drawnAtMs;
    if (passedMs < (this.#reduced.matches ? FRAME_MS_REDUCED : FRAME_MS)) return;
    this.#drawnAtMs = nowMs;
    if (!this.host.checkVisibility()) return;
    if (this.buffer.periodMs !== this.#periodMs) this.#reset();
    const slots = this.#values.length;
    const blank = Math.round((BLANK_S * 1000) / this.#periodMs);
    let moved = false;
    this.buffer.advance(Math.min(passedMs, PASSED_MS_MAX), (index, value) => {
      moved = true;
      this.#pen = index % slots;
      this.#values[index % slots] = value;
      this.#values[(index + blank) % slots] = null;
      if (value !== null) {
        // The scale grows with the signal and never jumps back under the reader's eyes.
        this.#top = Math.max(this.#top, Math.min(value * 1.1, 6));
        this.#bottom = Math.min(this.#bottom, Math.max(value * 1.1, -6));
      }
    });
    if (moved) this.#movedAtMs = nowMs;
    // The previous sweep lies to the right of the pen. A curve that has ended stops at the pen.
    else if (this.#pen >= 0 && nowMs - this.#movedAtMs > STALLED_MS) this.#endAtPen();
    else if (this.#plot) return;
    if (!this.#plot) this.#plot = this.#build();
    this.#plot.setData([this.#times, this.#values], true);
  }

  #endAtPen(): void {
    this.#values.fill(null, this.#pen + 1);
    this.#pen = -1;
  }

  #reset(): void {
    this.#pen = -1;
    this.#periodMs = this.buffer.periodMs;
    const slots = Math.round((WIDTH_S * 1000) / this.#periodMs);
    this.#times = Array.from({ length: slots }, (_, i) => (i * this.#periodMs) / 1000);
    this.#values = new Array<number | null>(slots).fill(null);
    this.#top = 1.2;
    this.#bottom = -0.4;
    this.rebuild();
  }

  #build(): uPlot {
    const squares = Array.from({ length: Math.round(WIDTH_S / SQUARE_S) + 1 }, (_, i) => i * SQUARE_S);
    const grid = { stroke: colour("--grid"), width: 1 };
    return new uPlot(
      {
        ...this.#size(),
        legend: { show: false },
        cursor: { show: false },
        padding: [4, 0, 4, 0],
        scales: {
          x: { time: false, range: [0, WIDTH_S] },
          y: { range: () => [this.#bottom, this.#top] },
        },
        axes: [
          { size: 0, grid, ticks: { show: false }, splits: () => squares, values: () => [] },
          { size: 0, grid, ticks: { show: false }, space: 22, values: () => [] },
        ],
        series: [{}, { stroke: colour("--ink"), width: 1.7, spanGaps: false, points: { show: false } }],
      },
      [this.#times, this.#values],
      this.host,
    );
  }

  #size(): { width: number; height: number } {
    return { width: Math.max(80, this.host.clientWidth), height: Math.max(40, this.host.clientHeight) };
  }
}
