// Somebody who is signed in at the page: the few questions of braid.query.v1 that a load test asks,
// over gRPC-web.
//
// k6 speaks gRPC but not gRPC-web, which is what the page and Envoy serve to people, so messages
// are written and read here by hand.

import http from 'k6/http';

export const HEART_RATE = 1;
// GapCause of braid.vitals.v1.
const UNEXPLAINED = 8;
const url = __ENV.PAGE || 'http://127.0.0.1:8080';
// Before a session ends: longer than a stream is watched, so that no stream ends with it.
const RENEWED_MS = 60000;
// k6's code for a request that its own time-out ended.
const TIMED_OUT = 1050;

const textOf = (s) => Array.from(s, (c) => c.charCodeAt(0));

function varint(number) {
  const bytes = [];
  // Times in microseconds need more bits than JavaScript's shifts have.
  while (number >= 128) {
    bytes.push((number % 128) + 128);
    number = Math.floor(number / 128);
  }
  return [...bytes, number];
}

const number = (field, value) => [...varint(field * 8), ...varint(value)];
const bytes = (field, value) => [...varint(field * 8 + 2), ...varint(value.length), ...value];

// Calls `visit` with each field: its number, and its number or bytes.
function fields(data, visit) {
  let at = 0;
  const read = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = data[at++];
      value += (byte % 128) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < data.length) {
    const key = read();
    const kind = key % 8;
    if (kind === 0) visit(Math.floor(key / 8), read());
    else {
      const size = kind === 1 ? 8 : kind === 5 ? 4 : read();
      visit(Math.floor(key / 8), data.subarray(at, at + size));
      at += size;
    }
  }
}

function varints(data) {
  const found = [];
  let value = 0;
  let scale = 1;
  for (const byte of data) {
    value += (byte % 128) * scale;
    scale *= 128;
    if (byte < 128) {
      found.push(value);
      value = 0;
      scale = 1;
    }
  }
  return found;
}

// A session: its cookies, and until when they hold. One serves all virtual users at first: a person
// has a bounded number of sessions, and the oldest ends with a new one.
export function signIn() {
  const at = Date.now();
  const credentials = { name: __ENV.NAME || 'admin', password: __ENV.PASSWORD || '' };
  const answer = http.post(`${url}/api/sign-in`, JSON.stringify(credentials), {
    headers: { 'content-type': 'application/json' },
    tags: { name: 'sign-in' },
  });
  if (answer.status !== 200) throw new Error(`sign-in at ${url} was refused with ${answer.status}: ${answer.body}`);
  const cookies = Object.values(answer.cookies).map(([it]) => it);
  return {
    cookie: cookies.map((it) => `${it.name}=${it.value}`).join('; '),
    until: Math.min(...cookies.filter((it) => it.max_age > 0).map((it) => at + it.max_age * 1000)),
  };
}

// A session that was ended before its time, as by a restart of the dashboard.
const isRefused = (answer) => answer.status === 401 || answer.headers['Grpc-Status'] === '16';

export class Page {
  constructor(session) {
    this.session = session;
  }

  // Signs in again before the session ends, and once when it is refused.
  post(method, message, how) {
    if (Date.now() > this.session.until - RENEWED_MS) this.renew();
    const answer = this.postOnce(method, message, how);
    return isRefused(answer) && this.renew() ? this.postOnce(method, message, how) : answer;
  }

  // False when the page takes nobody in; the question is then one without an answer.
  renew() {
    try {
      this.session = signIn();
      return true;
    } catch (error) {
      console.warn(error.message);
      return false;
    }
  }

  postOnce(method, message, how) {
    const frame = new Uint8Array([0, 0, 0, 0, 0, ...message]);
    new DataView(frame.buffer).setUint32(1, message.length);
    return http.post(`${url}/braid.query.v1.QueryService/${method}`, frame.buffer, {
      headers: { 'content-type': 'application/grpc-web+proto', cookie: this.session.cookie },
      responseType: 'binary',
      tags: { name: method },
      ...how,
    });
  }

  ask(method, message) {
    const answer = this.post(method, message, {});
    if (answer.status === 403) throw new Error(`${method}: the page forbids it`);
    const body = answer.body ? new Uint8Array(answer.body) : new Uint8Array();
    if (answer.status !== 200 || body.length < 5 || body[0] !== 0) return null;
    const size = new DataView(body.buffer).getUint32(1);
    return body.subarray(5, 5 + size);
  }

  // Times of a patient's readings of a metric, or nothing when the page did not answer.
  times(patient, metric, fromUs, toUs) {
    const asked = [...bytes(1, textOf(patient)), ...bytes(2, [metric]), ...number(3, fromUs), ...number(4, toUs), ...number(5, 5000)];
    const answer = this.ask('GetSeries', asked);
    if (answer === null) return null;
    const found = [];
    fields(answer, (field, series) => {
      if (field === 1) fields(series, (inner, packed) => inner === 3 && found.push(...varints(packed)));
    });
    return found;
  }

  // Until when a patient's data are complete, and how many gaps have no cause; or nothing when the
  // page did not answer.
  proof(patient, fromUs, toUs) {
    const answer = this.ask('GetProof', [...bytes(1, textOf(patient)), ...number(2, fromUs), ...number(3, toUs)]);
    if (answer === null) return null;
    const found = { completeUntilUs: 0, unexplained: 0 };
    fields(answer, (_, proof) => fields(proof, (field, value) => {
      if (field === 6) found.completeUntilUs = value;
      if (field !== 8) return;
      fields(value, (inner, gap) => inner === 9 && fields(gap, (of, cause) => {
        if (of === 1 && cause === UNEXPLAINED) found.unexplained += 1;
      }));
    }));
    return found;
  }

  // How many alerts a patient has, resolved ones included.
  alerts(patient) {
    const answer = this.ask('ListAlerts', [...bytes(1, textOf(patient)), ...number(2, 1), ...number(3, 100)]);
    if (answer === null) return null;
    let count = 0;
    fields(answer, (field) => (count += field === 1 ? 1 : 0));
    return count;
  }

  // True when the page listed the patients, or null.
  ward() {
    return this.ask('ListPatients', []) === null ? null : true;
  }

  paths(fromUs, toUs) {
    return this.ask('GetPaths', [...number(2, fromUs), ...number(3, toUs)]) === null ? null : true;
  }

  // Times of a patient's readings of a metric that came through a live stream within so many
  // seconds, or null if the stream ended before. In k6 the data of a stream come after its end. So
  // this side ends the stream by a time-out. A stream that still lives ends in no other way.
  watch(patient, metric, seconds) {
    const answer = this.post('Watch', bytes(1, textOf(patient)), { timeout: `${seconds}s`, responseCallback: null });
    if (answer.error_code !== TIMED_OUT || !answer.body) return null;
    const data = new Uint8Array(answer.body);
    const view = new DataView(data.buffer);
    const seen = new Set();
    // The last frame may be cut.
    for (let at = 0; at + 5 <= data.length; ) {
      const end = at + 5 + view.getUint32(at + 1);
      if (end > data.length || data[at] !== 0) break;
      fields(data.subarray(at + 5, end), (update, samples) => {
        if (update !== 2) return;
        fields(samples, (_, sample) => {
          let of = 0;
          let timeUs = 0;
          fields(sample, (field, value) => {
            if (field === 4) of = value;
            if (field === 6) timeUs = value;
          });
          if (of === metric) seen.add(timeUs);
        });
      });
      at = end;
    }
    return seen;
  }
}
