// A sound while alerts may not come through: the system is lost, this page is out of date, or the
// session has ended. It is deeper and longer than that of a patient's alert, falls instead of
// rising, and comes again until it is over. It needs no switch: only who has switched sound off
// hears nothing, and the page says so.
import type { Model } from "../model";
import { inOrder } from "../notices";
import { audio, outageSoundState } from "./sound";
import { t, term } from "../text";

const AGAIN_MS = 8_000;
// A moment without the stream is no outage. The connection comes back by itself within it.
const AFTER_MS = 5_000;
const TONES_HZ = [494, 392, 294];
const TONE_S = 0.45;
const VOLUME = 0.25;

let playedAtMs = -Infinity;

function play(): void {
  const context = audio();
  if (!context || performance.now() - playedAtMs < AGAIN_MS) return;
  playedAtMs = performance.now();
  TONES_HZ.forEach((frequency, i) => {
    const fromS = context.currentTime + i * TONE_S;
    const volume = new GainNode(context, { gain: 0 });
    volume.gain.setTargetAtTime(VOLUME, fromS, 0.02);
    volume.gain.setTargetAtTime(0, fromS + TONE_S - 0.08, 0.02);
    const tone = new OscillatorNode(context, { frequency, type: "triangle" });
    tone.connect(volume).connect(context.destination);
    tone.start(fromS);
    tone.stop(fromS + TONE_S);
  });
}

const UNHEARD: Record<"off" | "blocked", string> = {
  off: term("Sound is off here: nobody hears it when alerts stop."),
  blocked: term("No sound before you touch this page: nobody hears it when alerts stop."),
};

// outageSound returns what is to be called twice a second.
export function outageSound(model: Model): () => void {
  let sinceMs: number | undefined;
  return () => {
    const state = outageSoundState();
    model.setUnheard(state === "on" ? "" : t(UNHEARD[state]));
    const isLost = inOrder(model.notices.values()).some(({ severity }) => severity === "critical");
    sinceMs = isLost ? (sinceMs ?? performance.now()) : undefined;
    if (sinceMs !== undefined && performance.now() - sinceMs >= AFTER_MS && state === "on") play();
  };
}

// soundEnded sounds until somebody is there: the session has ended, so nobody watches.
export function soundEnded(): void {
  const sounding = window.setInterval(() => outageSoundState() === "on" && play(), 500);
  const touches = ["pointerdown", "keydown"] as const;
  const end = () => {
    window.clearInterval(sounding);
    for (const touch of touches) document.removeEventListener(touch, end);
  };
  for (const touch of touches) document.addEventListener(touch, end);
}
