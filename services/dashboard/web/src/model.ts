// The state of the page: the ward, one selected patient's readings, alerts, paths and links.
// The server bounds patients and alerts; a constant below bounds every other table.
import { EcgBuffer } from "./ecg";
import { Metric, type Gap, type Sample } from "./gen/braid/vitals/v1/vitals_pb";
import type { Alert, AlertCount, Document } from "./gen/braid/alerts/v1/alerts_pb";
import type { Link, PathReport } from "./gen/braid/paths/v1/paths_pb";
import type { GetSeriesResponse, ListQuarantineResponse, Patient, WatchResponse } from "./gen/braid/query/v1/query_pb";
import { breathe } from "./breathe";
import type { Connection } from "./feed";
import { AlertBook } from "./alerts";
import { seconds, styleOf } from "./clinical";
import { learn, nowS } from "./clock";
import { noticeOf, type Notice } from "./notices";
import { folded } from "./search";
import { Series, type Hole } from "./series";
import { PathBook } from "./tracks";

// The server sends the ward at least every 2 s. After this time without it the page is out of date.
const UNHEARD_MS_MAX = 5_000;
// Changes within this time are shown together, because a snapshot has hundreds of them.
const TOGETHER_MS = 30;

export type Topic = "notices" | "ward" | "samples" | "alerts" | "paths" | "links" | "connection" | "quarantine";

// namesakes is found once for each ward, since every row asks for it at every turn.
function namesakes(patients: readonly Patient[]): Set<string> {
  const byName = new Map<string, string[]>();
  for (const { id, name } of patients) {
    const key = folded(name || id);
    byName.set(key, [...(byName.get(key) ?? []), id]);
  }
  return new Set([...byName.values()].filter(({ length }) => length > 1).flat());
}

export class Model {
  patients: readonly Patient[] = [];
  // Patients with a sensor for whom the server had no room.
  patientsOmitted = 0;
  // Registered patients without a sensor, whom the ward does not list.
  patientsUnassigned = 0;
  // How many alerts are open, whether or not the page holds them.
  alertTotals: readonly AlertCount[] = [];
  readonly alerts = new AlertBook();
  readonly paths = new PathBook();
  links: readonly Link[] = [];
  silences: readonly Document[] = [];
  // Readings of no patient; undefined until the server has answered.
  quarantine: ListQuarantineResponse | undefined;
  connection: Connection = { state: "connecting" };
  // Warnings about the page as a whole, by source; see view/banner.ts.
  readonly notices = new Map<string, readonly Notice[]>();
  // Why an outage is not heard at this page; empty: it is.
  unheard = "";

  selected = "";
  readonly series = new Map<Metric, Series>();
  readonly ecg = new EcgBuffer();
  gaps: readonly Gap[] = [];
  // When a sample last arrived, by this page's clock.
  sampleAtMs = 0;

  #byId = new Map<string, Patient>();
  // Patients who share their name with another, regardless of case and accents.
  #namesakes = new Set<string>();
  readonly #listeners = new Map<Topic, Set<() => void>>();
  readonly #changed = new Set<Topic>();
  // When the server was last heard, by this page's clock.
  #heardAtMs = 0;
  // The same by the core's clock.
  #heardAtS = 0;
  // The page slept, and has not seen the ward since.
  #isOld = false;

  on(topic: Topic, listener: () => void): void {
    let set = this.#listeners.get(topic);
    if (!set) this.#listeners.set(topic, (set = new Set()));
    set.add(listener);
  }

  // changed calls every listener of the topic soon, and once for all calls until then.
  changed(topic: Topic): void {
    if (this.#changed.size === 0) setTimeout(() => void this.#tell(), TOGETHER_MS);
    this.#changed.add(topic);
  }

  async #tell(): Promise<void> {
    const topics = [...this.#changed];
    this.#changed.clear();
    for (const topic of topics) {
      this.#listeners.get(topic)?.forEach((listener) => listener());
      await breathe();
    }
  }

  setUnheard(text: string): void {
    if (this.unheard === text) return;
    this.unheard = text;
    this.changed("notices");
  }

  setNotices(source: string, notices: readonly Notice[]): void {
    if (notices.length > 0) this.notices.set(source, notices);
    else if (!this.notices.delete(source)) return;
    this.changed("notices");
  }

  setQuarantine(quarantine: ListQuarantineResponse): void {
    this.quarantine = quarantine;
    this.changed("quarantine");
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
    return this.#byId.get(this.selected);
  }

  // nameOf is the patient's name; the id if the ward does not show the patient.
  nameOf(patient: string): string {
    return this.#byId.get(patient)?.name || patient;
  }

  // labelOf is the name with a second identifier, since two people may have one name.
  labelOf(patient: string): string {
    const name = this.nameOf(patient);
    return name === patient ? name : `${name} (${patient})`;
  }

  // isNamesake reports whether another patient of the ward has the same name.
  isNamesake(patient: string): boolean {
    return this.#namesakes.has(patient);
  }

  apply({ update }: WatchResponse): void {
    this.#heardAtMs = performance.now();
    switch (update.case) {
      case "ward":
        this.#isOld = false;
        learn(update.value.nowUs);
        this.#heardAtS = nowS();
        this.patients = update.value.patients;
        this.#byId = new Map(this.patients.map((patient) => [patient.id, patient]));
        this.#namesakes = namesakes(this.patients);
        this.patientsOmitted = update.value.patientsOmitted;
        this.patientsUnassigned = update.value.patientsUnassigned;
        this.alertTotals = update.value.alertCounts;
        this.setNotices("system", update.value.warnings.map(noticeOf));
        this.changed("ward");
        break;
      case "samples":
        this.#samples(update.value.samples);
        break;
      case "alerts":
        this.setOpenAlerts(update.value.alerts, update.value.counts);
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

  // droppedHoles are the stretches of a metric that the gateway's journal dropped. A stream has the
  // name of its metric.
  droppedHoles(metric: Metric): Hole[] {
    const stream = styleOf(metric).key;
    return this.gaps
      .filter((gap) => gap.stream === stream || gap.stream.startsWith(`${stream}-`))
      .map((gap) => ({ fromS: seconds(gap.fromTimeUs), toS: seconds(gap.toTimeUs), dropped: true }));
  }

  addAlerts(alerts: readonly Alert[]): void {
    this.alerts.add(alerts, performance.now());
    this.changed("alerts");
  }

  // setOpenAlerts takes the whole list of open alerts.
  setOpenAlerts(alerts: readonly Alert[], counts: readonly AlertCount[]): void {
    this.alerts.replace(alerts, counts, performance.now());
    this.changed("alerts");
  }

  // sleptUntilNow makes everything out of date until the ward arrives anew.
  sleptUntilNow(): void {
    this.#isOld = true;
    this.changed("ward");
  }

  // outOfDateSinceS is when the server was last heard, if the page is out of date.
  outOfDateSinceS(): number | undefined {
    if (this.#heardAtMs === 0) return undefined;
    const passedMs = performance.now() - this.#heardAtMs;
    return this.#isOld || this.connection.state === "lost" || passedMs > UNHEARD_MS_MAX ? this.#heardAtS : undefined;
  }

  addPaths(reports: readonly PathReport[]): void {
    this.paths.add(reports, performance.now());
    this.changed("paths");
  }

  addPathHistory(gateway: string, reports: readonly PathReport[]): void {
    this.paths.addHistory(gateway, reports);
    this.changed("paths");
  }

  setLinks(links: readonly Link[]): void {
    this.links = links;
    this.changed("links");
  }
}
