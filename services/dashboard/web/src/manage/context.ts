// Parts that the lists of the administration share: the clients, the person, and ways to other
// screens.
import { createClient, type Client } from "@connectrpc/connect";
import { transport, type Query } from "../client";
import { seconds } from "../clinical";
import { h } from "../dom";
import { AdministrationService } from "../gen/braid/identity/v1/identity_pb";
import { PatientsService } from "../gen/braid/patients/v1/patients_pb";
import type { Model } from "../model";
import { pathOf, type Route } from "../route";
import type { Session } from "../session";
import { dayOf, minuteOf } from "../text";

export interface Given {
  readonly session: Session;
  readonly model: Model;
  readonly query: Query;
  // guarded makes the error of a call a sentence, and notices the end of the session.
  guarded<T>(call: Promise<T>): Promise<T>;
  go(route: Route): void;
  // renewing runs what replaces the session. No stream of the old session ends meanwhile.
  renewing<T>(work: () => Promise<T>): Promise<T>;
}

export interface Context extends Given {
  readonly patients: Client<typeof PatientsService>;
  readonly administration: Client<typeof AdministrationService>;
}

export function contextOf(given: Given): Context {
  const over = transport();
  return { ...given, patients: createClient(PatientsService, over), administration: createClient(AdministrationService, over) };
}

export const isAdministrator = ({ session }: Given): boolean => session.role === "administrator";

// link is a way to another route, which a new tab can open as well.
export function link({ go }: Given, route: Route, text: string, props: Record<string, string> = {}): HTMLAnchorElement {
  const open = (event: Event) => {
    const { ctrlKey, metaKey, shiftKey } = event as MouseEvent;
    if (ctrlKey || metaKey || shiftKey) return;
    event.preventDefault();
    go(route);
  };
  return h("a", { href: pathOf(route), onclick: open, ...props }, text);
}

// moment is a day with a time, in the person's language; empty for none.
export function moment(timeUs: bigint): string {
  if (timeUs === 0n) return "";
  const at = new Date(seconds(timeUs) * 1000);
  const year = at.getFullYear() === new Date().getFullYear() ? "" : ` ${at.getFullYear()}`;
  return `${dayOf(at)}${year} ${minuteOf(at)}`;
}

// facts is a list of labels with texts, without those that say nothing.
export function facts(rows: readonly (readonly [label: string, text: string | Node])[]): HTMLElement {
  const told = rows.filter(([, text]) => text !== "");
  return h("dl", { class: "facts" }, ...told.flatMap(([label, text]) => [h("dt", {}, label), h("dd", {}, text)]));
}
