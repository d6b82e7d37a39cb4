// The page beside the gateway. It asks the gateway again and again, and says so when it gets no
// answer. Text from the gateway is always set as text.
"use strict";

const ASK_EVERY_MS = 2000;
const ANSWER_WITHIN_MS = 4000;
// Pause while the gateway slows this address.
const SLOWED_MS = 10_000;
// Without an answer for this time the page does not claim to know anything.
const LOST_AFTER_MS = 8000;
const BEEP_EVERY_MS = 2500;
const NAME_LENGTH_MAX = 60;
const TOKEN = "braid-carer-token";
const NAME = "braid-carer-name";

const WATCHED = {
  unknown: ["Asking the gateway", ""],
  watched: ["You are being watched over", ""],
  "no-network": ["Nobody hears you now", "No network reaches the centre. Alerts are shown here only."],
  "no-answer": ["Nobody hears you now", "The centre does not answer. Alerts are shown here only."],
  "no-readings": ["No sensor is heard", "The centre is reached, but no sensor sends values. Is it worn and charged?"],
  revoked: ["This gateway is out of service", "The centre has revoked it. It keeps nothing and watches over nobody."],
  lost: ["This page has lost the gateway", "The gateway does not answer. What is below is old."],
};
const WORDS = { spo2: "SpO2", news2: "NEWS2", ecg: "ECG" };

const at = (id) => document.getElementById(id);
// A private window may refuse to keep anything.
const kept = new Map();
const remembered = (key) => {
  try {
    return localStorage.getItem(key) ?? kept.get(key) ?? "";
  } catch {
    return kept.get(key) ?? "";
  }
};
const remember = (key, value) => {
  kept.set(key, value);
  try {
    localStorage.setItem(key, value);
  } catch {
    // The name or code holds until this page is closed.
  }
};

let state = null;
let answeredAt = performance.now();
let isRefused = false;
let naming = "";
let sound = null;

// The code may come in a link, which then does not stay in the history.
const linked = /^#token=(.+)$/.exec(location.hash);
if (linked) {
  remember(TOKEN, decodeURIComponent(linked[1]));
  history.replaceState(null, "", location.pathname);
}

async function ask(path, options = {}) {
  const token = remembered(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
  return fetch(path, { ...options, headers, signal, cache: "no-store" });
}

// A code that was refused is not sent again: wrong codes slow every program at this address.
async function look() {
  let pause = ASK_EVERY_MS;
  try {
    const response = isRefused ? null : await ask("v1/state");
    if (response?.status === 401 || response?.status === 403) {
      isRefused = true;
      at("code-error").textContent = remembered(TOKEN) ? "The gateway does not know this code." : "";
    } else if (response?.status === 429) {
      pause = SLOWED_MS;
      at("code-error").textContent = "Too many wrong codes came from here. Wait.";
    } else if (response?.ok) {
      state = await response.json();
      answeredAt = performance.now();
    }
  } catch {
    // The age of the last answer shows it.
  }
  show();
  setTimeout(look, pause);
}

function words(id) {
  const parts = id.split("-").map((part) => WORDS[part] ?? part);
  const text = parts.join(" ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h ago` : `${Math.round(hours / 24)} days ago`;
}

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function show() {
  const sinceMs = performance.now() - answeredAt;
  const isLost = sinceMs > LOST_AFTER_MS;
  let watched = state ? state.watched : "unknown";
  if (isLost) watched = "lost";
  if (isRefused) watched = "unknown";
  const [title, why] = WATCHED[watched] ?? WATCHED["no-answer"];
  document.body.dataset.watched = watched;
  set(at("watched"), isRefused ? "Please enter the code" : title);
  set(at("why"), isRefused ? "" : why);
  at("code").hidden = !isRefused;
  at("main").hidden = isRefused || !state || watched === "revoked";
  if (state && !isRefused) {
    showAlerts(sinceMs);
    showValues(sinceMs);
    showNetworks();
  }
}

// Unchanged text is left alone, so that a screen reader does not say it again.
function set(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function showAlerts(sinceMs) {
  const list = at("alerts");
  const known = new Map([...list.children].map((item) => [item.dataset.id, item]));
  at("no-alert").hidden = state.alerts.length > 0;
  const items = state.alerts.map((alert) => {
    const item = known.get(alert.id) ?? newAlert(alert);
    item.dataset.priority = alert.priority;
    item.dataset.acknowledged = alert.acknowledged_by ? "yes" : "no";
    set(item.querySelector(".when"), `, ${ago(alert.age_ms + sinceMs)}${alert.ended ? ", over" : ""}`);
    set(item.querySelector(".summary"), alert.summary);
    set(item.querySelector(".who"), alert.acknowledged_by ? `${alert.acknowledged_by} attends to it` : "Nobody attends to it yet");
    item.querySelector(".attend").hidden = Boolean(alert.acknowledged_by) || naming === alert.id;
    item.querySelector("form").hidden = Boolean(alert.acknowledged_by) || naming !== alert.id;
    return item;
  });
  const isSame = items.length === list.children.length && items.every((item, place) => list.children[place] === item);
  // The order waits while somebody types a name.
  if (!isSame && !list.contains(document.activeElement)) list.replaceChildren(...items);
  else for (const item of items) if (!item.isConnected) list.append(item);
}

function newAlert(alert) {
  const item = element("li", "", "alert");
  item.dataset.id = alert.id;
  // A screen reader says the name once, and not the age each second.
  const title = element("strong", "");
  const name = element("span", words(alert.rule));
  name.setAttribute("role", "alert");
  title.append(name, element("span", "", "when"));
  const attend = element("button", "I attend to it", "attend");
  attend.type = "button";
  const form = document.createElement("form");
  const label = element("label", "Your name");
  const input = document.createElement("input");
  input.id = `name-${alert.id}`;
  label.htmlFor = input.id;
  input.maxLength = NAME_LENGTH_MAX;
  input.required = true;
  input.autocomplete = "name";
  const confirm = element("button", "Confirm");
  confirm.type = "submit";
  const error = element("p", "", "error");
  error.setAttribute("role", "alert");
  form.append(label, input, confirm, error);
  attend.addEventListener("click", () => {
    naming = alert.id;
    input.value = remembered(NAME);
    show();
    input.focus();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    acknowledge(alert.id, input, error);
  });
  item.append(title, element("p", "", "summary"), element("p", "", "who"), attend, form);
  return item;
}

async function acknowledge(id, input, error) {
  const by = input.value.trim();
  error.textContent = "";
  try {
    const body = JSON.stringify({ id, by });
    const response = await ask("v1/alerts/acknowledge", { method: "POST", body });
    if (!response.ok && response.status !== 404) {
      error.textContent = (await response.json()).error;
      return;
    }
    remember(NAME, by);
    for (const alert of state.alerts) if (alert.id === id && response.ok) alert.acknowledged_by = by;
    naming = "";
    input.blur();
  } catch {
    error.textContent = "The gateway does not answer. Try again.";
  }
  show();
}

function showValues(sinceMs) {
  at("no-value").hidden = state.values.length > 0;
  const items = state.values.map((value) => {
    const item = element("li", "", "value");
    item.dataset.metric = value.metric;
    item.dataset.late = value.late ? "yes" : "no";
    const number = Number.isInteger(value.value) ? value.value : value.value.toFixed(1);
    item.append(element("span", words(value.metric)), element("b", `${number}`));
    item.append(element("span", `${ago(value.age_ms + sinceMs)}, ${value.device}`, "age"));
    return item;
  });
  at("values").replaceChildren(...items);
}

function showNetworks() {
  const items = state.accesses.map((access) => {
    const item = element("li", `${access.name}: ${access.up ? "works" : "does not work"}`);
    item.dataset.up = access.up ? "yes" : "no";
    return item;
  });
  at("accesses").replaceChildren(...items);
  const count = state.waiting;
  set(at("waiting"), count ? `${count} entries wait here until the centre takes them.` : "Nothing waits: the centre has everything.");
}

// Browsers play nothing before a touch.
at("sound").addEventListener("click", () => {
  sound = new AudioContext();
  at("sound").hidden = true;
  document.body.dataset.sound = "on";
  beep(600, 0.15);
});

function beep(hertz, seconds) {
  if (!sound) return;
  const tone = sound.createOscillator();
  const volume = sound.createGain();
  tone.frequency.value = hertz;
  volume.gain.setValueAtTime(0.4, sound.currentTime);
  volume.gain.exponentialRampToValueAtTime(0.001, sound.currentTime + seconds);
  tone.connect(volume).connect(sound.destination);
  tone.start();
  tone.stop(sound.currentTime + seconds);
  document.body.dataset.beeps = String(Number(document.body.dataset.beeps ?? 0) + 1);
}

setInterval(() => {
  const isHigh = state?.alerts.some((alert) => alert.priority === "high" && !alert.acknowledged_by);
  const isLost = performance.now() - answeredAt > LOST_AFTER_MS && !isRefused;
  if (isHigh) beep(960, 0.6);
  else if (isLost) beep(400, 0.4);
}, BEEP_EVERY_MS);
setInterval(show, 1000);

at("code").addEventListener("submit", (event) => {
  event.preventDefault();
  remember(TOKEN, at("code-text").value.trim());
  at("code-text").value = "";
  isRefused = false;
  show();
});
look();
