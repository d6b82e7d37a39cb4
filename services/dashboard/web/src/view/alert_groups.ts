// Open alerts in groups of one rule or one patient, the group with the most urgent alert first. A
// group says its worst alert in words, and has its rows once a person opens it.
import { briefOf, priorityOf, wordsOf } from "../clinical";
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import type { Alert } from "../gen/braid/alerts/v1/alerts_pb";
import type { Model } from "../model";
import { many, t } from "../text";
import { alertRow, type AlertActions } from "./alert_row";
import { guardClicks, HeldOrder } from "./hold";

// Rows of an open group; further ones are counted.
const ROWS_MAX = 50;

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
  const details = h("details", {}, h("summary", {}, mark, h("span", { class: "grow" }, title, " ", count, worst)), list, more);
  const element = h("li", { class: "alert-group" }, details);
  const rows = new KeyedList<Alert>(list, ({ id }) => id, (alert) => alertRow(model, alert, actions));
  const order = new HeldOrder<Alert>(({ id }) => id);
  guardClicks(list, () => {});
  let group: Group | undefined;
  const fill = () => {
    const alerts = group?.alerts ?? [];
    rows.update(details.open ? order.of(alerts.slice(0, ROWS_MAX), held(), (gone) => model.alerts.get(gone.id) ?? gone).rows : []);
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
