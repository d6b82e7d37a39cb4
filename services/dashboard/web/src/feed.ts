// Keeps one Watch stream open: reopens it with back-off when it ends or falls silent.
import { breathe } from "./breathe";
import { isSignedOut, reason, type Query } from "./client";
import type { WatchResponse } from "./gen/braid/query/v1/query_pb";
import { t } from "./text";

// The server sends at least one update every 2 s; silence longer than this is a dead connection.
const SILENCE_MS_MAX = 6_000;
const BACKOFF_MS_FIRST = 400;
const BACKOFF_MS_MAX = 8_000;

export type Connection =
  | { readonly state: "connecting" }
  | { readonly state: "live" }
  | { readonly state: "lost"; readonly why: string; readonly retryAtMs: number };

export interface FeedEvents {
  update(response: WatchResponse): void;
  // opened is called with the first update of every new stream, so that missed data can be loaded.
  opened(): void;
  connection(connection: Connection): void;
  signedOut(): void;
}

export class Feed {
  #abort = new AbortController();
  #generation = 0;

  constructor(
    private readonly query: Query,
    private readonly events: FeedEvents,
  ) {}

  // watch replaces the running stream by one for this patient.
  watch(patient: string): void {
    this.stop();
    this.#abort = new AbortController();
    void this.#run(patient, ++this.#generation, this.#abort.signal);
  }

  stop(): void {
    this.#generation++;
    this.#abort.abort();
  }

  async #run(patient: string, generation: number, stopped: AbortSignal): Promise<void> {
    let backoffMs = BACKOFF_MS_FIRST;
    while (!stopped.aborted) {
      this.events.connection({ state: "connecting" });
      const attempt = new AbortController();
      const abort = () => attempt.abort();
      stopped.addEventListener("abort", abort, { once: true });
      let silence = window.setTimeout(abort, SILENCE_MS_MAX);
      let why = t("the server ended the stream");
      let live = false;
      try {
        for await (const response of this.query.watch({ patient }, { signal: attempt.signal })) {
          if (generation !== this.#generation) return;
          window.clearTimeout(silence);
          silence = window.setTimeout(abort, SILENCE_MS_MAX);
          if (!live) {
            live = true;
            backoffMs = BACKOFF_MS_FIRST;
            this.events.connection({ state: "live" });
            this.events.opened();
          }
          this.events.update(response);
          await breathe();
          if (generation !== this.#generation) return;
        }
      } catch (error) {
        if (stopped.aborted || generation !== this.#generation) return;
        if (isSignedOut(error)) {
          this.events.signedOut();
          return;
        }
        why = attempt.signal.aborted ? t("no updates arrive") : reason(error);
      } finally {
        window.clearTimeout(silence);
        stopped.removeEventListener("abort", abort);
      }
      if (stopped.aborted) return;
      // Full jitter: many pages of one ward must not come back in step.
      const waitMs = backoffMs * (0.5 + Math.random() / 2);
      backoffMs = Math.min(BACKOFF_MS_MAX, backoffMs * 2);
      this.events.connection({ state: "lost", why, retryAtMs: Date.now() + waitMs });
      await pause(waitMs, stopped);
    }
  }
}

function pause(ms: number, stopped: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = window.setTimeout(resolve, ms);
    stopped.addEventListener("abort", () => (window.clearTimeout(timer), resolve()), { once: true });
  });
}
