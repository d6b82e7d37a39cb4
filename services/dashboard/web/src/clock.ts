// The core's clock, told with every look at the ward. A browser's own may be minutes off: by it everybody would be silent, or nobody.

// What comes late must not set the clock back; what is further back than this is another clock.
const LATE_MS_MAX = 5_000;

let aheadMs: number | undefined;

// learn takes what the core said its time was.
export function learn(coreUs: bigint): void {
  if (coreUs === 0n) return;
  const saysMs = Number(coreUs / 1000n) - Date.now();
  if (aheadMs === undefined || saysMs > aheadMs || saysMs < aheadMs - LATE_MS_MAX) aheadMs = saysMs;
}

// nowMs is the core's time, this browser's own before the first word of the core.
export function nowMs(): number {
  return Date.now() + (aheadMs ?? 0);
}

export function nowS(): number {
  return nowMs() / 1000;
}

export function nowUs(): bigint {
  return BigInt(Math.round(nowMs())) * 1000n;
}
