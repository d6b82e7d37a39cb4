// A change in two steps. A form is filled in, and then the page shows what will change. Only the
// second step writes.
import { h, setText } from "../dom";
import { t } from "../text";

const REASON_LENGTH_MAX = 500;
const TEXT_LENGTH_MAX = 1_000;

export type Values = Readonly<Record<string, string>>;

export interface Field {
  readonly name: string;
  readonly label: string;
  readonly type?: "text" | "date" | "datetime-local" | "password" | "select" | "area";
  readonly value?: string;
  readonly required?: boolean;
  readonly hint?: string;
  readonly options?: readonly (readonly [value: string, text: string])[];
  // Values that the browser proposes.
  readonly known?: readonly string[];
}

export interface Preview {
  // Sentences or parts about what will change.
  readonly lines: readonly (string | Node)[];
  readonly warnings?: readonly string[];
  // Nothing would change, so nothing can be confirmed.
  readonly isNothing?: boolean;
}

export interface Change {
  readonly title: string;
  // The verb of the button that writes.
  readonly verb: string;
  readonly isDangerous?: boolean;
  readonly fields: readonly Field[];
  // Words from which the reason is chosen; absent: any text. False: none is asked for.
  readonly reasons?: readonly (readonly [value: string, text: string])[] | false;
  check(values: Values, reason: string): Promise<Preview>;
  // write returns what the person must see once, such as a token.
  write(values: Values, reason: string): Promise<Node | void>;
}

export interface Stage {
  // open shows a form instead of the list. The promise ends with it.
  open(change: Change): void;
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

let numbers = 0;

// changeForm calls `done` with whether something was written.
export function changeForm(change: Change, done: (written: boolean) => void): HTMLElement {
  const failure = h("p", { class: "message", role: "alert" });
  const inputs = new Map<string, HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement>();
  const fields = change.fields.map((field) => {
    const { input, row } = fieldOf(field);
    inputs.set(field.name, input);
    return row;
  });
  const reasonField: Field = { name: "reason", label: t("Reason"), required: true, ...(change.reasons ? { type: "select", options: change.reasons } : {}) };
  const asked = change.reasons === false ? undefined : fieldOf(reasonField);
  if (asked?.input instanceof HTMLInputElement) asked.input.maxLength = REASON_LENGTH_MAX;
  const values = (): Values => Object.fromEntries([...inputs].map(([name, input]) => [name, input.type === "password" || input instanceof HTMLTextAreaElement ? input.value : input.value.trim()]));
  const reason = () => asked?.input.value.trim() ?? "";
  const next = h("button", { type: "submit", class: "primary" }, t("Show what changes"));
  const cancel = () => h("button", { type: "button", onclick: () => done(false) }, t("Cancel"));
  const form = h("form", { class: "change-form", novalidate: false }, ...fields, asked?.row, failure, h("p", { class: "buttons" }, next, cancel()));
  const title = h("h2", { tabindex: "-1" }, change.title);
  const body = h("div", {}, form);
  const element = h("section", { class: "panel change", "aria-label": change.title }, h("header", {}, title), body);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    done(false);
  });

  const showPreview = (preview: Preview) => {
    const failure = h("p", { class: "message", role: "alert" });
    const confirm = h("button", { type: "button", class: change.isDangerous ? "danger" : "primary", disabled: preview.isNothing === true }, change.verb);
    const head = h("h3", { tabindex: "-1" }, preview.isNothing ? t("Nothing would change") : t("What will change"));
    const back = () => {
      body.replaceChildren(form);
      next.focus();
    };
    confirm.addEventListener("click", () => {
      confirm.disabled = true;
      setText(failure, "");
      change.write(values(), reason()).then(
        (once) => (once ? showOnce(once) : done(true)),
        (error: unknown) => {
          setText(failure, messageOf(error));
          confirm.disabled = false;
        },
      );
    });
    const warnings = (preview.warnings ?? []).map((text) => h("li", {}, text));
    body.replaceChildren(
      h(
        "div",
        { class: "preview" },
        head,
        warnings.length > 0 && h("ul", { class: "warnings", "aria-label": t("Warnings") }, ...warnings),
        h("ul", { class: "changes" }, ...preview.lines.map((line) => h("li", {}, line))),
        reason() !== "" && h("p", { class: "dim" }, t("Reason: {reason}", { reason: shownReason() })),
        failure,
        h("p", { class: "buttons" }, confirm, h("button", { type: "button", onclick: back }, t("Back")), cancel()),
      ),
    );
    head.focus();
  };
  const shownReason = () => (asked?.input instanceof HTMLSelectElement ? (asked.input.selectedOptions[0]?.textContent ?? "") : reason());
  const showOnce = (once: Node) => {
    const close = h("button", { type: "button", class: "primary", onclick: () => done(true) }, t("Done"));
    body.replaceChildren(h("div", { class: "preview" }, once, h("p", { class: "buttons" }, close)));
    title.focus();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    next.disabled = true;
    setText(failure, "");
    change
      .check(values(), reason())
      .then(showPreview, (error: unknown) => setText(failure, messageOf(error)))
      .finally(() => (next.disabled = false));
  });
  queueMicrotask(() => ([...inputs.values()][0] ?? asked?.input ?? title).focus());
  return element;
}

function fieldOf({ name, label, type = "text", value = "", required = false, hint, options, known }: Field) {
  const id = `field-${++numbers}`;
  const described = hint === undefined ? {} : { "aria-describedby": `${id}-hint` };
  const proposed = known && known.length > 0 ? h("datalist", { id: `${id}-known` }, ...known.map((it) => h("option", { value: it }))) : undefined;
  const common = { id, name, required, ...described };
  const input =
    type === "select"
      ? h("select", common, ...(options ?? []).map(([key, text]) => h("option", { value: key, selected: key === value }, text)))
      : type === "area"
        ? h("textarea", { ...common, rows: 16, spellcheck: "false", wrap: "off" })
        : h("input", { ...common, type, value, maxlength: TEXT_LENGTH_MAX, spellcheck: "false", autocomplete: type === "password" ? "new-password" : "off", ...(proposed ? { list: proposed.id } : {}) });
  if (input instanceof HTMLTextAreaElement) input.value = value;
  const row = h("div", { class: type === "area" ? "field wide" : "field" }, h("label", { for: id }, label), input, proposed, hint !== undefined && h("small", { class: "dim", id: `${id}-hint` }, hint));
  return { input, row };
}
