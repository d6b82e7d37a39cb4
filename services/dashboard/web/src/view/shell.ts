// The frame around the screens: brand, state of the connection, waiting alerts, the way to each
// screen, language, theme and signing out.
import { h, setAttribute, setText } from "../dom";
import { awaits, priorityOf } from "../clinical";
import type { Model } from "../model";
import { liveOf } from "../live";
import { OUT_OF_DATE } from "../notices";
import { pathOf, to, type Route, type Screen } from "../route";
import type { Role, Session } from "../session";
import { choose, language, LANGUAGES, many, t, term, type Language } from "../text";
import { bannerView } from "./banner";
import { outageSound } from "./outage_sound";
import { silences } from "./silence";
import { soundState, switchSound } from "./sound";
import { applyTheme, theme, type Theme } from "./theme";
import { brandMark } from "./signin";

// If no sample of the selected patient has arrived for this time, the page is not "live".
const SAMPLE_SILENT_MS = 8_000;
const NEXT: Record<Theme, Theme> = { auto: "dark", dark: "light", light: "auto" };
const TITLES: Record<Screen, string> = { ward: term("Ward"), patients: term("Patient"), alerts: term("Alerts"), paths: term("Paths"), fleet: term("Fleet"), manage: term("Manage") };
const ROLES: Record<Role, string> = { viewer: term("viewer"), clinician: term("clinician"), administrator: term("administrator") };
// From this width on the ward fills the screen, and nobody scrolls.
const WALL = "(min-width: 2800px)";

export type Panel = "ward" | "detail" | "alerts" | "paths" | "explain" | "fleet" | "quarantine" | "manage";

const PANELS: Record<Screen, readonly Panel[]> = {
  ward: ["ward", "detail", "alerts", "paths"],
  patients: ["ward", "detail", "alerts", "paths"],
  alerts: ["alerts"],
  paths: ["paths", "explain"],
  fleet: ["fleet", "quarantine"],
  manage: ["manage"],
};
const PANELS_WALL: readonly Panel[] = ["ward", "alerts"];

export interface ShellActions {
  go(route: Route): void;
  signOut(): void;
}

export interface ShellView {
  readonly element: HTMLElement;
  tick(): void;
  show(route: Route): void;
}

export function shellView(model: Model, session: Session, panels: Partial<Record<Panel, HTMLElement>>, actions: ShellActions): ShellView {
  let route = to("ward");
  const dot = h("span", { class: "dot" });
  const text = h("span", { role: "status" });
  // A counter of seconds is not read out.
  const count = h("span", { "aria-hidden": "true" });
  const connection = h("div", { class: "connection", id: "connection" }, dot, h("span", {}, text, count));
  // The way to the alerts: down the screen where they are, or to their own.
  const toAlerts = (event: Event) => {
    event.preventDefault();
    if (!panels.alerts?.checkVisibility()) actions.go(to("alerts"));
    jump(panels.alerts);
  };
  const alarm = h("a", { class: "alarm", href: "/alerts", onclick: toAlerts });
  const themeButton = h("button", {
    type: "button",
    class: "quiet",
    onclick: () => {
      applyTheme(NEXT[theme()]);
      showTheme();
    },
  });
  const showTheme = () => setText(themeButton, { auto: t("Theme: auto"), dark: t("Theme: dark"), light: t("Theme: light") }[theme()]);
  showTheme();
  const soundButton = h("button", {
    type: "button",
    class: "quiet",
    title: t("A sound for each new alert of high priority. An outage is heard unless sound was switched off."),
    onclick: () => {
      switchSound();
      showSound();
    },
  });
  const showSound = () => {
    const state = soundState();
    setText(soundButton, { off: t("Sound: off"), on: t("Sound: on"), blocked: t("Sound: click to allow") }[state]);
    setAttribute(soundButton, "data-state", state);
  };
  showSound();
  if (panels.alerts) {
    panels.alerts.id = "alerts";
    panels.alerts.tabIndex = -1;
  }
  const links = (["ward", "alerts", "paths", "fleet", "manage"] as const).filter((screen) => screen !== "manage" || panels.manage).map((screen) => {
    const open = (event: MouseEvent) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      actions.go(to(screen));
      main.focus({ preventScroll: true });
      window.scrollTo(0, 0);
    };
    return h("a", { href: pathOf(to(screen)), "data-screen": screen, onclick: (event) => open(event as MouseEvent) }, t(TITLES[screen]));
  });
  const nav = h("nav", { class: "screens", "aria-label": t("Screens") }, ...links);
  const top = h(
    "header",
    { class: "top" },
    h("h1", { class: "brand" }, brandMark(), "Braid"),
    nav,
    connection,
    alarm,
    h("span", { class: "grow" }),
    soundButton,
    themeButton,
    ...(session.kiosk === undefined
      ? [languageChoice(), h("span", { class: "person" }, session.name, h("small", {}, t(ROLES[session.role]))), h("button", { type: "button", class: "quiet", onclick: () => actions.signOut() }, t("Sign out"))]
      : [h("span", { class: "person", id: "kiosk" }, session.kiosk, h("small", {}, t("Wall display")))]),
  );
  const banners = bannerView(model).element;
  // A jump must end below the elements that stick to the top.
  const covers = () => {
    const covered = [top, banners].filter((it) => getComputedStyle(it).position === "sticky");
    const heights = covered.map((it) => it.offsetHeight);
    document.documentElement.style.setProperty("--head", `${top.offsetHeight}px`);
    document.documentElement.style.setProperty("--covered", `${heights.reduce((sum, height) => sum + height, 0)}px`);
  };
  const observer = new ResizeObserver(covers);
  observer.observe(top);
  observer.observe(banners);
  const skip = (panel: HTMLElement | undefined, text: string) => {
    const link = h("a", { class: "skip", href: `#${panel?.id}`, onclick: (event) => (event.preventDefault(), jump(panel)) }, text);
    return { link, panel };
  };
  const skips = [skip(panels.detail, t("Skip to the selected patient")), skip(panels.alerts, t("Skip to the alerts"))];
  const main = h("main", { class: "columns", tabindex: "-1" });
  // Screen readers hear new alerts on every screen, without the page taking the focus away.
  const announce = h("p", { class: "visually-hidden", role: "status", "aria-live": "assertive" });
  const announced = new Set<string>();
  const element = h(
    "div",
    { class: "shell" },
    ...skips.map(({ link }) => link),
    top,
    announce,
    banners,
    main,
    h("footer", { class: "dim fine" }, t("Braid is not a certified medical device.")),
  );
  const wall = matchMedia(WALL);
  const place = () => {
    const isWall = (session.kiosk !== undefined || wall.matches) && route.screen === "ward";
    setAttribute(element, "data-wall", isWall);
    setAttribute(main, "data-screen", route.screen);
    setAttribute(main, "data-alert", route.alert !== "");
    const shown = (isWall ? PANELS_WALL : PANELS[route.screen]).flatMap((panel) => panels[panel] ?? []);
    if (shown.length !== main.children.length || shown.some((panel, i) => panel !== main.children[i])) main.replaceChildren(...shown);
    for (const { link, panel } of skips) link.hidden = panel?.isConnected !== true;
  };
  wall.addEventListener("change", place);
  const show = (next: Route) => {
    route = next;
    const at = route.screen === "patients" ? "ward" : route.screen;
    for (const link of links) setAttribute(link, "aria-current", link.dataset["screen"] === at ? "page" : null);
    place();
    tick();
  };

  const say = (what: string, counted = "") => {
    setText(text, what);
    setText(count, counted);
  };
  const listen = outageSound(model);
  const tick = () => {
    showSound();
    const c = model.connection;
    const silentMs = performance.now() - model.sampleAtMs;
    const silent = c.state === "live" && model.selected !== "" && model.sampleAtMs > 0 && silentMs > SAMPLE_SILENT_MS;
    const sinceS = model.outOfDateSinceS();
    const unheard = sinceS !== undefined && c.state === "live";
    const live = liveOf(model.patients, [...model.notices.values()].flat());
    setAttribute(connection, "data-state", unheard ? "lost" : c.state === "live" ? (live.state === "live" && silent ? "silent" : live.state) : c.state);
    setAttribute(element, "data-out-of-date", sinceS !== undefined);
    model.setNotices("page", sinceS === undefined ? [] : [{ key: OUT_OF_DATE, severity: "critical", text: t("This page is not up to date: it hears nothing from the dashboard. Nothing below is the present."), sinceS }]);
    listen();
    if (unheard) say(t("No updates arrive"));
    else if (c.state === "live") {
      if (live.state !== "live") say(live.text);
      else say(silent ? t("No samples") : live.text, silent ? ` ${t("for {seconds} s", { seconds: Math.round(silentMs / 1000) })}` : "");
    }
    else if (c.state === "connecting") say(t("Connecting…"));
    else say(t("Connection lost: {why}.", { why: c.why }), ` ${t("Retrying in {seconds} s", { seconds: Math.max(1, Math.ceil((c.retryAtMs - Date.now()) / 1000)) })}`);
    alerts();
  };
  const alerts = () => {
    const waiting = model.alerts.open().filter((alert) => awaits(alert.state) && !model.silences.some((silence) => silences(silence, alert)));
    for (const alert of waiting) {
      if (announced.has(alert.id)) continue;
      announced.add(alert.id);
      setText(announce, `${priorityOf(alert.priority).label}: ${alert.summary}`);
    }
    for (const id of announced) if (!model.alerts.has(id)) announced.delete(id);
    const omitted = model.alerts.omitted().length > 0;
    alarm.hidden = waiting.length === 0;
    const worst = waiting[0];
    const title = `${t(TITLES[route.screen])}${route.patient === "" ? "" : ` ${route.patient}`} · Braid`;
    document.title = worst ? `(${waiting.length}${omitted ? "+" : ""}) ${title}` : title;
    if (!worst) return;
    const priority = priorityOf(worst.priority);
    setAttribute(alarm, "data-priority", priority.key);
    const say = omitted ? many(waiting.length, "{count} or more alerts to acknowledge", "{count} or more alerts to acknowledge") : many(waiting.length, "{count} alert to acknowledge", "{count} alerts to acknowledge");
    setText(alarm, `${priority.mark} ${say}`);
  };
  model.on("connection", tick);
  model.on("alerts", alerts);
  return { element, tick, show };
}

// jump scrolls to a panel and keeps the address.
function jump(panel: HTMLElement | undefined): void {
  panel?.scrollIntoView();
  panel?.focus({ preventScroll: true });
}

function languageChoice(): HTMLElement {
  const names = Object.entries(LANGUAGES).map(([tag, name]) => h("option", { value: tag, lang: tag, selected: tag === language() }, name));
  const select = h("select", { class: "language", "aria-label": t("Language") }, ...names);
  select.addEventListener("change", () => {
    choose(select.value as Language);
    window.location.reload();
  });
  return select;
}
