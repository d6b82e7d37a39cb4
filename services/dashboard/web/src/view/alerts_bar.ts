// The line above the list of alerts: what waits while rows are held, and what can be taken back.
// Its place is reserved, so that it moves nothing.
import { h, setAttribute, setText } from "../dom";
import { awaits, briefOf, priorityOf } from "../clinical";
import type { Alert } from "../gen/braid/alerts/v1/alerts_pb";
import { Priority } from "../gen/braid/vitals/v1/vitals_pb";
import type { Model } from "../model";
import type { Rows } from "./hold";
import { many, t } from "../text";

// How long the line says that something was not done.
const SAID_MS = 5_000;
// An acknowledgement can be taken back for this time; the core allows a little more.
const UNDO_MS = 10_000;

interface Given {
  readonly ids: readonly string[];
  readonly words: string;
  readonly untilMs: number;
}

export interface AlertsBar {
  readonly element: HTMLElement;
  // acknowledged is called for each acknowledgement of this page, with all alerts of a group at
  // once.
  acknowledged(alerts: readonly Alert[]): void;
  say(text: string): void;
  update(now: Rows<Alert>): void;
}

export function alertsBar(model: Model, show: () => void, withdraw: (id: string) => Promise<void>): AlertsBar {
  const news = h("button", { type: "button", class: "news", onclick: show });
  const undo = h("button", { type: "button", class: "undo", onclick: () => void takeBack() });
  const element = h("div", { class: "alerts-bar" }, news, undo);
  // Own acknowledgements that can still be taken back, the oldest first.
  let given: Given[] = [];
  let said = { text: "", untilMs: -Infinity };
  const named = (alert: Alert) => [briefOf(alert), model.nameOf(alert.patient)].filter(Boolean).join(", ");
  const say = (text: string) => {
    said = { text, untilMs: performance.now() + SAID_MS };
  };
  const takeBack = async () => {
    const last = given.pop();
    if (!last) return;
    undo.hidden = true;
    try {
      for (const id of last.ids) await withdraw(id);
    } catch (error) {
      say(t("Still acknowledged: {why}", { why: error instanceof Error ? error.message : last.words }));
    }
  };
  return {
    element,
    say,
    acknowledged(alerts) {
      const [first] = alerts;
      if (!first) return;
      const words = alerts.length === 1 ? named(first) : many(alerts.length, "{count} alert", "{count} alerts");
      given.push({ ids: alerts.map(({ id }) => id), words, untilMs: performance.now() + UNDO_MS });
    },
    update({ waiting, moved }) {
      const nowMs = performance.now();
      given = given.filter(({ untilMs }) => nowMs < untilMs);
      const last = given.at(-1);
      undo.hidden = last === undefined;
      if (last) setText(undo, t("Undo {seconds} s: {words}", { seconds: Math.ceil((last.untilMs - nowMs) / 1000), words: last.words }));
      const isSaid = nowMs < said.untilMs;
      const first = waiting[0];
      const isUrgent = first !== undefined && awaits(first.state) && first.priority === Priority.HIGH;
      const fresh = many(waiting.length, "{count} new alert", "{count} new alerts");
      news.hidden = waiting.length === 0 && !moved && !isSaid;
      setAttribute(news, "data-priority", isUrgent ? "high" : null);
      if (isUrgent) setText(news, t("{news}, show", { news: `${priorityOf(first.priority).mark} ${named(first)}${waiting.length > 1 ? ` · ${fresh}` : ""}` }));
      else setText(news, isSaid ? said.text : first ? t("{news}, show", { news: fresh }) : t("New order, show"));
    },
  };
}
