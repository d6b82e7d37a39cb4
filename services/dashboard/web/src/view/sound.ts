// A sound for each new alert of high priority, in browsers where it was switched on. Silenced
// alerts and alerts from late data make none. The sound of an outage is in outage_sound.ts.
import { awaits } from "../clinical";
import { Priority } from "../gen/braid/vitals/v1/vitals_pb";
import type { Alert } from "../gen/braid/alerts/v1/alerts_pb";
import type { Model } from "../model";
import { silences } from "./silence";

const KEY = "braid.sound";
// Three pulses and two, of two tones each, so that people who hear high tones badly notice them.
const PULSES_S = [0, 0.2, 0.4, 0.8, 1.0];
const PULSE_S = 0.13;
const TONES_HZ = [587, 1175];
const VOLUME = 0.25;

let context: AudioContext | undefined;

export type SoundState = "off" | "on" | "blocked";

// Browsers play nothing before the first touch of the page. Signing in is one.
function resume(): Promise<void> {
  context ??= new AudioContext();
  return context.resume();
}

for (const touch of ["pointerdown", "keydown"]) document.addEventListener(touch, () => outageSoundState() !== "off" && void resume());

// tryToPlay plays from here on in a browser that needs no touch for it, as at a wall display.
export function tryToPlay(): void {
  if (outageSoundState() !== "off") void resume();
}

const played = (): SoundState => (context?.state === "running" ? "on" : "blocked");

// audio is the context, where it plays.
export function audio(): AudioContext | undefined {
  return context?.state === "running" ? context : undefined;
}

// soundState is that of patients' alerts, which a person switches on.
export function soundState(): SoundState {
  return localStorage.getItem(KEY) === "on" ? played() : "off";
}

// outageSoundState is that of an outage, which is heard unless a person has switched sound off.
export function outageSoundState(): SoundState {
  return localStorage.getItem(KEY) === "off" ? "off" : played();
}

export function switchSound(): void {
  if (soundState() === "on") return localStorage.setItem(KEY, "off");
  localStorage.setItem(KEY, "on");
  // Played at once, so that a muted machine is noticed.
  void resume().then(play);
}

function play(): void {
  if (context?.state !== "running") return;
  for (const pulseS of PULSES_S) {
    const fromS = context.currentTime + pulseS;
    const volume = new GainNode(context, { gain: 0 });
    // Gentle edges, because steep ones would click.
    volume.gain.setTargetAtTime(VOLUME, fromS, 0.01);
    volume.gain.setTargetAtTime(0, fromS + PULSE_S, 0.01);
    volume.connect(context.destination);
    for (const frequency of TONES_HZ) {
      const tone = new OscillatorNode(context, { frequency });
      tone.connect(volume);
      tone.start(fromS);
      tone.stop(fromS + PULSE_S + 0.1);
    }
  }
}

// begin is called once the silences in force are known, or could not be loaded.
export function soundAlerts(model: Model): { begin(): void } {
  const heard = new Set<string>();
  let begun = false;
  const calls = (alert: Alert) =>
    awaits(alert.state) && alert.priority === Priority.HIGH && !alert.backfill && !model.silences.some((silence) => silences(silence, alert));
  const listen = () => {
    if (!begun) return;
    const fresh = [...model.alerts.values()].filter((alert) => calls(alert) && !heard.has(alert.id));
    for (const { id } of fresh) heard.add(id);
    for (const id of heard) if (!model.alerts.has(id)) heard.delete(id);
    if (fresh.length > 0 && soundState() === "on") play();
  };
  model.on("alerts", listen);
  return {
    begin() {
      begun = true;
      listen();
    },
  };
}
