// The administration: a list for each subject, with an address of its own. The page loads it when a
// person opens it.
import "../style/manage.css";
import { h, setAttribute } from "../dom";
import { manage, type Route } from "../route";
import type { Role } from "../session";
import { t, term } from "../text";
import { auditSection } from "./audit";
import { changeForm, type Change } from "./change";
import { contextOf, link, type Context, type Given } from "./context";
import { rulesSection, teamSection } from "./documents";
import { handoverSection } from "./handover";
import { gatewaysSection } from "./gateways";
import { passwordSection, peopleSection } from "./people";
import { patientsSection } from "./patients";
import { sensorsSection } from "./sensors";

export interface Section {
  readonly element: HTMLElement;
  // show is called each time the section comes into sight; `item` is an entry, or empty.
  show(item: string): void;
}

// Host is what a section can do with its place on the page.
export interface Host {
  // change shows a form instead of the section, and shows the section anew afterwards.
  change(change: Change): void;
}

interface Entry {
  readonly key: string;
  readonly title: string;
  readonly from: Role;
  build(context: Context, host: Host): Section;
}

const RANKS: Record<Role, number> = { viewer: 0, clinician: 1, administrator: 2 };
const SECTIONS: readonly Entry[] = [
  { key: "patients", title: term("Patients"), from: "viewer", build: patientsSection },
  { key: "sensors", title: term("Sensors"), from: "viewer", build: sensorsSection },
  { key: "handover", title: term("Handover"), from: "viewer", build: handoverSection },
  { key: "gateways", title: term("Gateways"), from: "administrator", build: gatewaysSection },
  { key: "people", title: term("People"), from: "administrator", build: peopleSection },
  { key: "team", title: term("Team"), from: "viewer", build: teamSection },
  { key: "rules", title: term("Rules"), from: "viewer", build: rulesSection },
  { key: "audit", title: term("Audit log"), from: "administrator", build: auditSection },
  { key: "password", title: term("Own password"), from: "viewer", build: passwordSection },
];

export interface ManageView {
  show(route: Route): void;
}

export function manageView(element: HTMLElement, given: Given): ManageView {
  const context = contextOf(given);
  const allowed = SECTIONS.filter(({ from }) => RANKS[from] <= RANKS[given.session.role]);
  const links = allowed.map(({ key, title }) => link(context, manage(key), t(title), { "data-section": key }));
  const place = h("div", { class: "section" });
  element.replaceChildren(h("nav", { class: "sections", "aria-label": t("Administration") }, ...links), place);
  const built = new Map<string, Section>();
  let current = manage();
  const host: Host = {
    change(it) {
      const form = changeForm(it, () => {
        show(current);
        (place.firstElementChild as HTMLElement | null)?.focus({ preventScroll: true });
      });
      place.replaceChildren(form);
      window.scrollTo(0, 0);
    },
  };
  const show = (route: Route) => {
    const entry = allowed.find(({ key }) => key === route.section) ?? allowed[0];
    if (!entry) return;
    current = route;
    let section = built.get(entry.key);
    if (!section) built.set(entry.key, (section = entry.build(context, host)));
    section.element.tabIndex = -1;
    for (const it of links) setAttribute(it, "aria-current", it.dataset["section"] === entry.key ? "page" : null);
    if (place.firstChild !== section.element) place.replaceChildren(section.element);
    section.show(entry.key === route.section ? route.item : "");
  };
  return { show };
}
