// The forms that silence an alert's rule for its patient, with a length and a reason, and that end
// a silence early. Silenced alerts are still recorded, and a silence ends by itself.
import { h, setAttribute, setText } from "../dom";
import { seconds } from "../clinical";
import { nowS } from "../clock";
import { t, term } from "../text";
import type { Alert, Document } from "../gen/braid/alerts/v1/alerts_pb";

const REASON_LENGTH_MAX = 500;
const LENGTHS: readonly [hours: number, label: string][] = [
  [0.5, term("30 minutes")],
  [1, term("1 hour")],
  [2, term("2 hours")],
  [8, term("8 hours")],
  [24, term("24 hours")],
];

export interface Silence {
  readonly patient: string;
  readonly rule: string;
  readonly hours: number;
  readonly reason: string;
}

interface Scope {
  readonly patient: string;
  readonly rule: string;
}

// A silence is compared with every alert at every turn, and read once.
const scopes = new WeakMap<Document, Scope | undefined>();

// scopeOf is the patient and rule of a silence. An unreadable silence is shown with author and
// reason.
export function scopeOf(silence: Document): Scope | undefined {
  if (!scopes.has(silence)) scopes.set(silence, scopeIn(silence.body));
  return scopes.get(silence);
}

function scopeIn(body: string): Scope | undefined {
  try {
    return { patient: "", rule: "", ...(JSON.parse(body) as object) };
  } catch {
    return undefined;
  }
}

// silences reports whether a silence covers an alert, as alerting decides it.
export function silences(silence: Document, { patient, rule }: Alert): boolean {
  const scope = scopeOf(silence);
  if (!scope || (scope.patient === "" && scope.rule === "") || seconds(silence.untilUs) <= nowS()) return false;
  return (scope.patient === "" || scope.patient === patient) && (scope.rule === "" || scope.rule === rule);
}

export function silenceForm(silence: (it: Silence) => Promise<void>): { element: HTMLElement; update(alert: Alert, name: string): void } {
  let alert: Alert | undefined;
  let hours: () => number = () => 1;
  const what = h("p", { class: "dim" });
  const more = () => {
    const length = h("select", { "aria-label": t("For how long") }, ...LENGTHS.map(([hours, label]) => h("option", { value: hours, selected: hours === 1 }, t(label))));
    hours = () => Number(length.value);
    return [what, length];
  };
  const element = reasoned(t("Silence"), t("Silence"), t("It was not silenced."), more, async (reason) => {
    if (alert) await silence({ patient: alert.patient, rule: alert.rule, hours: hours(), reason });
  });
  return {
    element,
    update(next, name) {
      alert = next;
      setText(what, t("{rule} for {patient}", { rule: next.rule, patient: next.patient === "" ? t("everybody") : name }));
      setAttribute(element, "hidden", next.rule === "");
    },
  };
}

export function endForm(end: (reason: string) => Promise<void>): HTMLElement {
  return reasoned(t("End"), t("End silence"), t("It was not ended."), () => [], end);
}

// reasoned opens a form at a click, which asks for a reason. The form is built when it is opened,
// because hundreds of alerts have one each.
function reasoned(title: string, verb: string, failed: string, more: () => HTMLElement[], act: (reason: string) => Promise<void>): HTMLDetailsElement {
  const element = h("details", { class: "silence" }, h("summary", {}, title));
  const open = () => {
    element.removeEventListener("toggle", open);
    element.append(formOf(element, verb, failed, more(), act));
  };
  element.addEventListener("toggle", open);
  return element;
}

function formOf(element: HTMLDetailsElement, verb: string, failed: string, more: HTMLElement[], act: (reason: string) => Promise<void>): HTMLFormElement {
  const reason = h("input", { type: "text", required: true, maxlength: REASON_LENGTH_MAX, placeholder: t("Why"), "aria-label": t("Reason") });
  const failure = h("p", { class: "message", role: "alert" });
  const confirm = h("button", { type: "submit" }, verb);
  return h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        const why = reason.value.trim();
        if (why === "") return;
        confirm.disabled = true;
        setText(failure, "");
        act(why)
          .then(() => {
            reason.value = "";
            element.open = false;
          })
          .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : failed))
          .finally(() => (confirm.disabled = false));
      },
    },
    ...more,
    reason,
    confirm,
    failure,
  );
}
