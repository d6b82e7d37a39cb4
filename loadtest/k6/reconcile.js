// Sent against stored: what a sensor or a gateway sent is read back from the page and compared,
// reading by reading. The page's own proof of completeness must agree.

import { sleep } from 'k6';
import { HEART_RATE } from './page.js';
import { disproven, doubled, lost, stored, unanswered } from './promises.js';

// A request without an answer is repeated for this long.
export const PATIENCE_S = 120;
const MINUTE_US = 60e6;
// Clocks of sensor and page may differ by so much.
const CLOCKS_US = 10e6;

// Every time of a patient's readings since then, or nothing when the page did not answer.
// The page thins what is more than 5,000 points, so the stretch is read minute by minute.
export function readBack(person, patient, fromUs) {
  const found = [];
  for (let from = fromUs; from < Date.now() * 1000; from += MINUTE_US) {
    const times = person.times(patient, HEART_RATE, from, from + MINUTE_US);
    if (times === null) return null;
    found.push(...times.filter((time) => time < from + MINUTE_US));
  }
  return found;
}

export function reconcile(person, patient, fromUs, mine) {
  let ours = [];
  for (const given_up = Date.now() + PATIENCE_S * 1000; Date.now() < given_up; sleep(0.5)) {
    const found = readBack(person, patient, fromUs - CLOCKS_US);
    ours = (found || []).filter((time) => mine.has(time));
    if (new Set(ours).size === mine.size) break;
  }
  const different = new Set(ours);
  const gone = [...mine].filter((time) => !different.has(time));
  if (gone.length > 0) {
    const after = gone.map((time) => Math.round((time - fromUs) / 1000));
    console.error(`${patient}: ${gone.length} of ${mine.size} readings are not on the page; ms after its start: ${after.slice(0, 12).join(' ')}`);
  }
  const proof = person.proof(patient, fromUs - CLOCKS_US, Date.now() * 1000);
  unanswered.add(proof === null ? 1 : 0);
  const isWrong = proof !== null && (gone.some((time) => time < proof.completeUntilUs) || (gone.length === 0 && proof.unexplained > 0));
  if (isWrong) console.error(`${patient}: a wrong proof: ${JSON.stringify(proof)}`);
  disproven.add(isWrong ? 1 : 0);
  stored.add(different.size);
  lost.add(mine.size - different.size);
  doubled.add(ours.length - different.size);
}
