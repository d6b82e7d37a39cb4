// Documents of alerting: the team with its rota and escalation, and the sets of rules, for
// everybody, a group or one patient. The command line takes the same JSON.
import { h, setText, type Row } from "../dom";
import type { Document } from "../gen/braid/alerts/v1/alerts_pb";
import { manage } from "../route";
import { many, t } from "../text";
import type { Change, Preview } from "./change";
import { facts, isAdministrator, link, moment, type Context } from "./context";
import { linesOf } from "./diff";
import type { Host, Section } from "./frame";
import { listView } from "./list";

type Kind = "team" | "rules";

const TEAM = "default";
const FIRST_TEAM = {
  contacts: [{ id: "eve", name: "Eve Nurse", email: "eve@example.org" }],
  rota: [{ shifts: [{ people: ["eve"], from: "mon 00:00", to: "sun 24:00" }] }],
  escalation: { steps: [] },
};
const FIRST_RULES = {
  name: "own",
  version: 1,
  extends: "built-in",
  rules: [{ id: "spo2-low", priority: "medium", for_ms: 15000, clear_for_ms: 15000, condition: { kind: "below", metric: "spo2", limit: 86, clear: 88 } }],
};

export function teamSection(context: Context, host: Host): Section {
  const element = h("div", {});
  const show = () => void showDocument(context, host, element, "team", TEAM);
  return { element, show };
}

export function rulesSection(context: Context, host: Host): Section {
  const { guarded, query } = context;
  const list = listView<Document>({
    title: t("Sets of rules"),
    search: t("Find a set by patient, group, author or reason"),
    empty: t("Everybody has the rules with which alerting was started."),
    actions: isAdministrator(context) ? [h("button", { type: "button", class: "primary", onclick: () => host.change(newRules(context)) }, t("Add a set"))] : [],
    load: async () => ({ items: (await guarded(query.listDocuments({ kind: "rules" }))).documents, more: false }),
    key: ({ subject }) => subject,
    texts: (it) => [subjectText(context, it.subject), it.subject, it.author, it.reason],
    row: (it) => documentRow(context, it),
  });
  const note = h("p", { class: "dim fine" }, t("One set applies: the patient's, otherwise the group's, then the default."));
  const lists = h("div", {}, list.element, note);
  const detail = h("div", {});
  return {
    element: h("div", {}, lists, detail),
    show(item) {
      lists.hidden = item !== "";
      detail.hidden = item === "";
      if (item === "") void list.reload();
      else void showDocument(context, host, detail, "rules", item);
    },
  };
}

function subjectText({ model }: Context, subject: string): string {
  const [kind, ...rest] = subject.split(":");
  const id = rest.join(":");
  if (kind === "patient") return model.labelOf(id);
  return kind === "group" ? t("group {name}", { name: id }) : t("default, for everybody");
}

function rulesText(body: string): string {
  if (body === "") return t("taken back");
  try {
    const { rules = [], extends: from } = JSON.parse(body) as { rules?: { id: string }[]; extends?: string };
    const own = many(rules.length, "{count} rule", "{count} rules");
    return from === "built-in" ? t("{rules} and the built-in ones", { rules: own }) : own;
  } catch {
    return t("cannot be read");
  }
}

function documentRow(context: Context, first: Document): Row<Document> {
  const about = h("span", { class: "dim" });
  const why = h("span", { class: "grow" });
  const name = link(context, manage("rules", first.subject), subjectText(context, first.subject), { class: "entry-name" });
  return {
    element: h("li", { "data-entry": first.subject }, h("div", { class: "grow" }, name, about), why),
    update({ version, body, author, reason, atUs }) {
      setText(about, `${t("version {version}", { version })} · ${rulesText(body)}`);
      setText(why, `${moment(atUs)} · ${t("by {name}: {reason}", { name: author, reason })}`);
    },
  };
}

// showDocument shows the newest version with the way to change it, and the older ones.
async function showDocument(context: Context, host: Host, element: HTMLElement, kind: Kind, subject: string): Promise<void> {
  const { guarded, query } = context;
  const title = kind === "team" ? t("Team, rota and escalation") : `${t("Rules")}: ${subjectText(context, subject)}`;
  const back = kind === "rules" && link(context, manage("rules"), t("All sets"));
  let documents: readonly Document[];
  try {
    documents = (await guarded(query.listDocuments({ kind, subject }))).documents;
  } catch (error) {
    element.replaceChildren(h("p", { class: "empty", role: "alert" }, error instanceof Error ? error.message : String(error)), back || "");
    return;
  }
  const [newest] = documents;
  const edit = (body: string) => host.change(edition(context, kind, subject, newest, body));
  const isGone = newest === undefined || newest.body === "";
  const first = JSON.stringify(kind === "team" ? FIRST_TEAM : FIRST_RULES, undefined, 2);
  const buttons = !isAdministrator(context)
    ? []
    : [
        h("button", { type: "button", class: "primary", onclick: () => edit(isGone ? first : pretty(newest.body)) }, isGone ? t("Write a first version") : t("Change")),
        kind === "rules" && !isGone && h("button", { type: "button", class: "danger", onclick: () => host.change(taking(context, subject, newest)) }, t("Take back")),
      ];
  const older = (document: Document) => {
    const text = h("pre", { tabindex: "0" });
    const details = h("details", {}, h("summary", {}, `${t("version {version}", { version: document.version })} · ${moment(document.atUs)} · ${t("by {name}: {reason}", { name: document.author, reason: document.reason })}`), text);
    details.addEventListener("toggle", () => setText(text, document.body === "" ? t("taken back") : pretty(document.body)));
    const again = isAdministrator(context) && document.body !== "" && h("button", { type: "button", onclick: () => edit(pretty(document.body)) }, t("Put this version again"), h("span", { class: "visually-hidden" }, ` ${document.version}`));
    if (again) details.append(again);
    return h("li", {}, details);
  };
  element.replaceChildren(
    h(
      "section",
      { class: "panel record", "aria-label": title },
      h("header", {}, h("h2", {}, title), h("span", { class: "grow" }), back),
      h("p", { class: "buttons" }, ...buttons),
      newest ? facts([[t("Version"), String(newest.version)], [t("Since"), moment(newest.atUs)], [t("Author"), newest.author], [t("Reason"), newest.reason]]) : h("p", { class: "dim" }, kind === "team" ? t("No team is put: alerts call nobody by name.") : t("No set is put for this subject.")),
      !isGone && h("pre", { class: "document", tabindex: "0", "aria-label": title }, pretty(newest.body)),
      documents.length > 1 && h("h3", {}, t("Older versions")),
      documents.length > 1 && h("ul", { class: "plain" }, ...documents.slice(1).map(older)),
    ),
  );
}

function pretty(body: string): string {
  try {
    return JSON.stringify(JSON.parse(body), undefined, 2);
  } catch {
    return body;
  }
}

export const put = ({ guarded, query }: Context, kind: Kind, subject: string, newest: Document | undefined, body: string, reason: string, dryRun: boolean) =>
  guarded(query.putDocument({ kind, subject, version: (newest?.version ?? 0) + 1, reason, body, dryRun }));

// shown checks a version at alerting, and says what it changes and loses.
export async function shown(context: Context, kind: Kind, subject: string, newest: Document | undefined, body: string, reason: string): Promise<Preview> {
  const { rulesLost } = await put(context, kind, subject, newest, body, reason, true);
  const lines = linesOf(pretty(newest?.body ?? ""), pretty(body));
  const diff = h("pre", { class: "diff", tabindex: "0", "aria-label": t("What will change") }, ...lines.map(({ sign, text }) => h("span", { "data-sign": sign }, `${sign} ${text}\n`)));
  return {
    lines: [t("Version {version} holds in seconds, without a restart.", { version: (newest?.version ?? 0) + 1 }), ...(lines.length > 0 ? [diff] : [])],
    warnings: rulesLost.length > 0 ? [t("These built-in rules are lost and raise no alert: {rules}", { rules: rulesLost.join(", ") })] : [],
    isNothing: lines.length === 0,
  };
}

function edition(context: Context, kind: Kind, subject: string, newest: Document | undefined, body: string): Change {
  return {
    title: kind === "team" ? t("Team, rota and escalation") : `${t("Rules")}: ${subjectText(context, subject)}`,
    verb: t("Put in force"),
    fields: [{ name: "body", label: t("Document, as JSON"), type: "area", value: body, required: true }],
    check: ({ body = "" }, reason) => shown(context, kind, subject, newest, parsed(body), reason),
    write: async ({ body = "" }, reason) => void (await put(context, kind, subject, newest, parsed(body), reason, false)),
  };
}

// parsed refuses a text that is no JSON, by the browser's own words.
function parsed(body: string): string {
  try {
    JSON.parse(body);
  } catch (error) {
    throw new Error(t("The document is no JSON: {why}", { why: error instanceof Error ? error.message : "" }));
  }
  return body;
}

function newRules(context: Context): Change {
  const { guarded, query, model } = context;
  const subjectOf = (of: string, id: string) => (of === "default" ? "default" : `${of}:${id}`);
  const newestOf = async (subject: string) => (await guarded(query.listDocuments({ kind: "rules", subject }))).documents[0];
  return {
    title: t("Add a set of rules"),
    verb: t("Put in force"),
    fields: [
      { name: "of", label: t("For"), type: "select", options: [["patient", t("one patient")], ["group", t("a group")], ["default", t("everybody")]] },
      { name: "id", label: t("Id of the patient, or name of the group"), known: model.patients.map(({ id }) => id) },
      { name: "body", label: t("Document, as JSON"), type: "area", value: JSON.stringify(FIRST_RULES, undefined, 2), required: true },
    ],
    async check({ of = "", id = "", body = "" }, reason) {
      const subject = subjectOf(of, id);
      return shown(context, "rules", subject, await newestOf(subject), parsed(body), reason);
    },
    async write({ of = "", id = "", body = "" }, reason) {
      const subject = subjectOf(of, id);
      await put(context, "rules", subject, await newestOf(subject), parsed(body), reason, false);
    },
  };
}

function taking(context: Context, subject: string, newest: Document): Change {
  return {
    title: t("Take back the rules of {subject}", { subject: subjectText(context, subject) }),
    verb: t("Take back"),
    isDangerous: true,
    fields: [],
    check: async () => ({ lines: [t("The set of {subject} ends. The next wider set applies in seconds.", { subject: subjectText(context, subject) })] }),
    write: async (_, reason) => void (await put(context, "rules", subject, newest, "", reason, false)),
  };
}
