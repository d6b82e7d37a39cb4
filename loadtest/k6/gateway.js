// A gateway without its paths. It uploads straight to Envoy as one gRPC stream, with a gateway's
// certificate, for as long as the scenario lasts. Then it reads back from the page every reading
// that ingest acknowledged.

import { Client, Stream } from 'k6/net/grpc';
import { Page } from './page.js';
import { acknowledged, broken, lost, sent } from './promises.js';
import { reconcile } from './reconcile.js';

const client = new Client();
client.load(['../../proto'], 'braid/vitals/v1/vitals.proto');
const certificate = __ENV.UPLOAD
  ? {
      cert: open(`${__ENV.IDENTITY}/${__ENV.GATEWAY}.pem`),
      key: open(`${__ENV.IDENTITY}/${__ENV.GATEWAY}.key`),
      cacerts: open(`${__ENV.IDENTITY}/ca.pem`),
    }
  : null;
// After the last upload; then what is not acknowledged counts as lost.
const ACKNOWLEDGED_MAX_MS = 60000;

// Ends by itself: the iteration lasts until its stream has ended.
export function beGateway(plan, number, names, session) {
  const { device, patient } = names(number);
  client.connect(__ENV.UPLOAD, { authority: 'envoy', tls: certificate, timeout: '20s' });
  const stream = new Stream(client, 'braid.vitals.v1.IngestService/Upload');
  const began = Date.now();
  const waiting = new Map();
  const mine = new Set();
  let position = 0;
  let failed = false;

  const finish = () => {
    clearInterval(timer);
    for (const { timesUs } of waiting.values()) lost.add(timesUs.length);
    if (waiting.size > 0) console.error(`${device}: ${waiting.size} uploads were not acknowledged`);
    broken.add(failed ? 1 : 0);
    reconcile(new Page(session), patient, began * 1000, mine);
    client.close();
  };
  stream.on('data', (answer) => {
    // Acknowledged is everything before the position; 64 bits come as text.
    const until = Number(answer.position);
    for (const [end, upload] of waiting) {
      if (end > until) break;
      acknowledged.add(Date.now() - upload.at);
      upload.timesUs.forEach((time) => mine.add(time));
      waiting.delete(end);
    }
    (answer.rejections || []).forEach((it) => console.error(`${device}: refused: ${it.reason}`));
  });
  stream.on('error', (error) => {
    failed = true;
    console.error(`${device}: ${error.code} ${error.message}`);
  });
  stream.on('end', finish);

  let ending = false;
  const timer = setInterval(() => {
    const at = Date.now();
    if (at - began >= plan.seconds * 1000) {
      if (!ending && (waiting.size === 0 || at - began > plan.seconds * 1000 + ACKNOWLEDGED_MAX_MS)) {
        ending = true;
        stream.end();
      }
      return;
    }
    const stepUs = Math.floor((plan.every * 1e6) / plan.readings);
    const timesUs = Array.from({ length: plan.readings }, (_, n) => at * 1000 - (plan.readings - 1 - n) * stepUs);
    const samples = timesUs.map((time, n) => ({
      device,
      stream: 'heart-rate',
      // Like a gateway's own numbers: above all that it gave before.
      sequence: String(began * 1000 + position + n),
      metric: 'METRIC_HEART_RATE',
      unit: '/min',
      device_time_us: String(time),
      gateway_time_us: String(at * 1000),
      value: 72,
    }));
    position += samples.length;
    waiting.set(position, { at, timesUs });
    stream.write({ position: String(position), samples });
    sent.add(samples.length);
  }, plan.every * 1000);
}
