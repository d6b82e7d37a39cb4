// The form that silences an alert's rule for its patient, for a while and for a reason. What it hides is still recorded, and the
// silence ends by itself.
import { h, setAttribute, setText } from "../dom";
import type { Alert } from "../gen/braid/alerts/v1/alerts_pb";

const REASON_LENGTH_MAX = 500;
const LENGTHS: readonly [hours: number, label: string][] = [
  [0.5, "30 minutes"],
  [1, "1 hour"],
  [2, "2 hours"],
  [8, "8 hours"],
  [24, "24 hours"],
];

export interface Silence {
  readonly patient: string;
  readonly rule: string;
  readonly hours: number;
  readonly reason: string;
}

export function silenceForm(silence: (it: Silence) => Promise<void>): { element: HTMLElement; update(alert: Alert, name: string): void } {
  let alert: Alert | undefined;
  const what = h("p", { class: "dim" });
  const length = h("select", { "aria-label": "For how long" }, ...LENGTHS.map(([hours, label]) => h("option", { value: hours, selected: hours === 1 }, label)));
  const reason = h("input", { type: "text", required: true, maxlength: REASON_LENGTH_MAX, placeholder: "Why", "aria-label": "Reason" });
  const failure = h("p", { class: "message", role: "alert" });
  const confirm = h("button", { type: "submit" }, "Silence");
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        const why = reason.value.trim();
        if (!alert || why === "") return;
        confirm.disabled = true;
        setText(failure, "");
        silence({ patient: alert.patient, rule: alert.rule, hours: Number(length.value), reason: why })
          .then(() => {
            reason.value = "";
            element.open = false;
          })
          .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : "It was not silenced."))
          .finally(() => (confirm.disabled = false));
      },
    },
    what,
    length,
    reason,
    confirm,
    failure,
  );
  const element = h("details", { class: "silence" }, h("summary", {}, "Silence"), form);
  return {
    element,
    update(next, name) {
      alert = next;
      setText(what, `${next.rule} for ${next.patient === "" ? "everybody" : name}`);
      setAttribute(element, "hidden", next.rule === "");
    },
  };
}
