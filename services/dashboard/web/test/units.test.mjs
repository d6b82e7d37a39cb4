// The page's own logic, without a browser: holes in a series, and the even sweep over uneven
// arrivals.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { createServer } from "vite";
import { texts, translated } from "./texts.mjs";

let vite, Series, POINTS, EcgBuffer, clock, learn, nowMs, finds, inOrder, AlertBook, OPEN_MAX, scoreOf, stayText, wordsOf, HeldOrder, liveOf, access, Sleep, rank, limits, route, Metric, completenessText, ProofState, GapCause;
before(async () => {
  const root = fileURLToPath(new URL("..", import.meta.url));
  vite = await createServer({ root, configFile: false, logLevel: "error", server: { middlewareMode: true, ws: false, watch: null }, optimizeDeps: { noDiscovery: true } });
  ({ Series, POINTS } = await vite.ssrLoadModule("/src/series.ts"));
  ({ AlertBook, OPEN_MAX } = await vite.ssrLoadModule("/src/alerts.ts"));
  ({ HeldOrder } = await vite.ssrLoadModule("/src/view/hold.ts"));
  ({ liveOf } = await vite.ssrLoadModule("/src/live.ts"));
  ({ clock, scoreOf, stayText, wordsOf } = await vite.ssrLoadModule("/src/clinical.ts"));
  ({ inOrder } = await vite.ssrLoadModule("/src/notices.ts"));
  ({ finds, rank } = await vite.ssrLoadModule("/src/search.ts"));
  ({ learn, nowMs } = await vite.ssrLoadModule("/src/clock.ts"));
  limits = await vite.ssrLoadModule("/src/limits.ts");
  route = await vite.ssrLoadModule("/src/route.ts");
  ({ Metric } = await vite.ssrLoadModule("/src/gen/braid/vitals/v1/vitals_pb.ts"));
  ({ completenessText } = await vite.ssrLoadModule("/src/completeness.ts"));
  ({ ProofState } = await vite.ssrLoadModule("/src/gen/braid/query/v1/query_pb.ts"));
  ({ GapCause } = await vite.ssrLoadModule("/src/gen/braid/vitals/v1/vitals_pb.ts"));
  access = await vite.ssrLoadModule("/src/access.ts");
  ({ Sleep } = await vite.ssrLoadModule("/src/sleep.ts"));
  ({ EcgBuffer } = await vite.ssrLoadModule("/src/ecg.ts"));
});
after(() => vite.close());

// A seeded generator (mulberry32), so that a failure comes again.
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

test("a series is the same whatever the order of arrival", () => {
  for (let seed = 1; seed <= 50; seed++) {
    const next = random(seed);
    const readings = Array.from({ length: 60 }, (_, i) => [1000 + i, i]);
    const arrivals = [...readings, ...readings.filter(() => next() < 0.3)].map((r) => [next(), r]).sort((a, b) => a[0] - b[0]);
    const series = new Series();
    for (const [, [time, value]] of arrivals) series.add(time, value);
    const { times, values, holes } = series.window(1000, 1059);
    assert.deepEqual(times, readings.map(([time]) => time), `seed ${seed}`);
    assert.deepEqual(values, readings.map(([, value]) => value), `seed ${seed}`);
    assert.deepEqual(holes, []);
  }
});

test("silence is a hole, in the middle and at the end", () => {
  const series = new Series();
  for (let t = 0; t < 20; t++) series.add(t, t);
  for (let t = 40; t < 60; t++) series.add(t, t);
  const { values, holes } = series.window(0, 70);
  assert.deepEqual(holes, [
    { fromS: 19, toS: 40, dropped: false },
    { fromS: 59, toS: 70, dropped: false },
  ]);
  assert.equal(values.filter((value) => value === null).length, 1, "the line breaks once");
});

test("a slow stream has no holes between its readings", () => {
  const series = new Series();
  for (let t = 0; t <= 3600; t += 300) series.add(t, 120);
  assert.deepEqual(series.window(0, 3700).holes, []);
});

// thinned is what the core gives of a reading a second: of each slice the least and the greatest,
// wherever they lie in it.
function thinned(fromS, toS, next) {
  const slice = (toS - fromS) / (POINTS / 2);
  return Array.from({ length: POINTS / 2 }, (_, i) => [next(), next()].sort().map((at) => fromS + (i + at) * slice)).flat();
}

test("what the core has thinned has no holes but those that are there", () => {
  for (const windowS of [1800, 14_400]) {
    for (let seed = 1; seed <= 20; seed++) {
      const next = random(seed);
      const from = 1_000_000;
      const to = from + windowS;
      const silent = (time) => time > from + windowS / 2 && time < from + windowS / 2 + windowS / 20;
      const series = new Series();
      for (const time of thinned(from, to, next)) if (!silent(time)) series.add(time, 70);
      // The page goes on with every reading, once a second.
      for (let i = 1; i <= 60; i++) series.add(to + i, 70);
      const { holes } = series.window(to + 60 - windowS, to + 60);
      assert.equal(holes.length, 1, `${windowS} s, seed ${seed}: ${JSON.stringify(holes)}`);
      assert.ok(holes[0].toS - holes[0].fromS >= windowS / 20);
    }
  }
});

test("a time of another day is told with its day", () => {
  const noon = new Date(nowMs()).setHours(12, 0, 0, 0) / 1000;
  assert.match(clock(noon), /^\d\d:\d\d:\d\d$/);
  assert.match(clock(noon - 86_400), /^\S+ .*\d .*\d\d:\d\d:\d\d$/);
});

test("the time is the core's, however late it is told and wherever this clock is set", () => {
  const real = Date.now;
  let nowAtMs = 1_700_000_000_000;
  Date.now = () => nowAtMs;
  try {
    const says = (ms) => learn(BigInt(ms) * 1000n);
    assert.equal(nowMs(), nowAtMs, "its own until it is told");
    says(nowAtMs + 600_000);
    assert.equal(nowMs(), nowAtMs + 600_000);
    // Two seconds on the way.
    nowAtMs += 10_000;
    says(nowAtMs + 598_000);
    assert.equal(nowMs(), nowAtMs + 600_000);
    // This clock is put right, then wrong the other way.
    nowAtMs += 600_000;
    says(nowAtMs);
    assert.equal(nowMs(), nowAtMs);
    nowAtMs -= 3_600_000;
    says(nowAtMs + 3_600_000);
    assert.equal(nowMs(), nowAtMs + 3_600_000);
    // A core that is older says nothing.
    says(0);
    assert.equal(nowMs(), nowAtMs + 3_600_000);
  } finally {
    Date.now = real;
  }
});

test("the sweep shows every reading once and in order, however chunks arrive", () => {
  for (let seed = 1; seed <= 30; seed++) {
    const next = random(seed);
    const buffer = new EcgBuffer();
    const chunk = 125;
    const start = 1_700_000_000_000_000;
    // Chunks of 500 ms that arrive up to 400 ms late, some twice, neighbours sometimes swapped.
    const arrivals = [];
    for (let i = 0; i < 60; i++) {
      const at = (i + 1) * 500 + next() * 400;
      arrivals.push([at, i]);
      if (next() < 0.2) arrivals.push([at + 100, i]);
    }
    arrivals.sort((a, b) => a[0] - b[0]);
    const shown = [];
    let holes = 0;
    for (let now = 0; now < 31_000; now += 33) {
      while (arrivals.length > 0 && arrivals[0][0] <= now) {
        const [, i] = arrivals.shift();
        buffer.add(start + i * chunk * 4000, 4000, Array.from({ length: chunk }, (_, k) => i * chunk + k + 1));
      }
      buffer.advance(33, (_, value) => (value === null ? holes++ : shown.push(value)));
    }
    assert.ok(shown.length > 60 * chunk - 1_000, `seed ${seed}: ${shown.length} shown`);
    for (let i = 1; i < shown.length; i++) assert.ok(shown[i] > shown[i - 1], `seed ${seed}: ${shown[i]} after ${shown[i - 1]}`);
    const first = shown[0];
    const last = shown.at(-1);
    assert.ok(last - first + 1 - shown.length <= 0, `seed ${seed}: readings were skipped`);
    assert.ok(holes < 500, `seed ${seed}: ${holes} holes at the start`);
  }
});

test("a lost chunk is a hole and not a jump", () => {
  const buffer = new EcgBuffer();
  const start = 1_700_000_000_000_000;
  const seen = [];
  for (let i = 0, now = 0; i < 20; i++) {
    if (i !== 10) buffer.add(start + i * 500_000, 4000, new Array(125).fill(1));
    for (; now < (i + 1) * 500; now += 25) buffer.advance(25, (_, value) => seen.push(value));
  }
  const body = seen.slice(seen.indexOf(1));
  assert.equal(body.filter((value) => value === null).length, 125);
});

const alert = (id, priority, state, since, revision = 1) => ({ id, priority, state, sinceUs: BigInt(since), changedUs: BigInt(since), revision });
const [ACTIVE, ACKNOWLEDGED, LATCHED, RESOLVED] = [2, 3, 4, 5];
const [LOW, MEDIUM, HIGH] = [1, 2, 3];

test("an active fall stands before 298 that have ended, and what waits before what is acknowledged", () => {
  const book = new AlertBook();
  book.add([alert("fall", HIGH, ACTIVE, 1), alert("seen", HIGH, ACKNOWLEDGED, 9_000), alert("medium", MEDIUM, ACTIVE, 8_000)], 0);
  for (let n = 0; n < 298; n++) book.add([alert(`ended-${n}`, HIGH, LATCHED, 1000 + n)], 0);
  const ids = book.open().map(({ id }) => id);
  assert.deepEqual([ids[0], ids[1], ids[299], ids[300]], ["fall", "ended-297", "medium", "seen"]);
});

test("a patient's own open alerts are in words, and the score beside them is not calm", () => {
  const book = new AlertBook();
  const sinceUs = BigInt(Math.round(nowMs() - 240_000)) * 1000n;
  const of = (fields) => ({ ...alert("a", HIGH, ACTIVE, 0), sinceUs, patient: "p", rule: "fall", summary: "Fall: a blow of 2.5 g or more, then no movement for 10 s", ...fields });
  book.add([of({}), of({ id: "b", priority: LOW, summary: "Battery at 14 %, at or below 15 %" }), of({ id: "c", patient: "other" })], 0);
  assert.deepEqual(book.of("p").map(wordsOf), ["Fall, 4 min ago", "Battery at 14 %, 4 min ago"]);
  assert.deepEqual(book.of("nobody"), []);
  assert.equal(wordsOf(of({ state: LATCHED })), "Fall, 4 min ago, ended");
  assert.equal(wordsOf(of({ summary: "Consciousness: 3" })), "Consciousness: 3, 4 min ago");
  const well = { missing: [], stale: [], partial: false, risk: 1, score: 0 };
  assert.deepEqual([scoreOf(well).risk, scoreOf(well).explanation], ["low", "low risk"]);
  const fallen = scoreOf(well, undefined, true);
  assert.deepEqual([fallen.text, fallen.risk, fallen.explanation], ["0", "alert", "vital signs score 0"]);
  assert.equal(scoreOf({ ...well, risk: 4, score: 9 }, undefined, true).risk, "high");
});

test("held rows keep their places, change in place, and what is new waits", () => {
  const order = new HeldOrder((row) => row.id);
  const rows = (...names) => names.map((id) => ({ id }));
  const ids = (rows) => rows.map(({ id }) => id).join();
  const first = rows("a", "b", "c");
  assert.equal(ids(order.of(first, false).rows), "a,b,c");
  const [a, b, c] = first;
  // b was acknowledged and would be last, x is new, a is gone.
  const changed = { id: "b", acknowledged: true };
  const gone = { id: "a", resolved: true };
  const held = order.of([{ id: "x" }, c, changed], true, () => gone);
  assert.deepEqual([ids(held.rows), ids(held.waiting), held.moved], ["a,b,c", "x", true]);
  assert.deepEqual(held.changed, [gone, changed]);
  assert.equal(held.rows[1], changed);
  assert.equal(order.of([{ id: "x" }, c, changed], true, () => gone).changed.length, 0, "told once");
  const free = order.of([{ id: "x" }, c, changed], false);
  assert.deepEqual([ids(free.rows), free.moved], ["x,c,b", false]);
  order.release();
  assert.equal(ids(order.of([b, a], true).rows), "b,a", "a person asked for it");
});

test("the pill is never live beside a warning that contradicts it", () => {
  const patients = (watched, unknown) => [...Array(watched).fill({ unknown: undefined }), ...Array(unknown).fill({ unknown: {} })];
  const notice = (key, severity) => ({ key, severity, text: "" });
  assert.deepEqual(liveOf(patients(5, 1), []), { state: "live", text: "Live" });
  assert.deepEqual(liveOf(patients(5, 0), [notice("system/pipeline-silent", "critical")]), { state: "lost", text: "Nobody is watched" });
  assert.deepEqual(liveOf(patients(0, 3), []), { state: "lost", text: "Nobody is watched" });
  assert.deepEqual(liveOf(patients(3, 297), []), { state: "silent", text: "Live for 3 of 300" });
  assert.deepEqual(liveOf(patients(5, 0), [notice("system/canary", "critical")]), { state: "silent", text: "Connected, with faults" });
  assert.equal(liveOf(patients(5, 0), [notice("system/late", "warning")]).state, "live");
  assert.equal(liveOf([], []).state, "live");
});

test("of too many alerts the ones that matter least are left out, and counted", () => {
  const book = new AlertBook();
  book.add([alert("fall", HIGH, ACTIVE, 1), alert("seen", HIGH, ACKNOWLEDGED, 2)], 0);
  for (let n = 0; n < OPEN_MAX + 10; n++) book.add([alert(`low-${n}`, LOW, ACTIVE, 1000 + n)], 0);
  assert.equal(book.open().length, OPEN_MAX);
  assert.equal(book.open()[0].id, "fall", "the oldest of all");
  assert.ok(book.has("seen"));
  assert.ok(!book.has("low-0") && book.has(`low-${OPEN_MAX + 9}`));
  assert.deepEqual(book.omitted(), [{ priority: LOW, count: 12 }]);
});

test("a whole list ends what it does not have and keeps what came a moment ago", () => {
  const book = new AlertBook();
  book.add([alert("ended unheard", HIGH, ACTIVE, 1)], 0);
  book.add([alert("just raised", HIGH, ACTIVE, 2)], 60_000);
  book.replace([alert("other", LOW, ACTIVE, 3)], [{ priority: LOW, open: 9, unacknowledged: 9, omitted: 8 }], 61_000);
  assert.deepEqual(book.open().map(({ id }) => id), ["just raised", "other"]);
  assert.deepEqual(book.omitted(), [{ priority: LOW, count: 8 }]);
  book.add([alert("other", LOW, RESOLVED, 3, 2)], 62_000);
  book.add([alert("other", LOW, ACTIVE, 3, 1)], 63_000);
  assert.deepEqual(book.open().map(({ id }) => id), ["just raised"], "an older revision opens nothing");
});

test("the list is asked for again only while the totals go on differing", () => {
  const book = new AlertBook();
  const totals = (open) => [{ priority: LOW, open, unacknowledged: open, omitted: 0 }];
  book.add([alert("a", LOW, ACTIVE, 1)], 0);
  assert.equal(book.disagrees(totals(1), 0), false);
  assert.equal(book.disagrees(totals(2), 1_000), false, "the alert may be on its way");
  assert.equal(book.disagrees(totals(1), 2_000), false);
  assert.equal(book.disagrees(totals(2), 3_000), false);
  assert.equal(book.disagrees(totals(2), 9_000), true);
  assert.equal(book.disagrees(totals(2), 9_100), false, "and not with every update");
});

test("what is unknown is never a number, and a lower bound is never low risk", () => {
  const news2 = (fields) => ({ missing: [], stale: [], partial: false, risk: 0, ...fields });
  assert.deepEqual([scoreOf(news2({ score: 0, risk: 1 })).text, scoreOf(news2({ score: 0, risk: 1 })).risk], ["0", "low"]);
  const unknown = { cause: 4, sinceUs: BigInt(Math.round(nowMs())) * 1000n, because: "wifi lost" };
  const silent = scoreOf(news2({ partial: true, unknown, atLeast: 3 }));
  assert.deepEqual([silent.text, silent.risk], ["?", "unknown"]);
  assert.match(silent.explanation, /^unknown since \d\d:\d\d:\d\d \(now\): wifi lost; at least 3$/);
  const off = scoreOf(news2({ partial: true, missing: [3], stale: [3], unknown: { ...unknown, cause: 2, because: "too old: Oxygen saturation" }, atLeast: 2 }));
  assert.deepEqual([off.text, off.risk], ["?", "unknown"]);
  assert.match(off.explanation, /^SpO₂ unknown since \d\d:\d\d:\d\d \(now\); at least 2$/);
  const bound = scoreOf(news2({ score: 2, partial: true, missing: [4] }));
  assert.deepEqual([bound.text, bound.risk], ["≥2", "unknown"]);
  for (const nothing of [undefined, news2({ partial: true, missing: [4] })]) assert.equal(scoreOf(nothing).text, "?");
  const away = scoreOf(news2({ score: 0, risk: 1 }), nowMs() / 1000);
  assert.deepEqual([away.text, away.risk], ["?", "unknown"], "also when the page hears nothing");
});

test("where nothing was measured there is no data, from edge to edge", () => {
  assert.deepEqual(new Series().window(0, 300).holes, [{ fromS: 0, toS: 300, dropped: false }]);
});

test("banners are shown most severe first, then oldest first, whoever says them", () => {
  const notice = (key, severity, sinceS) => ({ key, severity, text: key, sinceS });
  const order = inOrder([
    [notice("page/late", "warning", 9), notice("page/note", "note", 1)],
    [notice("system/stalled", "critical", 8), notice("system/nobody", "critical"), notice("system/old", "warning", 2)],
  ]);
  assert.deepEqual(order.map(({ key }) => key), ["system/stalled", "system/nobody", "system/old", "page/late", "page/note"]);
  const late = inOrder([[notice("system/stalled", "critical", 1)], [notice("page/out-of-date", "critical", 9)]]);
  assert.equal(late[0].key, "page/out-of-date", "whatever else is wrong, the page is old");
});

test("a search finds names whatever the case, the accents and the order of its words", () => {
  for (const search of ["", "  ", "zoe", "ÅNG", "strom zo", "bed-7 zoë", "7"]) assert.ok(finds(search, "Zoë Ångström", "bed-7"), search);
  for (const search of ["zoey", "zoe berg", "."]) assert.ok(!finds(search, "Zoë Ångström", "bed-7"), search);
});

test("the month of an access, its cap, its cost and its rules are in words", () => {
  const { monthText, useText, costText, rulesText, gigabytes } = access;
  const use = (more) => ({ monthBytes: 4_900_000_000n, capBytes: 5_000_000_000n, resetDay: 15, timeZone: "", pricePerGb: 4, rank: 2, rules: [], ...more });
  assert.equal(monthText(use({})), "4.90 GB of 5.00 GB, 100 MB left until day 15");
  assert.equal(monthText(use({ monthBytes: 5_100_000_000n })), "5.10 GB of 5.00 GB: the cap is reached until day 15");
  assert.equal(monthText(use({ capBytes: undefined, resetDay: 0 })), "4.90 GB this month, no cap");
  assert.equal(monthText(use({ capBytes: undefined })), "4.90 GB since day 15, no cap");
  const zoned = (more) => use({ timeZone: "Europe/Zurich", ...more });
  assert.equal(monthText(zoned({})), "4.90 GB of 5.00 GB, 100 MB left until day 15 (Europe/Zurich)");
  assert.equal(monthText(zoned({ capBytes: undefined })), "4.90 GB since day 15 (Europe/Zurich), no cap");
  assert.equal(monthText(zoned({ capBytes: undefined, resetDay: 0 })), "4.90 GB this month, no cap");
  assert.equal(costText(use({})), "costs 19.60 so far");
  assert.equal(useText(use({}), 600), "4.90 GB of 5.00 GB, 100 MB left until day 15 · costs 19.60 so far");
  assert.match(useText(use({}), 10_800), /costs 19\.60 so far · reported 3 h ago$/);
  assert.equal(costText(use({ pricePerGb: 0 })), "");
  const rules = [{ rule: "", mode: "auto" }, { rule: "bulk", mode: "priority" }];
  assert.equal(rulesText(use({ rules })), "bulk (priority), no rule (auto) · spill");
  assert.deepEqual([0, 1_500, 2_000_000, 20_000_000].map(gigabytes), ["0.0 kB", "1.5 kB", "2.0 MB", "20 MB"]);
});

test("accesses nearest to their cap come first, then those with most bytes", () => {
  const { byUrgency } = access;
  const track = (gateway, monthBytes, capBytes) => ({ gateway, name: "lte", access: { monthBytes, capBytes } });
  const tracks = [track("a", 10n, undefined), track("b", 1n, 4n), track("c", 3n, 4n), track("d", 20n, undefined), { gateway: "e", name: "x" }];
  assert.deepEqual(byUrgency(tracks).map(({ gateway }) => gateway), ["c", "b", "d", "a", "e"]);
});

test("a page has slept when either clock says so", () => {
  const sleep = new Sleep(1_000_000, 1_000);
  assert.equal(sleep.beat(1_000_500, 1_500), false);
  assert.equal(sleep.beat(1_003_000, 4_000), false, "a hidden tab is slow");
  assert.equal(sleep.beat(1_063_000, 4_500), true, "the machine was suspended, which stops one clock");
  assert.equal(sleep.beat(1_063_500, 5_000), false);
  assert.equal(sleep.beat(1_000_000, 65_000), true, "the other was set back meanwhile");
});

test("each text has a translation with the same fields, and no translation is of a text that is gone", () => {
  const english = texts();
  const fields = (text) => [...text.matchAll(/\{\w+\}/g)].map(([field]) => field).sort().join();
  for (const language of ["de", "es"]) {
    const own = translated(language);
    assert.deepEqual(Object.keys(own).sort(), [...english].sort(), language);
    for (const [text, other] of Object.entries(own)) {
      assert.equal(other.split("|").length, text.split("|").length, `${language}: ${text}`);
      assert.equal(fields(other), fields(text), `${language}: ${text}`);
    }
  }
});

test("an address is read as it was written, and links of messages lead to their alert", () => {
  const { routeOf, pathOf, to } = route;
  const read = (address) => routeOf(new URL(address, "http://ward"));
  for (const it of [to("ward"), to("patients", "p/1 ä"), to("patients", "p", "a|b"), to("alerts", "", "a/b"), to("alerts"), to("fleet")]) {
    assert.deepEqual(read(pathOf(it)), it);
  }
  assert.deepEqual(read("/#patient=ada&alert=a%20b"), to("patients", "ada", "a b"));
  assert.deepEqual(read("/#alert=silent"), to("alerts", "", "silent"));
  for (const elsewhere of ["/", "/nothing", "/patients", "/patients/"]) assert.deepEqual(read(elsewhere), to("ward"), elsewhere);
  assert.equal(read("/patients/%").patient, "%");
});

test("a value is abnormal by its limits and not by its metric", () => {
  const { judge, scaleOf, limitsOf, points } = limits;
  const [HEART, RESPIRATION, SPO2, TEMPERATURE, SYSTOLIC, CONSCIOUSNESS, OXYGEN] = [Metric.HEART_RATE, Metric.RESPIRATION_RATE, Metric.SPO2, Metric.TEMPERATURE, Metric.SYSTOLIC_PRESSURE, Metric.CONSCIOUSNESS, Metric.SUPPLEMENTAL_OXYGEN];
  const chart = [
    [SYSTOLIC, [[90, 3], [91, 2], [101, 1], [111, 0], [115, 0], [219, 0], [220, 3]]],
    [HEART, [[40, 3], [41, 1], [51, 0], [90.4, 0], [91, 1], [111, 2], [131, 3]]],
    [RESPIRATION, [[8, 3], [9, 1], [12, 0], [20, 0], [21, 2], [25, 3]]],
    [TEMPERATURE, [[35, 3], [35.1, 1], [36.04, 1], [36.1, 0], [38.04, 0], [38.1, 1], [39.1, 2]]],
  ];
  for (const [metric, rows] of chart) for (const [value, expected] of rows) assert.equal(points(metric, value, "one"), expected, `${metric}: ${value}`);
  const latest = (spo2, oxygen = 0) => [[HEART, 72], [RESPIRATION, 15], [SPO2, spo2], [TEMPERATURE, 36.8], [SYSTOLIC, 115], [CONSCIOUSNESS, 0], [OXYGEN, oxygen]].map(([metric, value]) => ({ metric, value }));
  const patient = (score, spo2, oxygen) => ({ news2: { score, missing: [], stale: [] }, latest: latest(spo2, oxygen) });
  assert.equal(scaleOf(patient(0, 97)), "one");
  // 90 % is three points by one scale and none by the other. The server's score decides.
  assert.equal(scaleOf(patient(3, 90)), "one");
  assert.equal(scaleOf(patient(0, 90)), "two-air");
  assert.equal(scaleOf(patient(5, 97, 1)), "two-oxygen");
  assert.equal(scaleOf(patient(9, 97)), undefined, "a score of another chart");
  assert.deepEqual(judge(SYSTOLIC, 115, "one", []), { level: 0, side: undefined });
  assert.deepEqual(judge(HEART, 138, "one", []), { level: 3, side: "high" });
  assert.deepEqual(judge(SPO2, 90, "two-air", []), { level: 0, side: undefined });
  assert.deepEqual(judge(HEART, 48, "one", []), { level: 1, side: "low" });
  // Without a scale the page marks only what an alert is about.
  assert.equal(judge(HEART, 138, undefined, []).level, 0);
  assert.equal(judge(HEART, 72, "one", [{ metric: HEART, priority: HIGH, state: ACTIVE }]).level, 3);
  assert.equal(judge(HEART, 72, "one", [{ metric: HEART, priority: HIGH, state: LATCHED }]).level, 0, "it has ended");
  assert.deepEqual(limitsOf(TEMPERATURE, "one"), { low: 36.1, high: 38 });
  assert.deepEqual(limitsOf(SPO2, "one"), { low: 96, high: undefined });
  assert.deepEqual(limitsOf(SPO2, "two-oxygen"), { low: 88, high: 92 });
});

test("an exact name or identifier is found before what merely has it", () => {
  const texts = [["Patient 10", "patient-10"], ["Patient 1", "patient-1"], ["Ann Patient", "p-1-1"]];
  const by = (search) => texts.filter((own) => finds(search, ...own)).sort((a, b) => rank(search, ...b) - rank(search, ...a)).map(([name]) => name);
  assert.deepEqual(by("patient-1"), ["Patient 1", "Patient 10"]);
  assert.deepEqual(by("PATIENT 1"), ["Patient 1", "Patient 10", "Ann Patient"]);
  assert.deepEqual(by("p-1-1"), ["Ann Patient"]);
});

test("a patient whose silence raises no alert is said to be paused or expected", () => {
  const [unspecified, expected, admitted, paused] = [0, 1, 2, 3].map((status) => stayText(status));
  assert.deepEqual([unspecified, expected, admitted, paused], ["", "expected, not monitored yet", "", "monitoring is paused"]);
});

test("nobody reads that data are complete without evidence", () => {
  const proof = (state, untilUs, gaps = [], inTransit = 0n) => ({ state, fromUs: 0n, completeUntilUs: untilUs, streams: [{ gaps, inTransit }] });
  const time = clock(3600);
  assert.equal(completenessText(proof(ProofState.COMPLETE, 3_600_000_000n)), `Complete until ${time}`);
  assert.equal(completenessText(proof(ProofState.NOT_PROVEN, 0n)), "Completeness is not proven");
  const full = { cause: GapCause.JOURNAL_FULL, fromUs: 3_600_000_000n };
  const waits = { cause: GapCause.IN_TRANSIT, fromUs: 3_600_000_000n };
  assert.equal(completenessText(proof(ProofState.INCOMPLETE, 3_600_000_000n, [waits], 1n)), `Complete until ${time}; 1 reading is on its way`);
  assert.equal(completenessText(proof(ProofState.INCOMPLETE, 3_600_000_000n, [waits, full], 1n)), `Complete until ${time}; the gateway's journal was full`);
  // A cause of a newer core.
  assert.equal(completenessText(proof(ProofState.INCOMPLETE, 3_600_000_000n, [{ cause: 99, fromUs: 0n }])), `Complete until ${time}; readings are missing`);
});
