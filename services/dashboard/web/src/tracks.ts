// The paths of all gateways by their reports: newest state, data of the month, and the points of
// the gateways that are drawn.
import { seconds } from "./clinical";
import { End, PathState, type AccessUse, type PathReport } from "./gen/braid/paths/v1/paths_pb";

// Points kept per path, four minutes at two a second; the oldest leave first.
const POINTS_MAX = 480;
// A path that the proxy has not reported for so long is drawn by the gateway's reports.
const PROXY_MS_MAX = 6_000;

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
  // Steering document in force at the gateway; 0: none, or a file of its own.
  steeringVersion: number;
  // A file that the core does not have.
  steeringIsOwn: boolean;
  // Data of the month and rules in force, by the gateway's newest report.
  access: AccessUse | undefined;
  // When the gateway said so, by the core's clock.
  accessAtS: number;
  // By this page's clock, so that no other clock decides whether a path still reports.
  heardAtMs: number;
  // Likewise, by the proxy's reports alone.
  proxyAtMs: number;
}

export class PathBook {
  readonly #tracks = new Map<string, PathTrack>();

  get size(): number {
    return this.#tracks.size;
  }

  get(gateway: string, name: string): PathTrack | undefined {
    return this.#tracks.get(`${gateway}/${name}`);
  }

  values(): Iterable<PathTrack> {
    return this.#tracks.values();
  }

  add(reports: readonly PathReport[], nowMs: number): void {
    for (const report of reports) {
      if (report.path === "") continue;
      const track = this.#track(report);
      const point = pointOf(report);
      // Both ends report. The proxy does so each second, and the gateway on change, to save its
      // data.
      if (report.end === End.PROXY) track.proxyAtMs = nowMs;
      else {
        if (point.timeS >= track.accessAtS) {
          track.steeringVersion = report.steeringVersion;
          track.steeringIsOwn = report.steeringIsOwn;
          track.access = report.access ?? track.access;
          track.accessAtS = point.timeS;
        }
        if (nowMs - track.proxyAtMs < PROXY_MS_MAX) continue;
      }
      const newest = track.points.at(-1);
      if (newest && point.timeS <= newest.timeS) continue;
      track.points.push(point);
      if (track.points.length > POINTS_MAX) track.points.shift();
      track.state = report.state;
      track.heardAtMs = nowMs;
    }
  }

  // addHistory puts stored points of a gateway before those that are known. The state is the
  // newest report's, which history does not have.
  addHistory(gateway: string, reports: readonly PathReport[]): void {
    for (const report of reports) if (report.path !== "") this.#track(report);
    for (const track of this.#tracks.values()) {
      if (track.gateway !== gateway) continue;
      const own = reports.filter((report) => report.gateway === gateway && report.path === track.name);
      const proxys = own.filter(({ end }) => end === End.PROXY);
      const points = (proxys.length > 0 ? proxys : own).map(pointOf).sort((a, b) => a.timeS - b.timeS);
      const firstS = track.points[0]?.timeS ?? Infinity;
      track.points.unshift(...points.filter(({ timeS }) => timeS < firstS).slice(-POINTS_MAX));
    }
  }

  #track({ gateway, path, state }: PathReport): PathTrack {
    const key = `${gateway}/${path}`;
    let track = this.#tracks.get(key);
    if (!track) {
      track = { gateway, name: path, points: [], state, steeringVersion: 0, steeringIsOwn: false, access: undefined, accessAtS: -Infinity, heardAtMs: 0, proxyAtMs: -Infinity };
      this.#tracks.set(key, track);
    }
    return track;
  }
}

function pointOf(report: PathReport): PathPoint {
  // Bytes that the gateway sent are those that the proxy received.
  const bytes = report.end === End.PROXY ? report.receivedBytes : report.sentBytes;
  return {
    timeS: seconds(report.timeUs),
    rateBitPerS: report.intervalMs > 0 ? (Number(bytes) * 8000) / report.intervalMs : 0,
    rttMs: report.rttMs,
    loss: report.sentPackets > 0n ? Math.min(1, Number(report.lostPackets) / Number(report.sentPackets)) : 0,
  };
}
