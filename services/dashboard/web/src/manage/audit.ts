// The audit log: who read or changed what, newest first. Reading it is an entry as well.
import { h, setText, type Row } from "../dom";
import type { AuditEntry } from "../gen/braid/identity/v1/identity_pb";
import { nowMs } from "../clock";
import { manage } from "../route";
import { many, t } from "../text";
import { link, moment, type Context } from "./context";
import type { Section } from "./frame";
import { choice, listView } from "./list";

// Entries in one answer.
const PAGE = 1_000;
// Entries on the page; older ones need a shorter time or a patient.
const ENTRIES_MAX = 10_000;
const HOUR_US = 3_600_000_000;

interface Numbered {
  readonly key: string;
  readonly entry: AuditEntry;
}

export function auditSection(context: Context): Section {
  const { guarded, administration } = context;
  let patient = "";
  const hours = choice(t("Time"), [["1", t("1 hour")], ["24", t("24 hours")], ["168", t("7 days")], ["744", t("31 days")], ["0", t("All")]], "24");
  const of = h("input", { type: "text", "aria-label": t("Only of the patient with this id"), placeholder: t("Only of the patient with this id"), spellcheck: "false", maxlength: 256 });
  const load = async () => {
    const items: Numbered[] = [];
    const toUs = BigInt(Math.round(nowMs())) * 1000n + 60_000_000n;
    const fromUs = hours.value === "0" ? 0n : toUs - BigInt(Number(hours.value) * HOUR_US);
    // Entries of one moment may lie on both sides of a page, so a page ends with its oldest moment.
    let before = toUs;
    const known = new Set<string>();
    while (items.length < ENTRIES_MAX) {
      const { entries } = await guarded(administration.listAudit({ patient, fromUs, toUs: before, limit: PAGE }));
      const fresh = entries.map((entry) => ({ key: [entry.timeUs, entry.who, entry.action, entry.patient, entry.detail].join("\u0000"), entry })).filter(({ key }) => !known.has(key));
      for (const { key } of fresh) known.add(key);
      items.push(...fresh);
      if (entries.length < PAGE || fresh.length === 0) return { items, more: false };
      before = (entries.at(-1)?.timeUs ?? before) + 1n;
    }
    return { items, more: true };
  };
  const list = listView<Numbered>({
    title: t("Audit log"),
    search: t("Find by person, action, patient or words of the detail"),
    empty: t("No entry in this time."),
    moreText: t("Older entries are not here. Choose a shorter time or a patient."),
    filters: [hours, of],
    load,
    key: ({ key }) => key,
    texts: ({ entry: { who, action, patient, detail } }) => [who, action, patient, detail],
    row: ({ entry }) => auditRow(context, entry),
  });
  hours.addEventListener("change", () => void list.reload());
  of.addEventListener("change", () => {
    patient = of.value.trim();
    void list.reload();
  });
  const note = h("p", { class: "dim fine" }, many(ENTRIES_MAX, "The newest {count} entry of the chosen time. Every look at the log is in the log.", "The newest {count} entries of the chosen time. Every look at the log is in the log."));
  return {
    element: h("div", {}, list.element, note),
    show(item) {
      if (item !== "") of.value = patient = item;
      void list.reload();
    },
  };
}

function auditRow(context: Context, { timeUs, who, action, patient, detail }: AuditEntry): Row<Numbered> {
  const what = h("span", {});
  setText(what, action);
  const element = h(
    "li",
    { class: "audit" },
    h("time", { class: "dim" }, `${moment(timeUs)}`),
    h("b", {}, who),
    what,
    patient === "" ? h("span", {}) : link(context, manage("patients", patient), patient),
    h("span", { class: "dim" }, detail),
  );
  return { element, update() {} };
}
