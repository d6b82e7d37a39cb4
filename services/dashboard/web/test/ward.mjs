// A made-up ward and a browser for tests: the example `fake_ward` of the dashboard's crate, whose
// binary is BRAID_FAKE_WARD. With BRAID_STATES=DIR each picture is written there.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { join } from "node:path";
import { chromium } from "playwright-core";

export const DEADLINE = 60_000;
const ARGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-gpu", "--no-first-run"];

export async function startWard(patients, alerts) {
  assert.ok(process.env.BRAID_FAKE_WARD, "set BRAID_FAKE_WARD to the example fake_ward of the dashboard's crate");
  const ward = spawn(process.env.BRAID_FAKE_WARD, ["127.0.0.1:0", String(patients), String(alerts)], { stdio: ["pipe", "pipe", "inherit"] });
  let out = "";
  let heard = () => {};
  ward.stdout.on("data", (chunk) => {
    out += chunk;
    heard();
  });
  ward.on("exit", () => heard());
  // printed waits for a line of the ward.
  const printed = async (pattern) => {
    for (;;) {
      const found = pattern.exec(out);
      if (found) return found;
      assert.equal(ward.exitCode, null, `the ward ended:\n${out}`);
      await new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`no ${pattern}:\n${out}`)), DEADLINE * 2);
        heard = () => resolve(clearTimeout(timer));
      });
    }
  };
  const [, address] = await printed(/(http:\S+) {2}sign in/);
  const [, password] = await printed(/sign in as admin with (.+)\n/);
  const stop = async () => {
    if (ward.exitCode !== null) return;
    const ended = new Promise((resolve) => ward.once("exit", resolve));
    ward.kill("SIGCONT");
    ward.stdin.end();
    const forced = setTimeout(() => ward.kill("SIGKILL"), 15_000);
    await ended;
    clearTimeout(forced);
  };
  return { address, password, printed, stop, say: (line) => ward.stdin.write(`${line}\n`), kill: (signal) => ward.kill(signal) };
}

export function startBrowser(...more) {
  return chromium.launch({ executablePath: process.env.BRAID_CHROMIUM ?? "/usr/bin/chromium", args: [...ARGS, ...more] });
}

// open makes a page of its own, whose `failures` are what its scripts threw.
export async function open(browser, options = {}, script = undefined, argument = undefined) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 960 }, colorScheme: "dark", ...options });
  context.setDefaultTimeout(DEADLINE);
  if (script) await context.addInitScript(script, argument);
  const page = await context.newPage();
  page.failures = [];
  page.on("pageerror", (error) => page.failures.push(error.message));
  return page;
}

export async function signIn(page, { address, password }, name = "admin", path = "/") {
  await page.goto(`${address}${path}`);
  await page.locator("#name").fill(name);
  await page.locator("#password").fill(password);
  await page.locator("form.card button").click();
  await page.locator(".shell").waitFor();
}

export async function picture(page, name) {
  if (process.env.BRAID_STATES) await page.screenshot({ path: join(process.env.BRAID_STATES, `${name}.png`) });
}

// go leads to a screen by the navigation.
export async function go(page, screen) {
  await page.locator(`.screens a[data-screen="${screen}"]`).click();
  await page.locator(`main[data-screen="${screen}"]`).waitFor();
}
