// The frame around the panels: brand, state of the connection, waiting alerts, theme and signing
// out.
import { h, setAttribute, setText } from "../dom";
import { awaits, priorityOf } from "../clinical";
import type { Model } from "../model";
import { liveOf } from "../live";
import { OUT_OF_DATE } from "../notices";
import type { Session } from "../session";
import { bannerView } from "./banner";
import { outageSound } from "./outage_sound";
import { soundState, switchSound } from "./sound";
import { applyTheme, theme, type Theme } from "./theme";
import { brandMark } from "./signin";

// If no sample of the selected patient has arrived for this time, the page is not "live".
const SAMPLE_SILENT_MS = 8_000;
const OUT_OF_DATE_TEXT = "This page is not up to date: it hears nothing from the dashboard. Nothing below is the present.";
const NEXT: Record<Theme, Theme> = { auto: "dark", dark: "light", light: "auto" };

// jump scrolls to a panel and keeps the address, which names the patient.
function jump(panel: HTMLElement): (event: Event) => void {
  return (event) => {
    event.preventDefault();
    panel.scrollIntoView();
    panel.focus({ preventScroll: true });
  };
}

export function shellView(
  model: Model,
  session: Session,
  panels: { ward: HTMLElement; detail: HTMLElement; alerts: HTMLElement; paths: HTMLElement; steering: HTMLElement; quarantine: HTMLElement },
  signOut: () => void,
): { element: HTMLElement; tick(): void } {
  const dot = h("span", { class: "dot" });
  const text = h("span", { role: "status" });
  // A counter of seconds is not read out.
  const count = h("span", { "aria-hidden": "true" });
  const connection = h("div", { class: "connection", id: "connection" }, dot, h("span", {}, text, count));
  const alarm = h("a", { class: "alarm", href: "#alerts", onclick: jump(panels.alerts) });
  const themeButton = h("button", {
    type: "button",
    class: "quiet",
    onclick: () => {
      applyTheme(NEXT[theme()]);
      showTheme();
    },
  });
  const showTheme = () => setText(themeButton, { auto: "Theme: auto", dark: "Theme: dark", light: "Theme: light" }[theme()]);
  showTheme();
  const soundButton = h("button", {
    type: "button",
    class: "quiet",
    title: "A sound for each new alert of high priority. An outage is heard unless sound was switched off.",
    onclick: () => {
      switchSound();
      showSound();
    },
  });
  const showSound = () => {
    const state = soundState();
    setText(soundButton, { off: "Sound: off", on: "Sound: on", blocked: "Sound: click to allow" }[state]);
    setAttribute(soundButton, "data-state", state);
  };
  showSound();
  panels.alerts.id = "alerts";
  panels.alerts.tabIndex = -1;
  const top = h(
    "header",
    { class: "top" },
    h("h1", { class: "brand" }, brandMark(), "Braid"),
    connection,
    alarm,
    h("span", { class: "grow" }),
    soundButton,
    themeButton,
    ...(session.kiosk === undefined
      ? [h("span", { class: "person" }, session.name, h("small", {}, session.role)), h("button", { type: "button", class: "quiet", onclick: signOut }, "Sign out")]
      : [h("span", { class: "person", id: "kiosk" }, session.kiosk, h("small", {}, "Wall display"))]),
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
  const element = h(
    "div",
    { class: "shell" },
    h("a", { class: "skip", href: "#detail", onclick: jump(panels.detail) }, "Skip to the selected patient"),
    top,
    banners,
    h("main", { class: "columns" }, panels.ward, panels.detail, h("div", { class: "side" }, panels.alerts, panels.paths, panels.steering, panels.quarantine)),
    h("footer", { class: "dim fine" }, "Braid is not a certified medical device."),
  );

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
    model.setNotices("page", sinceS === undefined ? [] : [{ key: OUT_OF_DATE, severity: "critical", text: OUT_OF_DATE_TEXT, sinceS }]);
    listen();
    if (unheard) say("No updates arrive");
    else if (c.state === "live") {
      if (live.state !== "live") say(live.text);
      else say(silent ? "No samples" : live.text, silent ? ` for ${Math.round(silentMs / 1000)} s` : "");
    }
    else if (c.state === "connecting") say("Connecting…");
    else say(`Connection lost: ${c.why}.`, ` Retrying in ${Math.max(1, Math.ceil((c.retryAtMs - Date.now()) / 1000))} s`);

    const waiting = model.alerts.open().filter((alert) => awaits(alert.state));
    const omitted = model.alerts.omitted().length > 0;
    alarm.hidden = waiting.length === 0;
    const worst = waiting[0];
    if (worst) {
      const priority = priorityOf(worst.priority);
      setAttribute(alarm, "data-priority", priority.key);
      setText(alarm, `${priority.mark} ${waiting.length} ${omitted ? "or more " : ""}${waiting.length === 1 ? "alert" : "alerts"} to acknowledge`);
      document.title = `(${waiting.length}${omitted ? "+" : ""}) Braid`;
    } else document.title = "Braid";
  };
  model.on("connection", tick);
  model.on("alerts", tick);
  return { element, tick };
}
