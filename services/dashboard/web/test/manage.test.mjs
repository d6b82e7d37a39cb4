// The administration in a browser: each change shows first what it changes, asks for a reason, and
// is in the log. It works by keyboard, and axe-core finds nothing.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { encode } from "uqr";
import { findings } from "./findings.mjs";
import { open, picture, signIn, startBrowser, startWard } from "./ward.mjs";

// Among them patient-150, whose fall people were told about.
const PATIENTS = 150;

let browser, page, ward;

before(async () => {
  ward = await startWard(PATIENTS, 3);
  browser = await startBrowser();
  page = await open(browser);
  await signIn(page, ward, "admin", "/manage/patients");
});

after(async () => {
  await browser?.close();
  await ward?.stop();
});

async function section(of, key) {
  await of.locator(`.sections a[data-section="${key}"]`).click();
  await of.locator(`.sections a[data-section="${key}"][aria-current]`).waitFor();
}

const entry = (of, id) => of.locator(`[data-entry="${id}"]`);
const button = (of, name) => of.getByRole("button", { name, exact: true });
// The two steps of a change.
const shows = (of) => button(of, "Show what changes").click();
const changes = (of) => of.locator(".preview .changes > li");
const warnings = (of) => of.locator(".warnings > li");

async function because(of, text) {
  await of.getByLabel("Reason", { exact: true }).fill(text);
}

test("an admission shows namesakes and what it enters, and writes only then", async () => {
  await page.locator(".entries > li").nth(49).waitFor();
  assert.equal(await page.locator(".entry-name").first().textContent(), "Ada Berg");
  await page.getByRole("button", { name: /^Show \d+ more of \d+$/ }).click();
  assert.equal(await page.locator(".entries > li").count(), 100);
  await picture(page, "70-patients");
  const search = page.getByLabel("Find a patient by name, id, identifier or place", { exact: true });
  await search.fill("patient-7");
  assert.equal(await page.locator(".entries > li").first().getAttribute("data-entry"), "patient-7");
  await button(page, "Admit a patient").click();
  // By keyboard: the first field has the focus.
  await page.keyboard.type("p-900");
  await page.getByLabel("Name", { exact: true }).fill("Ada Berg");
  await page.getByLabel("Birth date", { exact: true }).fill("1941-07-30");
  await page.getByLabel("Identifiers", { exact: true }).fill("mrn 4711");
  await because(page, "pneumonia");
  await page.keyboard.press("Enter");
  await page.locator(".change .message", { hasText: "Identifiers: “mrn 4711” has another form." }).waitFor();
  await page.getByLabel("Identifiers", { exact: true }).fill("mrn=4711");
  await page.getByLabel("Bed", { exact: true }).fill("12");
  await page.keyboard.press("Enter");
  await warnings(page).filter({ hasText: "p-900 may be taken for patient-1 (Ada Berg): same name" }).waitFor();
  assert.deepEqual(await changes(page).allTextContents(), ["Name: Ada Berg", "Status: admitted", "Birth date: 1941-07-30", "Identifiers: mrn=4711", "Place: 12", "SpO₂ scale: 1"]);
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "What will change");
  await picture(page, "71-admission");
  await page.keyboard.press("Escape");
  await search.fill("p-900");
  await page.getByText("Nothing matches the search and filters.").waitFor();

  await button(page, "Admit a patient").click();
  await page.getByLabel("Id", { exact: true }).fill("p-900");
  await page.getByLabel("Name", { exact: true }).fill("Ada Berg");
  await because(page, "pneumonia");
  await shows(page);
  await button(page, "Admit").click();
  await entry(page, "p-900").getByText("admitted").waitFor();
});

test("a stay is paused and ends, and two records of one person are compared before they are merged", async () => {
  await page.goto(`${ward.address}/manage/patients/p-900`);
  await button(page, "Pause").click();
  await because(page, "in surgery");
  await shows(page);
  await changes(page).filter({ hasText: "Status: admitted → paused" }).waitFor();
  await button(page, "Pause").click();
  await page.locator(".record .tag", { hasText: "paused" }).waitFor();
  await button(page, "Correct").click();
  await page.getByLabel("Birth date", { exact: true }).fill("1941-07-03");
  await because(page, "typing error");
  await shows(page);
  assert.deepEqual(await changes(page).allTextContents(), ["Birth date: nothing → 1941-07-03"]);
  await button(page, "Correct").click();
  await page.locator(".facts dd", { hasText: "1941-07-03" }).waitFor();

  await button(page, "Merge").click();
  await page.getByLabel("Id of the record that stays", { exact: true }).fill("patient-1");
  await because(page, "identified");
  await shows(page);
  const differing = page.locator(".compared tr[data-differs]");
  await differing.filter({ hasText: "1941-07-03" }).waitFor();
  assert.equal(await differing.filter({ hasText: "Name" }).count(), 0, "both have one name");
  await picture(page, "72-merge");
  assert.deepEqual(await findings(page), []);
  await button(page, "Merge").click();
  await page.locator(".record .tag", { hasText: "merged into patient-1" }).waitFor();

  await page.goto(`${ward.address}/manage/patients/patient-9`);
  await button(page, "Discharge").click();
  await because(page, "went home");
  await shows(page);
  await changes(page).filter({ hasText: "assignments of sensors" }).waitFor();
  await button(page, "Discharge").click();
  await page.locator(".record .tag", { hasText: "discharged" }).waitFor();
  await button(page, "Take back the end").waitFor();
  await page.goto(`${ward.address}/manage/patients`);
  await page.getByLabel("Status", { exact: true }).selectOption({ label: "discharged" });
  await entry(page, "patient-9").waitFor();
  assert.equal(await page.locator(".entries > li").count(), 1);
});

test("a sensor that was heard is assigned, handed over and detached", async () => {
  await section(page, "sensors");
  await picture(page, "73-sensors");
  await page.locator('.stray [data-entry="stray-belt"]').getByRole("button", { name: "Assign stray-belt" }).click();
  await page.getByLabel("Id of the patient", { exact: true }).fill("patient-home");
  await because(page, "admitted");
  await shows(page);
  await warnings(page).filter({ hasText: "12 entries of stray-belt are kept apart" }).waitFor();
  await button(page, "Assign").click();
  await page.getByText("It is done.").waitFor();
  await button(page, "Done").click();
  await page.getByLabel("Find a sensor by id, patient or gateway", { exact: true }).fill("stray-belt");
  await entry(page, "stray-belt").last().getByText("patient-home").waitFor();
  await page.locator(".panel:not(.stray)").getByRole("button", { name: "Hand over stray-belt" }).click();
  await page.getByLabel("Id of the patient", { exact: true }).fill("nobody-here");
  await because(page, "swapped");
  await shows(page);
  await page.locator(".message", { hasText: "is no patient of the ward" }).waitFor();
  await page.getByLabel("Id of the patient", { exact: true }).fill("patient-3");
  await shows(page);
  // The name is there once the ward's list has the patient.
  await changes(page).filter({ hasText: /The assignment of stray-belt to (Hanna Home \(patient-home\)|patient-home) at gw-1 ends\./ }).waitFor();
  assert.deepEqual(await findings(page), []);
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Detach stray-belt" }).click();
  await because(page, "broken");
  await shows(page);
  await button(page, "Detach").click();
  await warnings(page).filter({ hasText: "may hold some" }).waitFor();
  await button(page, "Done").click();
  await page.getByText("Nothing matches the search and filters.").waitFor();
});

test("a token for a gateway is shown once, also as a code, and a gateway is revoked", async () => {
  await section(page, "gateways");
  await button(page, "Enrol a gateway").click();
  await page.getByLabel("Id of the gateway", { exact: true }).fill("gw-new");
  await because(page, "for a home");
  await shows(page);
  await changes(page).filter({ hasText: "gw-new is entered" }).waitFor();
  await button(page, "Make a token").click();
  const token = await page.locator("#token").textContent();
  const { data } = encode(token, { ecc: "M", border: 4 });
  const dark = data.flat().filter(Boolean).length;
  const drawn = await page.locator(".qr path").getAttribute("d");
  assert.equal(drawn.split("M").length - 1, dark);
  await picture(page, "74-token");
  assert.deepEqual(await findings(page), []);
  await button(page, "Done").click();
  await page.getByLabel("Find a gateway by id", { exact: true }).fill("gw-new");
  await entry(page, "gw-new").getByText("a token is out").waitFor();
  assert.equal((await page.content()).includes(token), false);
  await page.getByRole("button", { name: "Revoke gw-new" }).click();
  await because(page, "lost");
  await shows(page);
  await button(page, "Revoke").click();
  await entry(page, "gw-new").getByText("revoked", { exact: true }).waitFor();
});

test("people are added, changed and removed, and each changes the own password", async () => {
  await section(page, "people");
  await entry(page, "admin").getByText("you").waitFor();
  assert.equal(await entry(page, "admin").getByRole("button").count(), 0, "the own account");
  await button(page, "Add a person").click();
  await page.getByLabel("Name to sign in with", { exact: true }).fill("eve");
  await page.getByLabel("Role", { exact: true }).selectOption("clinician");
  await page.getByLabel("Password", { exact: true }).fill("first password");
  await because(page, "new in the team");
  await shows(page);
  await changes(page).filter({ hasText: "eve signs in as clinician" }).waitFor();
  await button(page, "Add").click();
  await entry(page, "eve").getByText("clinician").waitFor();
  await picture(page, "75-people");

  const eve = await open(browser);
  await signIn(eve, { ...ward, password: "first password" }, "eve", "/manage/password");
  assert.deepEqual(await eve.locator(".sections a").allTextContents(), ["Patients", "Sensors", "Handover", "Team", "Rules", "Own password"]);
  await eve.getByLabel("Present password", { exact: true }).fill("wrong");
  await eve.getByLabel("New password", { exact: true }).fill("second password");
  await eve.getByLabel("New password, again", { exact: true }).fill("second password");
  await button(eve, "Change the password").click();
  await eve.locator(".message", { hasText: "the password is wrong" }).waitFor();
  await eve.getByLabel("Present password", { exact: true }).fill("first password");
  await button(eve, "Change the password").click();
  await eve.getByText("The password is changed.").waitFor();
  await section(eve, "patients");
  await entry(eve, "patient-1").waitFor();
  await button(eve, "Admit a patient").waitFor();
  await eve.context().close();

  await page.getByRole("button", { name: "Remove eve" }).click();
  await because(page, "left");
  await shows(page);
  await button(page, "Remove").click();
  await entry(page, "eve").waitFor({ state: "detached" });
});

test("a set of rules is put and taken back after its lines were shown, and the log has every change", async () => {
  await section(page, "rules");
  await button(page, "Add a set").click();
  await page.getByLabel("Id of the patient, or name of the group", { exact: true }).fill("patient-1");
  await page.getByLabel("Document, as JSON", { exact: true }).fill("{");
  await because(page, "COPD");
  await shows(page);
  await page.locator(".message", { hasText: "The document is no JSON" }).waitFor();
  await page.getByLabel("Document, as JSON", { exact: true }).fill('{"name":"own","extends":"built-in","rules":[{"id":"spo2-low"}]}');
  await shows(page);
  await page.locator('.diff [data-sign="+"]', { hasText: '"spo2-low"' }).waitFor();
  await button(page, "Put in force").click();
  await entry(page, "patient:patient-1").getByText("1 rule and the built-in ones").waitFor();
  await page.getByRole("link", { name: "Ada Berg (patient-1)" }).click();
  await button(page, "Change").click();
  await page.getByLabel("Document, as JSON", { exact: true }).fill('{"name":"own","extends":"built-in","rules":[{"id":"spo2-high"}]}');
  await because(page, "round");
  await shows(page);
  assert.deepEqual(await page.locator(".diff [data-sign='+'], .diff [data-sign='−']").allTextContents(), ['−       "id": "spo2-low"\n', '+       "id": "spo2-high"\n']);
  await picture(page, "76-rules");
  assert.deepEqual(await findings(page), []);
  await page.keyboard.press("Escape");
  await button(page, "Take back").click();
  await because(page, "discharged");
  await shows(page);
  await button(page, "Take back").click();
  await button(page, "Write a first version").waitFor();

  await section(page, "audit");
  const search = page.getByLabel("Find by person, action, patient or words of the detail", { exact: true });
  for (const [words, action] of [["p-900 pneumonia", "admit"], ["remove eve left", "remove account"], ["gw-new lost", "revoke"], ["stray-belt broken", "end"]]) {
    await search.fill(words);
    await page.locator(".audit", { hasText: action }).first().waitFor();
  }
  await search.fill("admin");
  await picture(page, "77-audit");
});

test("a patient's limits are set beside the built-in ones", async () => {
  await page.goto(`${ward.address}/manage/patients/patient-2`);
  await button(page, "Limits").click();
  const low = page.getByLabel("SpO₂ at or below (Medium priority)", { exact: true });
  await low.fill("86");
  assert.equal(await page.locator(".field", { has: low }).locator("small").textContent(), "Built-in: 90 %, ends at 92");
  await because(page, "COPD");
  await shows(page);
  await changes(page).filter({ hasText: "SpO₂ at or below (Medium priority): built-in, 90 → 86" }).waitFor();
  const added = page.locator('.diff [data-sign="+"]');
  await added.filter({ hasText: '"limit": 86' }).waitFor();
  await added.filter({ hasText: '"clear": 88' }).waitFor();
  await picture(page, "80-limits");
  await button(page, "Put in force").click();
  await button(page, "Limits").click();
  assert.equal(await low.inputValue(), "86");
  assert.deepEqual(await findings(page), []);
  await picture(page, "80-limits-form");
  await page.keyboard.press("Escape");
});

test("an alert says who was told, and the report of the shift has it", async () => {
  await page.locator('.screens a[data-screen="alerts"]').click();
  const fall = page.locator('.alert[data-alert="fell"]');
  await fall.getByText("Who was told").click();
  const lines = fall.locator(".told li");
  await lines.nth(1).waitFor();
  const [first, second] = await lines.allTextContents();
  assert.match(first, /^\d\d:\d\d:\d\d · email · carl · carl@example\.org · escalation, step 2 · on its way$/);
  assert.match(second, /· eve@example\.org · escalation, step 1 · delivered \d\d:\d\d:\d\d$/);
  await picture(page, "79-told");
  // Several of one rule are acknowledged with one note, and taken back together.
  await page.getByLabel("Group", { exact: true }).selectOption({ label: "By rule" });
  const group = page.locator(".alert-group", { hasText: "battery-low" });
  await group.locator("summary").first().click();
  await group.getByLabel("Note for all", { exact: true }).fill("batteries ordered");
  await group.getByRole("button", { name: /^Acknowledge \d+$/ }).click();
  await group.locator('.alert[data-state="acknowledged"]').nth(1).waitFor();
  await page.locator(".alerts-bar .undo").click();
  await group.locator('.alert[data-state="active"]').nth(1).waitFor();
  await page.getByLabel("Group", { exact: true }).selectOption({ label: "No groups" });
  await page.locator('.screens a[data-screen="manage"]').click();
  await section(page, "handover");
  const fallen = page.locator('[data-handover="patient-150"]');
  await fallen.getByText("Fall: a blow of 2.5 g or more").waitFor();
  await page.emulateMedia({ media: "print" });
  assert.equal(await page.locator(".top").isVisible(), false);
  await picture(page, "79-handover");
  await page.emulateMedia({ media: "screen" });
});

test("every list is without findings in both themes, on a phone and at 320 px, and a viewer only looks", async () => {
  const viewer = await open(browser);
  await signIn(viewer, ward, "viewer", "/manage/sensors");
  await viewer.locator(".entries > li").first().waitFor();
  assert.equal(await viewer.locator(".section button:not(.more-entries)", { hasText: /Assign|Detach|Hand over|Try/ }).filter({ visible: true }).count(), 0);
  await section(viewer, "patients");
  await viewer.locator(".entries > li").first().waitFor();
  assert.equal(await button(viewer, "Admit a patient").count(), 0);
  await viewer.goto(`${ward.address}/manage/audit`);
  await viewer.locator('.sections a[data-section="patients"][aria-current]').waitFor();
  await viewer.context().close();

  for (const key of ["patients", "sensors", "handover", "gateways", "people", "team", "rules", "audit", "password"]) {
    await section(page, key);
    await page.locator(".section .panel:visible").first().waitFor();
    assert.deepEqual(await findings(page), [], key);
    for (const width of [320, 3840]) {
      await page.setViewportSize({ width, height: 800 });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(wide <= 0, `${key} at ${width}: ${wide} px too wide`);
      await picture(page, `78-${key}-${width}`);
    }
    await page.setViewportSize({ width: 1440, height: 960 });
  }
  assert.deepEqual(page.failures, []);
});
