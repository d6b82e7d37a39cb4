// The ward: a card for each patient in the server's order, open high alerts first, with a search
// and a filter. Both say what they hide.
import { h, KeyedList, setAttribute, setText } from "../dom";
import { Priority } from "../gen/braid/vitals/v1/vitals_pb";
import { Risk, type Patient } from "../gen/braid/query/v1/query_pb";
import type { Model } from "../model";
import { rank } from "../search";
import { many, t } from "../text";
import { cardRow } from "./card";
import { HeldOrder, Hold } from "./hold";
import { isPhone } from "./phone";

// Cards on a phone at first, and more at each request. Elsewhere the list scrolls by itself.
const PAGE_PHONE = 20;

type Status = "all" | "alerts" | "score" | "unknown";

const HAS: Record<Status, (patient: Patient) => boolean> = {
  all: () => true,
  alerts: ({ activeAlerts }) => activeAlerts > 0,
  score: ({ news2 }) => (news2?.risk ?? Risk.UNSPECIFIED) > Risk.LOW,
  unknown: ({ unknown, news2 }) => unknown !== undefined || news2?.unknown !== undefined,
};

const isUrgent = ({ activeAlerts, worstPriority }: Patient) => activeAlerts > 0 && worstPriority === Priority.HIGH;

export function wardView(model: Model, choose: (patient: string) => void): { element: HTMLElement; tick(): void; stop(): void } {
  const list = h("div", { class: "patients", role: "group", "aria-label": t("Patients, open high alerts first, then unknown, then worst first") });
  const count = h("span", { class: "dim" });
  const empty = h("p", { class: "empty" });
  const unassigned = h("p", { class: "left-out dim fine" });
  // Takes the place of the count while rows that are held would stand elsewhere.
  const held = h("button", {
    type: "button",
    class: "held",
    onclick: () => {
      order.release();
      update();
      list.scrollTop = 0;
    },
  });
  const search = h("input", { type: "search", class: "search", placeholder: t("Find a patient  /"), "aria-label": t("Find a patient"), "aria-keyshortcuts": "/", spellcheck: "false", autocomplete: "off" });
  const options = ([["all", t("All patients")], ["alerts", t("With open alerts")], ["score", t("Score above low")], ["unknown", t("Unknown")]] as const).map(([value, label]) => h("option", { value }, label));
  const status = h("select", { class: "status", "aria-label": t("Show") }, ...options);
  let limit = PAGE_PHONE;
  const showMore = h("button", {
    type: "button",
    class: "show-more",
    onclick: () => {
      limit += PAGE_PHONE;
      order.release();
      update();
    },
  });
  // A filter must not hide a person in danger.
  const hidden = h("button", { type: "button", class: "hidden-urgent", onclick: () => showAll() });
  const element = h(
    "section",
    { class: "panel ward", "aria-label": t("Ward") },
    h("header", {}, h("h2", {}, t("Ward")), count, held),
    h("div", { class: "find" }, search, status),
    hidden,
    list,
    showMore,
    empty,
    unassigned,
  );
  const showAll = () => {
    search.value = "";
    status.value = "all";
    order.release();
    update();
  };
  // A search ends with the choice, because it would hide other patients who fall ill.
  const select = (patient: string) => {
    if (search.value !== "") order.release();
    search.value = "";
    choose(patient);
    update();
    list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  };
  const order = new HeldOrder<Patient>(({ id }) => id);
  const hold = new Hold(element, () => update());
  const rows = new KeyedList<Patient>(list, (patient) => patient.id, (patient) => cardRow(model, patient.id, select));

  list.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step === 0) return;
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    buttons[Math.max(0, Math.min(buttons.length - 1, at + step))]?.focus();
    event.preventDefault();
  });
  const refresh = () => {
    limit = PAGE_PHONE;
    order.release();
    update();
  };
  search.addEventListener("input", refresh);
  status.addEventListener("change", refresh);
  search.addEventListener("keydown", (event) => {
    const first = list.querySelector<HTMLButtonElement>("button");
    if (event.key === "Escape") {
      search.value = "";
      order.release();
    }
    else if (event.key === "ArrowDown") first?.focus();
    else if (event.key === "Enter") first?.click();
    else return;
    event.preventDefault();
    update();
  });
  // From anywhere but a field for text.
  const seek = (event: KeyboardEvent) => {
    const writes = event.target instanceof Element && event.target.closest("input, select, textarea");
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || writes) return;
    search.focus();
    event.preventDefault();
  };
  document.addEventListener("keydown", seek);

  const update = () => {
    const all = model.patients;
    const chosen = all.filter(HAS[status.value as Status] ?? HAS.all);
    const shown = search.value.trim() === "" ? chosen : found(chosen, search.value);
    const page = isPhone() ? shown.slice(0, limit) : shown;
    const now = order.of(page, hold.held());
    const rest = shown.length - page.length;
    showMore.hidden = rest === 0;
    setText(showMore, t("Show {count} more of {rest} less urgent", { count: Math.min(PAGE_PHONE, rest), rest }));
    rows.update(now.rows);
    const isHeld = now.moved || now.waiting.length > 0;
    held.hidden = !isHeld;
    count.hidden = isHeld;
    const top = shown[0];
    const isFirstNews = top !== undefined && isUrgent(top) && now.rows[0]?.id !== top.id;
    setAttribute(held, "data-priority", isFirstNews ? "high" : null);
    setText(held, isFirstNews ? t("!!! {name} is first, show", { name: top.name || top.id }) : now.waiting.length > 0 ? many(now.waiting.length, "{count} new, show", "{count} new, show") : t("New order, show"));
    const isPart = shown.length < all.length;
    const urgent = isPart ? all.filter(isUrgent).length - shown.filter(isUrgent).length : 0;
    hidden.hidden = urgent === 0;
    setText(hidden, `!!! ${many(urgent, "{count} patient with a high alert is hidden, show all", "{count} patients with a high alert are hidden, show all")}`);
    empty.hidden = shown.length > 0;
    const leftOut = model.patientsUnassigned;
    setText(empty, all.length > 0 ? (search.value.trim() === "" ? t("Nobody is in this state.") : t("No patient has this name.")) : leftOut > 0 ? t("Nobody wears a sensor.") : t("Waiting for the first sample."));
    unassigned.hidden = leftOut === 0;
    setText(unassigned, many(leftOut, "{count} patient without a sensor not listed; see `braid register list`.", "{count} patients without a sensor not listed; see `braid register list`."));
    const unknown = all.filter((patient) => patient.unknown).length;
    const omitted = model.patientsOmitted;
    const below = isWall(element) ? shown.length - inSight(list) : 0;
    const parts = [
      isPart ? t("{count} of {all}", { count: shown.length, all: all.length }) : t("{count}, worst first", { count: all.length }),
      below > 0 && t("{count} less urgent below", { count: below }),
      unknown > 0 && t("{count} unknown", { count: unknown }),
      omitted > 0 && t("{count} more not shown", { count: omitted }),
    ];
    setText(count, all.length === 0 ? "" : parts.filter(Boolean).join(" · "));
    setAttribute(count, "data-partial", isPart || omitted > 0);
  };
  model.on("ward", update);
  update();
  return { element, tick: update, stop: () => document.removeEventListener("keydown", seek) };
}

// found has exact matches of a name or an identifier first, and keeps the order otherwise.
function found(patients: readonly Patient[], search: string): Patient[] {
  const ranked = patients.map((patient) => ({ patient, rank: rank(search, patient.name, patient.id, patient.gateway) }));
  return ranked.filter(({ rank }) => rank > 0).sort((a, b) => b.rank - a.rank).map(({ patient }) => patient);
}

const isWall = (element: HTMLElement) => element.closest("[data-wall]") !== null;

// inSight counts the cards that are whole within the list, because a wall is not scrolled.
function inSight(list: HTMLElement): number {
  const { bottom } = list.getBoundingClientRect();
  const rows = list.children;
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((rows[middle]?.getBoundingClientRect().bottom ?? Infinity) <= bottom + 1) low = middle + 1;
    else high = middle;
  }
  return low;
}
