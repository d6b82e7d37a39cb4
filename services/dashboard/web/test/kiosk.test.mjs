// A wall display in Chromium: opened by a link that works once, without controls, over a restart of
// the dashboard, until it is revoked. Against the example `fake_ward` of the dashboard's crate:
// BRAID_FAKE_WARD is its binary. With BRAID_STATES=DIR the states are also pictures there.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const DEADLINE = 60_000;
const ARGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-gpu", "--no-first-run", "--autoplay-policy=no-user-gesture-required"];

let browser, ward, address, password, display, link;
let out = "";
let heard = () => {};

// printed waits for a line of the ward.
async function printed(pattern) {
  for (;;) {
    const found = pattern.exec(out);
    if (found) return found;
    await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${pattern}:\n${out}`)), DEADLINE * 2);
      heard = () => resolve(clearTimeout(timer));
    });
  }
}

before(async () => {
  assert.ok(process.env.BRAID_FAKE_WARD, "set BRAID_FAKE_WARD to the example fake_ward of the dashboard's crate");
  ward = spawn(process.env.BRAID_FAKE_WARD, ["127.0.0.1:0", "6", "3"], { stdio: ["pipe", "pipe", "inherit"] });
  ward.stdout.on("data", (chunk) => {
    out += chunk;
    heard();
  });
  address = (await printed(/(http:\S+) {2}sign in/))[1];
  password = (await printed(/sign in as admin with (.+)\n/))[1];
  browser = await chromium.launch({ executablePath: process.env.BRAID_CHROMIUM ?? "/usr/bin/chromium", args: ARGS });
  const context = await browser.newContext({ viewport: { width: 1440, height: 960 }, colorScheme: "dark" });
  context.setDefaultTimeout(DEADLINE);
  await context.addInitScript(() => {
    window.tones = 0;
    const start = OscillatorNode.prototype.start;
    OscillatorNode.prototype.start = function (...when) {
      window.tones++;
      start.apply(this, when);
    };
  });
  display = await context.newPage();
  display.failures = [];
  display.on("pageerror", (error) => display.failures.push(error.message));
});

after(async () => {
  await browser?.close();
  if (ward && ward.exitCode === null) {
    const ended = new Promise((resolve) => ward.once("exit", resolve));
    ward.stdin.end();
    const forced = setTimeout(() => ward.kill("SIGKILL"), 15_000);
    await ended;
    clearTimeout(forced);
  }
});

async function picture(name) {
  if (process.env.BRAID_STATES) await display.screenshot({ path: join(process.env.BRAID_STATES, `${name}.png`) });
}

test("a link opens a wall display that shows the ward and has nothing to press for it", async () => {
  ward.stdin.write("kiosk hall\n");
  link = `${address}/?kiosk=${(await printed(/kiosk hall (\S+)\n/))[1]}`;
  await display.goto(link);
  await display.locator("#kiosk").getByText("Wall display").waitFor();
  assert.equal(await display.locator("#kiosk").textContent(), "hallWall display");
  assert.equal(new URL(display.url()).search, "", "the code leaves the address");
  await display.locator('.connection[data-state="live"], .connection[data-state="silent"]').waitFor();
  await display.locator(".patient").nth(3).waitFor();
  await display.locator(".alert").first().waitFor();
  for (const name of [/acknowledge/i, /silence/i, /sign out/i, /^cut/i]) {
    assert.equal(await display.getByRole("button", { name }).count(), 0, String(name));
  }
  await picture("20-wall-display");
});

test("the link works once, and the next browser is told so", async () => {
  const other = await (await browser.newContext()).newPage();
  await other.goto(link);
  await other.getByText("This link of a wall display was used already or has expired; ask an administrator for a new one.").waitFor();
  await other.context().close();
});

test("a wall display goes on when the dashboard has restarted, and when it is opened anew", async () => {
  ward.stdin.write("restart\n");
  await display.locator('.connection[data-state="lost"], .connection[data-state="connecting"]').first().waitFor();
  await display.locator('.connection[data-state="live"], .connection[data-state="silent"]').first().waitFor();
  await display.reload();
  await display.locator("#kiosk").waitFor();
  await display.locator(".patient").nth(3).waitFor();
  assert.equal(await display.getByLabel("Password").count(), 0);
});

test("the end of a wall display fills the page and is heard, also after a reload", async () => {
  const before = await display.evaluate(() => window.tones);
  ward.stdin.write("revoke hall\n");
  await display.getByRole("heading", { name: "This display was revoked" }).waitFor({ timeout: 15_000 });
  await display.getByText("“hall” shows no ward and sounds no alert any more.").waitFor();
  assert.equal(await display.locator(".patient").count(), 0);
  assert.equal(await display.getByLabel("Password").count(), 0, "no silent form");
  await display.waitForFunction((count) => window.tones >= count + 3, before);
  await picture("21-wall-display-revoked");
  await display.reload();
  await display.getByRole("heading", { name: "This display was revoked" }).waitFor();
  // A person who signs in makes it an ordinary page again.
  await display.getByRole("button", { name: "Sign in" }).click();
  await display.getByLabel("Name").fill("viewer");
  await display.getByLabel("Password").fill(password);
  await display.getByRole("button", { name: "Sign in" }).click();
  await display.getByRole("button", { name: "Sign out" }).click();
  await display.reload();
  await display.getByLabel("Password").waitFor();
});

test("no script failed on the way", () => assert.deepEqual(display.failures, []));
