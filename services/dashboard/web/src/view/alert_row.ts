// One alert: what, whose, since when, by whom it was acknowledged, with a button, a note, a silence
// and the notices that people got.
import { h, setAttribute, setText, type Row } from "../dom";
import { age, awaits, clock, priorityOf, seconds, stateOf } from "../clinical";
import { nowS } from "../clock";
import { AlertState, type Alert, type Document, type NoticeRecord } from "../gen/braid/alerts/v1/alerts_pb";
import type { Model } from "../model";
import { t } from "../text";
import { silenceForm, type Silence } from "./silence";
import { toldView } from "./told";

export const NOTE_LENGTH_MAX = 500;

export interface AlertActions {
  readonly mayAct: boolean;
  acknowledge(id: string, note: string): Promise<void>;
  // acknowledgeAll acknowledges several with one note, which can be taken back together.
  acknowledgeAll(alerts: readonly Alert[], note: string): Promise<void>;
  withdraw(id: string): Promise<void>;
  silence(it: Silence): Promise<void>;
  endSilence(it: Document, reason: string): Promise<void>;
  select(patient: string): void;
  // told returns the notices of an alert.
  told(id: string): Promise<readonly NoticeRecord[]>;
}

export function alertRow(model: Model, first: Alert, actions: AlertActions): Row<Alert> {
  let alert = first;
  const mark = h("span", { class: "chip", role: "img" });
  const summary = h("p", { class: "summary" });
  const name = h("span", {});
  const second = h("small", { class: "second" });
  const who = h("button", { class: "link", type: "button", onclick: () => actions.select(alert.patient) }, name, " ", second);
  const when = h("span", { class: "dim" });
  const by = h("p", { class: "by dim" });
  const note = h("input", { type: "text", maxlength: NOTE_LENGTH_MAX, placeholder: t("Note (optional)"), "aria-label": t("Note") });
  const failure = h("p", { class: "message", role: "alert" });
  const confirm = h("button", { type: "submit", class: "primary" }, t("Acknowledge"));
  const form = h(
    "form",
    {
      class: "acknowledge",
      onsubmit: (event) => {
        event.preventDefault();
        confirm.disabled = true;
        setText(failure, "");
        actions
          .acknowledge(alert.id, note.value.trim())
          .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : t("It was not acknowledged.")))
          .finally(() => (confirm.disabled = false));
      },
    },
    note,
    confirm,
    failure,
  );
  const silence = silenceForm((it) => actions.silence(it));
  const element = h("li", { class: "alert", "data-alert": first.id }, mark, h("div", { class: "grow" }, summary, h("p", { class: "meta" }, who, when), by, form, actions.mayAct && silence.element, toldView(() => actions.told(alert.id))));
  return {
    element,
    update(next) {
      alert = next;
      const priority = priorityOf(alert.priority);
      const state = stateOf(alert.state);
      setAttribute(element, "data-priority", priority.key);
      setAttribute(element, "data-state", state.key);
      setText(mark, priority.mark);
      setAttribute(mark, "data-priority", priority.key);
      setAttribute(mark, "aria-label", priority.label);
      setText(summary, alert.summary || alert.rule);
      // An alert of a gateway or of the core: the summary names it.
      who.hidden = alert.patient === "";
      const named = model.nameOf(alert.patient);
      setText(name, named);
      setText(second, named === alert.patient ? "" : alert.patient);
      setAttribute(second, "data-namesake", model.isNamesake(alert.patient));
      silence.update(alert, model.labelOf(alert.patient));
      const sinceS = seconds(alert.sinceUs);
      setText(when, `${alert.patient === "" ? "" : " · "}${state.label.toLowerCase()} · ${t("since {time}", { time: clock(sinceS) })} (${age(nowS() - sinceS)})${alert.backfill ? ` · ${t("from late data")}` : ""}`);
      setText(by, alert.acknowledgedBy ? `${alert.acknowledgedBy}${alert.note ? `: “${alert.note}”` : ""}` : "");
      by.hidden = !alert.acknowledgedBy;
      form.hidden = !actions.mayAct || !awaits(alert.state) || alert.state === AlertState.RESOLVED;
    },
  };
}
