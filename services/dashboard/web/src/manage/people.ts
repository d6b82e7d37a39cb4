// People who sign in with a password, and everybody's own password.
import { h, setText, type Row } from "../dom";
import type { Account } from "../gen/braid/identity/v1/identity_pb";
import { signIn, type Role } from "../session";
import { t, term } from "../text";
import type { Change } from "./change";
import { moment, type Context } from "./context";
import type { Host, Section } from "./frame";
import { choice, listView } from "./list";

const ROLES: readonly (readonly [Role, string])[] = [
  ["viewer", term("viewer")],
  ["clinician", term("clinician")],
  ["administrator", term("administrator")],
];
const RIGHTS: Record<Role, string> = {
  viewer: term("sees the ward"),
  clinician: term("also acknowledges, silences, admits, moves and discharges"),
  administrator: term("also decides about people, gateways, teams and rules, and merges and erases records"),
};
const roleText = (role: string): string => t(ROLES.find(([key]) => key === role)?.[1] ?? role);
const roleOptions = () => ROLES.map(([key, text]) => [key, `${t(text)}: ${t(RIGHTS[key])}`] as const);
const PASSWORD_HINT = term("8 to 256 characters");

export function peopleSection(context: Context, host: Host): Section {
  const { guarded, administration } = context;
  const role = choice(t("Role"), [["", t("All")], ...ROLES.map(([key, text]) => [key, t(text)] as const)]);
  const list = listView<Account>({
    title: t("People"),
    search: t("Find a person by name"),
    empty: t("Nobody signs in with a password."),
    actions: [h("button", { type: "button", class: "primary", onclick: () => host.change(addition(context)) }, t("Add a person"))],
    filters: [role],
    load: async () => ({ items: (await guarded(administration.listAccounts({}))).accounts, more: false }),
    key: ({ name }) => name,
    texts: ({ name }) => [name],
    passes: (account) => role.value === "" || account.role === role.value,
    row: (account) => accountRow(context, host, account),
  });
  return { element: h("div", {}, list.element), show: () => void list.reload() };
}

function accountRow(context: Context, host: Host, { name }: Account): Row<Account> {
  const about = h("span", { class: "dim" });
  const buttons = h("span", { class: "buttons" });
  const element = h("li", { "data-entry": name }, h("div", { class: "grow" }, h("b", { class: "entry-name" }, name), about), buttons);
  const named = () => h("span", { class: "visually-hidden" }, ` ${name}`);
  const isOwn = name === context.session.name;
  return {
    element,
    update(account) {
      setText(about, [roleText(account.role), t("since {time}", { time: moment(account.createdUs) }), isOwn && t("you")].filter(Boolean).join(" · "));
      if (isOwn) return;
      buttons.replaceChildren(
        h("button", { type: "button", onclick: () => host.change(changed(context, account)) }, t("Change the role"), named()),
        h("button", { type: "button", onclick: () => host.change(newPassword(context, account)) }, t("New password"), named()),
        h("button", { type: "button", class: "danger", onclick: () => host.change(removal(context, account)) }, t("Remove"), named()),
      );
    },
  };
}

function addition({ guarded, administration }: Context): Change {
  return {
    title: t("Add a person"),
    verb: t("Add"),
    fields: [
      { name: "name", label: t("Name to sign in with"), required: true },
      { name: "role", label: t("Role"), type: "select", value: "viewer", options: roleOptions() },
      { name: "password", label: t("Password"), type: "password", required: true, hint: t(PASSWORD_HINT) },
    ],
    async check({ name = "", role = "" }) {
      const { accounts } = await guarded(administration.listAccounts({}));
      if (accounts.some((it) => it.name === name)) throw new Error(t("{name} has an account already.", { name }));
      return { lines: [t("{name} signs in as {role}: {rights}.", { name, role: roleText(role), rights: t(RIGHTS[role as Role] ?? "") })] };
    },
    write: async ({ name = "", role = "", password = "" }, reason) => void (await guarded(administration.putAccount({ name, role, password, reason, create: true }))),
  };
}

function changed({ guarded, administration }: Context, { name, role: before }: Account): Change {
  return {
    title: t("Change the role of {name}", { name }),
    verb: t("Change the role"),
    fields: [{ name: "role", label: t("Role"), type: "select", value: before, options: roleOptions() }],
    check: async ({ role = "" }) => ({
      lines: [t("{label}: {before} → {after}", { label: t("Role"), before: roleText(before), after: roleText(role) }), t("Sessions of {name} end within seconds.", { name })],
      isNothing: role === before,
    }),
    write: async ({ role = "" }, reason) => void (await guarded(administration.putAccount({ name, role, reason }))),
  };
}

function newPassword({ guarded, administration }: Context, { name, role }: Account): Change {
  return {
    title: t("New password of {name}", { name }),
    verb: t("Set the password"),
    fields: [{ name: "password", label: t("Password"), type: "password", required: true, hint: t(PASSWORD_HINT) }],
    check: async () => ({ lines: [t("{name} signs in with the new password only.", { name }), t("Sessions of {name} end within seconds.", { name })] }),
    write: async ({ password = "" }, reason) => void (await guarded(administration.putAccount({ name, role, password, reason }))),
  };
}

function removal({ guarded, administration }: Context, { name }: Account): Change {
  return {
    title: t("Remove {name}", { name }),
    verb: t("Remove"),
    isDangerous: true,
    fields: [],
    check: async () => ({ lines: [t("{name} cannot sign in any more. The audit log and the documents keep the name.", { name }), t("Sessions of {name} end within seconds.", { name })] }),
    write: async (_, reason) => void (await guarded(administration.removeAccount({ name, reason }))),
  };
}

// passwordSection changes the own password and signs in again with it.
export function passwordSection({ guarded, administration, session, renewing }: Context): Section {
  const present = h("input", { id: "present", type: "password", required: true, autocomplete: "current-password" });
  const password = h("input", { id: "new-password", type: "password", required: true, minlength: 8, maxlength: 256, autocomplete: "new-password" });
  const again = h("input", { id: "again", type: "password", required: true, autocomplete: "new-password" });
  const failure = h("p", { class: "message", role: "alert" });
  const done = h("p", { role: "status" });
  const button = h("button", { type: "submit", class: "primary" }, t("Change the password"));
  const change = async () => {
    await guarded(administration.changePassword({ present: present.value, password: password.value }));
    // The sessions of the account end, so this page needs a new one.
    await signIn(session.name, password.value);
  };
  const submit = (event: Event) => {
    event.preventDefault();
    setText(failure, "");
    setText(done, "");
    if (password.value !== again.value) return setText(failure, t("The two new passwords differ."));
    button.disabled = true;
    renewing(change)
      .then(() => {
        setText(done, t("The password is changed. Other pages of yours must sign in again."));
        for (const input of [present, password, again]) input.value = "";
      })
      .catch((error: unknown) => setText(failure, error instanceof Error ? error.message : String(error)))
      .finally(() => (button.disabled = false));
  };
  const form = h(
    "form",
    { class: "change-form", onsubmit: submit },
    h("div", { class: "field" }, h("label", { for: "present" }, t("Present password")), present),
    h("div", { class: "field" }, h("label", { for: "new-password" }, t("New password")), password, h("small", { class: "dim" }, t(PASSWORD_HINT))),
    h("div", { class: "field" }, h("label", { for: "again" }, t("New password, again")), again),
    failure,
    done,
    h("p", { class: "buttons" }, button),
  );
  return { element: h("section", { class: "panel change", "aria-label": t("Own password") }, h("header", {}, h("h2", {}, t("Own password"))), form), show: () => {} };
}
