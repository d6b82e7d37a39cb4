//! What to send next, without a socket or a clock.
//!
//! State is three positions of the journal, `acknowledged <= next <= durable`, and up to five links to ingest: the current one, a
//! spare that stands idle, one or two for copies, and one that is being opened. Invariants:
//! 1. Whatever link becomes current starts at `acknowledged`: everything sent on an earlier one and not acknowledged is sent again.
//!    Ingest discards what it has.
//! 2. An acknowledgement counts whichever link it came over.
//! 3. When a path dies or falls silent, or acknowledgements stay away, the spare takes over at once. It has nothing in flight, so the dead path
//!    holds nothing of it back, and the round trips of CONNECT, TLS and gRPC are behind it.
//! 4. Without a spare a link is opened at once, and the old one stays in use until the new one stands.
//! 5. What is few entries and has no acknowledgement a moment later goes out once more on the links for copies: in other packets, so that the loss
//!    of one costs no round trip. While the sender is redundant, copies go at once, whether or not an acknowledgement is missing. Such a link
//!    never skips an entry, so that its acknowledgements count like any other. It may hold bytes on a dead path, so it never becomes current:
//!    with each takeover it is closed and opened anew.
//! 6. While a batch waits for its acknowledgement, what comes is gathered into the next one, for a bounded time. A link delivers in order, so
//!    an upload sent earlier would have waited behind the lost packet of the one before it; and a core that answers late gets fewer uploads.
//! 7. With a freshness of its own, vitals wait for company for so long, which is what makes uploads few. An alert that the rules raise
//!    hurries them, and a repetition waits no more.
//! 8. A core that reads slowly, because a quota is used up, is told from a dead path by its answers: as long as they come late, each has the time
//!    that it takes from one late one to the next. One in time ends that, so where answers are in time a path's death is seen as soon as ever.

mod copies;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use copies::Copier;
use multipath::Answers;
use service_kit::Backoff;

/// A link that has not come up by then is tried again.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// Path deaths within this time cause one fresh link, not one each. The handshakes of a link that one disturbs have as long, and twice as long
/// after each that was given up in a row: where the core is slow, because many come at once, each that is given up makes it slower.
const REOPEN_INTERVAL: Duration = Duration::from_millis(250);
const RETRY_INITIAL: Duration = Duration::from_millis(100);
/// Acknowledgements are overdue later than usual, but no sooner than the least, which is above the pauses of a busy disk; each takeover in a
/// row without an answer doubles the time.
const OVERDUE_MIN: Duration = Duration::from_millis(250);
/// From one late answer to the next is waited no longer: between them may be an outage, and the next one right behind it.
const PACE_MAX: Duration = Duration::from_secs(2);
/// Of whatever is given more time after each failure in a row.
const DOUBLINGS_MAX: u32 = 6;
/// What belongs to an alert is on its way to the journal for less.
const HURRY: Duration = Duration::from_secs(2);
/// A batch of so many entries is not gathered any longer.
pub const BATCH_ENTRIES_MAX: usize = 512;
/// Alerts wait for a link no longer than this once the network is back.
const RETRY_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Batches sent and not acknowledged; then sending waits.
    pub in_flight_max: usize,
    /// After so long without an acknowledgement of the oldest batch the link counts as dead, whatever was usual before.
    pub acknowledge_limit: Duration,
    /// Links for copies.
    pub copies: usize,
    /// Copies go at once, from the beginning (see [`Event::Redundant`]).
    pub redundant: bool,
    /// The longest that an entry waits for the acknowledgement of the batch before it, so as to share an upload with what comes meanwhile.
    pub gather: Duration,
    /// How long an entry waits for company although nothing is in flight: the age that readings may have. Nothing waits in a hurry.
    pub freshness: Duration,
}

/// Numbers the links; a later one is newer.
pub type Generation = u64;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The journal has grown to this position.
    Durable(u64),
    Up(Generation),
    /// With a random number in [0, 1) for the pause before the next attempt.
    Lost(Generation, f64),
    /// A path died or a session was replaced: links may stall.
    PathDown,
    /// The batch read at `from` was handed to the link and ends before `end`; equal when there was nothing to read.
    Sent {
        generation: Generation,
        end: u64,
    },
    Acknowledged(u64),
    /// Whether each batch is copied at once, or only if its acknowledgement is late.
    Redundant(bool),
    /// What waits, and what comes within `HURRY`, is not held back for its freshness.
    Hurry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Open(Generation),
    /// Read a batch at `from`, hand it to the link, answer with `Sent`.
    Send {
        generation: Generation,
        from: u64,
    },
    /// The same for the link of copies, up to `until` at most.
    Copy {
        generation: Generation,
        from: u64,
        until: u64,
    },
    /// Tell the journal.
    Trim(u64),
    Close(Generation),
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    end: u64,
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Opening {
    generation: Generation,
    since: Instant,
    /// A path died meanwhile: it may be the one that the handshake waits for.
    disturbed: bool,
}

#[derive(Debug)]
pub struct Sender {
    limits: Limits,
    durable: u64,
    acknowledged: u64,
    trimmed: u64,
    next: u64,
    /// Since when entries wait at `next`, when there are any.
    waiting_since: Instant,
    hurries_until: Option<Instant>,
    /// A `Send` is being carried out.
    sending: bool,
    in_flight: VecDeque<InFlight>,
    usual: Answers,
    /// When the last acknowledgement came, if it came late.
    late_at: Option<Instant>,
    /// From one late acknowledgement to the next.
    pace: Answers,
    /// What ends here or before was sent more than once: its acknowledgement tells no time.
    repeated_until: u64,
    /// Takeovers since the last acknowledgement.
    unanswered: u32,
    current: Option<Generation>,
    spare: Option<Generation>,
    /// At most as many as the limit of links for copies.
    copiers: Vec<Copier>,
    redundant: bool,
    opening: Option<Opening>,
    /// Openings that were given up since one came up.
    given_up: u32,
    closing: VecDeque<Generation>,
    generations: Generation,
    created: Instant,
    opened_at: Option<Instant>,
    /// The current link, if any, is to be replaced.
    replace: bool,
    retry_at: Option<Instant>,
    backoff: Backoff,
}

impl Sender {
    pub fn new(now: Instant, limits: Limits, acknowledged: u64, durable: u64) -> Self {
        Self {
            limits,
            durable,
            acknowledged,
            trimmed: acknowledged,
            next: acknowledged,
            waiting_since: now,
            hurries_until: None,
            sending: false,
            in_flight: VecDeque::new(),
            usual: Answers::default(),
            late_at: None,
            pace: Answers::default(),
            repeated_until: 0,
            unanswered: 0,
            current: None,
            spare: None,
            copiers: Vec::new(),
            redundant: limits.redundant,
            opening: None,
            given_up: 0,
            closing: VecDeque::new(),
            generations: 0,
            created: now,
            opened_at: None,
            replace: false,
            retry_at: None,
            backoff: Backoff::new(RETRY_INITIAL, RETRY_MAX),
        }
    }

    pub fn is_up(&self) -> bool {
        self.current.is_some()
    }

    /// What ends here or before was acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Everything durable is acknowledged.
    pub fn is_idle(&self) -> bool {
        self.acknowledged >= self.durable
    }

    pub fn on_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Durable(position) => {
                if self.next >= self.durable {
                    self.waiting_since = now;
                }
                self.durable = self.durable.max(position);
            }
            Event::Hurry => self.hurries_until = Some(now + HURRY),
            Event::Up(generation) => self.on_up(generation),
            Event::Lost(generation, random) => self.on_lost(now, generation, random),
            Event::PathDown => self.want_another(),
            Event::Redundant(redundant) => self.redundant = redundant || self.limits.redundant,
            Event::Sent { generation, end } => {
                self.sending = false;
                self.waiting_since = now;
                let copier = self
                    .copiers
                    .iter()
                    .position(|it| it.generation == generation);
                if let Some(index) = copier {
                    if end > self.copiers[index].from {
                        self.copiers[index].copied = end;
                    } else {
                        // It takes no more.
                        self.copiers.remove(index);
                        self.closing.push_back(generation);
                    }
                }
                if self.current == Some(generation) && end > self.next {
                    self.next = end;
                    if end > self.acknowledged {
                        self.in_flight.push_back(InFlight { end, sent: now });
                    }
                }
            }
            Event::Acknowledged(position) => {
                self.acknowledged = self.acknowledged.max(position.min(self.durable));
                self.next = self.next.max(self.acknowledged);
                let limit = self.acknowledge_limit();
                let mut is_late = None;
                while let Some(batch) = self
                    .in_flight
                    .pop_front_if(|batch| batch.end <= self.acknowledged)
                {
                    let took = now.saturating_duration_since(batch.sent);
                    let is_repeated = batch.end <= self.repeated_until;
                    is_late = Some(is_repeated || took > limit);
                    if !is_repeated {
                        self.usual.learn(took);
                    }
                    self.unanswered = 0;
                    self.backoff.reset();
                }
                if let Some(is_late) = is_late {
                    self.keep_pace(now, is_late);
                }
            }
        }
    }

    pub fn poll(&mut self, now: Instant) -> Option<Command> {
        if let Some(generation) = self.closing.pop_front() {
            return Some(Command::Close(generation));
        }
        if self.acknowledged > self.trimmed {
            self.trimmed = self.acknowledged;
            return Some(Command::Trim(self.acknowledged));
        }
        if !self.replace && self.acknowledgement_is_overdue(now) {
            self.want_another();
        }
        if (self.replace || self.current.is_none())
            && let Some(spare) = self.spare.take()
        {
            self.make_current(spare);
            return self.poll(now);
        }
        if let Some(command) = self.poll_open(now) {
            return Some(command);
        }
        let generation = self.current?;
        let gathered = self.gathered_at().is_none_or(|at| now >= at);
        if gathered && self.has_room() && !self.sending && self.next < self.durable {
            self.sending = true;
            return Some(Command::Send {
                generation,
                from: self.next,
            });
        }
        self.poll_copy(now)
    }

    fn has_room(&self) -> bool {
        self.in_flight.len() < self.limits.in_flight_max
    }

    /// Until when what waits is gathered; `None` when it is not. What is sent again was held back before.
    fn gathered_at(&self) -> Option<Instant> {
        let waiting = self.durable.saturating_sub(self.next);
        let hurries = self.redundant
            || self.hurries_until > Some(self.waiting_since)
            || self.next < self.repeated_until;
        let freshness = if hurries {
            Duration::ZERO
        } else {
            self.limits.freshness
        };
        let hold = if self.in_flight.is_empty() {
            freshness
        } else {
            self.limits.gather.max(freshness)
        };
        let gathers = !hold.is_zero() && (1..BATCH_ENTRIES_MAX as u64).contains(&waiting);
        gathers.then_some(self.waiting_since + hold)
    }

    fn poll_open(&mut self, now: Instant) -> Option<Command> {
        if let Some(opening) = self.opening {
            if now < self.given_up_at(opening) {
                return None;
            }
            self.opening = None;
            self.given_up = self.given_up.saturating_add(1);
            return Some(Command::Close(opening.generation));
        }
        if self.open_at().is_none_or(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        self.generations += 1;
        self.opening = Some(Opening {
            generation: self.generations,
            since: now,
            disturbed: false,
        });
        self.opened_at = Some(now);
        Some(Command::Open(self.generations))
    }

    fn given_up_at(&self, opening: Opening) -> Instant {
        opening.since
            + if opening.disturbed {
                doubled(REOPEN_INTERVAL, self.given_up)
            } else {
                OPEN_LIMIT
            }
    }

    /// When a link is to be opened, given that none is being opened: one to replace the current one at the pace of
    /// REOPEN_INTERVAL, a first one or a spare also not before the pause that follows a loss.
    fn open_at(&self) -> Option<Instant> {
        if self.spare.is_some() && self.copiers.len() >= self.limits.copies {
            return None;
        }
        let paced = self.opened_at.map(|at| at + REOPEN_INTERVAL);
        let paused = if self.replace { None } else { self.retry_at };
        // At once when nothing was ever opened.
        Some(paced.max(paused).unwrap_or(self.created))
    }

    /// When `poll` may have a command although no event came.
    pub fn deadline(&self) -> Option<Instant> {
        let open = match self.opening {
            Some(opening) => Some(self.given_up_at(opening)),
            None => self.open_at(),
        };
        let overdue = self
            .in_flight
            .front()
            .filter(|_| !self.replace)
            .map(|batch| self.overdue_at(batch));
        // Without room an acknowledgement comes first.
        let sends = self.current.is_some() && !self.sending && self.has_room();
        let gathered = self.gathered_at().filter(|_| sends);
        [open, overdue, gathered, self.copy_at().map(|(_, at)| at)]
            .into_iter()
            .flatten()
            .min()
    }

    fn acknowledgement_is_overdue(&self, now: Instant) -> bool {
        self.in_flight
            .front()
            .is_some_and(|batch| now >= self.overdue_at(batch))
    }

    fn overdue_at(&self, oldest: &InFlight) -> Instant {
        let usually = oldest.sent + self.acknowledge_limit();
        let held_back = self.late_at.zip(self.pace.overdue_after());
        held_back.map_or(usually, |(last, pace)| {
            let pace = pace.min(PACE_MAX).min(self.limits.acknowledge_limit);
            usually.max(last + pace)
        })
    }

    /// An acknowledgement has come. The first late one may have waited for a takeover, which says nothing of the core.
    fn keep_pace(&mut self, now: Instant, is_late: bool) {
        if !is_late {
            self.late_at = None;
            self.pace = Answers::default();
        } else if let Some(last) = self.late_at.replace(now) {
            self.pace.learn(now.saturating_duration_since(last));
        }
    }

    fn acknowledge_limit(&self) -> Duration {
        let limit = self.limits.acknowledge_limit;
        self.usual.overdue_after().map_or(limit, |usual| {
            let usual = usual.max(OVERDUE_MIN);
            doubled(usual, self.unanswered).min(limit)
        })
    }

    fn want_another(&mut self) {
        self.replace = true;
        if let Some(opening) = &mut self.opening {
            opening.disturbed = true;
        }
    }

    fn on_up(&mut self, generation: Generation) {
        if self
            .opening
            .is_none_or(|opening| opening.generation != generation)
        {
            self.closing.push_back(generation);
            return;
        }
        self.opening = None;
        self.given_up = 0;
        if self.current.is_none() || self.replace {
            self.make_current(generation);
        } else if self.spare.is_none() {
            self.spare = Some(generation);
        } else {
            self.copiers.push(Copier {
                generation,
                copied: self.acknowledged,
                from: self.acknowledged,
            });
        }
    }

    fn make_current(&mut self, generation: Generation) {
        self.closing.extend(self.current.replace(generation));
        self.closing
            .extend(self.copiers.drain(..).map(|copier| copier.generation));
        self.replace = false;
        self.start_over();
    }

    fn on_lost(&mut self, now: Instant, generation: Generation, random: f64) {
        if self
            .opening
            .is_some_and(|opening| opening.generation == generation)
        {
            self.opening = None;
            // Nothing answers where this one was tried: no hurry any more.
            self.replace &= self.current.is_some();
        } else if self.spare == Some(generation) {
            self.spare = None;
        } else if let Some(index) = self
            .copiers
            .iter()
            .position(|copier| copier.generation == generation)
        {
            self.copiers.remove(index);
        } else if self.current == Some(generation) {
            self.current = None;
            self.start_over();
        } else {
            return;
        }
        self.retry_at = Some(now + self.backoff.next_delay_with(random));
    }

    fn start_over(&mut self) {
        self.repeated_until = self.repeated_until.max(self.next);
        self.unanswered = self.unanswered.saturating_add(1);
        self.in_flight.clear();
        self.next = self.acknowledged;
    }
}

fn doubled(time: Duration, times: u32) -> Duration {
    time * 2u32.pow(times.min(DOUBLINGS_MAX))
}

#[cfg(test)]
mod tests;
