//! Decides what to send next. Sans-IO.
//!
//! State is three positions of the journal, `acknowledged <= next <= durable`, and up to seven
//! links to ingest. They are the current link, an idle spare, up to three links for copies, one
//! that recovers and one that is being opened. Invariants:
//! 1. A link that becomes current starts at `acknowledged`. Entries that an earlier link sent
//!    without an acknowledgement are sent again, and ingest discards what it has.
//! 2. An acknowledgement counts on any link.
//! 3. When a path dies or is silent, or acknowledgements are overdue, the spare takes over at once.
//!    It has nothing in flight on the dead path, and its handshakes (CONNECT, TLS, gRPC) are done.
//!    After a silence the old link may recover, and is the next spare.
//! 4. Without a spare a link is opened at once. The old link stays in use until the new one is up.
//! 5. A few entries without an acknowledgement a moment later are sent once more on the links for
//!    copies. They travel in other packets, so the loss of one packet costs no round trip. While
//!    the sender is redundant, copies go at once. A link for copies never skips an entry, so its
//!    acknowledgements count like any other. It may hold bytes on a dead path, so it never becomes
//!    current, and each takeover replaces it. While the sender is redundant it goes on until its
//!    replacement is up, since each copy has its own path.
//! 6. While a batch waits for its acknowledgement, entries are gathered into the next batch for a
//!    bounded time. A link delivers in order, so an earlier upload would wait behind a lost packet
//!    anyway. A slow core gets fewer uploads.
//! 7. With a freshness of its own, vitals wait that long for further entries, so uploads are few.
//!    An alert that is raised ends the wait, and a repetition does not wait. While the sender is
//!    redundant, the wait is short, but not zero: each upload goes twice.
//! 8. A core that reads slowly because of a quota differs from a dead path by its answers. While
//!    they come late, each may take the time from one late answer to the next. An answer in time
//!    ends that, so a dead path is then found as quickly as ever.
//! 9. Entries that the journal cannot read are tried again after pauses of `RETRY_MAX` at most.
//!
//! Circle: one state machine; `copies`, `pauses`, `recovering` and `unread` hold parts of its state
//! and add their methods.

mod copies;
mod pauses;
mod recovering;
mod unread;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use copies::Copier;
use multipath::AnswerTimers;
use pauses::Pauses;
use recovering::Recovering;
use unread::Unread;

/// A link that is not up by then is tried again.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// Path deaths within this time cause one fresh link, not one each. The handshakes of a link that a
/// path death disturbs get the same time. It doubles after each attempt in a row that was given up,
/// because attempts slow down a busy core.
const REOPEN_INTERVAL: Duration = Duration::from_millis(250);
const RETRY_INITIAL: Duration = Duration::from_millis(100);
/// Shortest time until an acknowledgement is overdue, above the pauses of a busy disk. Each
/// takeover in a row without an answer doubles the time.
const OVERDUE_MIN: Duration = Duration::from_millis(250);
/// Longest wait from one late answer to the next. An outage may lie between them.
const PACE_MAX: Duration = Duration::from_secs(2);
/// Doublings at most, for each time that doubles after a failure.
const DOUBLINGS_MAX: u32 = 6;
/// Time after an alert in which entries do not wait for their freshness. The alert's readings reach
/// the journal within it.
const HURRY: Duration = Duration::from_secs(2);
/// Longest wait of an entry for its freshness while the sender is redundant.
const REDUNDANT_FRESHNESS_MAX: Duration = Duration::from_secs(1);
/// A batch of this many entries is sent without waiting for more.
pub const BATCH_ENTRIES_MAX: usize = 512;
/// Longest wait of alerts for a link once the network is back.
const RETRY_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Batches sent and not acknowledged. Beyond it sending waits.
    pub in_flight_max: usize,
    /// A link counts as dead after this time without an acknowledgement of its oldest batch.
    pub acknowledge_limit: Duration,
    /// Number of links for copies.
    pub copies: usize,
    /// Copies go at once from the start (see [`Event::Redundant`]).
    pub redundant: bool,
    /// Longest wait of an entry for the acknowledgement of the batch before it, so that later
    /// entries share the upload.
    pub gather: Duration,
    /// Longest wait of an entry for further ones while nothing is in flight. After an alert there
    /// is no wait.
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
    /// A path died or a session was replaced, so links may stall.
    PathDown,
    /// A path is silent. Links may stall on it, or recover.
    PathSilent,
    /// A link has acknowledged everything up to the position.
    Answered(Generation, u64),
    /// The batch read at `from` was passed to the link and ends before `end`. Equal if the link
    /// takes no more.
    Sent {
        generation: Generation,
        end: u64,
    },
    /// The journal could not be read for a `Send`.
    Unread,
    Acknowledged(u64),
    /// Whether each batch is copied at once, or only if its acknowledgement is late.
    Redundant(bool),
    /// Longest wait of an entry for further ones, from now on.
    Freshness(Duration),
    /// Entries that wait, or come within `HURRY`, do not wait for their freshness.
    Hurry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Open(Generation),
    /// Read a batch at `from`, pass it to the link, and answer with `Sent` or `Unread`.
    Send {
        generation: Generation,
        from: u64,
    },
    /// The same for a link of copies, up to `until` at most. The original has the number 0.
    Copy {
        generation: Generation,
        number: u8,
        from: u64,
        until: u64,
    },
    /// Report the position to the journal.
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
    /// Since when entries wait at `next`, if any do.
    waiting_since: Instant,
    hurries_until: Option<Instant>,
    /// A `Send` is being carried out.
    sending: bool,
    unread: Unread,
    in_flight: VecDeque<InFlight>,
    usual: AnswerTimers,
    /// When the last acknowledgement came, if it came late.
    late_at: Option<Instant>,
    /// From one late acknowledgement to the next.
    pace: AnswerTimers,
    /// Entries up to here were sent more than once, so their acknowledgement measures no time.
    repeated_until: u64,
    /// Takeovers since the last acknowledgement.
    unanswered: u32,
    current: Option<Generation>,
    spare: Option<Generation>,
    recovering: Option<Recovering>,
    /// Ends of the entries that were sent on the current link, and acknowledged on it.
    on_current: (u64, u64),
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
    /// The current link, if any, must be replaced.
    replace: bool,
    pauses: Pauses,
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
            unread: Unread::default(),
            in_flight: VecDeque::new(),
            usual: AnswerTimers::default(),
            late_at: None,
            pace: AnswerTimers::default(),
            repeated_until: 0,
            unanswered: 0,
            current: None,
            spare: None,
            recovering: None,
            on_current: (0, 0),
            copiers: Vec::new(),
            redundant: limits.redundant,
            opening: None,
            given_up: 0,
            closing: VecDeque::new(),
            generations: 0,
            created: now,
            opened_at: None,
            replace: false,
            pauses: Pauses::new(),
        }
    }

    pub fn is_up(&self) -> bool {
        self.current.is_some()
    }

    /// End of the acknowledged entries.
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
            Event::Freshness(freshness) => self.limits.freshness = freshness,
            Event::Hurry => self.hurries_until = Some(now + HURRY),
            Event::Up(generation) => self.on_up(now, generation),
            Event::Lost(generation, random) => self.on_lost(now, generation, random),
            Event::PathDown => self.want_another(),
            Event::PathSilent => self.on_silence(now),
            Event::Answered(generation, position) => self.on_answered(generation, position),
            Event::Redundant(redundant) => self.redundant = redundant || self.limits.redundant,
            Event::Unread => self.on_unread(now),
            Event::Sent { generation, end } => {
                self.sending = false;
                self.waiting_since = now;
                if let Some(index) = self.copier_of(generation) {
                    if end > self.copiers[index].from {
                        self.copiers[index].copied = end;
                    } else {
                        // It takes no more.
                        self.copiers.remove(index);
                        self.closing.push_back(generation);
                    }
                }
                if self.current == Some(generation) {
                    self.on_current.0 = end.max(self.on_current.0);
                }
                if self.current == Some(generation) && end > self.next {
                    self.unread = Unread::default();
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
                    self.pauses.on_acknowledged();
                }
                if let Some(is_late) = is_late {
                    self.keep_pace(now, is_late);
                }
            }
        }
    }

    pub fn poll(&mut self, now: Instant) -> Option<Command> {
        self.end_recovery(now);
        if let Some(generation) = self.closing.pop_front() {
            self.pauses.on_end(now, generation);
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
        let readable = !self.unread.is_waiting(now);
        if gathered && readable && self.has_room() && !self.sending && self.next < self.durable {
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

    /// End of gathering. `None`: nothing is gathered. Repeated entries have waited before and do
    /// not wait again.
    fn gathered_at(&self) -> Option<Instant> {
        let waiting = self.durable.saturating_sub(self.next);
        let hurries =
            self.hurries_until > Some(self.waiting_since) || self.next < self.repeated_until;
        let freshness = match (hurries, self.redundant) {
            (true, _) => Duration::ZERO,
            (false, true) => self.limits.freshness.min(REDUNDANT_FRESHNESS_MAX),
            (false, false) => self.limits.freshness,
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
        self.pauses.on_open();
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

    /// When to open a link while none is being opened. A replacement keeps the pace of
    /// REOPEN_INTERVAL. A first link or a spare also waits for the pause after a loss.
    fn open_at(&self) -> Option<Instant> {
        if self.has_spare() && self.has_copiers() {
            return None;
        }
        let paced = self.opened_at.map(|at| at + REOPEN_INTERVAL);
        let paused = if self.replace {
            None
        } else {
            self.pauses.retry_at()
        };
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
        let gathered = self.gathered_at().max(self.read_again_at());
        let gathered = gathered.filter(|_| sends);
        let recovered = self.recovering.map(|it| it.until);
        let copied = self.copy_at().map(|(_, at)| at);
        [open, overdue, gathered, recovered, copied]
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

    /// Learns the pace of late acknowledgements. The first late one may have waited for a takeover,
    /// so it teaches nothing.
    fn keep_pace(&mut self, now: Instant, is_late: bool) {
        if !is_late {
            self.late_at = None;
            self.pace = AnswerTimers::default();
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

    fn on_up(&mut self, now: Instant, generation: Generation) {
        if self
            .opening
            .is_none_or(|opening| opening.generation != generation)
        {
            self.closing.push_back(generation);
            return;
        }
        self.opening = None;
        self.given_up = 0;
        self.pauses.on_up(now, generation);
        if self.current.is_none() || self.replace {
            self.make_current(generation);
        } else if self.spare.is_none() {
            self.spare = Some(generation);
        } else {
            self.add_copier(generation);
        }
    }

    fn make_current(&mut self, generation: Generation) {
        self.closing.extend(self.current.replace(generation));
        self.begin_current();
        if self.redundant {
            // At least one copy is on a living path, and goes on until it is replaced.
            self.copiers.iter_mut().for_each(|copier| copier.old = true);
        } else {
            let copiers = self.copiers.drain(..);
            self.closing.extend(copiers.map(|copier| copier.generation));
        }
        self.replace = false;
        self.start_over();
    }

    fn on_lost(&mut self, now: Instant, generation: Generation, random: f64) {
        let was_settled = self.pauses.on_end(now, generation);
        if self
            .opening
            .is_some_and(|opening| opening.generation == generation)
        {
            self.opening = None;
            // Nothing answers where this one was tried: no hurry any more.
            self.replace &= self.current.is_some();
        } else if self.spare == Some(generation) {
            self.spare = None;
        } else if self.lose_recovering(generation) {
            return;
        } else if let Some(index) = self.copier_of(generation) {
            self.copiers.remove(index);
        } else if self.current == Some(generation) {
            self.current = None;
            self.start_over();
        } else {
            return;
        }
        self.pauses.on_lost(now, was_settled, random);
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
