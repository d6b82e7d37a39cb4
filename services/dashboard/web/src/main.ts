// Start: a session or the sign-in form, then the ward with its one Watch stream.
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/base.css";
import "./style/ward.css";
import "./style/monitor.css";
import "./style/side.css";
import "./style/wall.css";
import { OPEN_MAX } from "./alerts";
import { connect, isSignedOut, reason } from "./client";
import { nowMs, nowUs } from "./clock";
import { Feed } from "./feed";
import { Model } from "./model";
import { keepScreenOn } from "./screen";
import { pathOf, routeOf, to, type Route } from "./route";
import { POINTS } from "./series";
import { current, exchange, knownKiosk, mayAct, openKiosk, rememberKiosk, signOut, SignInError, type Session } from "./session";
import { watchSleep } from "./sleep";
import { loadTexts, t, term } from "./text";
import { alertsView } from "./view/alerts";
import { completenessView } from "./view/completeness";
import { explainView } from "./view/explain";
import { fleetView } from "./view/fleet";
import { kioskView } from "./view/kiosk";
import { soundEnded } from "./view/outage_sound";
import { pathsView } from "./view/paths";
import { patientView, TREND_METRICS, WINDOWS_S } from "./view/patient";
import { noticesOf, quarantineView } from "./view/quarantine";
import { shellView } from "./view/shell";
import { signInView } from "./view/signin";
import { soundAlerts, tryToPlay } from "./view/sound";
import { applyTheme, theme } from "./view/theme";
import { wardView } from "./view/ward";

const TICK_MS = 500;
// Resolved alerts that are requested at the start.
const RESOLVED_ASKED = 20;
// Links are also changed from the command line.
const LINKS_MS = 2_000;
// Silences as well; each request is in the audit log.
const SILENCES_MS = 60_000;
// Readings that are kept apart as well.
const QUARANTINE_MS = 60_000;
// Gateways account for their readings once a minute.
const COMPLETENESS_MS = 60_000;
const NO_SUCH_ALERT = term("The alert of the link is not known here. It may have been removed, or it belongs to another tenant.");

const ENDED = term("Your session has ended. Sign in again.");
// The answer to a wall display's question for its session also renews its token.
const KIOSK_MS = 600_000;
const KIOSK_AGAIN_MS = 3_000;

const page = document.getElementById("page") as HTMLElement;
let teardown: () => void = () => {};

function showSignIn(notice = ""): void {
  teardown();
  teardown = () => {};
  signInView(page, notice, showWard);
}

// The end of a session is heard, because perhaps nobody looks.
function showEnded(): void {
  showSignIn(t(ENDED));
  soundEnded();
}

// The end of a wall display is heard and fills the page.
function showKioskEnded(name: string): void {
  teardown();
  teardown = () => {};
  const text = t("“{name}” shows no ward and sounds no alert any more. An administrator revoked it, or a backup was restored. A new link: braid accounts kiosk add.", { name });
  kioskView(page, t("This display was revoked"), text, () => showSignIn());
  tryToPlay();
  soundEnded();
}

function showWard(session: Session): void {
  teardown();
  rememberKiosk(session.kiosk);
  if (session.kiosk !== undefined) tryToPlay();
  const query = connect();
  const model = new Model();
  const sound = soundAlerts(model);
  const act = mayAct(session);
  let windowS: number = WINDOWS_S[0];

  const guarded = async <T>(call: Promise<T>): Promise<T> => {
    try {
      return await call;
    } catch (error) {
      if (isSignedOut(error)) ended();
      throw new Error(reason(error));
    }
  };
  const feed = new Feed(query, {
    update(response) {
      // Updates that waited for a page that slept are old. The new stream sends all again.
      if (sleep.beat()) return;
      model.apply(response);
      if (model.alerts.disagrees(model.alertTotals, performance.now())) loadAlerts();
      // Without a choice, the first patient with a reading is shown. Also when the address names a
      // patient who is not on this ward.
      const shown = model.patient();
      const first = model.patients.find(({ lastSeenUs }) => lastSeenUs > 0n) ?? model.patients[0];
      if (first && detail.element.checkVisibility() && (!shown || (!chosen && shown.lastSeenUs === 0n))) follow(first.id);
    },
    opened() {
      loadHistory(windowS);
      completeness.load();
      query.listAlerts({ onlyResolved: true, limit: RESOLVED_ASKED }).then(({ alerts }) => model.addAlerts(alerts), ignore);
      paths.reload();
      loadLinks();
      loadQuarantine();
      if (linked !== "") seekLinked();
      void loadSilences().finally(sound.begin);
    },
    connection(connection) {
      model.connection = connection;
      model.changed("connection");
    },
    signedOut: () => ended(),
  });
  // A wall display whose token was renewed, or that only a front refuses, asks for its session. It
  // goes on if there is one.
  let asking: number | undefined;
  const askKiosk = (name: string) => {
    asking ??= window.setTimeout(() => {
      current().then((held) => {
        asking = undefined;
        if (held?.kiosk === name) feed.watch(model.selected);
        else showKioskEnded(name);
      }, () => {
        asking = undefined;
        askKiosk(name);
      });
    }, KIOSK_AGAIN_MS);
  };
  const { kiosk } = session;
  const ended = () => (kiosk === undefined ? showEnded() : askKiosk(kiosk));
  const renewing = kiosk === undefined ? undefined : window.setInterval(() => void current().then(ignore, ignore), KIOSK_MS);

  const loadHistory = (nextS: number) => {
    windowS = nextS;
    const patient = model.selected;
    if (patient === "") return;
    const to = nowUs();
    const fromUs = to - BigInt(windowS) * 1_000_000n;
    query.getSeries({ patient, metrics: TREND_METRICS, fromUs, toUs: to, points: POINTS }).then((history) => {
      if (model.selected === patient) model.addHistory(history);
    }, ignore);
  };
  const loadAlerts = () => void query.listAlerts({ limit: OPEN_MAX }).then(({ alerts, counts }) => model.setOpenAlerts(alerts, counts), ignore);
  const loadLinks = () => void query.listLinks({}).then(({ links }) => model.setLinks(links), ignore);
  const loadSilences = () => query.listDocuments({ kind: "silence" }).then(({ documents }) => model.setSilences(documents), ignore);
  const loadQuarantine = () =>
    void query.listQuarantine({}).then((quarantine) => {
      model.setQuarantine(quarantine);
      model.setNotices("quarantine", noticesOf(quarantine));
    }, ignore);
  let route = routeOf(window.location);
  // The alert that the address names, until it has been shown.
  let linked = route.alert;
  const showLinked = () => {
    if (linked === "" || !alerts.open(linked)) return;
    linked = "";
    model.setNotices("link", []);
  };
  // Asks for the alert among those that have ended, too.
  const seekLinked = () => {
    const id = linked;
    query.listAlerts({ patient: route.patient, includeResolved: true, limit: OPEN_MAX }).then(({ alerts }) => {
      const found = alerts.filter((alert) => alert.id === id);
      model.addAlerts(found);
      const missing = found.length === 0 && linked === id;
      model.setNotices("link", missing ? [{ key: "link/alert", severity: "note", text: t(NO_SUCH_ALERT) }] : []);
    }, ignore);
  };
  // Whether a person or the address chose the patient.
  let chosen = route.patient !== "";
  const follow = (patient: string) => {
    if (patient === model.selected) return;
    model.select(patient);
    feed.watch(patient);
  };
  const go = (next: Route) => {
    if (pathOf(next) !== window.location.pathname) history.pushState(null, "", pathOf(next));
    arrive();
  };
  // arrive shows what the address names.
  const arrive = () => {
    route = routeOf(window.location);
    linked = route.alert;
    if (route.patient !== "") {
      chosen = true;
      follow(route.patient);
    }
    // The address of a message becomes the page's own.
    history.replaceState(null, "", pathOf(route));
    shell.show(route);
    if (linked === "") return;
    showLinked();
    if (linked !== "") seekLinked();
  };
  const select = (patient: string) => go(to("patients", patient));

  const ward = wardView(model, select);
  const detail = patientView(model, loadHistory);
  const completeness = completenessView(model, (patient, fromUs, toUs) => query.getProof({ patient, fromUs, toUs }));
  detail.element.append(completeness.element);
  const alerts = alertsView(model, {
    mayAct: act,
    select,
    async acknowledge(id, note) {
      const { alert } = await guarded(query.acknowledgeAlert({ id, note }));
      if (alert) model.addAlerts([alert]);
    },
    async withdraw(id) {
      const { alert } = await guarded(query.withdrawAcknowledgement({ id }));
      if (alert) model.addAlerts([alert]);
    },
    async silence({ patient, rule, hours, reason }) {
      const untilUs = BigInt(Math.round(nowMs() + hours * 3_600_000)) * 1000n;
      const subject = `silence-${crypto.randomUUID()}`;
      await guarded(query.putDocument({ kind: "silence", subject, version: 1, reason, untilUs, body: JSON.stringify({ patient, rule }) }));
      void loadSilences();
    },
    async endSilence({ subject, version, atUs, body }, reason) {
      // The silence's own beginning is in the past by every clock, even if this browser's is ahead.
      await guarded(query.putDocument({ kind: "silence", subject, version: version + 1, reason, untilUs: atUs, body }));
      void loadSilences();
    },
  });
  model.on("alerts", showLinked);
  const quarantine = quarantineView(model);
  const paths = pathsView(model, {
    mayAct: act,
    loadHistory(gateway, windowS) {
      const toUs = nowUs();
      query.getPaths({ gateway, fromUs: toUs - BigInt(windowS) * 1_000_000n, toUs }).then(({ reports }) => model.addPathHistory(gateway, reports), ignore);
    },
    async setLink(gateway, name, up) {
      await guarded(query.setLink({ gateway, name, up }));
      loadLinks();
    },
  });
  const fleet = fleetView(model);
  const explain = act ? explainView(model, { explain: (asked) => guarded(query.explainSteering(asked)) }) : undefined;
  const panels = { ward: ward.element, detail: detail.element, alerts: alerts.element, paths: paths.element, fleet: fleet.element, quarantine: quarantine.element };
  const shell = shellView(model, session, explain ? { ...panels, explain: explain.element } : panels, {
    go,
    signOut: () => void signOut().finally(() => showSignIn()),
  });
  page.replaceChildren(shell.element);
  feed.watch(route.patient);
  if (route.patient !== "") model.select(route.patient);
  arrive();
  window.addEventListener("popstate", arrive);
  window.addEventListener("hashchange", arrive);
  const tick = () => {
    ward.tick();
    alerts.tick();
    detail.draw();
    paths.draw();
    explain?.draw();
    fleet.draw();
    shell.tick();
  };
  const sleep = watchSleep(() => {
    model.sleptUntilNow();
    tick();
    feed.watch(model.selected);
  });
  const letScreenOff = keepScreenOn();
  const ticking = window.setInterval(() => sleep.beat() || tick(), TICK_MS);
  const linking = window.setInterval(loadLinks, LINKS_MS);
  const silencing = window.setInterval(() => void loadSilences(), SILENCES_MS);
  const quarantining = window.setInterval(loadQuarantine, QUARANTINE_MS);
  const completing = window.setInterval(completeness.load, COMPLETENESS_MS);
  teardown = () => {
    window.clearTimeout(asking);
    window.clearInterval(renewing);
    window.clearInterval(ticking);
    window.clearInterval(linking);
    window.clearInterval(silencing);
    window.clearInterval(quarantining);
    window.clearInterval(completing);
    window.removeEventListener("popstate", arrive);
    window.removeEventListener("hashchange", arrive);
    sleep.stop();
    letScreenOff();
    ward.stop();
    feed.stop();
  };
}

// Data beside the stream is requested again when the stream reopens, and the stream reports
// failures.
function ignore(): void {}

async function boot(): Promise<void> {
  applyTheme(theme());
  await loadTexts();
  const address = new URL(window.location.href);
  const code = address.searchParams.get("code");
  const kioskCode = address.searchParams.get("kiosk");
  if (code ?? kioskCode) {
    // The code leaves the address bar before anything else can copy it.
    address.searchParams.delete("code");
    address.searchParams.delete("kiosk");
    history.replaceState(null, "", address.pathname + address.search + address.hash);
  }
  try {
    const session = kioskCode ? await openKiosk(kioskCode) : ((await current()) ?? (code ? await exchange(code) : null));
    const kiosk = knownKiosk();
    if (session) showWard(session);
    else if (kiosk !== null) showKioskEnded(kiosk);
    else showSignIn();
  } catch (error) {
    const kiosk = knownKiosk();
    if (kiosk !== null && !(error instanceof SignInError)) {
      kioskView(page, t("The dashboard cannot be reached"), t("“{name}” shows no ward and sounds no alert. It tries again by itself.", { name: kiosk }));
      window.setTimeout(() => void boot(), KIOSK_AGAIN_MS);
      return;
    }
    showSignIn(error instanceof SignInError ? error.message : t("The dashboard cannot be reached. Reload to try again."));
  }
}

void boot();
