// Load on the running platform, and what it promises held against it; run.sh starts it.
//
// Sensors send to a gateway (`upload`: gateways upload to Envoy), visitors ask what a page asks,
// viewers watch patients live. Everybody keeps account of what they sent or saw and compares it
// with what is stored.

import exec from 'k6/execution';
import { signIn } from './page.js';
import { beGateway } from './gateway.js';
import { beViewer, beVisitor } from './person.js';
import { promises } from './promises.js';
import { beSensor } from './sensor.js';

// How many of each, for how long, seconds between batches, readings a batch, whether they show
// somebody ill; ramped: one sensor after the other.
const SCENARIOS = {
  smoke: { sensors: 2, visitors: 1, viewers: 1, seconds: 20, every: 1, readings: 1 },
  steady: { sensors: 20, visitors: 3, viewers: 5, seconds: 60, every: 1, readings: 4 },
  surge: { sensors: 60, visitors: 3, viewers: 5, seconds: 60, every: 1, readings: 10, ramp: 20 },
  'path-loss': { sensors: 10, visitors: 2, viewers: 5, seconds: 60, every: 0.5, readings: 2 },
  storm: { sensors: 30, visitors: 3, viewers: 5, seconds: 40, every: 1, readings: 2, ill: true },
  soak: { sensors: 20, visitors: 2, viewers: 5, seconds: 3600, every: 1, readings: 4 },
  upload: { gateways: 10, sensors: 10, visitors: 2, viewers: 5, seconds: 60, every: 0.2, readings: 4 },
};

const name = __ENV.SCENARIO || 'smoke';
if (!SCENARIOS[name]) throw new Error(`there is no scenario ${name}: ${Object.keys(SCENARIOS).join(', ')}`);
const plan = { ...SCENARIOS[name] };
if (__ENV.LOAD_SECONDS) plan.seconds = Number(__ENV.LOAD_SECONDS);
if (!(plan.seconds > 0)) throw new Error(`LOAD_SECONDS is ${__ENV.LOAD_SECONDS}; for example LOAD_SECONDS=600`);

const label = __ENV.LABEL || 'load';
// Names of devices and patients that `braid setup` enters into the register.
const names = (number) => ({ device: `${label}-wearable-${number}`, patient: `${label}-patient-${number}` });

// Sensors go on until they have read back what they sent; people leave with the last of them.
const each = (what, vus) => ({ exec: what, vus, executor: 'per-vu-iterations', iterations: 1, maxDuration: `${plan.seconds + 600}s` });
export const options = {
  scenarios: {
    ...(plan.gateways ? { gateways: each('gateway', plan.gateways) } : { sensors: each('sensor', plan.sensors) }),
    visitors: each('visitor', plan.visitors),
    viewers: each('viewer', plan.viewers),
  },
  insecureSkipTLSVerify: __ENV.INSECURE === 'yes',
  summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max', 'count'],
  thresholds: promises(name, plan),
};

export function setup() {
  return signIn();
}

// Numbers from 1 on within a scenario.
const number = () => exec.scenario.iterationInTest + 1;

export const sensor = (session) => beSensor(plan, number(), names, session);
export const gateway = (session) => beGateway(plan, number(), names, session);
export const visitor = (session) => beVisitor(plan, number(), names, session);
export const viewer = (session) => beViewer(plan, number(), names, session);
