// Sensors that send to a gateway and find every reading again on the page: run.sh starts it.
//
// Each virtual user is one sensor: it sends batches for as long as the scenario lasts, then reads back what it sent. The thresholds are
// the service's promise: nothing lost, nothing twice, readings on the page within seconds, every alert raised.

import http from 'k6/http';
import { sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';
import { Page, signIn } from './page.js';

const HEART_RATE = 1;
const WELL = 72;
const ILL = 190;
// A sensor that heard no answer sends its batch again, for this long.
const PATIENCE_S = 120;

// Sensors, how long they send, batches a second, readings a batch, what they read; ramped: one more sensor after the other.
const SCENARIOS = {
  smoke: { sensors: 2, seconds: 10, every: 1, readings: 1, value: WELL },
  steady: { sensors: 20, seconds: 60, every: 1, readings: 4, value: WELL },
  surge: { sensors: 60, seconds: 60, every: 1, readings: 10, value: WELL, ramp: 20 },
  'path-loss': { sensors: 10, seconds: 60, every: 0.5, readings: 2, value: WELL },
  storm: { sensors: 30, seconds: 40, every: 1, readings: 2, value: ILL },
  soak: { sensors: 20, seconds: 3600, every: 1, readings: 4, value: WELL },
};

const name = __ENV.SCENARIO || 'smoke';
const plan = SCENARIOS[name];
if (!plan) throw new Error(`there is no scenario ${name}: ${Object.keys(SCENARIOS).join(', ')}`);
const sensors = __ENV.SENSORS || 'http://127.0.0.1:8090';
const page = __ENV.PAGE || 'http://127.0.0.1:8080';
const label = __ENV.LABEL || 'load';

const sent = new Counter('readings_sent');
const stored = new Counter('readings_stored');
const lost = new Counter('readings_lost');
const doubled = new Counter('readings_doubled');
const missing = new Counter('alerts_missing');
const accepted = new Trend('gateway_accepts_ms', true);
const visible = new Trend('reading_on_page_ms', true);

export const options = {
  scenarios: {
    sensors: { executor: 'per-vu-iterations', vus: plan.sensors, iterations: 1, maxDuration: `${plan.seconds + 600}s` },
  },
  insecureSkipTLSVerify: __ENV.INSECURE === 'yes',
  summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max', 'count'],
  thresholds: {
    readings_sent: ['count>0'],
    readings_lost: ['count==0'],
    readings_doubled: ['count==0'],
    alerts_missing: ['count==0'],
    gateway_accepts_ms: [`p(99)<${name === 'surge' ? 2000 : 1000}`],
    reading_on_page_ms: ['p(95)<5000'],
  },
};

function batch(device, first, timesUs) {
  return timesUs
    .map((device_time_us, at) =>
      JSON.stringify({ device, metric: 'heart-rate', value: plan.value, device_time_us, sensor_sequence: first + at }))
    .join('\n');
}

// True once the gateway has it.
function send(body) {
  const headers = __ENV.SENSOR_TOKEN ? { authorization: `Bearer ${__ENV.SENSOR_TOKEN}` } : {};
  for (const given_up = Date.now() + PATIENCE_S * 1000; Date.now() < given_up; sleep(0.5)) {
    const answer = http.post(`${sensors}/v1/samples`, body, { headers, tags: { name: 'samples' } });
    if (answer.status === 200) {
      accepted.add(answer.timings.duration);
      return true;
    }
  }
  return false;
}

export function setup() {
  return signIn(page, __ENV.NAME || 'admin', __ENV.PASSWORD || '');
}

export default function (cookie) {
  const device = `${label}-wearable-${__VU}`;
  const patient = `${label}-patient-${__VU}`;
  const person = new Page(page, cookie);
  if (plan.ramp) sleep((__VU / plan.sensors) * plan.ramp);

  const began = Date.now();
  const fromUs = began * 1000;
  const mine = new Set();
  let sequence = began;
  let watched = 0;
  while (Date.now() - began < plan.seconds * 1000) {
    const at = Date.now();
    const stepUs = Math.floor((plan.every * 1e6) / plan.readings);
    const timesUs = Array.from({ length: plan.readings }, (_, n) => at * 1000 - (plan.readings - 1 - n) * stepUs);
    if (!send(batch(device, sequence, timesUs))) break;
    sequence += timesUs.length;
    timesUs.forEach((time) => mine.add(time));
    sent.add(timesUs.length);
    // One batch in five is followed to the page.
    if (watched++ % 5 === 0) {
      const last = timesUs[timesUs.length - 1];
      while (Date.now() - at < PATIENCE_S * 1000) {
        const seen = person.times(patient, HEART_RATE, last, last + 1);
        if (seen !== null && seen.includes(last)) {
          visible.add(Date.now() - at);
          break;
        }
        sleep(0.1);
      }
    }
    sleep(Math.max(0, plan.every - (Date.now() - at) / 1000));
  }

  // The page thins what is more than 5,000 points, so the stretch is read minute by minute.
  const read = () => {
    const found = [];
    for (let from = fromUs - 10e6; from < Date.now() * 1000; from += 60e6) {
      const times = person.times(patient, HEART_RATE, from, from + 60e6);
      if (times === null) return null;
      found.push(...times.filter((time) => time < from + 60e6));
    }
    return found;
  };
  let found = null;
  for (const given_up = Date.now() + PATIENCE_S * 1000; Date.now() < given_up; sleep(0.5)) {
    found = read();
    if (found !== null && new Set(found.filter((time) => mine.has(time))).size === mine.size) break;
  }
  const ours = (found || []).filter((time) => mine.has(time));
  const different = new Set(ours).size;
  if (different < mine.size) {
    const gone = [...mine].filter((time) => !ours.includes(time)).map((time) => Math.round(time / 1000 - began));
    console.error(`${device}: ${gone.length} of ${mine.size} readings are not on the page; ms after its start: ${gone.slice(0, 12).join(' ')}`);
  }
  stored.add(different);
  lost.add(mine.size - different);
  doubled.add(ours.length - different);
  if (plan.value === ILL) missing.add((person.alerts(patient) || 0) > 0 ? 0 : 1);
}
