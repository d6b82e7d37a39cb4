//! The two ends of an application: who opens streams, who sends when, and what the receiver notes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use multipath::PathScheduler;
use noq_proto::{Connection, Dir, ReadError, StreamId, VarInt, WriteError};

use super::copying::{COPIES, Copying};
use super::reading::{Noted, Reading};
use super::{HEAD_BYTES, Message, Mix};
use crate::pattern::{TrafficError, matches_pattern, pattern_from};
use crate::report::Timeline;
use crate::scenario::{Direction, Scenario};

/// Bytes of a request: the number of the object.
const REQUEST_BYTES: usize = 2;
/// Most bytes taken from a stream in one read.
const READ_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Sending {
    id: StreamId,
    head: Vec<u8>,
    sent: u64,
    total: u64,
    finished: bool,
}

#[derive(Debug)]
struct Receiving {
    id: StreamId,
    head: Vec<u8>,
    got: u64,
    total: u64,
    finished: bool,
}

/// One end.
#[derive(Debug)]
pub(crate) struct MixApplication {
    client: bool,
    direction: Direction,
    messages: Vec<Message>,
    objects: Vec<u64>,
    at_once: usize,
    /// When the traffic begins at the earliest.
    lead: Duration,
    begin_at: Option<Duration>,
    began_at: Option<Duration>,
    /// Requests made (client) so far.
    asked: usize,
    requests: Vec<(StreamId, Vec<u8>)>,
    sending: Vec<Sending>,
    /// Written to all streams so far.
    written_bytes: u64,
    receiving: Vec<Receiving>,
    /// The sender of messages: its beginning, and how many messages it has made.
    sends_from: Option<Duration>,
    made: usize,
    noted: Noted,
    reading: Reading,
    /// Every stream has a copy.
    copying: Option<Copying>,
}

impl MixApplication {
    pub(crate) fn new(
        client: bool,
        scenario: &Scenario,
        mix: &Mix,
        (scheduler, start): (&Arc<PathScheduler>, Instant),
    ) -> Self {
        let lead = scenario
            .background
            .as_ref()
            .map_or(0.0, |background| background.lead_s);
        Self {
            client,
            direction: scenario.direction,
            messages: mix.messages(scenario.seed),
            objects: mix.objects(scenario.seed),
            at_once: mix.at_once(),
            lead: Duration::from_secs_f64(lead),
            begin_at: None,
            began_at: None,
            asked: 0,
            requests: Vec::new(),
            sending: Vec::new(),
            written_bytes: 0,
            receiving: Vec::new(),
            sends_from: None,
            made: 0,
            noted: Noted::default(),
            reading: Reading::default(),
            copying: Copying::of(scenario, scheduler, start),
        }
    }

    /// Streams that carry the same bytes.
    fn streams_of_each(&self) -> usize {
        self.copying.as_ref().map_or(1, |_| COPIES)
    }

    /// A write waits until a packet of its copy has left.
    pub(crate) fn waits_for_copy(&self) -> bool {
        self.copying.as_ref().is_some_and(Copying::waits)
    }

    pub(crate) fn noted(&self) -> &Noted {
        &self.noted
    }

    pub(crate) fn began_at(&self) -> Option<Duration> {
        self.began_at
    }

    fn is_page(&self) -> bool {
        !self.objects.is_empty()
    }

    fn sends(&self) -> bool {
        self.client == (self.direction == Direction::Upload)
    }

    /// Bytes of the first messages that a stream carries.
    fn message_bytes(&self, id: StreamId, messages: usize) -> u64 {
        let is_copy = self.copying.is_some() && Copying::number(id) > 0;
        let first = self.messages.iter().take(messages);
        first
            .map(|message| message.bytes)
            .filter(|bytes| !is_copy || Copying::carries(*bytes))
            .sum()
    }

    pub(crate) fn on_connected(&mut self, now: Duration) {
        if self.client && self.begin_at.is_none() {
            self.begin_at = Some(now.max(self.lead));
        }
    }

    /// Whether this end has received all that it waits for.
    pub(crate) fn is_complete(&self) -> bool {
        if self.is_page() {
            self.noted.page.is_some()
        } else {
            self.noted.delays.len() == self.messages.len()
        }
    }

    pub(crate) fn wants_to_send(&self) -> bool {
        self.sending
            .iter()
            .any(|stream| stream.sent < self.due(stream))
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let begin = self.begin_at.filter(|_| self.began_at.is_none());
        let next = self.sends_from.zip(self.messages.get(self.made));
        let message = next.map(|(from, message)| from + message.at);
        let copy = self.copying.as_ref().and_then(Copying::next_deadline);
        [begin, message, copy].into_iter().flatten().min()
    }

    /// Bytes of a stream that exist by now.
    fn due(&self, stream: &Sending) -> u64 {
        if self.is_page() {
            stream.total
        } else {
            self.message_bytes(stream.id, self.made)
        }
    }

    pub(crate) fn turn(
        &mut self,
        conn: &mut Connection,
        now: Duration,
        timeline: &mut Timeline,
    ) -> Result<(), TrafficError> {
        if self.begin_at.is_some_and(|at| at <= now) && self.began_at.is_none() {
            self.begin(conn, now);
        }
        if !self.client {
            self.accept(conn);
            self.answer(conn, now);
        }
        while let Some(from) = self.sends_from
            && let Some(message) = self.messages.get(self.made)
            && from + message.at <= now
        {
            self.made += 1;
        }
        self.pump(conn, now);
        self.read(conn, now, timeline)?;
        self.ask(conn, now);
        Ok(())
    }

    fn begin(&mut self, conn: &mut Connection, now: Duration) {
        self.began_at = Some(now);
        if self.is_page() {
            self.ask(conn, now);
            return;
        }
        for _ in 0..self.streams_of_each() {
            let Some(id) = conn.streams().open(Dir::Bi) else {
                return;
            };
            if self.sends() {
                self.send_messages(id, now);
            } else {
                // The library holds a few bytes always.
                let _ = conn.send_stream(id).write(&[0; REQUEST_BYTES]);
                let _ = conn.send_stream(id).finish();
                self.receive(id, self.message_bytes(id, usize::MAX));
            }
        }
    }

    /// Fetches further objects of a page; notes when the last one is there.
    fn ask(&mut self, conn: &mut Connection, now: Duration) {
        let Some(began) = self.began_at.filter(|_| self.client && self.is_page()) else {
            return;
        };
        self.forget_finished(conn);
        let streams = self.streams_of_each();
        while self.receiving.len() < self.at_once * streams && self.asked < self.objects.len() {
            for _ in 0..streams {
                let Some(id) = conn.streams().open(Dir::Bi) else {
                    return;
                };
                let _ = conn
                    .send_stream(id)
                    .write(&(self.asked as u16).to_be_bytes());
                let _ = conn.send_stream(id).finish();
                self.receive(id, self.objects[self.asked]);
            }
            self.asked += 1;
        }
        if self.receiving.is_empty() && self.noted.page.is_none() {
            self.noted.page = Some(now - began);
        }
    }

    /// An object is there once either of its streams is.
    fn forget_finished(&mut self, conn: &mut Connection) {
        let streams = self.streams_of_each() as u64;
        let pair = |stream: &Receiving| stream.id.index() / streams;
        let finished = self.receiving.iter().filter(|stream| stream.finished);
        let finished: Vec<u64> = finished.map(pair).collect();
        self.receiving.retain(|stream| {
            let is_over = finished.contains(&pair(stream));
            if is_over && !stream.finished {
                // Fails only for a stream that has ended.
                let _ = conn.recv_stream(stream.id).stop(VarInt::from_u32(0));
            }
            !is_over
        });
    }

    fn receive(&mut self, id: StreamId, total: u64) {
        let head = Vec::new();
        self.receiving.push(Receiving {
            id,
            head,
            got: 0,
            total,
            finished: false,
        });
    }

    fn send_messages(&mut self, id: StreamId, now: Duration) {
        // A copy begins when its original does.
        let from = *self.sends_from.get_or_insert(now);
        let head = (from.as_nanos() as u64).to_be_bytes().to_vec();
        let total = self.message_bytes(id, usize::MAX);
        self.sending.push(Sending {
            id,
            head,
            sent: 0,
            total,
            finished: false,
        });
    }

    fn accept(&mut self, conn: &mut Connection) {
        while let Some(id) = conn.streams().accept(Dir::Bi) {
            if self.sends() {
                self.requests.push((id, Vec::new()));
            } else {
                self.receive(id, self.message_bytes(id, usize::MAX));
            }
        }
    }

    /// Reads requests, and begins to send what they ask for.
    fn answer(&mut self, conn: &mut Connection, now: Duration) {
        let mut whole = Vec::new();
        self.requests.retain_mut(|(id, request)| {
            // A stream whose end is not read would hold its place among those that may be open.
            let ended = read_some(conn, *id, request, REQUEST_BYTES + 1);
            if !ended || request.len() < REQUEST_BYTES {
                return !ended;
            }
            whole.push((*id, u16::from_be_bytes([request[0], request[1]])));
            false
        });
        for (id, number) in whole {
            if self.is_page() {
                let total = self
                    .objects
                    .get(usize::from(number))
                    .copied()
                    .unwrap_or_default();
                let head = Vec::new();
                self.sending.push(Sending {
                    id,
                    head,
                    sent: 0,
                    total,
                    finished: false,
                });
            } else {
                self.send_messages(id, now);
            }
        }
    }

    fn pump(&mut self, conn: &mut Connection, now: Duration) {
        let due: Vec<u64> = self.sending.iter().map(|stream| self.due(stream)).collect();
        if let Some(copying) = &mut self.copying {
            copying.begin_turn(now);
        }
        for (stream, due) in self.sending.iter_mut().zip(due) {
            let before = stream.sent;
            match &mut self.copying {
                Some(copying) => pump_copy(stream, due, conn, (copying, now)),
                None => pump(stream, due, conn),
            }
            self.written_bytes += stream.sent - before;
        }
        self.sending.retain(|stream| !stream.finished);
    }

    fn read(
        &mut self,
        conn: &mut Connection,
        now: Duration,
        timeline: &mut Timeline,
    ) -> Result<(), TrafficError> {
        let has_head = !self.is_page();
        for stream in self.receiving.iter_mut().filter(|stream| !stream.finished) {
            if has_head {
                let missing = HEAD_BYTES as usize - stream.head.len();
                read_some(conn, stream.id, &mut stream.head, missing);
                if stream.head.len() < HEAD_BYTES as usize {
                    continue;
                }
            }
            read_pattern(stream, conn, now, timeline)?;
        }
        if has_head {
            self.note_messages(now);
        }
        Ok(())
    }

    fn note_messages(&mut self, now: Duration) {
        let heads = self.receiving.iter().map(|stream| stream.head.as_slice());
        let mut heads = heads.filter_map(|head| <[u8; HEAD_BYTES as usize]>::try_from(head).ok());
        let Some(head) = heads.next() else {
            return;
        };
        let from = Duration::from_nanos(u64::from_be_bytes(head));
        let got = |copy: u8| {
            let is = |id: StreamId| match self.copying {
                Some(_) => Copying::number(id) == copy,
                None => copy == 0,
            };
            let stream = self.receiving.iter().find(|stream| is(stream.id));
            stream.map_or(0, |stream| stream.got)
        };
        let got = [got(0), got(1)];
        for made in self.reading.go_on(&self.messages, got) {
            self.noted.delays.push(now.saturating_sub(from + made));
        }
    }
}

fn pump_copy(
    stream: &mut Sending,
    due: u64,
    conn: &mut Connection,
    (copying, now): (&mut Copying, Duration),
) {
    let copy = Copying::number(stream.id);
    while stream.sent < due {
        let left = due - stream.sent;
        let goes_on = copying.write(now, copy, left, |bytes| {
            let before = stream.sent;
            pump(stream, before + bytes, conn);
            stream.sent - before
        });
        if !goes_on || stream.finished {
            return;
        }
    }
}

fn pump(stream: &mut Sending, due: u64, conn: &mut Connection) {
    while !stream.head.is_empty() {
        match conn.send_stream(stream.id).write(&stream.head) {
            Ok(0) | Err(_) => return,
            Ok(written) => drop(stream.head.drain(..written)),
        }
    }
    while stream.sent < due {
        let mut chunks = [pattern_from(stream.sent, due)];
        match conn
            .send_stream(stream.id)
            .write_chunks(&mut &mut chunks[..])
        {
            Ok(0) | Err(WriteError::Blocked) => return,
            Ok(written) => stream.sent += written as u64,
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                stream.finished = true;
                return;
            }
        }
    }
    if stream.sent == stream.total {
        stream.finished = true;
        // Only fails on a stream that the peer has stopped.
        let _ = conn.send_stream(stream.id).finish();
    }
}

/// Takes at most `most` bytes; whether the stream has ended. Errors show when the pattern is read.
fn read_some(conn: &mut Connection, id: StreamId, into: &mut Vec<u8>, most: usize) -> bool {
    let mut stream = conn.recv_stream(id);
    let Ok(mut chunks) = stream.read(true) else {
        return true;
    };
    let until = into.len() + most;
    let mut ended = false;
    while into.len() < until {
        match chunks.next(until - into.len()) {
            Ok(Some(chunk)) => into.extend_from_slice(&chunk.bytes),
            Ok(None) | Err(ReadError::Reset(_)) => {
                ended = true;
                break;
            }
            Err(ReadError::Blocked) => break,
        }
    }
    let _ = chunks.finalize();
    ended
}

fn read_pattern(
    stream: &mut Receiving,
    conn: &mut Connection,
    now: Duration,
    timeline: &mut Timeline,
) -> Result<(), TrafficError> {
    let id = u64::from(stream.id);
    let mut receiving = conn.recv_stream(stream.id);
    let Ok(mut chunks) = receiving.read(true) else {
        return Ok(());
    };
    let outcome = loop {
        match chunks.next(READ_BYTES_MAX) {
            Ok(Some(chunk)) => {
                if !matches_pattern(stream.got, &chunk.bytes) {
                    break Err(TrafficError::WrongBytes(id, stream.got));
                }
                stream.got += chunk.bytes.len() as u64;
                timeline.delivered(now, chunk.bytes.len() as u64);
            }
            Ok(None) => {
                stream.finished = true;
                break if stream.got == stream.total {
                    Ok(())
                } else {
                    Err(TrafficError::WrongLength(id, stream.got, stream.total))
                };
            }
            Err(ReadError::Blocked) => break Ok(()),
            Err(ReadError::Reset(_)) => break Err(TrafficError::Reset(id)),
        }
    };
    let _ = chunks.finalize();
    outcome
}
