//! The bytes that the endpoints exchange: bulk streams of a known pattern, and small urgent
//! messages with a journal.
//!
//! Bulk: the client opens `streams` bidirectional streams. For an upload it writes its share on
//! each. For a download it writes one byte, and the server answers with the share. The reader
//! checks every byte, in order.
//!
//! Vitals: see [`crate::journal`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use multipath::PathScheduler;
use noq_proto::{Connection, Dir, ReadError, ReadableError, StreamId, WriteError};

use crate::chaos::{ChaosApplication, Plan};
use crate::journal::{VitalsClient, VitalsServer};
use crate::mix::{MixApplication, Noted};
use crate::pattern::{TrafficError, matches_pattern, pattern_from};
use crate::report::Timeline;
use crate::scenario::{Direction, Scenario, Vitals};
use crate::thin::ThinApplication;

/// Most bytes taken from a stream in one read.
const READ_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Sending {
    id: StreamId,
    sent: u64,
    total: u64,
    finished: bool,
}

impl Sending {
    /// Writes up to `until`.
    fn pump(&mut self, conn: &mut Connection, until: u64) {
        let until = until.min(self.total);
        while self.sent < until {
            let mut chunks = [pattern_from(self.sent, until)];
            match conn.send_stream(self.id).write_chunks(&mut &mut chunks[..]) {
                Ok(0) | Err(WriteError::Blocked) => return,
                Ok(written) => self.sent += written as u64,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    self.finished = true;
                    return;
                }
            }
        }
        if !self.finished && self.sent >= self.total {
            self.finished = true;
            // Only fails on a stream that the peer has stopped, and nobody waits for that one.
            let _ = conn.send_stream(self.id).finish();
        }
    }
}

#[derive(Debug)]
struct Receiving {
    id: StreamId,
    got: u64,
    total: u64,
    finished: bool,
}

impl Receiving {
    fn read(
        &mut self,
        conn: &mut Connection,
        now: Duration,
        timeline: &mut Timeline,
    ) -> Result<(), TrafficError> {
        let mut stream = conn.recv_stream(self.id);
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => return Ok(()),
        };
        let outcome = loop {
            match chunks.next(READ_BYTES_MAX) {
                Ok(Some(chunk)) => {
                    if chunk.offset != self.got || !matches_pattern(self.got, &chunk.bytes) {
                        break Err(TrafficError::WrongBytes(self.id.into(), self.got));
                    }
                    self.got += chunk.bytes.len() as u64;
                    timeline.delivered(now, chunk.bytes.len() as u64);
                }
                Ok(None) => {
                    self.finished = true;
                    break if self.got == self.total {
                        Ok(())
                    } else {
                        Err(TrafficError::WrongLength(
                            self.id.into(),
                            self.got,
                            self.total,
                        ))
                    };
                }
                Err(ReadError::Blocked) => break Ok(()),
                Err(ReadError::Reset(_)) => break Err(TrafficError::Reset(self.id.into())),
            }
        };
        // The world polls for transmits after every turn.
        let _ = chunks.finalize();
        outcome
    }
}

/// The client's or the server's application.
#[derive(Debug)]
pub struct Application {
    client: bool,
    direction: Direction,
    shares: Vec<u64>,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
    requests: usize,
    opened_at: Option<Duration>,
    vitals: Option<Vitals>,
    vitals_client: VitalsClient,
    vitals_server: VitalsServer,
    /// Either takes the place of all of that.
    chaos: Option<ChaosApplication>,
    /// Bytes of each stream that may be sent, with the time of the last look.
    pace: Pace,
    mix: Option<MixApplication>,
    thin: Option<ThinApplication>,
    pub timeline: Timeline,
}

/// How much an application that does not send all it can has sent in so much time.
#[derive(Debug, Default)]
struct Pace {
    /// Seconds and Mbit/s from then on.
    steps: Vec<(f64, f64)>,
    due: u64,
    looked_at: Duration,
}

/// How often a paced application sends.
const PACE_EVERY: Duration = Duration::from_millis(5);

impl Pace {
    /// Bytes that each stream may have sent.
    fn until(&mut self, now: Duration, streams: usize) -> u64 {
        if self.steps.is_empty() {
            return u64::MAX;
        }
        self.looked_at = now;
        let now_s = now.as_secs_f64();
        let ends = self.steps.iter().skip(1).map(|step| step.0);
        let ends = ends.chain([f64::INFINITY]);
        let pieces = self.steps.iter().zip(ends);
        let mbit: f64 = pieces
            .map(|(step, end)| step.1 * (now_s.min(end) - step.0).max(0.0))
            .sum();
        self.due = (mbit * 1e6 / 8.0) as u64 / streams.max(1) as u64;
        self.due
    }

    fn next_deadline(&self) -> Option<Duration> {
        (!self.steps.is_empty()).then_some(self.looked_at + PACE_EVERY)
    }

    fn is_behind(&self, stream: &Sending) -> bool {
        self.steps.is_empty() || stream.sent < self.due.min(stream.total)
    }
}

impl Application {
    pub fn new(
        client: bool,
        scenario: &Scenario,
        plan: Option<Plan>,
        scheduled: (&Arc<PathScheduler>, Instant),
    ) -> Self {
        let streams = u64::from(scenario.streams);
        let shares = (0..streams)
            .map(|i| scenario.bytes / streams + u64::from(i < scenario.bytes % streams))
            .collect();
        Self {
            client,
            direction: scenario.direction,
            shares,
            sending: Vec::new(),
            receiving: Vec::new(),
            requests: 0,
            opened_at: None,
            vitals: scenario.vitals,
            vitals_client: VitalsClient::default(),
            vitals_server: VitalsServer::default(),
            chaos: plan.map(|plan| ChaosApplication::new(client, plan)),
            pace: Pace {
                steps: scenario.pace.clone(),
                ..Pace::default()
            },
            mix: scenario
                .mix
                .as_ref()
                .map(|mix| MixApplication::new(client, scenario, mix, scheduled)),
            thin: scenario
                .thin
                .as_ref()
                .map(|thin| ThinApplication::new(client, thin)),
            timeline: Timeline::default(),
        }
    }

    /// When the client opened its streams.
    pub fn opened_at(&self) -> Option<Duration> {
        let mix = self.mix.as_ref();
        mix.map_or(self.opened_at, MixApplication::began_at)
    }

    /// Bulk bytes that the application still holds or has handed over without their being sent to
    /// the end.
    pub fn wants_to_send(&self) -> bool {
        if let Some(mix) = &self.mix {
            return mix.wants_to_send();
        }
        match &self.chaos {
            Some(chaos) => chaos.wants_to_send(),
            None => {
                let behind = |stream: &Sending| !stream.finished && self.pace.is_behind(stream);
                self.sending.iter().any(behind)
            }
        }
    }

    /// Bytes of the bulk or of the application that are written to the connection's streams;
    /// none where they are not counted.
    pub fn written_bytes(&self) -> Option<u64> {
        match (&self.mix, &self.chaos) {
            (Some(mix), _) => Some(mix.written_bytes()),
            (None, None) => Some(self.sending.iter().map(|stream| stream.sent).sum()),
            (None, Some(_)) => None,
        }
    }

    /// A write of an application waits until a packet of its copy has left.
    pub(crate) fn waits_for_copy(&self) -> bool {
        self.mix
            .as_ref()
            .is_some_and(MixApplication::waits_for_copy)
    }

    /// Record of the receiving end of an application.
    pub fn noted(&self) -> Option<&Noted> {
        self.mix.as_ref().map(MixApplication::noted)
    }

    /// Description of the flows that a chaotic end still waits for.
    pub fn waits_for(&self) -> Option<String> {
        self.chaos.as_ref().map(ChaosApplication::waits_for)
    }

    /// Whether this end has received all it waits for.
    pub fn is_complete(&self) -> bool {
        if self.thin.is_some() {
            return false;
        }
        if let Some(chaos) = &self.chaos {
            return chaos.is_complete();
        }
        if let Some(mix) = &self.mix {
            return mix.is_complete();
        }
        self.receiving.len() == self.shares.len()
            && self.receiving.iter().all(|stream| stream.finished)
    }

    /// Delay of each message that arrived, with the time of its arrival (server).
    pub fn vitals_delays(&self) -> &[(Duration, Duration)] {
        let thin = self.thin.as_ref().map(ThinApplication::delays);
        thin.unwrap_or(self.vitals_server.delays())
    }

    /// Messages sent so far (client).
    pub fn vitals_sent(&self) -> u64 {
        let thin = self.thin.as_ref().map(ThinApplication::alerts_sent);
        thin.unwrap_or(self.vitals_client.sent())
    }

    pub fn on_connected(&mut self, conn: &mut Connection, now: Duration) {
        if let Some(chaos) = &mut self.chaos {
            chaos.on_connected();
            self.opened_at.get_or_insert(now);
            return;
        }
        if let Some(mix) = &mut self.mix {
            mix.on_connected(now);
            self.opened_at.get_or_insert(now);
            return;
        }
        if let Some(thin) = &mut self.thin {
            thin.on_connected(conn, now);
            self.opened_at.get_or_insert(now);
            return;
        }
        if !self.client || self.opened_at.is_some() {
            return;
        }
        self.opened_at = Some(now);
        if let Some(vitals) = self.vitals {
            self.vitals_client.start(conn, now, vitals);
        }
        for &total in &self.shares {
            let Some(id) = conn.streams().open(Dir::Bi) else {
                continue;
            };
            match self.direction {
                Direction::Upload => self.sending.push(Sending {
                    id,
                    sent: 0,
                    total,
                    finished: false,
                }),
                Direction::Download => {
                    let _ = conn.send_stream(id).write(&[1]);
                    let _ = conn.send_stream(id).finish();
                    self.receiving.push(Receiving {
                        id,
                        got: 0,
                        total,
                        finished: false,
                    });
                }
            }
        }
    }

    /// A path is silent or gone: vitals move to a fresh stream.
    pub fn on_path_trouble(&mut self, conn: &mut Connection, now: Duration) {
        if let Some(thin) = &mut self.thin {
            return thin.on_path_trouble(conn, now);
        }
        if self.client && self.vitals.is_some() {
            self.vitals_client.replay(conn, now, true);
        }
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        if let Some(chaos) = &self.chaos {
            chaos.next_deadline()
        } else if let Some(mix) = &self.mix {
            mix.next_deadline()
        } else if let Some(thin) = &self.thin {
            thin.next_deadline()
        } else if self.client && self.vitals.is_some() {
            self.vitals_client.next_deadline()
        } else if self.sending.is_empty() {
            None
        } else {
            self.pace.next_deadline()
        }
    }

    /// Reads and writes whatever can be read and written.
    pub fn turn(&mut self, conn: &mut Connection, now: Duration) -> Result<(), TrafficError> {
        if let Some(chaos) = &mut self.chaos {
            return chaos.turn(conn, now, &mut self.timeline);
        }
        if let Some(mix) = &mut self.mix {
            return mix.turn(conn, now, &mut self.timeline);
        }
        if let Some(thin) = &mut self.thin {
            thin.turn(conn, now);
            return Ok(());
        }
        if !self.client {
            while let Some(id) = conn.streams().accept(Dir::Bi) {
                let index = self.requests;
                self.requests += 1;
                match (self.direction, self.shares.get(index)) {
                    (Direction::Upload, Some(&total)) => self.receiving.push(Receiving {
                        id,
                        got: 0,
                        total,
                        finished: false,
                    }),
                    (Direction::Download, Some(&total)) => self.sending.push(Sending {
                        id,
                        sent: 0,
                        total,
                        finished: false,
                    }),
                    (_, None) => {}
                }
            }
            while let Some(id) = conn.streams().accept(Dir::Uni) {
                self.vitals_server.accept(id);
            }
            if let Some(vitals) = self.vitals {
                self.vitals_server.read(conn, now, vitals);
            }
        } else if let Some(vitals) = self.vitals {
            self.vitals_client.turn(conn, now, vitals);
        }
        for stream in self.receiving.iter_mut().filter(|stream| !stream.finished) {
            stream.read(conn, now, &mut self.timeline)?;
        }
        let until = self.pace.until(now, self.shares.len());
        for stream in self.sending.iter_mut().filter(|stream| !stream.finished) {
            stream.pump(conn, until);
        }
        Ok(())
    }
}
