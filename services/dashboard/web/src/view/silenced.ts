// Silences in force, apart from the list of alerts, each with the open alerts that it keeps from
// people.
import { clock, seconds } from "../clinical";
import { nowS } from "../clock";
import { h, KeyedList, setAttribute, setText, type Row } from "../dom";
import type { Alert, Document } from "../gen/braid/alerts/v1/alerts_pb";
import type { Model } from "../model";
import { many, t } from "../text";
import { alertRow, type AlertActions } from "./alert_row";
import { guardClicks, HeldOrder } from "./hold";
import { endForm, scopeOf, silences } from "./silence";

// Hidden alerts shown below a silence, the most urgent; further ones are counted.
const HIDDEN_SHOWN = 20;

interface Silenced {
  readonly silence: Document;
  readonly hidden: readonly Alert[];
}

export interface SilencedView {
  readonly element: HTMLElement;
  // update returns the open alerts that call people, and how many are kept apart.
  update(): { readonly calling: readonly Alert[]; readonly apart: number };
}

export function silencedView(model: Model, actions: AlertActions, held: () => boolean): SilencedView {
  const list = h("ul", { class: "silences" });
  const title = h("summary", {});
  const element = h("details", {}, title, list);
  const rows = new KeyedList<Silenced>(list, ({ silence }) => silence.subject, ({ silence }) => row(model, silence, actions, held));
  return {
    element,
    update() {
      const inForce = model.silences.filter((silence) => seconds(silence.untilUs) > nowS());
      const open = model.alerts.open();
      const all = inForce.map((silence) => ({ silence, hidden: open.filter((alert) => silences(silence, alert)) }));
      rows.update(all);
      const kept = new Set(all.flatMap(({ hidden }) => hidden));
      element.hidden = all.length === 0;
      setText(title, kept.size === 0 ? t("Silenced") : many(kept.size, "Silenced: {count} open alert calls nobody", "Silenced: {count} open alerts call nobody"));
      setAttribute(element, "data-hides", kept.size > 0);
      return { calling: kept.size === 0 ? open : open.filter((alert) => !kept.has(alert)), apart: kept.size };
    },
  };
}

function row(model: Model, first: Document, actions: AlertActions, held: () => boolean): Row<Silenced> {
  let silence = first;
  const text = h("p", {});
  const hides = h("p", { class: "dim" });
  const list = h("ul", { class: "alerts" });
  const alerts = new KeyedList<Alert>(list, ({ id }) => id, (alert) => alertRow(model, alert, actions));
  const order = new HeldOrder<Alert>(({ id }) => id);
  guardClicks(list, () => {});
  const element = h("li", { "data-silence": first.subject }, text, hides, list, actions.mayAct && endForm((reason) => actions.endSilence(silence, reason)));
  return {
    element,
    update({ silence: next, hidden }) {
      silence = next;
      const { patient = "", rule = "" } = scopeOf(silence) ?? {};
      const what = [model.labelOf(patient) || t("everybody"), rule || t("every rule")].join(", ");
      setText(text, `${what} · ${t("until {time}", { time: clock(seconds(silence.untilUs)) })} · ${silence.author}: “${silence.reason}”`);
      const more = hidden.length - HIDDEN_SHOWN;
      setText(hides, hidden.length === 0 ? t("It hides no open alert.") : `${many(hidden.length, "It hides {count} open alert", "It hides {count} open alerts")}${more > 0 ? `, ${t("{count} of them not shown", { count: more })}` : ""}:`);
      alerts.update(order.of(hidden.slice(0, HIDDEN_SHOWN), held(), (gone) => model.alerts.get(gone.id) ?? gone).rows);
    },
  };
}
