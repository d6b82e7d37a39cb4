//! The two ends of a gateway without bulk.
//!
//! Uploads and reports have a stream each, and the server answers each message. The alert goes as
//! the vitals of other scenarios do, by [`crate::journal`]. It is copied, and written again on a
//! fresh stream as soon as a path is in trouble. A run lasts as long as its limit.

use std::time::Duration;

use noq_proto::{Connection, Dir, StreamId};

use super::{Regular, Thin};
use crate::journal::{VitalsClient, VitalsServer};
use crate::scenario::Vitals;

/// Most bytes taken from a stream in one read.
const READ_BYTES_MAX: usize = 1 << 16;

#[derive(Debug)]
struct Flow {
    regular: Regular,
    stream: Option<StreamId>,
    next_at: Duration,
    /// Bytes written and not taken by the stream.
    unwritten: usize,
    received: usize,
}

/// The client's or the server's end.
#[derive(Debug)]
pub struct ThinApplication {
    client: bool,
    flows: Vec<Flow>,
    accepted: usize,
    alert: Option<Vitals>,
    alert_client: VitalsClient,
    alert_server: VitalsServer,
}

impl ThinApplication {
    pub fn new(client: bool, thin: &Thin) -> Self {
        let flows = thin.flows.iter().map(|&regular| Flow {
            regular,
            stream: None,
            next_at: Duration::MAX,
            unwritten: 0,
            received: 0,
        });
        Self {
            client,
            flows: flows.collect(),
            accepted: 0,
            alert: thin.alert.map(|(at, bytes)| Vitals {
                interval_ms: at.as_millis() as u64,
                bytes,
            }),
            alert_client: VitalsClient::default(),
            alert_server: VitalsServer::default(),
        }
    }

    pub fn on_connected(&mut self, conn: &mut Connection, now: Duration) {
        if !self.client {
            return;
        }
        for flow in &mut self.flows {
            flow.stream = conn.streams().open(Dir::Bi);
            flow.next_at = now + flow.regular.every;
        }
        if let Some(alert) = self.alert {
            self.alert_client.start(conn, now, alert);
        }
    }

    pub fn on_path_trouble(&mut self, conn: &mut Connection, now: Duration) {
        if self.client && self.alert.is_some() {
            self.alert_client.replay(conn, now, true);
        }
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        if !self.client {
            return None;
        }
        let flows = self.flows.iter().map(|flow| flow.next_at);
        let alert = self.alert.and_then(|_| self.alert_client.next_deadline());
        flows.chain(alert).min()
    }

    pub fn turn(&mut self, conn: &mut Connection, now: Duration) {
        if self.client {
            for flow in self.flows.iter_mut().filter(|flow| flow.next_at <= now) {
                flow.next_at = now + flow.regular.every;
                flow.unwritten += flow.regular.bytes;
            }
            if let Some(alert) = self.alert {
                self.alert_client.turn(conn, now, alert);
            }
        } else {
            while let Some(id) = conn.streams().accept(Dir::Bi) {
                if let Some(flow) = self.flows.get_mut(self.accepted) {
                    flow.stream = Some(id);
                }
                self.accepted += 1;
            }
            while let Some(id) = conn.streams().accept(Dir::Uni) {
                self.alert_server.accept(id);
            }
            if let Some(alert) = self.alert {
                self.alert_server.read(conn, now, alert);
            }
        }
        let client = self.client;
        for flow in &mut self.flows {
            flow.exchange(conn, client);
        }
    }

    /// Delays of the alerts that arrived.
    pub fn delays(&self) -> &[(Duration, Duration)] {
        self.alert_server.delays()
    }

    pub fn alerts_sent(&self) -> u64 {
        self.alert_client.sent()
    }
}

impl Flow {
    fn exchange(&mut self, conn: &mut Connection, client: bool) {
        let Some(id) = self.stream else {
            return;
        };
        self.received += read(conn, id);
        if client {
            self.received = 0;
        } else if let Some(whole) = self.received.checked_div(self.regular.bytes) {
            self.unwritten += whole * self.regular.answer_bytes;
            self.received %= self.regular.bytes;
        }
        if self.unwritten > 0
            && let Ok(written) = conn.send_stream(id).write(&vec![0x56; self.unwritten])
        {
            self.unwritten -= written;
        }
    }
}

/// Bytes that had come.
fn read(conn: &mut Connection, id: StreamId) -> usize {
    let mut stream = conn.recv_stream(id);
    let Ok(mut chunks) = stream.read(true) else {
        return 0;
    };
    let mut bytes = 0;
    while let Ok(Some(chunk)) = chunks.next(READ_BYTES_MAX) {
        bytes += chunk.bytes.len();
    }
    let _ = chunks.finalize();
    bytes
}
