// People at the page: one asks what a page asks, another watches a patient live.

import { sleep } from 'k6';
import { HEART_RATE, Page } from './page.js';
import { answered, broken, live, unanswered, unseen } from './promises.js';
import { readBack } from './reconcile.js';

const PAUSE_S = 1;
// A live stream is looked at after so long, and opened again, as by somebody who turns to another
// patient and back.
const WATCH_S = 15;
// The page's promise for a reading, see `reading_on_page_ms`. A reading that is older at the end of
// the stream must have been in the stream.
const LIVE_MS = 5000;

function ask(question) {
  const at = Date.now();
  if (question() === null) unanswered.add(1);
  else {
    unanswered.add(0);
    answered.add(Date.now() - at);
  }
}

// The ward, then one patient after the other: the last minutes, alerts, paths.
export function beVisitor(plan, number, names, session) {
  const person = new Page(session);
  const began = Date.now();
  for (let turn = number; Date.now() - began < plan.seconds * 1000; turn++) {
    const { patient } = names((turn % plan.sensors) + 1);
    const nowUs = Date.now() * 1000;
    ask(() => person.ward());
    ask(() => person.times(patient, HEART_RATE, nowUs - 300e6, nowUs));
    ask(() => person.alerts(patient));
    ask(() => person.paths(nowUs - 60e6, nowUs));
    sleep(PAUSE_S);
  }
}

// A reading that was stored while a person watched, and long enough before the end, must have come
// through the stream.
export function beViewer(plan, number, names, session) {
  const person = new Page(session);
  const { patient } = names(number);
  const began = Date.now();
  while (Date.now() - began < plan.seconds * 1000) {
    const opened = Date.now();
    const seen = person.watch(patient, HEART_RATE, WATCH_S);
    const closed = Date.now();
    broken.add(seen === null ? 1 : 0);
    if (seen === null) {
      sleep(PAUSE_S);
      continue;
    }
    let found = null;
    while (found === null && Date.now() - closed < LIVE_MS * 4) {
      found = readBack(person, patient, opened * 1000);
      if (found === null) sleep(PAUSE_S);
    }
    const due = (found || []).filter((time) => time >= opened * 1000 && time < (closed - LIVE_MS) * 1000);
    const gone = due.filter((time) => !seen.has(time));
    if (gone.length > 0) {
      const ms = gone.map((time) => Math.round(closed - time / 1000));
      console.error(`${patient}: ${gone.length} of ${due.length} readings were not live; ms before the end: ${ms.slice(0, 12).join(' ')}`);
    }
    live.add(due.length - gone.length);
    unseen.add(found === null ? 1 : gone.length);
  }
}
