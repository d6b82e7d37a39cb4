// Somebody who is signed in at the page: the few questions of braid.query.v1 that a load test asks, over gRPC-web.
//
// k6 speaks gRPC but not gRPC-web, which is what the page and Envoy serve to people, so messages are written and read here by hand.

import http from 'k6/http';

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

// The cookie of a session. One serves all virtual users: a person has a bounded number of sessions, and the oldest ends with a new one.
export function signIn(url, name, password) {
  const answer = http.post(`${url}/api/sign-in`, JSON.stringify({ name, password }), {
    headers: { 'content-type': 'application/json' },
    tags: { name: 'sign-in' },
  });
  if (answer.status !== 200) throw new Error(`sign-in at ${url} was refused with ${answer.status}: ${answer.body}`);
  return Object.values(answer.cookies).map(([it]) => `${it.name}=${it.value}`).join('; ');
}

export class Page {
  constructor(url, cookie) {
    this.url = url;
    this.cookie = cookie;
  }

  ask(method, message) {
    const frame = new Uint8Array([0, 0, 0, 0, 0, ...message]);
    new DataView(frame.buffer).setUint32(1, message.length);
    const answer = http.post(`${this.url}/braid.query.v1.QueryService/${method}`, frame.buffer, {
      headers: { 'content-type': 'application/grpc-web+proto', cookie: this.cookie },
      responseType: 'binary',
      tags: { name: method },
    });
    if (answer.status === 401 || answer.status === 403) throw new Error(`${method}: the page knows us no more (${answer.status})`);
    if (answer.headers['Grpc-Status'] === '16') throw new Error(`${method}: the session has ended`);
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

  // How many alerts a patient has, resolved ones included.
  alerts(patient) {
    const answer = this.ask('ListAlerts', [...bytes(1, textOf(patient)), ...number(2, 1), ...number(3, 100)]);
    if (answer === null) return null;
    let count = 0;
    fields(answer, (field) => (count += field === 1 ? 1 : 0));
    return count;
  }
}
