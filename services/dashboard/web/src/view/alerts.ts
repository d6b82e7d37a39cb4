// Alerts: the unacknowledged first, each with a button, a note and a silence. Below them the
// silences in force, with author, reason and end. Rows are held under a pointer (hold.ts); what
// waits meanwhile is told on a line that has its place at all times.
import { h, KeyedList, setAttribute, setText, whenNear, type Row } from "../dom";
import { age, awaits, clock, priorityOf, seconds, stateOf } from "../clinical";
import { nowS } from "../clock";
import { AlertState, type Alert, type Document } from "../gen/braid/alerts/v1/alerts_pb";
import type { Omitted } from "../alerts";
import type { Model } from "../model";
import { alertsBar } from "./alerts_bar";
import { guardClicks, HeldOrder, Hold } from "./hold";
import { endForm, scopeOf, silenceForm, type Silence } from "./silence";

// Resolved alerts shown below the open ones.
const PAST_SHOWN = 8;
const NOTE_LENGTH_MAX = 500;

export interface AlertActions {
  readonly mayAct: boolean;
  acknowledge(id: string, note: string): Promise<void>;
  withdraw(id: string): Promise<void>;
  silence(it: Silence): Promise<void>;
  endSilence(it: Document, reason: string): Promise<void>;
  select(patient: string): void;
}

export interface AlertsView {
  readonly element: HTMLElement;
  tick(): void;
  // open shows one alert and gives it the focus; false while the page does not have it.
  open(id: string): boolean;
}

export function alertsView(model: Model, actions: AlertActions): AlertsView {
  const open = h("ul", { class: "alerts" });
  const past = h("ul", { class: "alerts past" });
  const pastBlock = h("details", {}, h("summary", {}, "Resolved"), past);
  const silenced = h("ul", { class: "silences" });
  const silencedBlock = h("details", {}, h("summary", {}, "Silenced"), silenced);
  const none = h("p", { class: "empty" }, "No open alerts.");
  const more = h("p", { class: "more", id: "alerts-more" });
  const count = h("span", { class: "dim" });
  const bar = alertsBar(model, () => {
    order.release();
    update();
    open.scrollTop = 0;
  }, actions.withdraw);
  // Screen readers hear new alerts without the page taking the focus away.
  const announce = h("p", { class: "visually-hidden", role: "status", "aria-live": "assertive" });
  const element = h("section", { class: "panel alerts-panel", "aria-label": "Alerts" }, h("header", {}, h("h2", {}, "Alerts"), count), announce, bar.element, open, more, none, silencedBlock, pastBlock);
  const acting: AlertActions = {
    ...actions,
    async acknowledge(id, note) {
      const alert = model.alerts.get(id);
      await actions.acknowledge(id, note);
      if (alert) bar.acknowledged(alert);
      update();
    },
  };
  const openRows = new KeyedList<Alert>(open, (alert) => alert.id, (alert) => alertRow(model, alert, acting));
  const pastRows = new KeyedList<Alert>(past, (alert) => alert.id, (alert) => alertRow(model, alert, acting));
  const silenceRows = new KeyedList<Document>(silenced, (silence) => silence.subject, (silence) => silenceRow(model, silence, actions));
  const order = new HeldOrder<Alert>(({ id }) => id);
  const hold = new Hold(element, () => update());
  // Rows that keep their height while they are held.
  const locked = new Set<HTMLElement>();
  guardClicks(open, () => {
    bar.say("The list moved: the click was not taken");
    update();
  });
  const announced = new Set<string>();
  // The alert that a link has opened: it is shown although it ended long ago.
  let opened = "";

  const update = () => {
    const alerts = model.alerts.open();
    const now = order.of(alerts, hold.held(), (gone) => model.alerts.get(gone.id) ?? gone);
    for (const { id } of now.changed) {
      const row = open.querySelector<HTMLElement>(`[data-alert="${CSS.escape(id)}"]`);
      if (!row || locked.has(row)) continue;
      row.style.minHeight = `${row.offsetHeight}px`;
      locked.add(row);
    }
    if (now.rows === alerts) {
      for (const row of locked) row.style.minHeight = "";
      locked.clear();
    }
    openRows.update(now.rows);
    bar.update(now);
    const omitted = model.alerts.omitted();
    more.hidden = omitted.length === 0;
    setText(more, omittedText(omitted));
    // A held row stands once.
    const resolved = pastWith(model, opened).filter((alert) => !now.rows.includes(alert));
    pastRows.update(resolved);
    pastBlock.hidden = resolved.length === 0;
    const silences = model.silences.filter((silence) => seconds(silence.untilUs) > nowS());
    silenceRows.update(silences);
    silencedBlock.hidden = silences.length === 0;
    none.hidden = now.rows.length > 0;
    const waiting = alerts.filter((alert) => awaits(alert.state)).length;
    setText(count, [waiting > 0 && `${waiting} to acknowledge`, omitted.length > 0 && omittedText(omitted)].filter(Boolean).join(" · "));
    setAttribute(count, "data-partial", omitted.length > 0);
    for (const alert of alerts) {
      if (!awaits(alert.state) || announced.has(alert.id)) continue;
      announced.add(alert.id);
      setText(announce, `${priorityOf(alert.priority).label}: ${alert.summary}`);
    }
    for (const id of announced) if (!model.alerts.has(id)) announced.delete(id);
  };
  model.on("alerts", update);
  model.on("ward", update);
  update();
  const show = (id: string): boolean => {
    if (!model.alerts.has(id)) return false;
    element.querySelector("[data-linked]")?.removeAttribute("data-linked");
    opened = id;
    order.release();
    update();
    const row = element.querySelector<HTMLElement>(`[data-alert="${CSS.escape(id)}"]`);
    if (!row) return false;
    row.closest("details")?.setAttribute("open", "");
    setAttribute(row, "data-linked", true);
    row.tabIndex = -1;
    row.scrollIntoView({ block: "center" });
    row.focus({ preventScroll: true });
    return true;
  };
  return { element, tick: update, open: show };
}

// pastWith returns the resolved alerts that are shown, with the one that a link has opened.
function pastWith(model: Model, opened: string): Alert[] {
  const past = model.alerts.past(Infinity);
  const shown = past.slice(0, PAST_SHOWN);
  const linked = past.slice(PAST_SHOWN).find(({ id }) => id === opened);
  return linked ? [...shown, linked] : shown;
}

// omittedText counts the omitted alerts: "12 more of low priority".
export function omittedText(omitted: readonly Omitted[]): string {
  return omitted.map(({ priority, count }) => `${count} more of ${priorityOf(priority).label.toLowerCase()}`).join(", ");
}

function silenceRow(model: Model, first: Document, actions: AlertActions): Row<Document> {
  let silence = first;
  const text = h("p", {});
  const end = endForm((reason) => actions.endSilence(silence, reason));
  const element = h("li", { class: "dim", "data-silence": first.subject }, text, actions.mayAct && end);
  return {
    element,
    update(next) {
      silence = next;
      const { patient = "", rule = "" } = scopeOf(silence.body) ?? {};
      const name = model.labelOf(patient);
      const what = [name || "everybody", rule || "every rule"].join(", ");
      setText(text, `${what} · until ${clock(seconds(silence.untilUs))} · ${silence.author}: “${silence.reason}”`);
    },
  };
}

function alertRow(model: Model, first: Alert, actions: AlertActions): Row<Alert> {
  let alert = first;
  const mark = h("span", { class: "chip" });
  const summary = h("p", { class: "summary" });
  const name = h("span", {});
  const second = h("small", { class: "second" });
  const who = h("button", { class: "link", type: "button", onclick: () => actions.select(alert.patient) }, name, " ", second);
  const when = h("span", { class: "dim" });
  const by = h("p", { class: "by dim" });
  const note = h("input", { type: "text", maxlength: NOTE_LENGTH_MAX, placeholder: "Note (optional)", "aria-label": "Note" });
  const failure = h("p", { class: "message", role: "alert" });
  const confirm = h("button", { type: "submit", class: "primary" }, "Acknowledge");
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
          .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : "It was not acknowledged."))
          .finally(() => (confirm.disabled = false));
      },
    },
    confirm,
    failure,
  );
  const silence = silenceForm((it) => actions.silence(it));
  const element = h("li", { class: "alert", "data-alert": first.id }, mark, h("div", { class: "grow" }, summary, h("p", { class: "meta" }, who, when), by, form, actions.mayAct && silence.element));
  whenNear(element, () => form.prepend(note));
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
      setText(when, `${alert.patient === "" ? "" : " · "}${state.label.toLowerCase()} · since ${clock(sinceS)} (${age(nowS() - sinceS)})${alert.backfill ? " · from late data" : ""}`);
      setText(by, alert.acknowledgedBy ? `${alert.acknowledgedBy}${alert.note ? `: “${alert.note}”` : ""}` : "");
      by.hidden = !alert.acknowledgedBy;
      form.hidden = !actions.mayAct || !awaits(alert.state) || alert.state === AlertState.RESOLVED;
    },
  };
}
