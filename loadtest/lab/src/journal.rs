//! Vitals beside the bulk: small numbered messages that wait for no dead path.
//!
//! The client writes each message on an urgent stream and keeps it in the journal until the server
//! answers its number. A message that is not answered in time is written again on a fresh stream,
//! with all others that are overdue. By then the dead path's window is full, and the living one
//! takes new data.
//!
//! [`AnswerTimers`], which the gateway uses too, decides how long an answer may take and when a
//! copy goes out on a second stream. The time is doubled with each writing, and a message that is
//! written again is copied again. A path in trouble makes everything overdue at once. The server
//! keeps the first copy of each number. So a message waits for about one round trip more than
//! usual, not until the library has drained the dead path.
//!
//! Bounds: the library's limit of concurrent streams; when it is reached the last stream is used
//! on. The journal holds all messages of a run.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use multipath::AnswerTimers;
use noq_proto::{Connection, Dir, StreamId, VarInt};

use crate::scenario::Vitals;

/// Priority of vitals streams; bulk has 0.
const URGENT: i32 = 10;
/// Each message starts with its number and the time of its making.
const NUMBER_BYTES: usize = 8;
/// Until the first answer.
const ANSWER_FIRST: Duration = Duration::from_millis(500);
const ANSWER_MIN: Duration = Duration::from_millis(20);
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Doublings of the time for one message.
const WRITINGS_COUNTED_MAX: u32 = 5;
/// Most bytes taken from a stream in one read.
const READ_BYTES_MAX: usize = 1 << 16;

#[derive(Debug)]
struct Entry {
    number: u64,
    message: Vec<u8>,
    written_at: Duration,
    writings: u32,
}

/// The gateway's side.
#[derive(Debug, Default)]
pub struct VitalsClient {
    stream: Option<StreamId>,
    next_at: Option<Duration>,
    next_number: u64,
    journal: VecDeque<Entry>,
    /// Bytes that the stream did not take yet.
    unwritten: Vec<u8>,
    /// The stream of second copies, and when and of which message the next ones are due.
    echo: Option<StreamId>,
    echoes: VecDeque<(Duration, u64)>,
    answers: Vec<(StreamId, Vec<u8>)>,
    usual: AnswerTimers,
}

impl VitalsClient {
    pub fn start(&mut self, conn: &mut Connection, now: Duration, vitals: Vitals) {
        self.fresh_stream(conn);
        self.next_at = Some(now + Duration::from_millis(vitals.interval_ms));
    }

    /// Messages made so far.
    pub fn sent(&self) -> u64 {
        self.next_number
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        let overdue = self.journal.iter().map(|entry| self.due(entry)).min();
        let echo = self.echoes.front().map(|echo| echo.0);
        [self.next_at, overdue, echo].into_iter().flatten().min()
    }

    fn due(&self, entry: &Entry) -> Duration {
        let wait = self.usual.overdue_after().unwrap_or(ANSWER_FIRST);
        let doubled = wait * 2u32.pow(entry.writings.saturating_sub(1).min(WRITINGS_COUNTED_MAX));
        entry.written_at + doubled.clamp(ANSWER_MIN, ANSWER_MAX)
    }

    fn fresh_stream(&mut self, conn: &mut Connection) {
        let Some(id) = conn.streams().open(Dir::Uni) else {
            return;
        };
        if let Some(old) = self.stream.replace(id) {
            // The rest of the old stream is written again on the new one.
            let _ = conn.send_stream(old).finish();
        }
        let _ = conn.send_stream(id).set_priority(URGENT);
        self.unwritten.clear();
    }

    /// Writes again the overdue messages, or all that are not answered.
    pub fn replay(&mut self, conn: &mut Connection, now: Duration, everything: bool) {
        let overdue: Vec<usize> = (0..self.journal.len())
            .filter(|&index| everything || self.due(&self.journal[index]) <= now)
            .collect();
        if overdue.is_empty() {
            return;
        }
        self.fresh_stream(conn);
        if let Some(old) = self.echo.take() {
            let _ = conn.send_stream(old).finish();
        }
        for index in overdue {
            let entry = &mut self.journal[index];
            entry.written_at = now;
            entry.writings += 1;
            self.unwritten.extend_from_slice(&entry.message);
            // The copy follows the last writing, as the gateway's does.
            self.echoes.retain(|echo| echo.1 != entry.number);
            self.echoes
                .push_back((now + self.usual.copy_after(), entry.number));
        }
        self.flush(conn);
    }

    fn flush(&mut self, conn: &mut Connection) {
        let Some(id) = self.stream else { return };
        while !self.unwritten.is_empty() {
            match conn.send_stream(id).write(&self.unwritten) {
                Ok(0) | Err(_) => return,
                Ok(written) => drop(self.unwritten.drain(..written)),
            }
        }
    }

    pub fn turn(&mut self, conn: &mut Connection, now: Duration, vitals: Vitals) {
        while let Some(id) = conn.streams().accept(Dir::Uni) {
            self.answers.push((id, Vec::new()));
        }
        let mut answered = BTreeSet::new();
        self.answers.retain_mut(|(id, rest)| {
            let open = read_all(conn, *id, rest);
            let whole = rest.len() / NUMBER_BYTES * NUMBER_BYTES;
            answered.extend(rest[..whole].chunks_exact(NUMBER_BYTES).map(number_of));
            rest.drain(..whole);
            open
        });
        for entry in self
            .journal
            .iter()
            .filter(|entry| entry.writings == 1 && answered.contains(&entry.number))
        {
            self.usual.learn(now.saturating_sub(entry.written_at));
        }
        self.journal
            .retain(|entry| !answered.contains(&entry.number));
        while let Some(at) = self.next_at.filter(|&at| at <= now) {
            let mut message = Vec::with_capacity(vitals.bytes as usize);
            message.extend_from_slice(&self.next_number.to_be_bytes());
            message.extend_from_slice(&(at.as_nanos() as u64).to_be_bytes());
            message.resize(size_of(vitals), 0x56);
            self.unwritten.extend_from_slice(&message);
            self.journal.push_back(Entry {
                number: self.next_number,
                message,
                written_at: now,
                writings: 1,
            });
            self.echoes
                .push_back((at + self.usual.copy_after(), self.next_number));
            self.next_number += 1;
            self.next_at = Some(at + Duration::from_millis(vitals.interval_ms.max(1)));
        }
        self.flush(conn);
        self.replay(conn, now, false);
        self.send_echoes(conn, now);
    }

    fn send_echoes(&mut self, conn: &mut Connection, now: Duration) {
        while let Some((_, number)) = self.echoes.pop_front_if(|echo| echo.0 <= now) {
            let Some(entry) = self.journal.iter().find(|entry| entry.number == number) else {
                continue;
            };
            if self.echo.is_none() {
                self.echo = conn.streams().open(Dir::Uni);
                if let Some(id) = self.echo {
                    let _ = conn.send_stream(id).set_priority(URGENT);
                }
            }
            // A stream without room has a copy under way already.
            let room = |id: StreamId, conn: &mut Connection| {
                let written = conn.send_stream(id).write(&entry.message);
                written.is_ok_and(|written| written == entry.message.len())
            };
            if let Some(id) = self.echo
                && !room(id, conn)
            {
                // Half a message would shift all that follow.
                let _ = conn.send_stream(id).reset(VarInt::from_u32(0));
                self.echo = None;
            }
        }
    }
}

/// The receiving service's side.
#[derive(Debug, Default)]
pub struct VitalsServer {
    streams: Vec<(StreamId, Vec<u8>)>,
    /// A fresh one for each of the client's streams: answers must not wait for a dead path either.
    answer: Option<StreamId>,
    answer_is_stale: bool,
    answers: Vec<u8>,
    seen: BTreeSet<u64>,
    delays: Vec<(Duration, Duration)>,
}

impl VitalsServer {
    pub fn accept(&mut self, id: StreamId) {
        self.streams.push((id, Vec::new()));
        self.answer_is_stale = true;
    }

    /// Time of arrival and delay of the first copy of each message.
    pub fn delays(&self) -> &[(Duration, Duration)] {
        &self.delays
    }

    pub fn read(&mut self, conn: &mut Connection, now: Duration, vitals: Vitals) {
        let size = size_of(vitals);
        self.streams.retain_mut(|(id, rest)| {
            let open = read_all(conn, *id, rest);
            let whole = rest.len() / size * size;
            for message in rest[..whole].chunks_exact(size) {
                let number = number_of(&message[..NUMBER_BYTES]);
                let made =
                    Duration::from_nanos(number_of(&message[NUMBER_BYTES..2 * NUMBER_BYTES]));
                if self.seen.insert(number) {
                    self.delays.push((now, now.saturating_sub(made)));
                }
                self.answers.extend_from_slice(&number.to_be_bytes());
            }
            rest.drain(..whole);
            open
        });
        if self.answers.is_empty() {
            return;
        }
        if self.answer_is_stale
            && let Some(id) = conn.streams().open(Dir::Uni)
        {
            if let Some(old) = self.answer.replace(id) {
                let _ = conn.send_stream(old).finish();
            }
            let _ = conn.send_stream(id).set_priority(URGENT);
            self.answer_is_stale = false;
        }
        if let Some(id) = self.answer
            && let Ok(written) = conn.send_stream(id).write(&self.answers)
        {
            self.answers.drain(..written);
        }
    }
}

fn size_of(vitals: Vitals) -> usize {
    (vitals.bytes as usize).max(2 * NUMBER_BYTES)
}

fn number_of(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(NUMBER_BYTES)
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Reads the bytes that are there; whether more may come.
fn read_all(conn: &mut Connection, id: StreamId, into: &mut Vec<u8>) -> bool {
    let mut stream = conn.recv_stream(id);
    let Ok(mut chunks) = stream.read(true) else {
        return false;
    };
    let open = loop {
        match chunks.next(READ_BYTES_MAX) {
            Ok(Some(chunk)) => into.extend_from_slice(&chunk.bytes),
            Ok(None) => break false,
            Err(noq_proto::ReadError::Blocked) => break true,
            Err(noq_proto::ReadError::Reset(_)) => break false,
        }
    };
    let _ = chunks.finalize();
    open
}
