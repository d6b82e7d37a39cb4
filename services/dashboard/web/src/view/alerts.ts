// Alerts: the unacknowledged first, in pages, with a filter and groups. Below them what silences
// keep apart, with author, reason and end. Rows are held under a pointer (hold.ts); what waits
// meanwhile is told on a line that has its place at all times.
import { h, KeyedList, setAttribute, setText } from "../dom";
import { awaits, priorityOf } from "../clinical";
import { Priority } from "../gen/braid/vitals/v1/vitals_pb";
import type { Alert } from "../gen/braid/alerts/v1/alerts_pb";
import type { Omitted } from "../alerts";
import type { Model } from "../model";
import { finds } from "../search";
import { many, t } from "../text";
import { groupRow, groupsOf, type Group, type GroupBy } from "./alert_groups";
import { alertRow, type AlertActions } from "./alert_row";
import { alertsBar } from "./alerts_bar";
import { guardClicks, HeldOrder, Hold } from "./hold";
import { isPhone } from "./phone";
import { silencedView } from "./silenced";

// Resolved alerts shown below the open ones.
const PAST_SHOWN = 8;
// Alerts shown at first, and more at each request. On a phone the ward follows below them.
const PAGE = 50;
const PAGE_PHONE = 10;

export interface AlertsView {
  readonly element: HTMLElement;
  tick(): void;
  // open shows one alert and gives it the focus; false while the page does not have it.
  open(id: string): boolean;
}

export function alertsView(model: Model, actions: Omit<AlertActions, "acknowledgeAll">): AlertsView {
  const open = h("ul", { class: "alerts", "aria-label": t("Open alerts") });
  const groups = h("ul", { class: "alert-groups", "aria-label": t("Groups of open alerts") });
  const past = h("ul", { class: "alerts past", "aria-label": t("Resolved") });
  const pastBlock = h("details", {}, h("summary", {}, t("Resolved")), past);
  const none = h("p", { class: "empty" });
  const more = h("p", { class: "more", id: "alerts-more" });
  const page = () => (isPhone() ? PAGE_PHONE : PAGE);
  let pages = 1;
  const showMore = h("button", { type: "button", class: "show-more", onclick: () => widen() });
  const count = h("span", { class: "dim" });
  const search = h("input", { type: "search", class: "search", placeholder: t("Find an alert"), "aria-label": t("Find an alert"), spellcheck: "false", autocomplete: "off" });
  const choice = (label: string, options: readonly (readonly [string, string])[]) => h("select", { "aria-label": label }, ...options.map(([value, text]) => h("option", { value }, text)));
  const priority = choice(t("Priority"), [["0", t("Every priority")], [String(Priority.HIGH), t("High priority")], [String(Priority.MEDIUM), t("Medium priority")], [String(Priority.LOW), t("Low priority")]]);
  const grouping = choice(t("Group"), [["none", t("No groups")], ["rule", t("By rule")], ["patient", t("By patient")]]);
  // A filter must not hide danger.
  const hidden = h("button", { type: "button", class: "hidden-urgent", onclick: () => showAll() });
  const bar = alertsBar(model, () => {
    order.release();
    update();
    open.scrollTop = 0;
  }, actions.withdraw);
  let isHeld = () => false;
  const acting: AlertActions = {
    ...actions,
    async acknowledge(id, note) {
      const alert = model.alerts.get(id);
      await actions.acknowledge(id, note);
      if (alert) bar.acknowledged([alert]);
      update();
    },
    async acknowledgeAll(alerts, note) {
      const done: Alert[] = [];
      try {
        for (const alert of alerts) {
          await actions.acknowledge(alert.id, note);
          done.push(alert);
        }
      } finally {
        bar.acknowledged(done);
        update();
      }
    },
  };
  const silenced = silencedView(model, acting, () => isHeld());
  const element = h(
    "section",
    { class: "panel alerts-panel", "aria-label": t("Alerts") },
    h("header", {}, h("h2", {}, t("Alerts")), count),
    h("div", { class: "find" }, search, priority, grouping),
    hidden,
    bar.element,
    open,
    groups,
    showMore,
    more,
    none,
    silenced.element,
    pastBlock,
  );
  const openRows = new KeyedList<Alert>(open, (alert) => alert.id, (alert) => alertRow(model, alert, acting));
  const pastRows = new KeyedList<Alert>(past, (alert) => alert.id, (alert) => alertRow(model, alert, acting));
  const groupRows = new KeyedList<Group>(groups, ({ key }) => key, () => groupRow(model, acting, () => isHeld()));
  const order = new HeldOrder<Alert>(({ id }) => id);
  const groupOrder = new HeldOrder<Group>(({ key }) => key);
  const hold = new Hold(element, () => update());
  isHeld = () => hold.held();
  // Rows that keep their height while they are held.
  const locked = new Set<HTMLElement>();
  guardClicks(open, () => {
    bar.say(t("The list moved: the click was not taken"));
    update();
  });
  // The alert that a link has opened: it is shown although it ended long ago.
  let opened = "";

  const refresh = () => {
    order.release();
    groupOrder.release();
    pages = 1;
    open.scrollTop = 0;
    update();
  };
  const showAll = () => {
    search.value = "";
    priority.value = "0";
    refresh();
  };
  const widen = () => {
    const first = open.children.length;
    order.release();
    pages++;
    update();
    // The focus goes on at the first new row, because the button may be gone.
    const row = open.children[first];
    if (row instanceof HTMLElement) {
      row.tabIndex = -1;
      row.focus({ preventScroll: true });
    }
  };
  // A person's own choice takes the place of the link.
  const choose = () => {
    opened = "";
    refresh();
  };
  for (const type of ["input", "change"] as const) search.addEventListener(type, choose);
  priority.addEventListener("change", choose);
  grouping.addEventListener("change", choose);

  const isWanted = (alert: Alert) => {
    if (priority.value !== "0" && alert.priority !== Number(priority.value)) return false;
    return search.value.trim() === "" || finds(search.value, alert.summary, alert.rule, model.nameOf(alert.patient), alert.patient, alert.gateway);
  };
  const update = () => {
    const { apart, calling } = silenced.update();
    const wanted = calling.filter(isWanted);
    const by = grouping.value as GroupBy | "none";
    // The alert of a link stays on the list when others arrive before it.
    const linkedAt = opened === "" ? -1 : wanted.findIndex(({ id }) => id === opened);
    pages = Math.max(pages, Math.ceil((linkedAt + 1) / page()));
    const shown = by === "none" ? wanted.slice(0, pages * page()) : [];
    const now = order.of(shown, hold.held(), (gone) => model.alerts.get(gone.id) ?? gone);
    for (const { id } of now.changed) {
      const row = open.querySelector<HTMLElement>(`[data-alert="${CSS.escape(id)}"]`);
      if (!row || locked.has(row)) continue;
      row.style.minHeight = `${row.offsetHeight}px`;
      locked.add(row);
    }
    if (now.rows === shown) {
      for (const row of locked) row.style.minHeight = "";
      locked.clear();
    }
    const hadFocus = open.contains(document.activeElement);
    openRows.update(now.rows);
    // A row with the focus left the list: the keyboard goes on at the panel.
    if (hadFocus && !open.contains(document.activeElement)) element.focus({ preventScroll: true });
    groupRows.update(groupOrder.of(by === "none" ? [] : groupsOf(wanted, by), hold.held()).rows);
    open.hidden = by !== "none";
    groups.hidden = by === "none";
    bar.update(now);
    const rest = by === "none" ? wanted.length - shown.length : 0;
    showMore.hidden = rest <= 0;
    setText(showMore, t("Show {count} more of {rest} less urgent", { count: Math.min(page(), rest), rest }));
    const omitted = model.alerts.omitted();
    more.hidden = omitted.length === 0;
    setText(more, t("{omitted} not shown", { omitted: omittedText(omitted) }));
    // A held row stands once.
    const resolved = pastWith(model, opened).filter((alert) => !now.rows.includes(alert));
    pastRows.update(resolved);
    pastBlock.hidden = resolved.length === 0;
    none.hidden = wanted.length > 0;
    // Before the list has arrived, the ward's totals say that it is not empty.
    const expected = model.alertTotals.reduce((sum, { open }) => sum + open, 0);
    setText(none, calling.length + apart === 0 && (expected > 0 || !model.alerts.isListed) ? t("Open alerts are on their way.") : calling.length > 0 ? t("No open alert is like this.") : apart > 0 ? t("No open alerts but silenced ones.") : t("No open alerts."));
    const isHigh = ({ priority, state }: Alert) => priority === Priority.HIGH && awaits(state);
    const urgent = calling.filter(isHigh).length - wanted.filter(isHigh).length;
    hidden.hidden = urgent <= 0;
    setText(hidden, `!!! ${many(urgent, "{count} high alert is hidden, show all", "{count} high alerts are hidden, show all")}`);
    const waiting = calling.filter((alert) => awaits(alert.state)).length;
    const parts = [
      wanted.length < calling.length && t("{count} of {all}", { count: wanted.length, all: calling.length }),
      waiting > 0 && t("{count} to acknowledge", { count: waiting }),
      apart > 0 && t("{count} silenced", { count: apart }),
      omitted.length > 0 && omittedText(omitted),
    ];
    setText(count, parts.filter(Boolean).join(" · "));
    setAttribute(count, "data-partial", omitted.length > 0 || wanted.length < calling.length);
  };
  const seen = () => element.checkVisibility() && update();
  model.on("alerts", seen);
  update();
  const show = (id: string): boolean => {
    const alert = model.alerts.get(id);
    if (!alert) return false;
    element.querySelector("[data-linked]")?.removeAttribute("data-linked");
    opened = id;
    order.release();
    if (!isWanted(alert)) showAll();
    grouping.value = "none";
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
  return { element, tick: seen, open: show };
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
  return omitted.map(({ priority, count }) => t("{count} more of {priority}", { count, priority: priorityOf(priority).label })).join(", ");
}
