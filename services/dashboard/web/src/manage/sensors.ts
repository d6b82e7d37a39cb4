// Sensors: which patient wears which, and the changes of it. Sensors that were heard and that no
// patient wears are named first.
import { seconds } from "../clinical";
import { h, setText, type Row } from "../dom";
import type { Assignment } from "../gen/braid/patients/v1/patients_pb";
import { manage } from "../route";
import { mayAct } from "../session";
import { many, t } from "../text";
import type { Change } from "./change";
import { link, moment, type Context } from "./context";
import type { Host, Section } from "./frame";
import { listView, type Loaded } from "./list";

const PAGE = 1_000;
const PAGES_MAX = 5;
// Unknown sensors that are named; further ones are counted.
const STRAY_MAX = 10;

interface Prefilled {
  readonly sensor?: string;
  readonly gateway?: string;
  readonly patient?: string;
}

export function sensorsSection(context: Context, host: Host): Section {
  const { guarded, patients, model, session } = context;
  const act = mayAct(session);
  const load = async (): Promise<Loaded<Assignment>> => {
    const items: Assignment[] = [];
    for (let page = 0; page < PAGES_MAX; page++) {
      const answer = await guarded(patients.listAssignments({ after: items.at(-1)?.sensor ?? "", limit: PAGE }));
      items.push(...answer.assignments);
      if (!answer.more) return { items, more: false };
    }
    return { items, more: true };
  };
  const assign = h("button", { type: "button", class: "primary", onclick: () => host.change(assignment(context, {})) }, t("Assign a sensor"));
  const list = listView<Assignment>({
    title: t("Sensors"),
    search: t("Find a sensor by id, patient or gateway"),
    empty: t("No patient wears a sensor."),
    moreText: t("Only the first 5,000 sensors by id are here. The address of a sensor ends with its id."),
    actions: act ? [assign] : [],
    load,
    key: ({ sensor }) => sensor,
    texts: ({ sensor, patient, gateway }) => [sensor, patient, model.nameOf(patient), gateway],
    row: (it) => sensorRow(context, host, it),
  });
  const stray = h("section", { class: "panel stray", "aria-label": t("Heard, and worn by no patient") });
  const drawStray = () => {
    const cases = (model.quarantine?.cases ?? []).filter(({ kind }) => kind === "unknown-device" || kind === "not-assigned");
    stray.hidden = cases.length === 0;
    stray.replaceChildren(
      h("header", {}, h("h2", {}, t("Heard, and worn by no patient"))),
      h(
        "ul",
        { class: "entries" },
        ...cases.slice(0, STRAY_MAX).map(({ device, gateway, lastUs }) =>
          h(
            "li",
            { "data-entry": device },
            h("div", { class: "grow" }, h("b", { class: "entry-name" }, device), h("span", { class: "dim" }, t("at {gateway}, last {time}", { gateway, time: moment(lastUs) }))),
            act && h("button", { type: "button", onclick: () => host.change(assignment(context, { sensor: device, gateway })) }, t("Assign"), h("span", { class: "visually-hidden" }, ` ${device}`)),
          ),
        ),
      ),
      h("p", { class: "more" }, cases.length > STRAY_MAX ? many(cases.length - STRAY_MAX, "{count} more not shown", "{count} more not shown") : ""),
    );
  };
  model.on("quarantine", drawStray);
  const detail = h("div", {});
  const lists = h("div", { class: "lists" }, stray, list.element);
  const element = h("div", {}, lists, detail);
  let shown = "";
  return {
    element,
    show(item) {
      shown = item;
      lists.hidden = item !== "";
      detail.hidden = item === "";
      if (item === "") {
        drawStray();
        return void list.reload();
      }
      detail.replaceChildren(h("p", { class: "empty", role: "status" }, t("Loading…")));
      guarded(patients.listAssignments({ sensor: item, limit: 100 })).then(
        ({ assignments, more }) => shown === item && detail.replaceChildren(history(context, host, item, assignments, more)),
        (error: unknown) => shown === item && detail.replaceChildren(h("p", { class: "empty", role: "alert" }, error instanceof Error ? error.message : String(error))),
      );
    },
  };
}

function buttonsOf(context: Context, host: Host, { sensor, gateway }: Assignment): HTMLElement[] {
  if (!mayAct(context.session)) return [];
  const named = () => h("span", { class: "visually-hidden" }, ` ${sensor}`);
  return [
    h("button", { type: "button", onclick: () => host.change(assignment(context, { sensor, gateway })) }, t("Hand over"), named()),
    h("button", { type: "button", onclick: () => host.change(ending(context, sensor)) }, t("Detach"), named()),
  ];
}

function sensorRow(context: Context, host: Host, first: Assignment): Row<Assignment> {
  const about = h("span", { class: "dim" });
  const patient = h("span", { class: "grow" });
  // The buttons are of the newest state of the assignment.
  const buttons = h("span", { class: "buttons" });
  const element = h("li", { "data-entry": first.sensor }, h("div", { class: "grow" }, link(context, manage("sensors", first.sensor), first.sensor, { class: "entry-name" }), about), patient, buttons);
  let key = "";
  return {
    element,
    update(it) {
      setText(about, t("at {gateway} since {time}", { gateway: it.gateway, time: moment(it.fromUs) || t("the beginning") }));
      const next = JSON.stringify([it.patient, it.gateway, context.model.nameOf(it.patient)]);
      if (next === key) return;
      key = next;
      patient.replaceChildren(link(context, manage("patients", it.patient), context.model.labelOf(it.patient)));
      buttons.replaceChildren(...buttonsOf(context, host, it));
    },
  };
}

function history(context: Context, host: Host, sensor: string, worn: readonly Assignment[], more: boolean): HTMLElement {
  const now = Date.now() / 1000;
  const present = worn.find(({ untilUs }) => untilUs === 0n || seconds(untilUs) > now);
  const buttons = present ? buttonsOf(context, host, present) : mayAct(context.session) ? [h("button", { type: "button", onclick: () => host.change(assignment(context, { sensor })) }, t("Assign"))] : [];
  const line = ({ patient, gateway, fromUs, untilUs, by, reason }: Assignment) =>
    h(
      "li",
      {},
      link(context, manage("patients", patient), context.model.labelOf(patient)),
      ` ${t("at {gateway}, {from} to {until}", { gateway, from: moment(fromUs) || t("the beginning"), until: moment(untilUs) || t("further notice") })}`,
      h("small", { class: "dim" }, t("by {name}: {reason}", { name: by, reason })),
    );
  return h(
    "section",
    { class: "panel record", "aria-label": sensor },
    h("header", {}, h("h2", {}, sensor), h("span", { class: "grow" }), link(context, manage("sensors"), t("All sensors"))),
    h("p", { class: "buttons" }, ...buttons),
    worn.length > 0 ? h("ul", { class: "plain" }, ...worn.map(line)) : h("p", { class: "dim" }, t("No patient has worn this sensor.")),
    more && h("p", { class: "more" }, t("Older assignments are not shown.")),
  );
}

function assignment({ model, guarded, patients }: Context, { sensor = "", gateway = "", patient = "" }: Prefilled): Change {
  const asked = (values: Record<string, string>, reason: string, dryRun: boolean) => guarded(patients.assignSensor({ sensor: values["sensor"] ?? "", gateway: values["gateway"] ?? "", patient: values["patient"] ?? "", reason, dryRun }));
  const gateways = [...new Set([...model.paths.values()].map(({ gateway }) => gateway))].sort();
  return {
    title: sensor === "" ? t("Assign a sensor") : t("Assign {sensor}", { sensor }),
    verb: t("Assign"),
    fields: [
      { name: "sensor", label: t("Sensor"), value: sensor, required: true },
      { name: "patient", label: t("Id of the patient"), value: patient, required: true, known: model.patients.map(({ id }) => id) },
      { name: "gateway", label: t("Gateway that hears the sensor"), value: gateway, required: true, known: gateways },
    ],
    async check(values, reason) {
      const { ended, unchanged, remarks } = await asked(values, reason, true);
      const [sensor = "", patient = ""] = [values["sensor"], values["patient"]];
      const name = model.labelOf(patient);
      const lines = [t("{sensor} is with {patient} at {gateway} from now on.", { sensor, patient: name, gateway: values["gateway"] ?? "" })];
      if (ended) lines.unshift(t("The assignment of {sensor} to {patient} at {gateway} ends.", { sensor, patient: model.labelOf(ended.patient), gateway: ended.gateway }));
      if (ended && ended.patient !== patient) lines.push(t("The hand-over begins 3 seconds after it is confirmed, so that all services know it in time."));
      return { lines: unchanged ? [t("{sensor} is with {patient} already.", { sensor, patient: name })] : lines, warnings: remarks, isNothing: unchanged };
    },
    async write(values, reason) {
      const { remarks } = await asked(values, reason, false);
      if (remarks.length > 0) return h("div", {}, h("p", {}, t("It is done.")), h("ul", { class: "warnings", "aria-label": t("Warnings") }, ...remarks.map((text) => h("li", {}, text))));
      return undefined;
    },
  };
}

function ending({ guarded, patients, model }: Context, sensor: string): Change {
  return {
    title: t("Detach {sensor}", { sensor }),
    verb: t("Detach"),
    isDangerous: true,
    fields: [],
    async check() {
      const { assignments } = await guarded(patients.listAssignments({ sensor, limit: 1 }));
      const [worn] = assignments;
      return { lines: [worn ? t("The assignment of {sensor} to {patient} at {gateway} ends.", { sensor, patient: model.labelOf(worn.patient), gateway: worn.gateway }) : t("No patient has worn this sensor."), t("Readings that come later are kept apart.")], isNothing: worn === undefined };
    },
    async write(_, reason) {
      const { remarks } = await guarded(patients.endAssignment({ sensor, reason }));
      return remarks.length > 0 ? h("ul", { class: "warnings", "aria-label": t("Warnings") }, ...remarks.map((text) => h("li", {}, text))) : undefined;
    },
  };
}
