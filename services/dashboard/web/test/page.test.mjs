// The page in a browser, against a running Braid. Its variables are BRAID_URL, BRAID_PASSWORD and
// BRAID_SENSORS of one, or BRAID_BIN, which is started as `braid up` on free ports and an empty
// directory. BRAID_SCREENSHOT is where the picture for the README goes.
//
// A simulated patient falls ill at the beginning (only when started here), so that by the end rules
// have raised alerts by themselves.
//
// Deadlines are for finding that something never happens; how fast it was is printed and not
// judged.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const DEADLINE = 40_000;
const ARGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-gpu", "--no-first-run"];
// A pulse takes its time to rise, and the rules wait before they call anybody.
const EPISODE_DEADLINE = 120_000;
const PATIENT = "patient-1";
const NAME = "Ada Berg";
// Values seen after a cut before it counts as survived.
const VALUES_AFTER_CUT = 8;

let browser, page, braid, startedAt, address, password, sensors, data;
const figures = {};

// start runs `braid up` and returns once it has printed where the page is.
async function start(bin) {
  data = mkdtempSync(join(tmpdir(), "braid-page-"));
  startedAt = performance.now();
  braid = spawn(bin, ["up", "--data", data, "--listen", "127.0.0.1:0", "--sensors", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "pipe"] });
  let out = "";
  let errors = "";
  braid.stderr.on("data", (chunk) => (errors = (errors + chunk).slice(-20_000)));
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`braid up printed no address:\n${out}\n${errors}`)), DEADLINE);
    braid.on("exit", (code) => reject(new Error(`braid up ended with ${code}:\n${out}\n${errors}`)));
    braid.stdout.on("data", (chunk) => {
      out += chunk;
      if (/sign in as admin with \S+/.test(out)) resolve(clearTimeout(timer));
    });
  });
  figures["address printed after start, s"] = (performance.now() - startedAt) / 1000;
  address = /https?:\/\/\S+\?code=\S+/.exec(out)[0];
  password = /sign in as admin with (\S+)/.exec(out)[1];
  sensors = `http://${JSON.parse(readFileSync(join(data, "up.json"), "utf8")).sensors}`;
}

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.BRAID_CHROMIUM ?? "/usr/bin/chromium", args: ARGS });
  const context = await browser.newContext({ viewport: { width: 1440, height: 960 }, colorScheme: "dark" });
  context.setDefaultTimeout(DEADLINE);
  page = await context.newPage();
  const failures = [];
  page.on("pageerror", (error) => failures.push(error.message));
  page.failures = failures;
  await page.goto("about:blank");
  if (process.env.BRAID_URL) {
    address = process.env.BRAID_URL;
    password = process.env.BRAID_PASSWORD;
    sensors = process.env.BRAID_SENSORS ?? "http://127.0.0.1:8090";
    startedAt = performance.now();
  } else {
    assert.ok(process.env.BRAID_BIN, "set BRAID_BIN to the braid binary, or BRAID_URL and BRAID_PASSWORD");
    await start(process.env.BRAID_BIN);
  }
});

after(async () => {
  await browser?.close();
  if (braid && braid.exitCode === null) {
    braid.removeAllListeners("exit");
    const ended = new Promise((resolve) => braid.once("exit", resolve));
    const at = performance.now();
    braid.kill("SIGINT");
    const forced = setTimeout(() => braid.kill("SIGKILL"), 15_000);
    await ended;
    clearTimeout(forced);
    figures["end after Ctrl-C, s"] = (performance.now() - at) / 1000;
  }
  if (data) rmSync(data, { recursive: true, force: true });
  for (const [name, value] of Object.entries(figures)) console.log(`# ${name}: ${typeof value === "number" ? value.toFixed(2) : value}`);
});

const reading = (metric) => page.locator(`.reading[data-metric="${metric}"]`);

// updates waits until a reading's or the strip's time has changed `count` times. It returns the
// longest pause in seconds, the time since the call included.
function updates(count) {
  return page.evaluate(
    ({ count, deadline }) =>
      new Promise((resolve, reject) => {
        const watched = [document.querySelector('.reading[data-metric="heart-rate"]'), document.querySelector(".strip")];
        let last = performance.now();
        let longest = 0;
        let seen = 0;
        const timer = setTimeout(() => reject(new Error(`${seen} of ${count} values in ${deadline} ms`)), deadline);
        const observer = new MutationObserver(() => {
          const now = performance.now();
          longest = Math.max(longest, now - last);
          last = now;
          if (++seen < count) return;
          clearTimeout(timer);
          observer.disconnect();
          resolve(longest / 1000);
        });
        for (const element of watched) observer.observe(element, { attributeFilter: ["data-time"] });
      }),
    { count, deadline: DEADLINE },
  );
}

async function signIn(page, secret = password) {
  await page.getByLabel("Name").fill("admin");
  await page.getByLabel("Password").fill(secret);
  await page.getByRole("button", { name: "Sign in" }).click();
}

async function measure(device, metric, value) {
  const response = await fetch(`${sensors}/v1/samples`, { method: "POST", body: `${JSON.stringify({ device, metric, value })}\n` });
  assert.equal(response.status, 200, await response.text());
}

async function select(patient) {
  await page.locator(`.patient[data-patient="${patient}"]`).click();
  await page.locator(`.patient[data-patient="${patient}"][aria-current="true"]`).waitFor();
}

test("nobody sees the ward without signing in", async () => {
  const origin = new URL(address).origin;
  const response = await fetch(`${origin}/braid.query.v1.QueryService/ListPatients`, {
    method: "POST",
    headers: { "content-type": "application/grpc-web+proto", "x-grpc-web": "1" },
    body: new Uint8Array(5),
  });
  assert.equal(response.status, 401);
});

test("the page opens and shows a first sample", async () => {
  await page.goto(address);
  if (!new URL(address).searchParams.has("code")) await signIn(page);
  await reading("heart-rate").and(page.locator("[data-time]")).waitFor();
  figures["first sample after start, s"] = (performance.now() - startedAt) / 1000;
  await page.locator('#connection[data-state="live"]').waitFor();
  assert.equal(new URL(page.url()).search, "", "the code has left the address bar");
  if (data) execFileSync(process.env.BRAID_BIN, ["episode", PATIENT, "tachycardia", "--data", data]);
});

test("a password signs in, a wrong one does not, and the code worked once", async () => {
  const context = await browser.newContext();
  context.setDefaultTimeout(DEADLINE);
  const other = await context.newPage();
  await other.goto(address);
  await other.locator("#name:focus").waitFor();
  assert.equal(await other.getByLabel("Name").inputValue(), "", "nobody's name stands there already");
  await signIn(other, "not the password");
  await other.getByText("Name or password is wrong.").waitFor();
  await signIn(other);
  await other.locator(".patient").first().waitFor();
  const cookies = await context.cookies();
  assert.ok(cookies.length > 0 && cookies.every((cookie) => cookie.httpOnly && cookie.sameSite === "Strict"));
  await other.getByRole("button", { name: "Sign out" }).click();
  await other.getByLabel("Password").waitFor();
  await context.close();
});

test("values move", async () => {
  await select(PATIENT);
  figures["longest pause undisturbed, s"] = await updates(VALUES_AFTER_CUT);
  assert.match(await reading("heart-rate").locator(".value").textContent(), /^[▲▼●]*\d+$/);
  await page.locator(".patient .score").first().waitFor();
  const drawn = await page.locator(".strip canvas").evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let coloured = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 0) coloured++;
    return coloured;
  });
  assert.ok(drawn > 100, "the strip is drawn");
});

for (const path of ["wifi", "lte"]) {
  test(`${path} is cut on the page and the values keep moving`, async () => {
    const card = page.locator(`.path[data-path="${path}"]`);
    await card.locator('.pill[data-state="up"], .pill[data-state="standby"]').waitFor();
    const moving = updates(VALUES_AFTER_CUT);
    await card.getByRole("button", { name: /^Cut/ }).click();
    await card.locator('.pill[data-state="cut"]').waitFor();
    // The pauses from before the cut until well after it.
    figures[`longest pause when ${path} is cut, s`] = Math.max(await moving, await updates(VALUES_AFTER_CUT));
    await card.getByRole("button", { name: /^Restore/ }).click();
    await card.locator('.pill[data-state="up"], .pill[data-state="standby"]').waitFor();
  });
}

test("an alert appears and is acknowledged", async () => {
  // A worn sensor sends it: later on the guest is silent.
  await measure("guest-sensor", "heart-rate", 70);
  const postedAt = performance.now();
  await measure("guest-sensor", "systolic-pressure", 70);
  const alert = page.locator('.alert[data-priority="high"]', { hasText: "Guest" }).first();
  await alert.waitFor();
  figures["alert on the page after its sample, s"] = (performance.now() - postedAt) / 1000;
  await alert.getByLabel("Note").fill("measured again, cuff had slipped");
  await alert.getByRole("button", { name: "Acknowledge" }).click();
  const acknowledged = page.locator('.alert:is([data-state="acknowledged"], [data-state="resolved"])', { hasText: "cuff had slipped" });
  await acknowledged.first().waitFor({ state: "attached" });
  assert.match(await acknowledged.first().textContent(), /admin: “measured again/);
});

for (const [which, offMs] of [["ahead", 600_000], ["behind", -600_000]]) {
  test(`a browser whose clock is ${which} tells who is silent`, async () => {
    const context = await browser.newContext();
    context.setDefaultTimeout(DEADLINE);
    await context.addInitScript((offMs) => {
      const now = Date.now.bind(Date);
      Date.now = () => now() + offMs;
    }, offMs);
    const other = await context.newPage();
    await other.goto(new URL(address).origin);
    await signIn(other);
    // The guest's one pulse is of a while ago.
    await other.locator('.patient[data-patient="guest"][data-silent]').waitFor({ timeout: EPISODE_DEADLINE });
    await other.locator(`.patient[data-patient="${PATIENT}"]:not([data-silent])`).waitFor();
    await context.close();
  });
}

test("an alert's rule is silenced for its patient, with a reason", async () => {
  const alert = page.locator(".alert", { hasText: "Guest" }).first();
  await alert.getByText("Silence", { exact: true }).first().click();
  const silence = alert.getByRole("button", { name: "Silence", exact: true });
  // Without a reason nothing is sent.
  await silence.click();
  assert.equal(await alert.getByLabel("Reason").evaluate((reason) => reason.validity.valueMissing), true);
  await alert.getByLabel("For how long").selectOption("2 hours");
  await alert.getByLabel("Reason").fill("new cuff is on its way");
  await silence.click();
  const row = page.locator("[data-silence]", { hasText: "new cuff is on its way" });
  await row.waitFor({ state: "attached" });
  assert.match(await row.textContent(), /^Guest.*, \S+ · until .* · admin: “new cuff/);
});

test("a silence is ended before its time, with a reason", async () => {
  await page.locator(".alerts-panel > details > summary", { hasText: /^Silenced/ }).click();
  const row = page.locator("[data-silence]", { hasText: "new cuff is on its way" });
  await row.locator("> .silence").getByText("End", { exact: true }).click();
  const end = row.getByRole("button", { name: "End silence", exact: true });
  await end.click();
  assert.equal(await row.locator("> .silence").getByLabel("Reason").evaluate((reason) => reason.validity.valueMissing), true);
  if (process.env.BRAID_SILENCE_SCREENSHOT) await page.screenshot({ path: process.env.BRAID_SILENCE_SCREENSHOT });
  await row.locator("> .silence").getByLabel("Reason").fill("the cuff is here");
  await end.click();
  await row.waitFor({ state: "detached" });
});

test("the page works by keyboard and at the width of a phone", async () => {
  const cards = page.locator(".patient");
  await cards.first().focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await page.locator('.patient[aria-current="true"]:focus').waitFor();
  await page.setViewportSize({ width: 390, height: 844 });
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(overflow, 0, "nothing sticks out sideways");
  await page.setViewportSize({ width: 1440, height: 960 });
});

test("a patient is found by name, from the keyboard, and the choice ends the search", async () => {
  const cards = page.locator(".patient");
  const all = await cards.count();
  await page.locator(".patient").first().focus();
  await page.keyboard.press("/");
  const search = page.getByRole("searchbox", { name: "Find a patient" });
  await page.keyboard.type("BRUN conti");
  assert.equal(await search.inputValue(), "BRUN conti", "the key that leads here is not written");
  await page.locator(".ward header", { hasText: `1 of ${all}` }).waitFor();
  assert.deepEqual(await cards.locator(".name").allTextContents(), ["Bruno Conti patient-2"]);
  await page.keyboard.press("Enter");
  await page.locator('.patient[data-patient="patient-2"][aria-current="true"]').waitFor();
  assert.deepEqual([await search.inputValue(), await cards.count()], ["", all], "everybody is in sight again");
  await search.fill("nobody of this name");
  await page.getByText("No patient has this name.").waitFor();
  await page.keyboard.press("Escape");
  await page.locator(".ward header", { hasText: `${all}, worst first` }).waitFor();
  await search.fill("a");
  await page.keyboard.press("ArrowDown");
  await page.locator(".patient:focus").waitFor();
  await search.fill("");
});

test("an episode of a simulated patient raises an alert and moves the patient up", async (t) => {
  if (!data) return t.skip("only with BRAID_BIN");
  const alert = page.locator(".alert", { hasText: NAME }).first();
  await alert.waitFor({ timeout: EPISODE_DEADLINE });
  await page.locator(`.patient[data-patient="${PATIENT}"] .chip:visible`).waitFor();
  if (!process.env.BRAID_SCREENSHOT) return;
  await select(PATIENT);
  // Long enough for the charts to show something, and without the focus ring of the click that
  // selected.
  await updates(VALUES_AFTER_CUT);
  await page.evaluate(() => document.activeElement?.blur());
  await page.screenshot({ path: process.env.BRAID_SCREENSHOT });
});

test("a lost connection is shown, and the page comes back by itself", async () => {
  await page.context().setOffline(true);
  // A running stream survives that switch; a new one does not.
  await page.locator(".patient").last().click();
  await page.locator('#connection[data-state="lost"]').waitFor();
  await page.context().setOffline(false);
  await page.locator('#connection[data-state="live"]').waitFor();
});

test("a long name pushes nothing out of sight", async (t) => {
  if (!data) return t.skip("only with BRAID_BIN");
  const name = `Ada ${"Wolfeschlegelsteinhausen".repeat(4)}`;
  execFileSync(process.env.BRAID_BIN, ["register", "--create", "--device", "long-sensor", "--patient", "long", "--name", name, "--gateway", "gw-1", "--data", data]);
  await measure("long-sensor", "systolic-pressure", 70);
  const acknowledge = page.locator('.alert[data-priority="high"]', { hasText: name }).getByRole("button", { name: "Acknowledge" });
  await acknowledge.waitFor();
  const right = async (element) => element.evaluate((it) => it.getBoundingClientRect().right);
  assert.ok((await right(acknowledge)) <= (await right(page.locator(".alerts-panel"))), "its alert can be acknowledged");
  // Rows are held under a pointer, so a new card waits while one rests on the ward.
  await page.mouse.move(0, 0);
  await select("long");
  const sideways = await page.locator("body, .detail, .alerts").evaluateAll((all) => all.filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.className));
  assert.deepEqual(sideways, [], "nothing sticks out sideways");
  await select(PATIENT);
});

test("a new alert of high priority sounds where somebody has asked for it, unless its rule is silenced", async (t) => {
  if (!data) return t.skip("only with BRAID_BIN");
  const context = await browser.newContext();
  context.setDefaultTimeout(DEADLINE);
  await context.addInitScript(() => {
    window.tones = 0;
    const start = OscillatorNode.prototype.start;
    OscillatorNode.prototype.start = function (...when) {
      window.tones++;
      start.apply(this, when);
    };
  });
  const other = await context.newPage();
  const tones = () => other.evaluate(() => window.tones);
  const sound = (state) => other.getByRole("button", { name: `Sound: ${state}`, exact: true });
  // falls has a person fall ill whom nobody knew, and waits until the page has the alert.
  const falls = async (id, more = async () => {}) => {
    execFileSync(process.env.BRAID_BIN, ["register", "--create", "--device", `${id}-sensor`, "--patient", id, "--name", id, "--gateway", "gw-1", "--data", data]);
    await more();
    await measure(`${id}-sensor`, "systolic-pressure", 70);
    // A silenced one is in a closed part of the panel.
    await other.locator('.alert[data-priority="high"]', { hasText: id }).waitFor({ state: "attached" });
  };
  const signed = ["--by", "Eve", "--reason", "a test", "--data", data];
  await other.goto(new URL(address).origin);
  await signIn(other);
  await sound("off").waitFor();
  await falls("Unheard");
  assert.equal(await tones(), 0, "nobody has asked for it");
  await sound("off").click();
  await sound("on").waitFor();
  const sample = await tones();
  assert.ok(sample > 0, "it is heard when it is asked for");
  await falls("Hushed", async () => {
    execFileSync(process.env.BRAID_BIN, ["alerts", "silence", "--patient", "Hushed", "--hours", "1", ...signed]);
    await other.reload();
    await other.locator("[data-silence]").first().waitFor({ state: "attached" });
  });
  // The choice is remembered; a browser may want a touch before it plays again.
  await other.locator("h1").click();
  await sound("on").waitFor();
  const before = await tones();
  await falls("Heard");
  await other.waitForFunction((before) => window.tones > before, before);
  assert.equal(await tones(), before + sample, "once, and not for who is silenced");
  await sound("on").click();
  await sound("off").waitFor();
  await context.close();
});

test("no script failed on the way", async () => {
  await select(PATIENT);
  await updates(VALUES_AFTER_CUT);
  assert.deepEqual(page.failures, []);
});
