// Keeps the screen on while the ward is shown, where the browser can and the machine allows it.

export function keepScreenOn(): () => void {
  let stopped = false;
  let lock: WakeLockSentinel | undefined;
  // The browser releases the lock of a page that is hidden.
  const take = async () => {
    if (document.visibilityState !== "visible" || (lock && !lock.released)) return;
    try {
      lock = await navigator.wakeLock?.request("screen");
      if (stopped) await lock?.release();
    } catch {
      // A machine that saves its battery refuses. The page does the same without.
    }
  };
  const taking = () => void take();
  document.addEventListener("visibilitychange", taking);
  taking();
  return () => {
    stopped = true;
    document.removeEventListener("visibilitychange", taking);
    void lock?.release();
  };
}
