// Open alerts in groups of one rule or one patient, the group with the most urgent alert first. A
// group says its worst alert in words, and has its rows once a person opens it.
import { awaits, briefOf, priorityOf, wordsOf } from "../clinical";
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import type { Alert } from "../gen/braid/alerts/v1/alerts_pb";
import { Priority } from "../gen/braid/vitals/v1/vitals_pb";
import type { Model } from "../model";
import { many, t } from "../text";
import { alertRow, NOTE_LENGTH_MAX, type AlertActions } from "./alert_row";
import { guardClicks, HeldOrder } from "./hold";

// Rows of an open group; further ones are counted.
const ROWS_MAX = 50;
// Alerts that one click acknowledges. Each takes a call, and all must be done while they can still
// be taken back.
const ACKNOWLEDGED_MAX = 50;
// An alert that came a moment before a click was not looked at, and stays.
const LOOKED_AT_MS = 1_000;

export type GroupBy = "rule" | "patient";

export interface Group {
  readonly key: string;
  readonly by: GroupBy;
  // The most urgent first; never empty.
  readonly alerts: readonly Alert[];
}

// groupsOf keeps the order of the alerts.
export function groupsOf(alerts: readonly Alert[], by: GroupBy): Group[] {
  const groups = new Map<string, Alert[]>();
  for (const alert of alerts) {
    const key = by === "rule" ? alert.rule : alert.patient;
    const own = groups.get(key);
    if (own) own.push(alert);
    else groups.set(key, [alert]);
  }
  return [...groups].map(([key, own]) => ({ key: `${by}/${key}`, by, alerts: own }));
}

export function groupRow(model: Model, actions: AlertActions, held: () => boolean): Row<Group> {
  const mark = h("span", { class: "chip", role: "img" });
  const title = h("b", {});
  const count = h("span", { class: "dim" });
  const worst = h("span", { class: "dim" });
  const list = h("ul", { class: "alerts" });
  const more = h("p", { class: "more" });
  const note = h("input", { type: "text", maxlength: NOTE_LENGTH_MAX, placeholder: t("Note (optional)"), "aria-label": t("Note for all") });
  const all = h("button", { type: "submit" });
  const failure = h("p", { class: "message", role: "alert" });
  const highs = h("p", { class: "dim" }, t("Alerts of high priority are acknowledged one by one."));
  const submit = (event: Event) => {
    event.preventDefault();
    all.disabled = true;
    setText(failure, "");
    actions
      .acknowledgeAll(several(), note.value.trim())
      .then(() => (note.value = ""))
      .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : t("It was not acknowledged.")))
      .finally(() => (all.disabled = false));
  };
  const form = h("form", { class: "acknowledge acknowledge-all", onsubmit: submit }, note, all, failure);
  const details = h("details", {}, h("summary", {}, mark, h("span", { class: "grow" }, title, " ", count, worst)), form, highs, list, more);
  const element = h("li", { class: "alert-group" }, details);
  const rows = new KeyedList<Alert>(list, ({ id }) => id, (alert) => alertRow(model, alert, actions));
  const order = new HeldOrder<Alert>(({ id }) => id);
  guardClicks(list, () => {});
  let group: Group | undefined;
  const waiting = () => (group?.alerts ?? []).filter(({ state }) => awaits(state));
  const sinceMs = new Map<string, number>();
  const wasLookedAt = ({ id }: Alert) => performance.now() - (sinceMs.get(id) ?? Infinity) >= LOOKED_AT_MS;
  // A person looks at each alert of high priority.
  const several = () => waiting().filter((alert) => alert.priority !== Priority.HIGH && wasLookedAt(alert)).slice(0, ACKNOWLEDGED_MAX);
  const fill = () => {
    const alerts = group?.alerts ?? [];
    rows.update(details.open ? order.of(alerts.slice(0, ROWS_MAX), held(), (gone) => model.alerts.get(gone.id) ?? gone).rows : []);
    const known = details.open ? alerts.slice(0, ROWS_MAX) : [];
    for (const id of sinceMs.keys()) if (!known.some((alert) => alert.id === id)) sinceMs.delete(id);
    for (const { id } of known) if (!sinceMs.has(id)) sinceMs.set(id, performance.now());
    const severalCount = several().length;
    form.hidden = !actions.mayAct || severalCount < 2;
    setText(all, many(severalCount, "Acknowledge {count}", "Acknowledge {count}"));
    highs.hidden = form.hidden || !waiting().some(({ priority }) => priority === Priority.HIGH);
    more.hidden = !details.open || alerts.length <= ROWS_MAX;
    setText(more, t("{omitted} not shown", { omitted: many(alerts.length - ROWS_MAX, "{count} less urgent alert", "{count} less urgent alerts") }));
  };
  details.addEventListener("toggle", fill);
  return {
    element,
    update(next) {
      group = next;
      const [first] = next.alerts;
      if (!first) return;
      const priority = priorityOf(Math.max(...next.alerts.map((alert) => alert.priority)));
      setAttribute(element, "data-priority", priority.key);
      setText(mark, priority.mark);
      setAttribute(mark, "data-priority", priority.key);
      setAttribute(mark, "aria-label", priority.label);
      setText(title, next.by === "rule" ? first.rule || briefOf(first) : model.labelOf(first.patient) || t("Gateways and the system"));
      setText(count, many(next.alerts.length, "{count} alert", "{count} alerts"));
      setText(worst, ` · ${[next.by === "rule" ? model.nameOf(first.patient) : "", wordsOf(first)].filter(Boolean).join(", ")}`);
      fill();
    },
  };
}
