// Start: a session or the sign-in form, then the ward with its one Watch stream.
import "uplot/dist/uPlot.min.css";
import "./style/base.css";
import "./style/ward.css";
import "./style/monitor.css";
import "./style/side.css";
import { OPEN_MAX } from "./alerts";
import { connect, isSignedOut, reason } from "./client";
import { nowMs, nowUs } from "./clock";
import { Feed } from "./feed";
import { Model } from "./model";
import { keepScreenOn } from "./screen";
import { POINTS } from "./series";
import { current, exchange, knownKiosk, mayAct, openKiosk, rememberKiosk, signOut, SignInError, type Session } from "./session";
import { watchSleep } from "./sleep";
import { alertsView } from "./view/alerts";
import { kioskView } from "./view/kiosk";
import { soundEnded } from "./view/outage_sound";
import { pathsView } from "./view/paths";
import { patientView, TREND_METRICS, WINDOWS_S } from "./view/patient";
import { noticesOf, quarantineView } from "./view/quarantine";
import { shellView } from "./view/shell";
import { signInView } from "./view/signin";
import { soundAlerts, tryToPlay } from "./view/sound";
import { steeringView } from "./view/steering";
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
const NO_SUCH_ALERT = "The alert of the link is not known here. It may have been removed, or it belongs to another tenant.";

const ENDED = "Your session has ended. Sign in again.";
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
  showSignIn(ENDED);
  soundEnded();
}

// The end of a wall display is heard and fills the page.
function showKioskEnded(name: string): void {
  teardown();
  teardown = () => {};
  const text = `“${name}” shows no ward and sounds no alert any more. An administrator revoked it, or a backup was restored. A new link: braid accounts kiosk add.`;
  kioskView(page, "This display was revoked", text, () => showSignIn());
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
      // Also when the address names a patient who is not on this ward. A patient without any
      // reading is shown only when chosen.
      const shown = model.patient();
      const first = model.patients.find(({ lastSeenUs }) => lastSeenUs > 0n) ?? model.patients[0];
      if (first && (!shown || (!chosen && shown.lastSeenUs === 0n))) show(first.id);
    },
    opened() {
      loadHistory(windowS);
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
  // The alert that the address names, until it has been shown.
  let linked = linkedAlert();
  const showLinked = () => {
    if (linked === "" || !alerts.open(linked)) return;
    linked = "";
    model.setNotices("link", []);
  };
  // Asks for the alert among those that have ended, too.
  const seekLinked = () => {
    const id = linked;
    query.listAlerts({ patient: wanted(), includeResolved: true, limit: OPEN_MAX }).then(({ alerts }) => {
      const found = alerts.filter((alert) => alert.id === id);
      model.addAlerts(found);
      const missing = found.length === 0 && linked === id;
      model.setNotices("link", missing ? [{ key: "link/alert", severity: "note", text: NO_SUCH_ALERT }] : []);
    }, ignore);
  };
  // Whether a person or the address chose the patient.
  let chosen = wanted() !== "";
  const select = (patient: string) => {
    chosen = true;
    show(patient);
  };
  const show = (patient: string) => {
    if (patient === model.selected) return;
    history.replaceState(null, "", `#patient=${encodeURIComponent(patient)}`);
    model.select(patient);
    feed.watch(patient);
  };

  const ward = wardView(model, select);
  const detail = patientView(model, loadHistory);
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
  const steering = steeringView(model, {
    mayAct: act,
    explain: (asked) => guarded(query.explainSteering(asked)),
  });
  const shell = shellView(model, session, { ward: ward.element, detail: detail.element, alerts: alerts.element, paths: paths.element, steering: steering.element, quarantine: quarantine.element }, () => {
    void signOut().finally(() => showSignIn());
  });
  page.replaceChildren(shell.element);
  feed.watch(wanted());
  if (wanted() !== "") model.select(wanted());
  // A link of a message that is opened where the page is open already.
  const follow = () => {
    linked = linkedAlert();
    if (wanted() !== "") select(wanted());
    if (linked === "") return;
    showLinked();
    if (linked !== "") seekLinked();
  };
  window.addEventListener("hashchange", follow);
  const tick = () => {
    ward.tick();
    alerts.tick();
    detail.draw();
    paths.draw();
    steering.draw();
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
  teardown = () => {
    window.clearTimeout(asking);
    window.clearInterval(renewing);
    window.clearInterval(ticking);
    window.clearInterval(linking);
    window.clearInterval(silencing);
    window.clearInterval(quarantining);
    window.removeEventListener("hashchange", follow);
    sleep.stop();
    letScreenOff();
    ward.stop();
    feed.stop();
  };
}

// wanted is the patient that the address names.
function wanted(): string {
  return new URLSearchParams(window.location.hash.slice(1)).get("patient") ?? "";
}

// linkedAlert is the alert that the address names, as the link of a message does.
function linkedAlert(): string {
  return new URLSearchParams(window.location.hash.slice(1)).get("alert") ?? "";
}

// Data beside the stream is requested again when the stream reopens, and the stream reports
// failures.
function ignore(): void {}

async function boot(): Promise<void> {
  applyTheme(theme());
  const address = new URL(window.location.href);
  const code = address.searchParams.get("code");
  const kioskCode = address.searchParams.get("kiosk");
  if (code ?? kioskCode) {
    // The code leaves the address bar before anything else can copy it.
    address.searchParams.delete("code");
    address.searchParams.delete("kiosk");
    history.replaceState(null, "", address.pathname + address.hash);
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
      kioskView(page, "The dashboard cannot be reached", `“${kiosk}” shows no ward and sounds no alert. It tries again by itself.`);
      window.setTimeout(() => void boot(), KIOSK_AGAIN_MS);
      return;
    }
    showSignIn(error instanceof SignInError ? error.message : "The dashboard cannot be reached. Reload to try again.");
  }
}

void boot();
