// The page of a gateway in a browser, against `braid gateway` alone. Nothing listens at its proxy,
// so it never has a network. BRAID_BIN is the braid binary.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const DEADLINE = 40_000;
const ARGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-gpu", "--no-first-run"];
const SENSOR = "token of the sensors";
const CARER = "token of the carers";

let browser, page, gateway, data, port, identity;

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

async function start() {
  const nobody = await freePort();
  gateway = spawn(
    process.env.BRAID_BIN,
    [
      "gateway",
      "--listen", `127.0.0.1:${port}`,
      "--admin", "127.0.0.1:0",
      "--proxy", `127.0.0.1:${nobody}`,
      "--sensor-token", SENSOR,
      "--carer-token", CARER,
      "--data-dir", join(data, "gateway"),
      ...identity,
    ],
    { stdio: ["ignore", "ignore", "pipe"] },
  );
  let errors = "";
  gateway.stderr.on("data", (chunk) => (errors = (errors + chunk).slice(-20_000)));
  const deadline = Date.now() + DEADLINE;
  for (;;) {
    try {
      if ((await fetch(`http://127.0.0.1:${port}/`)).ok) return;
    } catch {
      assert.equal(gateway.exitCode, null, errors);
      assert.ok(Date.now() < deadline, `no page:\n${errors}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

async function stop() {
  if (!gateway || gateway.exitCode !== null) return;
  const ended = once(gateway, "exit");
  gateway.kill("SIGKILL");
  await ended;
}

// An impact, and stillness for longer than the rule asks for.
async function fall() {
  const startUs = (Date.now() - 60_000) * 1000;
  const lines = [1.1, 3.5, ...Array(20).fill(1)].map((value, second) =>
    JSON.stringify({ device: "belt-1", metric: "activity", value, device_time_us: startUs + second * 1_000_000 }),
  );
  const response = await fetch(`http://127.0.0.1:${port}/v1/samples`, {
    method: "POST",
    headers: { authorization: `Bearer ${SENSOR}` },
    body: lines.join("\n"),
  });
  assert.equal(response.status, 200, await response.text());
}

// Contrast of two colours as WCAG defines it.
function contrast([one, other]) {
  const light = (colour) => {
    const parts = colour.match(/\d+(\.\d+)?/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
}

before(async () => {
  assert.ok(process.env.BRAID_BIN, "set BRAID_BIN to the braid binary");
  data = mkdtempSync(join(tmpdir(), "braid-gateway-page-"));
  const issued = execFileSync(process.env.BRAID_BIN, ["identity", "issue", "gateway", "gw-1", "--data", join(data, "authority"), "--out", join(data, "identities")]);
  // The second line has the flags of a service.
  identity = issued.toString().split("\n")[1].split(" ");
  port = await freePort();
  await start();
  browser = await chromium.launch({ executablePath: process.env.BRAID_CHROMIUM ?? "/usr/bin/chromium", args: ARGS });
  const context = await browser.newContext({ viewport: { width: 320, height: 640 } });
  context.setDefaultTimeout(DEADLINE);
  page = await context.newPage();
  page.failures = [];
  page.on("pageerror", (error) => page.failures.push(error.message));
});

after(async () => {
  await browser?.close();
  await stop();
  if (data) rmSync(data, { recursive: true, force: true });
});

test("the page asks for the carer's code and then says that nobody hears the gateway", async () => {
  await page.goto(`http://127.0.0.1:${port}/`);
  await page.getByText("Please enter the code").waitFor();
  await page.getByLabel("Code of this gateway").fill("a wrong code");
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByText("does not know this code").waitFor();
  await page.getByLabel("Code of this gateway").fill(CARER);
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByRole("heading", { name: "Nobody hears you now" }).waitFor();
  await page.getByText("There is no open alert.").waitFor();
});

test("a fall is shown in words, heard after a touch, and acknowledged by name", async () => {
  await fall();
  const alert = page.locator(".alert", { hasText: /^Fall, \d+ (s|min) ago/ });
  await alert.waitFor();
  await page.locator('.value[data-metric="activity"]').waitFor();
  await page.getByText(/\d+ entries wait here/).waitFor();
  await page.getByRole("button", { name: "Turn the sound on" }).click();
  await page.locator("body[data-beeps]").waitFor();
  const before = Number(await page.locator("body").getAttribute("data-beeps"));
  await page.waitForFunction((before) => Number(document.body.dataset.beeps) > before, before);

  await alert.getByRole("button", { name: "I attend to it" }).click();
  await alert.getByLabel("Your name").fill("Eve Carer");
  await alert.getByRole("button", { name: "Confirm" }).click();
  await alert.getByText("Eve Carer attends to it").waitFor();
  assert.equal(await alert.getByRole("button", { name: "I attend to it" }).isVisible(), false);
});

test("it fits 320 pixels, and its texts have contrast", async () => {
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(overflow, 0);
  const colours = await page.evaluate(() => {
    const ground = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = getComputedStyle(at).backgroundColor;
        if (!/rgba\(.*, 0\)/.test(colour)) return colour;
      }
      return "rgb(255, 255, 255)";
    };
    const states = ["watched", "no-network", "no-answer", "no-readings", "revoked", "lost", "unknown"];
    return states.flatMap((state) => {
      document.body.dataset.watched = state;
      const shown = [...document.querySelectorAll("h1, h2, p, strong, b, li span, label, button")];
      return shown.filter((it) => it.textContent && it.offsetParent).map((it) => [`${state} ${it.textContent}`, getComputedStyle(it).color, ground(it)]);
    });
  });
  for (const [what, one, other] of colours) assert.ok(contrast([one, other]) >= 4.5, `${what}: ${one} on ${other}`);
});

test("the page says that it is old when the gateway does not answer, and returns with the alert", async () => {
  await stop();
  await page.getByRole("heading", { name: "This page has lost the gateway" }).waitFor();
  await start();
  await page.getByRole("heading", { name: "Nobody hears you now" }).waitFor();
  await page.locator(".alert", { hasText: "Eve Carer attends to it" }).waitFor();
  assert.deepEqual(page.failures, []);
});

test("a gateway that was revoked is out of service, and shows nobody's values", async () => {
  const revoked = { gateway: "gw", watched: "revoked", alerts: [], values: [], accesses: [], waiting: 0 };
  await page.route("**/v1/state", (route) => route.fulfill({ json: revoked }));
  await page.getByRole("heading", { name: "This gateway is out of service" }).waitFor();
  assert.equal(await page.getByText("There is no open alert.").isVisible(), false);
  await page.unroute("**/v1/state");
  await page.getByRole("heading", { name: "Nobody hears you now" }).waitFor();
});

test("nothing comes from elsewhere, and another site reads nothing", async () => {
  const response = await fetch(`http://127.0.0.1:${port}/`);
  const policy = response.headers.get("content-security-policy");
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe|https?:|\*/);
  const foreign = await fetch(`http://127.0.0.1:${port}/v1/state`, {
    headers: { authorization: `Bearer ${CARER}`, origin: "http://elsewhere.example" },
  });
  assert.equal(foreign.status, 403);
});
