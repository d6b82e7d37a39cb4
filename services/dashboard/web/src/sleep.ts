// Notices that the page slept: a frozen tab, or a machine that was suspended. Its content is then
// old, and so are the updates that wait in its connection.

// Ticks and updates are closer together than this, also in a tab that is hidden: the server sends
// at least every 2 s.
const SLEPT_MS_MIN = 5_000;

// Sleep is without a clock of its own. Both clocks are asked: one stops in a suspended machine, and
// the other may be set.
export class Sleep {
  #wallMs: number;
  #steadyMs: number;

  constructor(wallMs: number, steadyMs: number) {
    this.#wallMs = wallMs;
    this.#steadyMs = steadyMs;
  }

  // beat is called whenever the page does something, and returns whether it slept before.
  beat(wallMs: number, steadyMs: number): boolean {
    const passedMs = Math.max(wallMs - this.#wallMs, steadyMs - this.#steadyMs);
    this.#wallMs = wallMs;
    this.#steadyMs = steadyMs;
    return passedMs >= SLEPT_MS_MIN;
  }
}

// watchSleep calls woke at the first sign of waking. The caller calls beat at each tick and update;
// it returns whether the page has just woken.
export function watchSleep(woke: () => void): { beat(): boolean; stop(): void } {
  const sleep = new Sleep(Date.now(), performance.now());
  const beat = () => {
    const slept = sleep.beat(Date.now(), performance.now());
    if (slept) woke();
    return slept;
  };
  // A frozen tab has missed changes, however short it was.
  const resumed = () => void (beat() || woke());
  const shown = (event: PageTransitionEvent) => void (event.persisted && resumed());
  document.addEventListener("resume", resumed);
  document.addEventListener("visibilitychange", beat);
  window.addEventListener("pageshow", shown);
  return {
    beat,
    stop() {
      document.removeEventListener("resume", resumed);
      document.removeEventListener("visibilitychange", beat);
      window.removeEventListener("pageshow", shown);
    },
  };
}
