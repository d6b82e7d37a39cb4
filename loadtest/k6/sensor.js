// A sensor sends batches to a gateway for as long as the scenario lasts. It follows some of them to
// the page, and reads back all of them at the end.

import http from 'k6/http';
import { sleep } from 'k6';
import { HEART_RATE, Page } from './page.js';
import { accepted, alarmed, missing, sent, visible } from './promises.js';
import { PATIENCE_S, reconcile } from './reconcile.js';

const sensors = __ENV.SENSORS || 'http://127.0.0.1:8090';
// One batch in so many is followed to the page.
const FOLLOWED = 5;
// Longer than the rule wants by this much, and somebody who is ill has no alert.
const ALERT_PATIENCE_S = 30;

function batch(device, value, first, timesUs) {
  return timesUs
    .map((device_time_us, at) => JSON.stringify({ device, metric: 'heart-rate', value, device_time_us, sensor_sequence: first + at }))
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

function follow(person, patient, timeUs, at) {
  while (Date.now() - at < PATIENCE_S * 1000) {
    const seen = person.times(patient, HEART_RATE, timeUs, timeUs + 1);
    if (seen !== null && seen.includes(timeUs)) {
      visible.add(Date.now() - at);
      return;
    }
    sleep(0.1);
  }
}

export function beSensor(plan, number, names, session) {
  const { device, patient } = names(number);
  const person = new Page(session);
  if (plan.ramp) sleep((number / plan.sensors) * plan.ramp);

  const began = Date.now();
  const mine = new Set();
  let sequence = began;
  let batches = 0;
  let alert = !plan.ill;
  while (Date.now() - began < plan.seconds * 1000) {
    const at = Date.now();
    const stepUs = Math.floor((plan.every * 1e6) / plan.readings);
    const timesUs = Array.from({ length: plan.readings }, (_, n) => at * 1000 - (plan.readings - 1 - n) * stepUs);
    if (!send(batch(device, plan.ill ? 190 : 72, sequence, timesUs))) break;
    sequence += timesUs.length;
    timesUs.forEach((time) => mine.add(time));
    sent.add(timesUs.length);
    if (batches++ % FOLLOWED === 0) follow(person, patient, timesUs[timesUs.length - 1], at);
    if (!alert && person.alerts(patient) > 0) {
      alert = true;
      alarmed.add(Date.now() - began);
    }
    sleep(Math.max(0, plan.every - (Date.now() - at) / 1000));
  }
  for (const given_up = Date.now() + ALERT_PATIENCE_S * 1000; !alert && Date.now() < given_up; sleep(0.5)) {
    alert = person.alerts(patient) > 0;
    if (alert) alarmed.add(Date.now() - began);
  }
  if (plan.ill) missing.add(alert ? 0 : 1);
  reconcile(person, patient, began * 1000, mine);
}
