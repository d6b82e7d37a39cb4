// uPlot charts: a trend with its holes marked, and a small sparkline.
import uPlot from "uplot";
import { colour } from "./theme";
import type { Limits } from "../limits";
import type { Hole, Series } from "../series";
import { t } from "../text";

const POINTS_SHOWN_MAX = 30;
// A moment of a chart, for example the beginning of an alert.
export interface Marker {
  readonly atS: number;
  readonly mark: string;
  // Name of a colour.
  readonly colour: string;
}

const AXIS_FONT = "11px system-ui, sans-serif";

export class TrendChart {
  #plot: uPlot | null = null;
  #holes: Hole[] = [];
  #range: [number, number] = [0, 1];
  #limits: Limits | undefined;
  #markers: readonly Marker[] = [];
  readonly #observer: ResizeObserver;

  constructor(
    private readonly host: HTMLElement,
    private readonly lines: number,
    private readonly spanMin: number,
    private readonly decimals: number,
    private readonly occasional = false,
  ) {
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(host);
  }

  update(lines: readonly Series[], dropped: readonly Hole[], fromS: number, toS: number, limits?: Limits, markers: readonly Marker[] = []): void {
    this.#range = [fromS, toS];
    this.#limits = limits;
    this.#markers = markers;
    const windows = lines.map((series) => series.window(fromS, toS, this.occasional));
    this.#holes = [...(windows[0]?.holes ?? []), ...dropped.filter((hole) => hole.toS > fromS && hole.fromS < toS)];
    const tables = windows.map(({ times, values }) => [times, values] as uPlot.AlignedData);
    // Mode 2 keeps the nulls of one line from being bridged by the times of another.
    const data = tables.length === 1 && tables[0] ? tables[0] : uPlot.join(tables, tables.map(() => [1, 2]));
    if (!this.#plot) this.#plot = this.#build(data);
    else this.#plot.setData(data, true);
  }

  // rebuild takes new colours from the theme.
  rebuild(): void {
    this.#plot?.destroy();
    this.#plot = null;
  }

  #build(data: uPlot.AlignedData): uPlot {
    const dim = colour("--dim");
    const grid = { stroke: colour("--grid"), width: 1 };
    const options: uPlot.Options = {
      width: Math.max(80, this.host.clientWidth),
      height: Math.max(40, this.host.clientHeight),
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      // Beside the right half of a label.
      padding: [8, 16, 0, 0],
      scales: {
        x: { time: true, range: () => this.#range },
        y: { range: (_, min, max) => padded(min, max, this.spanMin) },
      },
      axes: [
        { stroke: dim, grid, ticks: { show: false }, font: AXIS_FONT, size: 20, gap: 2, space: 70, values: (_, splits) => splits.map(hourMinute) },
        { stroke: dim, grid, ticks: { show: false }, font: AXIS_FONT, size: 40, gap: 4, space: 20, values: (_, splits) => splits.map((v) => (Number.isInteger(v) ? String(v) : v.toFixed(Math.max(1, this.decimals)))) },
      ],
      series: [
        {},
        ...Array.from({ length: this.lines }, () => ({
          stroke: colour("--ink"),
          width: 1.6,
          spanGaps: false,
          // Points show that readings are far apart; a line alone would look continuous.
          points: { show: (u: uPlot) => u.data[0].length <= POINTS_SHOWN_MAX, size: 5, stroke: colour("--ink"), fill: colour("--ink") },
        })),
      ],
      hooks: { drawClear: [(u) => this.#drawHoles(u), (u) => this.#drawLimits(u)], draw: [(u) => this.#drawMarkers(u)] },
    };
    return new uPlot(options, data, this.host);
  }

  #drawHoles(u: uPlot): void {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const hole of this.#holes) {
      const left = Math.max(bbox.left, u.valToPos(hole.fromS, "x", true));
      const right = Math.min(bbox.left + bbox.width, u.valToPos(hole.toS, "x", true));
      if (right - left < 1) continue;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, bbox.top, right - left, bbox.height);
      ctx.clip();
      ctx.fillStyle = colour(hole.dropped ? "--hole-dropped" : "--hole");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.strokeStyle = colour("--hole-line");
      ctx.lineWidth = 1;
      ctx.beginPath();
      const step = 8 * devicePixelRatio;
      for (let x = left - bbox.height; x < right; x += step) {
        ctx.moveTo(x, bbox.top + bbox.height);
        ctx.lineTo(x + bbox.height, bbox.top);
      }
      ctx.stroke();
      const label = hole.dropped ? t("dropped") : t("no data");
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      if (right - left > ctx.measureText(label).width + 12 * devicePixelRatio) {
        ctx.fillStyle = colour("--dim");
        ctx.textAlign = "center";
        ctx.fillText(label, (left + right) / 2, bbox.top + 14 * devicePixelRatio);
      }
      ctx.restore();
    }
    ctx.restore();
  }

  // A dashed line for each limit within the scale.
  #drawLimits(u: uPlot): void {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = colour("--limit");
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const limit of [this.#limits?.low, this.#limits?.high]) {
      if (limit === undefined) continue;
      const y = u.valToPos(limit, "y", true);
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    ctx.restore();
  }

  // A line with its mark at the top, for each moment in the window.
  #drawMarkers(u: uPlot): void {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.font = `bold ${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.lineWidth = 2 * devicePixelRatio;
    for (const { atS, mark, colour: name } of this.#markers) {
      const x = u.valToPos(atS, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(name);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(mark, x + 3 * devicePixelRatio, bbox.top + 10 * devicePixelRatio);
    }
    ctx.restore();
  }

  #resize(): void {
    this.#plot?.setSize({ width: Math.max(80, this.host.clientWidth), height: Math.max(40, this.host.clientHeight) });
  }
}

export class Sparkline {
  #plot: uPlot | null = null;
  readonly #observer: ResizeObserver;

  constructor(
    private readonly host: HTMLElement,
    private readonly colour: string,
    private readonly topMin: number,
  ) {
    this.#observer = new ResizeObserver(() => this.#plot?.setSize(this.#size()));
    this.#observer.observe(host);
  }

  update(times: number[], values: (number | null)[], fromS: number, toS: number): void {
    if (!this.#plot) {
      this.#plot = new uPlot(
        {
          ...this.#size(),
          legend: { show: false },
          cursor: { show: false },
          padding: [2, 0, 2, 0],
          scales: { x: { time: true, range: (): [number, number] => this.#range }, y: { range: (_, __, max) => [0, Math.max(this.topMin, (max ?? 0) * 1.1)] } },
          axes: [{ show: false }, { show: false }],
          series: [{}, { stroke: colour(this.colour), fill: colour(`${this.colour}-fill`), width: 1.4, spanGaps: false, points: { show: false } }],
        },
        [times, values],
        this.host,
      );
    }
    this.#range = [fromS, toS];
    this.#plot.setData([times, values], true);
  }

  #range: [number, number] = [0, 1];

  rebuild(): void {
    this.#plot?.destroy();
    this.#plot = null;
  }

  #size(): { width: number; height: number } {
    return { width: Math.max(30, this.host.clientWidth), height: Math.max(20, this.host.clientHeight) };
  }
}

function padded(min: number | null, max: number | null, spanMin: number): [number, number] {
  if (min == null || max == null) return [0, spanMin];
  const span = Math.max(spanMin, (max - min) * 1.2);
  const middle = (min + max) / 2;
  return [middle - span / 2, middle + span / 2];
}

function hourMinute(timeS: number): string {
  const at = new Date(timeS * 1000);
  const two = (n: number) => String(n).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}${at.getSeconds() === 0 ? "" : `:${two(at.getSeconds())}`}`;
}
