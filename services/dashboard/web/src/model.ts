// What the page knows: the ward, one selected patient's readings, alerts, paths and links.
// Every table is bounded by what the server sends (it bounds patients and alerts) or by a constant below.
import { EcgBuffer } from "./ecg";
import { Metric, type Gap, type Sample } from "./gen/braid/vitals/v1/vitals_pb";
import { AlertState, type Alert, type Document } from "./gen/braid/alerts/v1/alerts_pb";
import { End, PathState, type Link, type PathReport } from "./gen/braid/paths/v1/paths_pb";
import type { GetSeriesResponse, Patient, WatchResponse } from "./gen/braid/query/v1/query_pb";
import type { Connection } from "./feed";
import { awaits, seconds, styleOf } from "./clinical";
import { learn } from "./clock";
import { noticeOf, type Notice } from "./notices";
import { Series, type Hole } from "./series";

// Reports kept per path, four minutes at two a second; the oldest leave first.
const PATH_POINTS_MAX = 480;
// Alerts kept; resolved ones leave first, then the oldest.
const ALERTS_MAX = 300;

export type Topic = "notices" | "ward" | "samples" | "alerts" | "paths" | "links" | "connection";

export interface PathPoint {
  readonly timeS: number;
  readonly rateBitPerS: number;
  readonly rttMs: number;
  readonly loss: number;
}

export interface PathTrack {
  readonly gateway: string;
  readonly name: string;
  readonly points: PathPoint[];
  state: PathState;
  // By this page's clock: whether a path still reports is judged without trusting anybody's clock.
  heardAtMs: number;
}

export class Model {
  patients: readonly Patient[] = [];
  readonly alerts = new Map<string, Alert>();
  readonly paths = new Map<string, PathTrack>();
  links: readonly Link[] = [];
  silences: readonly Document[] = [];
  connection: Connection = { state: "connecting" };
  // What makes the page as a whole unreliable, by source; see view/banner.ts.
  readonly notices = new Map<string, readonly Notice[]>();

  selected = "";
  readonly series = new Map<Metric, Series>();
  readonly ecg = new EcgBuffer();
  gaps: readonly Gap[] = [];
  // When a sample last arrived, by this page's clock.
  sampleAtMs = 0;

  readonly #listeners = new Map<Topic, Set<() => void>>();

  on(topic: Topic, listener: () => void): void {
    let set = this.#listeners.get(topic);
    if (!set) this.#listeners.set(topic, (set = new Set()));
    set.add(listener);
  }

  changed(topic: Topic): void {
    this.#listeners.get(topic)?.forEach((listener) => listener());
  }

  setNotices(source: string, notices: readonly Notice[]): void {
    if (notices.length > 0) this.notices.set(source, notices);
    else if (!this.notices.delete(source)) return;
    this.changed("notices");
  }

  setSilences(silences: readonly Document[]): void {
    this.silences = silences;
    this.changed("alerts");
  }

  select(patient: string): void {
    this.selected = patient;
    this.series.clear();
    this.ecg.clear();
    this.gaps = [];
    this.changed("ward");
    this.changed("samples");
  }

  patient(): Patient | undefined {
    return this.patients.find((patient) => patient.id === this.selected);
  }

  apply({ update }: WatchResponse): void {
    switch (update.case) {
      case "ward":
        learn(update.value.nowUs);
        this.patients = update.value.patients;
        this.setNotices("system", update.value.warnings.map(noticeOf));
        this.changed("ward");
        break;
      case "samples":
        this.#samples(update.value.samples);
        break;
      case "alert":
        this.addAlerts([update.value]);
        break;
      case "paths":
        this.addPaths(update.value.reports);
        break;
    }
  }

  #samples(samples: readonly Sample[]): void {
    let any = false;
    for (const sample of samples) {
      if (sample.patient !== this.selected) continue;
      any = true;
      if (sample.reading.case === "waveform") {
        if (sample.metric === Metric.ECG) {
          const { periodUs, values } = sample.reading.value;
          this.ecg.add(Number(sample.deviceTimeUs), periodUs, values);
        }
      } else if (sample.reading.case === "value") {
        this.of(sample.metric).add(seconds(sample.deviceTimeUs), sample.reading.value);
      }
    }
    if (!any) return;
    this.sampleAtMs = performance.now();
    this.changed("samples");
  }

  of(metric: Metric): Series {
    let series = this.series.get(metric);
    if (!series) this.series.set(metric, (series = new Series()));
    return series;
  }

  addHistory(history: GetSeriesResponse): void {
    for (const { metric, timesUs, values } of history.series) {
      const series = this.of(metric);
      timesUs.forEach((timeUs, i) => series.add(seconds(timeUs), values[i] ?? NaN));
    }
    this.gaps = history.gaps;
    this.changed("samples");
  }

  // droppedHoles are the stretches of a metric that the gateway's journal dropped; a stream is named after its metric.
  droppedHoles(metric: Metric): Hole[] {
    const stream = styleOf(metric).key;
    return this.gaps
      .filter((gap) => gap.stream === stream || gap.stream.startsWith(`${stream}-`))
      .map((gap) => ({ fromS: seconds(gap.fromTimeUs), toS: seconds(gap.toTimeUs), dropped: true }));
  }

  addAlerts(alerts: readonly Alert[]): void {
    for (const alert of alerts) {
      const known = this.alerts.get(alert.id);
      if (known && known.revision > alert.revision) continue;
      this.alerts.set(alert.id, alert);
    }
    if (this.alerts.size > ALERTS_MAX) {
      const leaving = [...this.alerts.values()]
        .sort((a, b) => Number(b.state === AlertState.RESOLVED) - Number(a.state === AlertState.RESOLVED) || Number(a.changedUs - b.changedUs))
        .slice(0, this.alerts.size - ALERTS_MAX);
      for (const alert of leaving) this.alerts.delete(alert.id);
    }
    this.changed("alerts");
  }

  // openAlerts are those not resolved, the ones that await somebody first, then by priority, then newest.
  openAlerts(): Alert[] {
    return [...this.alerts.values()]
      .filter((alert) => alert.state !== AlertState.RESOLVED && alert.state !== AlertState.PENDING)
      .sort(
        (a, b) =>
          Number(awaits(b.state)) - Number(awaits(a.state)) || b.priority - a.priority || Number(b.sinceUs - a.sinceUs),
      );
  }

  pastAlerts(count: number): Alert[] {
    return [...this.alerts.values()]
      .filter((alert) => alert.state === AlertState.RESOLVED)
      .sort((a, b) => Number(b.changedUs - a.changedUs))
      .slice(0, count);
  }

  addPaths(reports: readonly PathReport[]): void {
    for (const report of reports) {
      // Both ends report; the gateway's end sends the vitals, so its view is the one that is drawn.
      if (report.end !== End.GATEWAY || report.path === "") continue;
      const key = `${report.gateway}/${report.path}`;
      let track = this.paths.get(key);
      if (!track) {
        track = { gateway: report.gateway, name: report.path, points: [], state: report.state, heardAtMs: 0 };
        this.paths.set(key, track);
      }
      const timeS = seconds(report.timeUs);
      const newest = track.points.at(-1);
      if (newest && timeS <= newest.timeS) continue;
      track.points.push({
        timeS,
        rateBitPerS: report.intervalMs > 0 ? (Number(report.sentBytes) * 8000) / report.intervalMs : 0,
        rttMs: report.rttMs,
        loss: report.sentPackets > 0n ? Math.min(1, Number(report.lostPackets) / Number(report.sentPackets)) : 0,
      });
      if (track.points.length > PATH_POINTS_MAX) track.points.shift();
      track.state = report.state;
      track.heardAtMs = performance.now();
    }
    this.changed("paths");
  }

  setLinks(links: readonly Link[]): void {
    this.links = links;
    this.changed("links");
  }
}
