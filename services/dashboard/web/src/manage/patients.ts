// Patients: who is expected, present, or gone; the record of each, and every change of a stay.
import { create } from "@bufbuild/protobuf";
import { nowMs } from "../clock";
import { h, setText, type Row } from "../dom";
import { ChangeSchema, Operation, PatientStatus, type Change as PatientChange, type Patient } from "../gen/braid/patients/v1/patients_pb";
import { manage, to } from "../route";
import { mayAct } from "../session";
import { t, term } from "../text";
import type { Change, Field, Preview, Values } from "./change";
import { facts, isAdministrator, link, moment, type Context } from "./context";
import type { Host, Section } from "./frame";
import { choice, listView, type Loaded } from "./list";
import { limitsOf } from "./limits";
import { changesOf, detailFields, detailsIn, likenessText, placeFields, placeIn, placeText, rowsOf, STATUSES, statusText } from "./record";

// Records that are loaded, in pages of the server.
const PAGE = 1_000;
const PAGES_MAX = 5;

type Parts = Partial<Pick<PatientChange, "details" | "place" | "into">>;

interface Act {
  readonly operation: Operation;
  readonly verb: string;
  // Statuses in which it is offered. A merged record has none of them.
  readonly at: readonly PatientStatus[];
  readonly forAdministrators?: boolean;
  readonly isDangerous?: boolean;
  readonly says?: string;
  fields?(patient: Patient): Field[];
  parts?(values: Values, patient: Patient): Parts;
}

const { EXPECTED, ADMITTED, PAUSED, DISCHARGED, DIED } = PatientStatus;
const PRESENT = [EXPECTED, ADMITTED, PAUSED];
const ENDS = term("Alerts, escalations, silences and messages of the patient end, and so do the assignments of sensors.");
const ACTS: readonly Act[] = [
  { operation: Operation.ADMIT, verb: term("Admit"), at: [EXPECTED, DISCHARGED] },
  { operation: Operation.CORRECT, verb: term("Correct"), at: PRESENT, fields: detailFields, parts: (values, patient) => ({ details: detailsIn(values, patient, nowUs()) }) },
  { operation: Operation.MOVE, verb: term("Move"), at: PRESENT, fields: ({ place }) => placeFields(place), parts: (values) => ({ place: placeIn(values) }) },
  { operation: Operation.PAUSE, verb: term("Pause"), at: [ADMITTED], says: term("Silence of the sensors raises no alert. Readings that come are judged.") },
  { operation: Operation.RESUME, verb: term("Resume"), at: [PAUSED] },
  { operation: Operation.DISCHARGE, verb: term("Discharge"), at: PRESENT, isDangerous: true, says: ENDS },
  { operation: Operation.DIE, verb: term("Record the death"), at: [ADMITTED, PAUSED], isDangerous: true, says: ENDS },
  { operation: Operation.REINSTATE, verb: term("Take back the end"), at: [DISCHARGED, DIED], says: term("Assign the sensors again.") },
];
const UNMERGE: Act = { operation: Operation.UNMERGE, verb: term("Take back the merge"), at: [], forAdministrators: true, says: term("Sensors that moved by the merge come back.") };
// The words that the server accepts, so that no health data stays in the log.
const ERASURE_REASONS = [["requested", term("the person requested it")], ["retention", term("the retention time has ended")], ["mistake", term("it was entered by mistake")]] as const;

const nowUs = (): bigint => BigInt(Math.round(nowMs())) * 1000n;
const nameOf = ({ id, name }: Patient): string => (name === "" ? id : `${name} (${id})`);

const order = new Intl.Collator(undefined, { numeric: true });
const byName = (patients: Patient[]): Patient[] => patients.sort((a, b) => order.compare(a.name || a.id, b.name || b.id) || order.compare(a.id, b.id));

export function patientsSection(context: Context, host: Host): Section {
  const { guarded, patients, session } = context;
  const act = mayAct(session);
  const status = choice(t("Status"), [["present", t("Present")], ...Object.entries(STATUSES).map(([key, text]) => [key, t(text)] as const), ["merged", t("merged")], ["", t("All")]], "present");
  const passes = (patient: Patient) => {
    const merged = patient.mergedInto !== "";
    if (status.value === "merged") return merged;
    if (status.value === "present") return !merged && PRESENT.includes(patient.status);
    return status.value === "" || (!merged && String(patient.status) === status.value);
  };
  const load = async (): Promise<Loaded<Patient>> => {
    const items: Patient[] = [];
    for (let page = 0; page < PAGES_MAX; page++) {
      const answer = await guarded(patients.listRecords({ includeDeparted: true, after: items.at(-1)?.id ?? "", limit: PAGE }));
      items.push(...answer.patients);
      if (!answer.more) return { items: byName(items), more: false };
    }
    return { items: byName(items), more: true };
  };
  const admit = h("button", { type: "button", class: "primary", onclick: () => host.change(admission(context)) }, t("Admit a patient"));
  const list = listView<Patient>({
    title: t("Patients"),
    search: t("Find a patient by name, id, identifier or place"),
    empty: t("No patient is registered."),
    moreText: t("Only the first 5,000 records by id are here. The address of a record ends with its id."),
    actions: act ? [admit] : [],
    filters: [status],
    load,
    key: ({ id }) => id,
    texts: ({ id, name, place, identifiers, birthDate }) => [name, id, placeText(place), birthDate, ...identifiers.map(({ value }) => value)],
    passes,
    row: (patient) => patientRow(context, patient),
  });
  const detail = h("div", {});
  const element = h("div", {}, list.element, detail);
  let shown = "";
  return {
    element,
    show(item) {
      shown = item;
      list.element.hidden = item !== "";
      detail.hidden = item === "";
      if (item === "") return void list.reload();
      detail.replaceChildren(h("p", { class: "empty", role: "status" }, t("Loading…")));
      loadRecord(context, item).then(
        (record) => shown === item && detail.replaceChildren(recordView(context, host, record)),
        (error: unknown) => shown === item && detail.replaceChildren(h("p", { class: "empty", role: "alert" }, error instanceof Error ? error.message : String(error)), link(context, manage("patients"), t("All patients"))),
      );
    },
  };
}

function patientRow(context: Context, first: Patient): Row<Patient> {
  const name = link(context, manage("patients", first.id), first.name || first.id, { class: "entry-name" });
  const about = h("span", { class: "dim" });
  const status = h("span", { class: "tag" });
  const element = h("li", { "data-entry": first.id }, h("div", { class: "grow" }, name, about), status);
  return {
    element,
    update(patient) {
      setText(name, patient.name || patient.id);
      setText(about, [patient.id, patient.birthDate, placeText(patient.place)].filter(Boolean).join(" · "));
      setText(status, statusText(patient));
      element.dataset["status"] = patient.mergedInto === "" ? String(patient.status) : "merged";
    },
  };
}

async function loadRecord({ guarded, patients }: Context, patient: string) {
  const [record, worn] = await Promise.all([guarded(patients.getRecord({ patient })), guarded(patients.listAssignments({ patient, limit: 100 }))]);
  if (!record.patient) throw new Error(t("There is no such patient."));
  return { patient: record.patient, merged: record.merged, worn: worn.assignments };
}

function recordView(context: Context, host: Host, { patient, merged, worn }: Awaited<ReturnType<typeof loadRecord>>): HTMLElement {
  const { session } = context;
  const isMerged = patient.mergedInto !== "";
  const offered = !mayAct(session) ? [] : isMerged ? [UNMERGE] : ACTS.filter(({ at }) => at.includes(patient.status));
  const buttons = offered
    .filter(({ forAdministrators }) => !forAdministrators || isAdministrator(context))
    .map((act) => h("button", { type: "button", class: act.isDangerous ? "danger" : "", onclick: () => host.change(changeOf(context, act, patient)) }, t(act.verb)));
  const failure = h("p", { class: "message", role: "alert" });
  if (isAdministrator(context) && !isMerged) {
    const limits = () => limitsOf(context, patient.id).then((change) => host.change(change), (error: unknown) => setText(failure, error instanceof Error ? error.message : String(error)));
    if (PRESENT.includes(patient.status)) buttons.push(h("button", { type: "button", onclick: () => void limits() }, t("Limits")));
    buttons.push(h("button", { type: "button", onclick: () => host.change(mergeOf(context, patient)) }, t("Merge")));
    if (!PRESENT.includes(patient.status)) buttons.push(h("button", { type: "button", class: "danger", onclick: () => host.change(erasureOf(context, patient)) }, t("Erase")));
  }
  const now = nowUs();
  const sensors = worn.map((it) =>
    h(
      "li",
      {},
      link(context, manage("sensors", it.sensor), it.sensor),
      " ",
      it.untilUs === 0n || it.untilUs > now ? t("at {gateway} since {time}", { gateway: it.gateway, time: moment(it.fromUs) || t("the beginning") }) : t("at {gateway}, {from} to {until}", { gateway: it.gateway, from: moment(it.fromUs) || t("the beginning"), until: moment(it.untilUs) }),
    ),
  );
  return h(
    "section",
    { class: "panel record", "aria-label": nameOf(patient) },
    h("header", {}, h("h2", {}, nameOf(patient)), h("span", { class: "tag" }, statusText(patient)), h("span", { class: "grow" }), link(context, manage("patients"), t("All patients"))),
    h("p", { class: "buttons" }, ...buttons, PRESENT.includes(patient.status) && !isMerged && link(context, to("patients", patient.id), t("Open on the ward"))),
    failure,
    facts([...rowsOf(patient), [t("Since"), moment(patient.statusAtUs)], [t("Replaces the records"), merged.map(nameOf).join(", ")]]),
    h("h3", {}, t("Sensors")),
    sensors.length > 0 ? h("ul", { class: "plain" }, ...sensors) : h("p", { class: "dim" }, t("The patient wears no sensor.")),
  );
}

// write makes one change; before it, `check` asks the server for what the change would do.
async function changed(context: Context, change: PatientChange, reason: string, dryRun: boolean) {
  return context.guarded(context.patients.changePatients({ changes: [change], reason, dryRun }));
}

async function preview(context: Context, change: PatientChange, reason: string, before: Patient | undefined, says = ""): Promise<Preview> {
  const { patients, likenesses } = await changed(context, change, reason, true);
  const after = patients[0];
  const lines = after ? changesOf(before, after) : [];
  const isNothing = lines.length === 0 && says === "";
  return { lines: [...lines, ...(says === "" ? [] : [says])], warnings: likenesses.map(likenessText), isNothing };
}

function changeOf(context: Context, act: Act, patient: Patient): Change {
  const of = (values: Values) => create(ChangeSchema, { patient: patient.id, operation: act.operation, revision: patient.revision, ...act.parts?.(values, patient) });
  return {
    title: `${t(act.verb)}: ${nameOf(patient)}`,
    verb: t(act.verb),
    isDangerous: act.isDangerous === true,
    fields: act.fields?.(patient) ?? [],
    check: async (values, reason) => preview(context, of(values), reason, patient, t(act.says ?? "")),
    write: async (values, reason) => void (await changed(context, of(values), reason, false)),
  };
}

function admission(context: Context): Change {
  const of = (values: Values) =>
    create(ChangeSchema, {
      patient: values["id"] ?? "",
      operation: values["status"] === "expected" ? Operation.EXPECT : Operation.ADMIT,
      details: detailsIn(values, undefined, nowUs()),
    });
  return {
    title: t("Admit a patient"),
    verb: t("Admit"),
    fields: [
      { name: "id", label: t("Id"), required: true, hint: t("Letters, digits and . _ : - without a name. It never changes.") },
      { name: "status", label: t("Status"), type: "select", options: [["admitted", t("admitted")], ["expected", t("expected")]] },
      ...detailFields(undefined),
    ],
    async check(values, reason) {
      const id = values["id"] ?? "";
      const known = await context.patients.getRecord({ patient: id }).then(({ patient }) => patient, () => undefined);
      const shown = await preview(context, of(values), reason, known);
      return known ? { ...shown, warnings: [t("{patient} is registered already: the record gets these details.", { patient: nameOf(known) }), ...(shown.warnings ?? [])] } : shown;
    },
    write: async (values, reason) => void (await changed(context, of(values), reason, false)),
  };
}

function mergeOf(context: Context, patient: Patient): Change {
  const of = (values: Values) => create(ChangeSchema, { patient: patient.id, operation: Operation.MERGE, into: values["into"] ?? "", revision: patient.revision });
  return {
    title: t("Merge {patient} into another record", { patient: nameOf(patient) }),
    verb: t("Merge"),
    isDangerous: true,
    fields: [{ name: "into", label: t("Id of the record that stays"), required: true, known: context.model.patients.map(({ id }) => id).filter((id) => id !== patient.id) }],
    async check(values, reason) {
      const { patient: into } = await context.guarded(context.patients.getRecord({ patient: values["into"] ?? "" }));
      if (!into) throw new Error(t("There is no such patient."));
      await changed(context, of(values), reason, true);
      return {
        lines: [t("{patient} is replaced by {into}. Its sensors go on with {into} 3 seconds later, and its alerts stay under the old id.", { patient: nameOf(patient), into: nameOf(into) }), compared(patient, into)],
        warnings: patient.birthDate !== "" && into.birthDate !== "" && patient.birthDate !== into.birthDate ? [t("The birth dates differ.")] : [],
      };
    },
    write: async (values, reason) => void (await changed(context, of(values), reason, false)),
  };
}

// compared is a table of two records, with a mark at what differs.
function compared(patient: Patient, into: Patient): HTMLElement {
  const others = rowsOf(into);
  const rows = rowsOf(patient).map(([label, text], i) => {
    const other = others[i]?.[1] ?? "";
    return h("tr", { "data-differs": text !== other }, h("th", { scope: "row" }, label), h("td", {}, text), h("td", {}, other), h("td", {}, text === other ? "" : "≠", text !== other && h("span", { class: "visually-hidden" }, t("differs"))));
  });
  return h("table", { class: "compared" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("Detail")), h("th", { scope: "col" }, t("{id} ends", { id: patient.id })), h("th", { scope: "col" }, t("{id} stays", { id: into.id })), h("td", {}))), h("tbody", {}, ...rows));
}

function erasureOf(context: Context, patient: Patient): Change {
  const change = create(ChangeSchema, { patient: patient.id, operation: Operation.ERASE });
  return {
    title: t("Erase: {patient}", { patient: nameOf(patient) }),
    verb: t("Erase"),
    isDangerous: true,
    fields: [{ name: "id", label: t("Id, typed again"), required: true }],
    reasons: ERASURE_REASONS.map(([key, text]) => [key, t(text)]),
    async check(values, reason) {
      if (values["id"] !== patient.id) throw new Error(t("This is another id than {id}.", { id: patient.id }));
      await changed(context, change, reason, true);
      return { lines: [t("The record, readings, alerts, messages and documents of {patient} are removed. This cannot be taken back, and the id is never used again.", { patient: nameOf(patient) })] };
    },
    async write(_, reason) {
      await changed(context, change, reason, false);
      context.go(manage("patients"));
    },
  };
}
