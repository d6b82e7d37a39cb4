// The core's clock, sent with every ward view. A browser's own clock may be minutes off, and
// silence cannot be judged by it.

// A late message must not set the clock back. A time further back than this is another clock.
const LATE_MS_MAX = 5_000;

let aheadMs: number | undefined;

// learn takes the time of the core.
export function learn(coreUs: bigint): void {
  if (coreUs === 0n) return;
  const saysMs = Number(coreUs / 1000n) - Date.now();
  if (aheadMs === undefined || saysMs > aheadMs || saysMs < aheadMs - LATE_MS_MAX) aheadMs = saysMs;
}

// nowMs is the core's time; before the first message, that of this browser.
export function nowMs(): number {
  return Date.now() + (aheadMs ?? 0);
}

export function nowS(): number {
  return nowMs() / 1000;
}

export function nowUs(): bigint {
  return BigInt(Math.round(nowMs())) * 1000n;
}
