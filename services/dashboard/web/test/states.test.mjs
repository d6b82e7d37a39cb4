// The page in the states that hurt: many patients, more alerts than fit on a screen, and somebody
// behind a lost gateway. Also with everything cut, and with the dashboard away. Against the example
// `fake_ward` of the dashboard's crate: BRAID_FAKE_WARD is its binary. With BRAID_STATES=DIR each
// state is also a picture there.
//
// How fast many alerts are open is printed and judged: the best of three reloads must reach the
// target.
import assert from "node:assert/strict";
import { availableParallelism, loadavg } from "node:os";
import { after, before, test } from "node:test";
import { DEADLINE, go, open, picture as pictureOf, signIn, startBrowser, startWard } from "./ward.mjs";

const PATIENTS = 300;
const ALERTS = 306;
// With those that the ward has without being asked: the three of its patients and the lost
// gateway's.
const ALERTS_ALL = ALERTS + 4;
// Alerts shown at first.
const PAGE = 50;
const OPEN_S_TARGET = 1;
// Above so many runnable processes a core, the time to open is printed and not judged.
const BUSY_LOAD = 2;

let browser, context, page, ward, address, password;
const figures = [];

before(async () => {
  ward = await startWard(PATIENTS, ALERTS);
  ({ address, password } = ward);
  browser = await startBrowser();
  // When the page first held a page of alerts, by its own clock.
  page = await open(browser, {}, (count) => {
    const look = () => {
      if (document.querySelectorAll(".alerts:not(.past) > .alert").length < count) return requestAnimationFrame(look);
      requestAnimationFrame(() => (window.openedMs = performance.now()));
    };
    requestAnimationFrame(look);
  }, PAGE);
  context = page.context();
});

after(async () => {
  await browser?.close();
  await ward?.stop();
  for (const [name, measured, target] of figures) console.log(`# ${name}: ${measured.toFixed(2)} (target ${target.toFixed(2)})`);
});

const picture = (name, of = page) => pictureOf(of, name);

// shown waits for a banner, which may be behind the button for the less severe ones.
async function shown(of, code, options) {
  const banner = of.locator(`.banner[data-code="${code}"]`, options);
  const more = of.locator('.banner-more[aria-expanded="false"]');
  await banner.or(more).first().waitFor();
  if (!(await banner.isVisible())) await more.click();
  await banner.waitFor();
}

const card = (patient) => page.locator(`.patient[data-patient="${patient}"]`);

test("the page holds every open alert, the active fall first", async () => {
  await signIn(page, ward);
  await page.locator(".alerts-panel header", { hasText: `${ALERTS_ALL} to acknowledge` }).waitFor();
  const rest = ALERTS_ALL - PAGE;
  const more = page.getByRole("button", { name: `Show ${PAGE} more of ${rest} less urgent` });
  await more.waitFor();
  const rows = page.locator(".alerts-panel > .alerts:not(.past) > .alert");
  assert.equal(await rows.count(), PAGE);
  const first = page.locator(".alerts:not(.past) > .alert").first();
  await page.locator(".alerts:not(.past) > .alert:first-child[data-priority=high]").waitFor();
  const highs = await page.locator('.alerts:not(.past) > .alert[data-priority="high"] .summary').allTextContents();
  assert.ok(highs.some((summary) => summary.startsWith("Fall")), highs.join());
  assert.deepEqual([await first.getAttribute("data-priority"), await first.getAttribute("data-state")], ["high", "active"]);
  assert.equal(await page.locator('.alert[data-priority="high"]').last().getAttribute("data-state"), "latched", "what has ended is behind what lasts");
  assert.equal(await page.locator("#alerts-more").isVisible(), false, "nothing is left out");
  await picture("1-many-alerts");
  await more.click();
  await rows.nth(2 * PAGE - 1).waitFor();
  assert.ok(await rows.nth(PAGE).evaluate((row) => row === document.activeElement), "the focus goes on at the first new row");
});

test("how fast many alerts are open", async (t) => {
  // The best of several, so that another process on this machine does not decide it.
  const times = [];
  for (let n = 0; n < 3 || (n < 8 && Math.min(...times) > OPEN_S_TARGET); n++) {
    await page.reload();
    await page.waitForFunction(() => window.openedMs > 0);
    times.push((await page.evaluate(() => window.openedMs)) / 1000);
  }
  figures.push([`${ALERTS_ALL} alerts open after a reload, best of ${times.length}, s`, Math.min(...times), OPEN_S_TARGET]);
  figures.push([`${ALERTS_ALL} alerts open after a reload, worst of ${times.length}, s`, Math.max(...times), OPEN_S_TARGET]);
  const waiting = loadavg()[0] / availableParallelism();
  if (waiting > BUSY_LOAD) {
    t.diagnostic(`not judged: ${waiting.toFixed(1)} processes a core want to run, more than ${BUSY_LOAD}`);
    return;
  }
  assert.ok(Math.min(...times) <= OPEN_S_TARGET, `${times.join(" s, ")} s; at most ${OPEN_S_TARGET} s`);
});

// focused waits until the alert has the focus, and returns whether it is in sight within its list.
async function focused(of, id) {
  await of.waitForFunction((id) => document.activeElement?.getAttribute("data-alert") === id, id);
  return of.evaluate(() => {
    const row = document.activeElement.getBoundingClientRect();
    const list = document.activeElement.closest("ul").getBoundingClientRect();
    const top = Math.max(0, list.top);
    const bottom = Math.min(window.innerHeight, list.bottom);
    return row.top >= top - 1 && row.bottom <= bottom + 1;
  });
}

test("the link of a message opens its alert", async () => {
  const other = await context.newPage();
  // Far down the list: number 200 of 306 of low priority.
  await other.goto(`${address}/#patient=patient-1&alert=many-200`);
  assert.ok(await focused(other, "many-200"), "it is in sight");
  await other.locator('.alert[data-alert="many-200"][data-linked]').waitFor();
  await other.locator('.patient[data-patient="patient-1"][aria-current="true"]').waitFor();
  await picture("1-linked-alert", other);
  // Another link where the page is open already, of a gateway without a patient.
  await other.evaluate(() => (window.location.hash = "#alert=silent-gw-2"));
  assert.ok(await focused(other, "silent-gw-2"), "it is in sight");
  assert.equal(await other.locator(".alert[data-linked]").count(), 1);
  await other.evaluate(() => (window.location.hash = "#patient=patient-2&alert=never-raised"));
  await shown(other, "link/alert");
  await other.close();
});

test("readings of no patient are counted and listed with what can be done", async () => {
  await shown(page, "quarantine/entries", { hasText: "15 readings, gaps or alerts" });
  await go(page, "fleet");
  const panel = page.locator(".quarantine-panel");
  await panel.getByText("15 kept apart").waitFor();
  const rows = await panel.locator("li").allTextContents();
  assert.equal(rows.length, 2);
  assert.ok(rows.some((row) => row.startsWith("stray-belt at gw-1: 12 entries")), rows.join());
  assert.ok(rows.every((row) => row.includes("the sensor is not registered")), rows.join());
  assert.match(await panel.textContent(), /braid quarantine assign.*braid quarantine discard/);
  await go(page, "ward");
});

test("who fell is the first card, not calm, and named in words on card and panel", async () => {
  const fallen = card("patient-150");
  await page.locator('.patient[data-patient="patient-150"][data-alarm="high"]').waitFor();
  const cards = await page.locator(".patient").evaluateAll((all) => all.slice(0, 2).map((it) => it.dataset.patient));
  assert.ok(cards.includes("patient-150"), cards.join());
  assert.match(await fallen.locator(".words").textContent(), /^Fall, \d+ min ago$/);
  assert.doesNotMatch(await fallen.textContent(), /low risk/);
  assert.equal(await fallen.locator(".score").getAttribute("data-risk"), "alert");
  await fallen.click();
  await page.locator('.detail[data-alarm="high"]').waitFor();
  assert.match(await page.locator(".own-alerts").textContent(), /^!!!Fall: a blow of 2\.5 g or more, then no movement for 10 s · \d+ min ago · active$/);
  assert.doesNotMatch(await page.locator(".patient-head").textContent(), /low risk/);
  const calm = await page.evaluate(() => {
    const calm = getComputedStyle(document.documentElement).getPropertyValue("--calm");
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = calm;
    const colour = getComputedStyle(probe).color;
    probe.remove();
    const scores = document.querySelectorAll('.detail .score, .patient[data-patient="patient-150"] .score');
    return [...scores].filter((score) => getComputedStyle(score).backgroundColor === colour).length;
  });
  assert.equal(calm, 0, "no score of theirs is green");
  // The register is read again some time after the start of the ward.
  await page.locator(".left-out").filter({ hasText: /^1 patient without a sensor not listed/ }).waitFor();
  assert.equal(await card("patient-home").count(), 0);
  await picture("2-fallen");
});

test("who is behind a lost gateway has no score, comes behind open high alerts, and the page says since when and why", async () => {
  await page.locator('.patient[data-patient="patient-4"][data-silent]').waitFor();
  assert.equal(await page.locator('.patient:not([data-alarm="high"])').first().getAttribute("data-patient"), "patient-4");
  assert.equal(await card("patient-4").locator(".score").textContent(), "?");
  assert.match(await card("patient-4").locator(".why").textContent(), /^unknown since \S* ?.*\d\d:\d\d: the cause is the path: lte, wifi lost before$/);
  await card("patient-4").click();
  await page.locator(".detail[data-silent]").waitFor();
  assert.equal(await page.locator(".detail .score").textContent(), "?");
  assert.match(await page.locator(".score-text").textContent(), /unknown since .*\d\d:\d\d:\d\d \(\d+ min ago\): the cause is the path/);
  assert.ok(Number(await page.locator(".detail .strip").evaluate((strip) => getComputedStyle(strip).opacity)) < 0.6, "the strip is dimmed");
  await picture("2-lost-gateway");
});

test("of whom nothing ever arrived is unknown and not well", async () => {
  // A pointer that rests on the ward would hold new cards.
  await page.mouse.move(0, 0);
  const fresh = card("patient-new");
  await fresh.scrollIntoViewIfNeeded();
  assert.equal(await fresh.locator(".score").textContent(), "?");
  assert.equal(await fresh.locator(".score").getAttribute("data-risk"), "unknown");
  assert.match(await fresh.locator(".why").textContent(), /unknown: no reading has ever arrived/);
  await fresh.click();
  await page.locator('.patient[data-patient="patient-new"][aria-current]').waitFor();
  await picture("3-no-data-ever");
});

test("a second click at one point acknowledges nobody else, and the first is taken back", async () => {
  await page.evaluate(() => (document.querySelector(".alerts").scrollTop = 0));
  const acknowledged = () => page.locator('.alert[data-state="acknowledged"]').count();
  const row = page.locator('.alert[data-alert="many-7"]');
  await row.scrollIntoViewIfNeeded();
  const button = await row.getByRole("button", { name: "Acknowledge" }).boundingBox();
  const [x, y] = [button.x + button.width / 2, button.y + button.height / 2];
  const before = await acknowledged();
  // Playwright moves the pointer with each click of its own; a hand that rests does not.
  await page.mouse.move(x, y);
  const startedAt = Date.now();
  for (const atMs of [0, 200, 500, 900]) {
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, startedAt + atMs - Date.now())));
    await page.mouse.down();
    await page.mouse.up();
  }
  await row.and(page.locator('[data-state="acknowledged"]')).waitFor();
  const undo = page.locator(".alerts-bar .undo");
  await undo.filter({ hasText: "Battery at 14 %" }).waitFor();
  const after = await row.boundingBox();
  assert.ok(after.y <= y && y <= after.y + after.height, "the row stands where it was clicked");
  assert.equal(await acknowledged(), before + 1);
  await picture("4-acknowledged");
  await undo.click();
  await page.locator('.alert[data-alert="many-7"][data-state="active"]').waitFor();
  assert.equal(await acknowledged(), before);
  await page.mouse.move(700, 500);
});

test("a new fall is told on a line of its own while rows are held, and is first once they are not", async () => {
  const list = page.locator(".alerts").first();
  await list.evaluate((list) => (list.scrollTop = 0));
  const first = list.locator(".alert").first();
  const place = () =>
    list.evaluate((list) => {
      const row = list.querySelector(".alert");
      return [row.getAttribute("data-alert"), row.getBoundingClientRect().top - list.getBoundingClientRect().top];
    });
  const before = await place();
  const news = page.locator('.alerts-bar .news[data-priority="high"]', { hasText: "!!! Fall, Patient 7, show" });
  // A banner that comes meanwhile moves the whole list, and the pointer follows it.
  const follow = async () => {
    const box = await first.boundingBox();
    await page.mouse.move(box.x + 20, box.y + 20);
  };
  await follow();
  ward.say("fall");
  for (const until = Date.now() + DEADLINE; !(await news.isVisible()) && Date.now() < until; ) await follow();
  await news.waitFor();
  assert.deepEqual(await place(), before, "nothing has moved");
  await picture("4-held");
  await page.mouse.move(700, 500);
  await page.locator('.alerts > .alert:first-child[data-alert="fell-now"]').waitFor();
  assert.equal(await page.locator(".alerts-bar .news").isVisible(), false);
});

test("nothing sticks out on a phone and on a wall screen", async () => {
  for (const [name, width, height] of [["4-phone", 390, 844], ["5-wall", 2560, 1440]]) {
    await page.setViewportSize({ width, height });
    await picture(name);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.equal(overflow, 0, name);
    if (name !== "4-phone") continue;
    // The pill leads to the first alert, and does not hide it.
    await page.locator(".alarm").click();
    await page.waitForFunction(() => {
      const first = document.querySelector(".alerts > .alert").getBoundingClientRect();
      return first.top >= document.querySelector(".top").getBoundingClientRect().bottom && first.top < window.innerHeight / 2;
    });
    await picture("4-phone-alerts");
    await go(page, "ward");
  }
  await page.setViewportSize({ width: 1440, height: 960 });
});

test("when everything is cut nobody stays green", async () => {
  await card("patient-1").click();
  await page.locator('.patient[data-patient="patient-1"]:not([data-silent])').waitFor();
  await page.locator('.patient .score[data-risk="low"]').nth(3).waitFor();
  ward.say("cut");
  await page.waitForFunction(() => document.querySelectorAll('.patient .score:not([data-risk="unknown"])').length === 0);
  // Nor does anybody down the list.
  await page.locator(".patients").evaluate((list) => (list.scrollTop = list.scrollHeight));
  await page.locator('.patient[data-patient="patient-99"] .score[data-risk="unknown"], .patients > :last-child .score[data-risk="unknown"]').first().waitFor();
  await page.locator(".patients").evaluate((list) => (list.scrollTop = 0));
  await page.locator(".ecg[data-stale]").waitFor();
  assert.match(await page.locator(".strip-ended").textContent(), /^ended \d\d:\d\d:\d\d/);
  // No service takes the ward's readings, which is known some time after its start.
  await page.locator('#connection:not([data-state="live"])').waitFor();
  await picture("6-all-cut");
  ward.say("restore");
  await page.locator('.patient .score[data-risk="low"]').nth(3).waitFor();
});

test("when the dashboard is away the page dims everything and says since when", async () => {
  ward.kill("SIGSTOP");
  // The fake ward has no alerting, of which the dashboard warns by banners of its own.
  const banner = page.locator('.banner[data-severity="critical"]', { hasText: "not up to date" });
  await banner.waitFor();
  assert.match(await banner.textContent(), /not up to date.* Since \d\d:\d\d:\d\d\./);
  assert.equal(await page.locator('.patient .score:not([data-risk="unknown"])').count(), 0);
  assert.ok(Number(await page.locator(".strip").evaluate((strip) => getComputedStyle(strip).opacity)) < 0.6);
  await picture("7-dashboard-away");
  await page.setViewportSize({ width: 390, height: 844 });
  await picture("8-dashboard-away-phone");
  await page.setViewportSize({ width: 1440, height: 960 });
  ward.kill("SIGCONT");
  await banner.waitFor({ state: "detached" });
  await page.locator('.patient .score[data-risk="low"]').first().waitFor();
});

test("a tab that was frozen says at once that it is old when it wakes", async () => {
  const frozen = await context.newPage();
  await frozen.goto(address);
  await frozen.locator('.patient .score[data-risk="low"]').first().waitFor();
  await frozen.evaluate(() => {
    window.beatMs = performance.now();
    window.setInterval(() => {
      const now = performance.now();
      if (now - window.beatMs > 4_000) window.wokeMs = now;
      window.beatMs = now;
    }, 100);
    new MutationObserver(() => {
      if (!document.querySelector("[data-out-of-date]")) return;
      window.dimMs ??= performance.now();
      window.calm ??= document.querySelectorAll('.patient .score:not([data-risk="unknown"])').length;
    }).observe(document.body, { subtree: true, attributeFilter: ["data-out-of-date"] });
  });
  // The ward comes back from the test before, and its updates may be late once.
  await frozen.locator("[data-out-of-date]").waitFor({ state: "detached" });
  await frozen.evaluate(() => {
    window.dimMs = window.calm = undefined;
  });
  // Nothing of the page runs meanwhile, and what the server sends waits.
  const debug = await context.newCDPSession(frozen);
  await debug.send("Debugger.enable");
  await debug.send("Debugger.pause");
  await new Promise((resolve) => setTimeout(resolve, 6_000));
  await debug.send("Debugger.resume");
  await debug.send("Debugger.disable");
  await frozen.waitForFunction(() => window.wokeMs > 0 && window.dimMs > 0);
  const [lateMs, calm] = await frozen.evaluate(() => [window.dimMs - window.wokeMs, window.calm]);
  assert.ok(lateMs < 700, `${lateMs} ms after it woke`);
  assert.equal(calm, 0);
  // And no longer, once the ward has arrived anew.
  await frozen.locator("[data-out-of-date]").waitFor({ state: "detached" });
  await frozen.locator('.patient .score[data-risk="low"]').first().waitFor();
  // As a browser does that says so: nothing comes first.
  const resumed = await frozen.evaluate(() => {
    document.dispatchEvent(new Event("resume"));
    return [document.querySelector("[data-out-of-date]") !== null, document.querySelectorAll('.patient .score:not([data-risk="unknown"])').length];
  });
  assert.deepEqual(resumed, [true, 0]);
  await frozen.locator("[data-out-of-date]").waitFor({ state: "detached" });
  await frozen.close();
});

test("the screen is kept on while the ward is shown, and no longer", async () => {
  const wall = await browser.newContext({ viewport: { width: 1440, height: 960 } });
  wall.setDefaultTimeout(DEADLINE);
  await wall.addInitScript(() => {
    window.locks = [];
    WakeLock.prototype.request = async () => {
      const lock = { released: false, release: async () => void (lock.released = true) };
      window.locks.push(lock);
      return lock;
    };
  });
  const display = await wall.newPage();
  await display.goto(address);
  await display.getByLabel("Name").fill("viewer");
  await display.getByLabel("Password").fill(password);
  assert.equal(await display.evaluate(() => window.locks.length), 0);
  await display.getByRole("button", { name: "Sign in" }).click();
  await display.waitForFunction(() => window.locks.length === 1);
  // As a browser does when the page is hidden, and shown again.
  await display.evaluate(() => {
    document.dispatchEvent(new Event("visibilitychange"));
    window.locks[0].released = true;
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await display.waitForFunction(() => window.locks.length === 2);
  await display.getByRole("button", { name: "Sign out" }).click();
  await display.waitForFunction(() => window.locks[1].released);
  await wall.close();
});

const RULE = "<img src=x onerror=alert(1)>";

test("of 200 gateways the accesses nearest to their cap come first, and a search finds the others", async () => {
  await go(page, "fleet");
  const panel = page.locator(".fleet-panel");
  const rows = panel.locator("li");
  await rows.nth(39).waitFor();
  assert.equal(await rows.count(), 40);
  assert.match(await panel.locator("header").textContent(), /20[1-9] gateways · \d+ near a cap/);
  const first = await rows.first().textContent();
  assert.match(first, /gw-202 lte steering v1.*of 5\.00 GB: the cap is reached until day 15 \(Europe\/Zurich\) · costs 26\.99 so far.*spill/);
  assert.equal(await rows.first().getAttribute("data-cap"), "reached");
  assert.match(await panel.locator(".more").textContent(), /^36\d more .* not shown/);
  await picture("3-data-of-200-gateways");
  await panel.locator("input.search").fill("gw-30 wifi");
  await rows.nth(0).waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".accesses li").length === 1);
  assert.match(await rows.textContent(), /gw-30 wifi.*31\.00 GB since day 1, no cap/);
  await panel.locator("input.search").fill("no such");
  await panel.getByText("No gateway has this name.").waitFor();
  await panel.locator("input.search").fill("");
  await go(page, "ward");
});

test("a person who acts asks why a flow takes which access, and names are shown as text", async () => {
  await card("patient-1").click();
  const paths = page.locator('.path[data-path="lte"] .use');
  await paths.getByText("4.90 GB of 5.00 GB, 100 MB left until day 15 (Europe/Zurich) · costs 19.60 so far").waitFor();
  assert.ok((await paths.textContent()).includes(`${RULE} (priority), no rule (auto) · spill`), await paths.textContent());
  await go(page, "paths");
  const panel = page.locator(".explain");
  assert.equal(await panel.getByLabel("Gateway").inputValue(), "gw-1");
  await panel.getByLabel("Destination").fill("deb.example.org:443");
  await panel.getByRole("button", { name: "Explain" }).click();
  const answer = panel.locator("pre");
  await answer.waitFor();
  const text = await answer.textContent();
  assert.ok(text.startsWith(`steering version 1, in force at gw-1\nrule "${RULE}": mode priority\n`), text);
  assert.match(text, /lte \(cellular\): chosen, allowed; 0\.100 GB of the cap are left until day 15 \(Europe\/Zurich\)/);
  await picture("3-explained");
  assert.equal(await page.locator("img").count(), 0, "no name became an element");
  await panel.getByLabel("Gateway").fill("gw-of-nobody");
  await panel.getByRole("button", { name: "Explain" }).click();
  await panel.getByText("there is no such gateway").waitFor();
  assert.equal(await answer.isVisible(), false, "the last answer is gone");
  await go(page, "ward");
});

test("who only looks sees the data and is not offered to ask", async () => {
  const other = await browser.newContext({ viewport: { width: 1440, height: 960 } });
  const viewer = await other.newPage();
  await viewer.goto(address);
  await viewer.getByLabel("Name").fill("viewer");
  await viewer.getByLabel("Password").fill(password);
  await viewer.getByRole("button", { name: "Sign in" }).click();
  await go(viewer, "paths");
  await viewer.locator(".paths-panel").waitFor();
  assert.equal(await viewer.locator(".explain").count(), 0);
  await other.close();
});

test("two patients of one name are told apart in the ward and in the list of alerts", async () => {
  for (const patient of ["patient-1", "patient-6"]) {
    const second = card(patient).locator(".second");
    assert.equal(await card(patient).locator(".name b").textContent(), "Ada Berg");
    assert.equal(await second.textContent(), patient);
    assert.equal(await second.getAttribute("data-namesake"), "", "it stands out");
  }
  assert.equal(await card("patient-7").locator(".second").getAttribute("data-namesake"), null);
  const who = page.locator('.alert[data-alert="many-5"] .link');
  assert.equal((await who.textContent()).trim(), "Ada Berg patient-1");
  await picture("9-namesakes");
});

test("an outage is heard again and again by default, and so is the end of a session", async () => {
  const other = await browser.newContext({ viewport: { width: 1440, height: 960 }, colorScheme: "dark" });
  other.setDefaultTimeout(DEADLINE);
  await other.addInitScript(() => {
    window.tones = [];
    const start = OscillatorNode.prototype.start;
    OscillatorNode.prototype.start = function (...when) {
      window.tones.push(this.frequency.value);
      start.apply(this, when);
    };
  });
  const viewer = await other.newPage();
  const heard = (count) => viewer.waitForFunction((count) => window.tones.length >= count, count);
  const unheard = viewer.locator("#unheard");
  await viewer.goto(address);
  await viewer.getByLabel("Name").fill("viewer");
  await viewer.getByLabel("Password").fill(password);
  await viewer.getByRole("button", { name: "Sign in" }).click();
  // The fake ward has no alerting, so the system is lost.
  await viewer.locator('.banner[data-severity="critical"]').first().waitFor();
  await heard(6);
  const tones = await viewer.evaluate(() => window.tones);
  assert.ok(tones[0] > tones[1] && tones[1] > tones[2], "it falls");
  assert.deepEqual(tones.slice(3, 6), tones.slice(0, 3), "it comes again");
  assert.equal(await unheard.isVisible(), false);
  // A browser plays nothing before the first touch of a page, and the page says so.
  await viewer.reload();
  await unheard.filter({ hasText: "No sound before you touch this page" }).waitFor();
  await picture("10-no-sound-yet", viewer);
  await viewer.locator("h1").click();
  await unheard.waitFor({ state: "hidden" });
  await heard(3);
  const before = await viewer.evaluate(() => {
    const before = window.tones.length;
    void fetch("/api/sign-out", { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
    return before;
  });
  await viewer.getByText("Your session has ended.").waitFor();
  await heard(before + 3);
  await picture("11-session-ended", viewer);
  // Where sound is switched off, the page says that nothing is heard.
  await viewer.evaluate(() => localStorage.setItem("braid.sound", "off"));
  await viewer.getByLabel("Name").fill("viewer");
  await viewer.getByLabel("Password").fill(password);
  await viewer.getByRole("button", { name: "Sign in" }).click();
  await unheard.filter({ hasText: "Sound is off here" }).waitFor();
  await other.close();
});

test("no script failed on the way", () => assert.deepEqual(page.failures, []));
