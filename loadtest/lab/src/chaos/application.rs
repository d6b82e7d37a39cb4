//! One end of a chaotic run. It opens streams as the plan has it, and writes and reads them in
//! pieces of any length with pauses between them. Some streams are reset by their sender or stopped
//! by their receiver midway.
//!
//! The first four bytes of the opener's flow are the stream's number in the plan, since the peer
//! may see streams in any order. Every byte of every flow is checked, up to its end or to the place
//! where the plan lets it break off. A flow that breaks off elsewhere is an error.

use std::time::Duration;

use noq_proto::{Connection, Dir, ReadError, ReadableError, StreamId, VarInt, WriteError};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Ending, Flow, Plan, PlannedStream};
use crate::pattern::{TrafficError, matches_pattern, pattern_from};
use crate::report::Timeline;
use crate::seed::derive_seed;

/// Bytes of the stream's number.
const NUMBER_BYTES: u64 = 4;
/// Longest pieces written and read at once.
const PIECE_BYTES_MAX: u64 = 40_000;
/// Patterns of different streams start this far apart.
const PATTERN_STEP: u64 = 7_919;
/// Codes of resets and stops, as the peer sees them.
const RESET: VarInt = VarInt::from_u32(7);
const STOP: VarInt = VarInt::from_u32(8);

/// When the next piece is due, and how long it is.
#[derive(Debug)]
struct Pieces {
    random: ChaCha8Rng,
    pause: f64,
    next_at: Duration,
}

impl Pieces {
    fn new(plan: &Plan, number: u64, salt: u64) -> Self {
        Self {
            random: ChaCha8Rng::seed_from_u64(derive_seed(plan.seed, 400 + 4 * number + salt)),
            pause: plan.pause,
            next_at: Duration::ZERO,
        }
    }

    fn is_due(&self, now: Duration) -> bool {
        now >= self.next_at
    }

    fn bytes(&mut self) -> u64 {
        // As many short pieces as long ones.
        let most = PIECE_BYTES_MAX >> self.random.random_range(0..14);
        self.random.random_range(1..=most.max(1))
    }

    fn pause(&mut self, now: Duration) {
        if self.random.random_bool(0.6) {
            let pause = self.random.random_range(0.0..=self.pause);
            self.next_at = now + Duration::from_secs_f64(pause);
        }
    }
}

#[derive(Debug)]
struct Sending {
    id: StreamId,
    flow: Flow,
    /// Sent before the flow's own bytes.
    number: Option<[u8; NUMBER_BYTES as usize]>,
    number_sent: usize,
    pattern: u64,
    sent: u64,
    pieces: Pieces,
    done: bool,
}

impl Sending {
    fn turn(&mut self, conn: &mut Connection, now: Duration) {
        while !self.done && self.pieces.is_due(now) {
            if let Some(number) = self.number.filter(|number| self.number_sent < number.len()) {
                match conn.send_stream(self.id).write(&number[self.number_sent..]) {
                    Ok(0) | Err(WriteError::Blocked) => return,
                    Ok(written) => self.number_sent += written,
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => self.give_up(conn),
                }
                continue;
            }
            let until = match self.flow.ending {
                Ending::Reset(at) => at,
                Ending::Whole | Ending::Stop(_) => self.flow.total,
            };
            if self.sent >= until {
                if let Ending::Reset(_) = self.flow.ending {
                    self.give_up(conn);
                } else {
                    // Fails only on a stream that the peer has stopped.
                    let _ = conn.send_stream(self.id).finish();
                    self.done = true;
                }
                return;
            }
            let piece = self.pieces.bytes().min(until - self.sent);
            let from = self.pattern + self.sent;
            let mut chunks = [pattern_from(from, from + piece)];
            match conn.send_stream(self.id).write_chunks(&mut &mut chunks[..]) {
                Ok(0) | Err(WriteError::Blocked) => return,
                Ok(written) => self.sent += written as u64,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => self.give_up(conn),
            }
            self.pieces.pause(now);
        }
    }

    fn give_up(&mut self, conn: &mut Connection) {
        let _ = conn.send_stream(self.id).reset(RESET);
        self.done = true;
    }
}

#[derive(Debug)]
struct Receiving {
    id: StreamId,
    flow: Flow,
    /// The opener's own flow may have been reset before its number arrived: then the peer resets
    /// this one.
    may_reset: bool,
    pattern: u64,
    got: u64,
    pieces: Pieces,
    /// Bytes left of the piece under way.
    wanted: u64,
    done: bool,
}

impl Receiving {
    fn turn(
        &mut self,
        conn: &mut Connection,
        now: Duration,
        timeline: &mut Timeline,
    ) -> Result<(), TrafficError> {
        while !self.done && self.pieces.is_due(now) {
            if let Ending::Stop(at) = self.flow.ending
                && self.got >= at
            {
                let _ = conn.recv_stream(self.id).stop(STOP);
                self.done = true;
                return Ok(());
            }
            if self.wanted == 0 {
                self.wanted = self.pieces.bytes();
            }
            match read(conn, self.id, self.wanted)? {
                Read::Nothing => return Ok(()),
                Read::Bytes(offset, bytes) => {
                    // The number comes first in the opener's flow.
                    let expected = self.got + self.offset();
                    if offset != expected || !matches_pattern(self.pattern + self.got, &bytes) {
                        return Err(TrafficError::WrongBytes(self.id.into(), self.got));
                    }
                    self.got += bytes.len() as u64;
                    self.wanted -= bytes.len() as u64;
                    timeline.delivered(now, bytes.len() as u64);
                }
                Read::End => {
                    self.done = true;
                    if self.got != self.flow.total || matches!(self.flow.ending, Ending::Reset(_)) {
                        let id = self.id.into();
                        return Err(TrafficError::WrongLength(id, self.got, self.flow.total));
                    }
                }
                Read::Reset => {
                    self.done = true;
                    let planned = matches!(self.flow.ending, Ending::Reset(at) if self.got <= at);
                    if !planned && !self.may_reset {
                        return Err(TrafficError::Reset(self.id.into()));
                    }
                }
            }
            if self.wanted == 0 {
                self.pieces.pause(now);
            }
        }
        Ok(())
    }

    /// Bytes of the stream before the flow's own.
    fn offset(&self) -> u64 {
        if self.may_reset { 0 } else { NUMBER_BYTES }
    }
}

enum Read {
    Nothing,
    Bytes(u64, bytes::Bytes),
    End,
    Reset,
}

/// At most `most` bytes, in order.
fn read(conn: &mut Connection, id: StreamId, most: u64) -> Result<Read, TrafficError> {
    let mut stream = conn.recv_stream(id);
    let mut chunks = match stream.read(true) {
        Ok(chunks) => chunks,
        Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
            return Err(TrafficError::Reset(id.into()));
        }
    };
    let outcome = match chunks.next(usize::try_from(most).unwrap_or(usize::MAX)) {
        Ok(Some(chunk)) => Read::Bytes(chunk.offset, chunk.bytes),
        Ok(None) => Read::End,
        Err(ReadError::Blocked) => Read::Nothing,
        Err(ReadError::Reset(_)) => Read::Reset,
    };
    // The world polls for transmits after every turn.
    let _ = chunks.finalize();
    Ok(outcome)
}

/// A stream that the peer has opened, its number not yet read.
#[derive(Debug)]
struct Unknown {
    id: StreamId,
    number: Vec<u8>,
}

/// One end's application.
#[derive(Debug)]
pub struct ChaosApplication {
    client: bool,
    plan: Plan,
    opened: Vec<bool>,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
    unknown: Vec<Unknown>,
    /// Streams of the peer that were accepted.
    accepted: usize,
    connected: bool,
    now: Duration,
}

impl ChaosApplication {
    pub fn new(client: bool, plan: Plan) -> Self {
        Self {
            client,
            opened: vec![false; plan.streams.len()],
            plan,
            sending: Vec::new(),
            receiving: Vec::new(),
            unknown: Vec::new(),
            accepted: 0,
            connected: false,
            now: Duration::ZERO,
        }
    }

    pub fn on_connected(&mut self) {
        self.connected = true;
    }

    pub fn wants_to_send(&self) -> bool {
        self.sending
            .iter()
            .any(|flow| !flow.done && flow.pieces.is_due(self.now))
    }

    /// All streams of the plan were opened, by this end and by the peer, and every flow has ended.
    pub fn is_complete(&self) -> bool {
        let peers = self
            .plan
            .streams
            .iter()
            .filter(|stream| stream.by_client != self.client);
        let own_opened = self
            .plan
            .streams
            .iter()
            .zip(&self.opened)
            .all(|(stream, opened)| stream.by_client != self.client || *opened);
        own_opened
            && self.accepted == peers.count()
            && self.unknown.is_empty()
            && self.sending.iter().all(|flow| flow.done)
            && self.receiving.iter().all(|flow| flow.done)
    }

    /// The flows that have not ended, for an error text.
    pub fn waits_for(&self) -> String {
        let own = |stream: &&PlannedStream| stream.by_client == self.client;
        let planned = self.plan.streams.iter().filter(own).count();
        let opened = self.opened.iter().filter(|opened| **opened).count();
        let peers = self.plan.streams.len() - planned;
        let mut text = format!(
            "{opened} of {planned} opened, {} of {peers} accepted, {} unknown",
            self.accepted,
            self.unknown.len()
        );
        for flow in self.sending.iter().filter(|flow| !flow.done) {
            let (sent, total) = (flow.sent, flow.flow.total);
            text += &format!(
                "; sends {} {sent} of {total} {:?}",
                flow.id, flow.flow.ending
            );
        }
        for flow in self.receiving.iter().filter(|flow| !flow.done) {
            let (got, total) = (flow.got, flow.flow.total);
            text += &format!(
                "; awaits {} {got} of {total} {:?}",
                flow.id, flow.flow.ending
            );
        }
        text
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        let opens = self
            .plan
            .streams
            .iter()
            .zip(&self.opened)
            .filter(|(stream, opened)| {
                self.connected && stream.by_client == self.client && !**opened
            })
            .map(|(stream, _)| stream.open_at);
        let sending = self.sending.iter().filter(|flow| !flow.done);
        let receiving = self.receiving.iter().filter(|flow| !flow.done);
        opens
            .chain(sending.map(|flow| flow.pieces.next_at))
            .chain(receiving.map(|flow| flow.pieces.next_at))
            // An event that was due earlier and did nothing waits for the connection.
            .filter(|at| *at > self.now)
            .min()
    }

    pub fn turn(
        &mut self,
        conn: &mut Connection,
        now: Duration,
        timeline: &mut Timeline,
    ) -> Result<(), TrafficError> {
        self.now = now;
        if self.connected {
            self.open(conn, now);
        }
        for dir in [Dir::Bi, Dir::Uni] {
            while let Some(id) = conn.streams().accept(dir) {
                self.accepted += 1;
                self.unknown.push(Unknown {
                    id,
                    number: Vec::new(),
                });
            }
        }
        self.identify(conn)?;
        for flow in &mut self.receiving {
            flow.turn(conn, now, timeline)?;
        }
        for flow in &mut self.sending {
            flow.turn(conn, now);
        }
        Ok(())
    }

    fn open(&mut self, conn: &mut Connection, now: Duration) {
        for number in 0..self.plan.streams.len() {
            let stream = self.plan.streams[number];
            if self.opened[number] || stream.by_client != self.client || now < stream.open_at {
                continue;
            }
            let dir = match stream.backward {
                Some(_) => Dir::Bi,
                None => Dir::Uni,
            };
            // When the peer's limit is reached it is tried again at the next event.
            let Some(id) = conn.streams().open(dir) else {
                continue;
            };
            self.opened[number] = true;
            let _ = conn.send_stream(id).set_priority(stream.priority);
            let written = (number as u32).to_be_bytes();
            self.send(id, number as u64, stream.forward, Some(written));
            if let Some(backward) = stream.backward {
                let may_reset = true;
                self.receive(id, number as u64, backward, may_reset);
            }
        }
    }

    /// Reads the numbers of streams that the peer has opened.
    fn identify(&mut self, conn: &mut Connection) -> Result<(), TrafficError> {
        let mut index = 0;
        while index < self.unknown.len() {
            let unknown = &mut self.unknown[index];
            let id = unknown.id;
            let left = NUMBER_BYTES - unknown.number.len() as u64;
            let known = match read(conn, id, left)? {
                Read::Nothing => {
                    index += 1;
                    continue;
                }
                Read::Bytes(_, bytes) => {
                    unknown.number.extend_from_slice(&bytes);
                    match <[u8; NUMBER_BYTES as usize]>::try_from(unknown.number.as_slice()) {
                        Ok(number) => u32::from_be_bytes(number),
                        Err(_) => continue,
                    }
                }
                Read::Reset => {
                    // The stream's number will never arrive, so nothing can be answered.
                    if id.dir() == Dir::Bi {
                        let _ = conn.send_stream(id).reset(RESET);
                    }
                    self.unknown.swap_remove(index);
                    continue;
                }
                Read::End => return Err(TrafficError::WrongLength(id.into(), 0, NUMBER_BYTES)),
            };
            self.unknown.swap_remove(index);
            let stream = self
                .plan
                .streams
                .get(known as usize)
                .copied()
                .filter(|stream| {
                    stream.by_client != self.client
                        && stream.backward.is_some() == (id.dir() == Dir::Bi)
                })
                .ok_or(TrafficError::WrongBytes(id.into(), 0))?;
            self.receive(id, u64::from(known), stream.forward, false);
            if let Some(backward) = stream.backward {
                let _ = conn.send_stream(id).set_priority(stream.priority);
                self.send(id, u64::from(known), backward, None);
            }
        }
        Ok(())
    }

    fn send(&mut self, id: StreamId, number: u64, flow: Flow, written: Option<[u8; 4]>) {
        let backward = u64::from(written.is_none());
        self.sending.push(Sending {
            id,
            flow,
            number: written,
            number_sent: 0,
            pattern: (2 * number + backward) * PATTERN_STEP,
            sent: 0,
            pieces: Pieces::new(&self.plan, number, backward),
            done: false,
        });
    }

    fn receive(&mut self, id: StreamId, number: u64, flow: Flow, may_reset: bool) {
        let backward = u64::from(may_reset);
        self.receiving.push(Receiving {
            id,
            flow,
            may_reset,
            pattern: (2 * number + backward) * PATTERN_STEP,
            got: 0,
            pieces: Pieces::new(&self.plan, number, 2 + backward),
            wanted: 0,
            done: false,
        });
    }
}
