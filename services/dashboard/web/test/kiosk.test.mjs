// A wall display in Chromium: opened by a link that works once, without controls, over a restart of
// the dashboard, until it is revoked. Against the example `fake_ward` of the dashboard's crate:
// BRAID_FAKE_WARD is its binary. With BRAID_STATES=DIR the states are also pictures there.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open, picture as pictureOf, signIn, startBrowser, startWard } from "./ward.mjs";

let browser, ward, address, password, display, link;

before(async () => {
  ward = await startWard(6, 3);
  ({ address, password } = ward);
  browser = await startBrowser("--autoplay-policy=no-user-gesture-required");
  display = await open(browser, {}, () => {
    window.tones = 0;
    const start = OscillatorNode.prototype.start;
    OscillatorNode.prototype.start = function (...when) {
      window.tones++;
      start.apply(this, when);
    };
  });
});

after(async () => {
  await browser?.close();
  await ward?.stop();
});

const picture = (name) => pictureOf(display, name);

test("the first view is small, compressed, and kept by the browser", async (t) => {
  const page = await open(browser);
  const network = await page.context().newCDPSession(page);
  await network.send("Network.enable");
  const requests = new Map();
  network.on("Network.responseReceived", ({ requestId, response }) => requests.set(requestId, { path: new URL(response.url).pathname, headers: response.headers, bytes: 0, data: 0 }));
  network.on("Network.dataReceived", ({ requestId, dataLength }) => requests.has(requestId) && (requests.get(requestId).data += dataLength));
  network.on("Network.loadingFinished", ({ requestId, encodedDataLength }) => requests.has(requestId) && (requests.get(requestId).bytes = encodedDataLength));
  await signIn(page, ward);
  await page.locator(".patient .score").first().waitFor();
  await page.locator(".reading[data-time]").first().waitFor();
  await page.locator(".path .spark canvas").first().waitFor();
  const all = [...requests.values()];
  // A stream that goes on has no end yet.
  const sent = (them) => them.reduce((sum, { bytes, data }) => sum + (bytes || data), 0) / 1024;
  const files = all.filter(({ path }) => path.startsWith("/assets/") || path === "/");
  const data = all.filter(({ path }) => !files.some((file) => file.path === path));
  // Live data of the stream grows with the time that this machine takes, and is printed only.
  const view = all.filter(({ path }) => !path.endsWith("/Watch"));
  t.diagnostic(`the first view: ${sent(view).toFixed(1)} KB (target 120), of it files ${sent(files).toFixed(1)} KB; live data until then ${(sent(all) - sent(view)).toFixed(1)} KB`);
  for (const { path, data } of all.sort((a, b) => b.data - a.data).slice(0, 6)) t.diagnostic(`${path}: ${(data / 1024).toFixed(1)} KB of content`);
  assert.ok(sent(view) <= 120, `${sent(view)} KB`);
  const scripts = files.filter(({ path }) => path.endsWith(".js"));
  assert.ok(scripts.length > 0 && scripts.every(({ headers }) => headers["content-encoding"] === "br" && /immutable/.test(headers["cache-control"])));
  const first = files.find(({ path }) => path === "/");
  assert.ok(first.headers.etag && first.headers["cache-control"] === "no-cache");
  // No request is for the paths of all gateways.
  const asked = data.filter(({ path }) => path.endsWith("/GetPaths"));
  assert.ok(asked.length <= 2 && asked.every(({ data }) => data < 40_000), JSON.stringify(asked));
  await page.context().close();
});

test("a link opens a wall display that shows the ward and has nothing to press for it", async () => {
  ward.say("kiosk hall");
  link = `${address}/?kiosk=${(await ward.printed(/kiosk hall (\S+)\n/))[1]}`;
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
  ward.say("restart");
  await display.locator('.connection[data-state="lost"], .connection[data-state="connecting"]').first().waitFor();
  await display.locator('.connection[data-state="live"], .connection[data-state="silent"]').first().waitFor();
  await display.reload();
  await display.locator("#kiosk").waitFor();
  await display.locator(".patient").nth(3).waitFor();
  assert.equal(await display.getByLabel("Password").count(), 0);
});

test("the end of a wall display fills the page and is heard, also after a reload", async () => {
  const before = await display.evaluate(() => window.tones);
  ward.say("revoke hall");
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
