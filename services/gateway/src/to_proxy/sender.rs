//! What to send next, without a socket or a clock.
//!
//! State is three positions of the journal, `acknowledged <= next <= durable`, and up to four links to ingest: the current one, a
//! spare that stands idle, one for copies, and one that is being opened. Invariants:
//! 1. Whatever link becomes current starts at `acknowledged`: everything sent on an earlier one and not acknowledged is sent again.
//!    Ingest discards what it has.
//! 2. An acknowledgement counts whichever link it came over.
//! 3. When a path dies or falls silent, or acknowledgements stay away, the spare takes over at once. It has nothing in flight, so the dead path
//!    holds nothing of it back, and the round trips of CONNECT, TLS and gRPC are behind it.
//! 4. Without a spare a link is opened at once, and the old one stays in use until the new one stands.
//! 5. What is few entries and has no acknowledgement a moment later goes out once more on the link for copies: in other packets, so that the loss
//!    of one costs no round trip. That link never skips an entry, so that its acknowledgements count like any other. It may hold bytes on a
//!    dead path, so it never becomes current: with each takeover it is closed and opened anew.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use multipath::Answers;
use service_kit::Backoff;

/// Path deaths within this time cause one fresh link, not one each.
const REOPEN_INTERVAL: Duration = Duration::from_millis(250);
/// A link that has not come up by then is tried again.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
const RETRY_INITIAL: Duration = Duration::from_millis(100);
/// Acknowledgements are overdue later than usual, but no sooner than the least, which is above the pauses of a busy disk; each takeover in a
/// row without an answer doubles the time.
const OVERDUE_MIN: Duration = Duration::from_millis(250);
const OVERDUE_DOUBLINGS_MAX: u32 = 6;
/// More entries than this without an acknowledgement are a backlog, which is not copied.
const COPIED_ENTRIES_MAX: u64 = 64;
/// Alerts wait for a link no longer than this once the network is back.
const RETRY_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Batches sent and not acknowledged; then sending waits.
    pub in_flight_max: usize,
    /// After so long without an acknowledgement of the oldest batch the link counts as dead, whatever was usual before.
    pub acknowledge_limit: Duration,
    /// Whether there is a link for copies.
    pub copies: bool,
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

/// The link of copies, and where they have come to.
#[derive(Clone, Copy, Debug)]
struct Copier {
    generation: Generation,
    copied: u64,
    /// Where the copy that is being carried out begins.
    from: u64,
}

#[derive(Clone, Copy, Debug)]
struct Opening {
    generation: Generation,
    since: Instant,
    /// A path died meanwhile: it may be the one that the handshake waits for.
    disturbed: bool,
}

impl Opening {
    /// When it is given up.
    fn until(&self) -> Instant {
        self.since
            + if self.disturbed {
                REOPEN_INTERVAL
            } else {
                OPEN_LIMIT
            }
    }
}

#[derive(Debug)]
pub struct Sender {
    limits: Limits,
    durable: u64,
    acknowledged: u64,
    trimmed: u64,
    next: u64,
    /// A `Send` is being carried out.
    sending: bool,
    in_flight: VecDeque<InFlight>,
    usual: Answers,
    /// What ends here or before was sent more than once: its acknowledgement tells no time.
    repeated_until: u64,
    /// Takeovers since the last acknowledgement.
    unanswered: u32,
    current: Option<Generation>,
    spare: Option<Generation>,
    copier: Option<Copier>,
    opening: Option<Opening>,
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
            sending: false,
            in_flight: VecDeque::new(),
            usual: Answers::default(),
            repeated_until: 0,
            unanswered: 0,
            current: None,
            spare: None,
            copier: None,
            opening: None,
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
            Event::Durable(position) => self.durable = self.durable.max(position),
            Event::Up(generation) => self.on_up(generation),
            Event::Lost(generation, random) => self.on_lost(now, generation, random),
            Event::PathDown => self.want_another(),
            Event::Sent { generation, end } => {
                self.sending = false;
                if let Some(mut copier) = self
                    .copier
                    .take_if(|copier| copier.generation == generation)
                {
                    if end > copier.from {
                        copier.copied = end;
                        self.copier = Some(copier);
                    } else {
                        // It takes no more.
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
                while self
                    .in_flight
                    .front()
                    .is_some_and(|batch| batch.end <= self.acknowledged)
                {
                    if let Some(batch) = self.in_flight.pop_front()
                        && batch.end > self.repeated_until
                    {
                        self.usual.learn(now.saturating_duration_since(batch.sent));
                    }
                    self.unanswered = 0;
                    self.backoff.reset();
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
        let room = self.in_flight.len() < self.limits.in_flight_max;
        if room && !self.sending && self.next < self.durable {
            self.sending = true;
            return Some(Command::Send {
                generation,
                from: self.next,
            });
        }
        self.poll_copy(now)
    }

    fn poll_copy(&mut self, now: Instant) -> Option<Command> {
        if self.copy_at().is_none_or(|at| now < at) {
            return None;
        }
        let copier = self.copier.as_mut()?;
        copier.from = copier.copied.max(self.acknowledged);
        self.sending = true;
        Some(Command::Copy {
            generation: copier.generation,
            from: copier.from,
            until: self.next,
        })
    }

    /// When the oldest batch that was not copied yet is.
    fn copy_at(&self) -> Option<Instant> {
        let copier = self.copier?;
        let few = self.durable.saturating_sub(self.acknowledged) <= COPIED_ENTRIES_MAX;
        let batch = self
            .in_flight
            .iter()
            .find(|batch| batch.end > copier.copied)?;
        (few && !self.sending).then_some(batch.sent + self.usual.copy_after())
    }

    fn poll_open(&mut self, now: Instant) -> Option<Command> {
        if let Some(opening) = self.opening {
            if now < opening.until() {
                return None;
            }
            self.opening = None;
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

    /// When a link is to be opened, given that none is being opened: one to replace the current one at the pace of
    /// REOPEN_INTERVAL, a first one or a spare also not before the pause that follows a loss.
    fn open_at(&self) -> Option<Instant> {
        if self.spare.is_some() && (!self.limits.copies || self.copier.is_some()) {
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
            Some(opening) => Some(opening.until()),
            None => self.open_at(),
        };
        let overdue = self
            .in_flight
            .front()
            .filter(|_| !self.replace)
            .map(|batch| batch.sent + self.acknowledge_limit());
        [open, overdue, self.copy_at()].into_iter().flatten().min()
    }

    fn acknowledgement_is_overdue(&self, now: Instant) -> bool {
        self.in_flight
            .front()
            .is_some_and(|batch| now >= batch.sent + self.acknowledge_limit())
    }

    fn acknowledge_limit(&self) -> Duration {
        let limit = self.limits.acknowledge_limit;
        self.usual.overdue_after().map_or(limit, |usual| {
            let usual = usual.max(OVERDUE_MIN);
            (usual * 2u32.pow(self.unanswered.min(OVERDUE_DOUBLINGS_MAX))).min(limit)
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
        if self.current.is_none() || self.replace {
            self.make_current(generation);
        } else if self.spare.is_none() {
            self.spare = Some(generation);
        } else {
            self.copier = Some(Copier {
                generation,
                copied: self.acknowledged,
                from: self.acknowledged,
            });
        }
    }

    fn make_current(&mut self, generation: Generation) {
        self.closing.extend(self.current.replace(generation));
        self.closing
            .extend(self.copier.take().map(|copier| copier.generation));
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
        } else if self
            .copier
            .is_some_and(|copier| copier.generation == generation)
        {
            self.copier = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        in_flight_max: 2,
        acknowledge_limit: Duration::from_secs(5),
        copies: false,
    };

    struct Bench {
        sender: Sender,
        now: Instant,
    }

    impl Bench {
        fn new(durable: u64) -> Self {
            Self::with(LIMITS, durable)
        }

        fn with(limits: Limits, durable: u64) -> Self {
            let now = Instant::now();
            Self {
                sender: Sender::new(now, limits, 0, durable),
                now,
            }
        }

        /// With a link for copies, number 3.
        fn with_copies(durable: u64) -> Self {
            let copies = Limits {
                copies: true,
                ..LIMITS
            };
            let mut bench = Self::with(copies, durable);
            bench.commands();
            bench.tell(Event::Up(1));
            assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
            bench.tell(Event::Up(2));
            assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(3)]);
            assert_eq!(bench.tell(Event::Up(3)), []);
            bench
        }

        fn tell(&mut self, event: Event) -> Vec<Command> {
            self.sender.on_event(self.now, event);
            self.commands()
        }

        fn commands(&mut self) -> Vec<Command> {
            std::iter::from_fn(|| self.sender.poll(self.now)).collect()
        }

        fn pass(&mut self, time: Duration) -> Vec<Command> {
            self.now += time;
            self.commands()
        }

        fn sent(&mut self, generation: u64, end: u64) -> Vec<Command> {
            self.tell(Event::Sent { generation, end })
        }
    }

    fn send(generation: u64, from: u64) -> Command {
        Command::Send { generation, from }
    }

    #[test]
    fn the_window_bounds_what_is_unacknowledged() {
        let mut bench = Bench::new(100);
        assert_eq!(bench.commands(), [Command::Open(1)]);
        assert_eq!(bench.tell(Event::Up(1)), [send(1, 0)]);
        assert_eq!(bench.sent(1, 10), [send(1, 10)]);
        assert_eq!(bench.sent(1, 20), []);
        assert_eq!(
            bench.tell(Event::Acknowledged(10)),
            [Command::Trim(10), send(1, 20)]
        );
        assert_eq!(bench.sent(1, 100), []);
        assert_eq!(bench.tell(Event::Acknowledged(100)), [Command::Trim(100)]);
        assert!(bench.sender.is_idle());
        assert_eq!(bench.tell(Event::Durable(101)), [send(1, 100)]);
    }

    #[test]
    fn a_dead_path_opens_a_second_link_and_what_was_not_acknowledged_goes_again() {
        let mut bench = Bench::new(100);
        bench.commands();
        bench.tell(Event::Up(1));
        bench.sent(1, 10);
        bench.sent(1, 20);
        bench.tell(Event::Acknowledged(10));
        bench.sent(1, 30);
        bench.now += REOPEN_INTERVAL;
        assert_eq!(bench.tell(Event::PathDown), [Command::Open(2)]);
        // The old link still counts.
        assert_eq!(
            bench.tell(Event::Acknowledged(20)),
            [Command::Trim(20), send(1, 30)]
        );
        assert_eq!(bench.tell(Event::Up(2)), [Command::Close(1)]);
        // What was being sent on the old link is not counted for the new one.
        assert_eq!(bench.sent(1, 40), [send(2, 20)]);
        assert_eq!(bench.tell(Event::Acknowledged(30)), [Command::Trim(30)]);
        assert_eq!(bench.sent(2, 30), [send(2, 30)]);
    }

    #[test]
    fn a_spare_takes_over_at_once_and_is_replaced() {
        let mut bench = Bench::new(100);
        bench.commands();
        bench.tell(Event::Up(1));
        bench.sent(1, 10);
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
        assert_eq!(bench.tell(Event::Up(2)), []);
        bench.sent(1, 20);
        assert_eq!(bench.tell(Event::PathDown), [Command::Close(1), send(2, 0)]);
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(3)]);
        bench.tell(Event::Up(3));
        // The same when the link itself is lost.
        bench.sent(2, 20);
        bench.sent(2, 30);
        assert_eq!(bench.tell(Event::Lost(2, 0.5)), [send(3, 0)]);
        // A spare that is lost is opened again after a pause, and the current link goes on.
        let opened = bench.pass(Duration::from_secs(1));
        assert_eq!(opened, [Command::Open(4)]);
        bench.tell(Event::Up(4));
        assert_eq!(bench.tell(Event::Lost(4, 0.5)), []);
        assert_eq!(bench.pass(Duration::from_secs(1)), [Command::Open(5)]);
        assert_eq!(bench.sent(3, 10), [send(3, 10)]);
    }

    #[test]
    fn a_storm_of_path_deaths_opens_links_at_a_bounded_pace() {
        let mut bench = Bench::new(0);
        bench.commands();
        bench.tell(Event::Up(1));
        let mut opened = 0;
        for _ in 0..1000 {
            bench.now += Duration::from_millis(1);
            opened += bench
                .tell(Event::PathDown)
                .iter()
                .filter(|command| matches!(command, Command::Open(_)))
                .count();
        }
        assert!((1..=4).contains(&opened), "{opened}");
    }

    #[test]
    fn an_acknowledgement_that_is_later_than_usual_brings_the_spare() {
        let mut bench = Bench::new(0);
        bench.commands();
        bench.tell(Event::Up(1));
        bench.pass(REOPEN_INTERVAL);
        bench.tell(Event::Up(2));
        for batch in 1..=20 {
            assert_eq!(bench.tell(Event::Durable(batch)), [send(1, batch - 1)]);
            bench.sent(1, batch);
            bench.now += Duration::from_millis(60);
            bench.tell(Event::Acknowledged(batch));
        }
        bench.tell(Event::Durable(21));
        bench.sent(1, 21);
        assert_eq!(bench.pass(OVERDUE_MIN - Duration::from_millis(1)), []);
        // The spare repeats what was not acknowledged, ten times sooner than the fixed limit.
        assert_eq!(
            bench.pass(Duration::from_millis(1)),
            [Command::Close(1), Command::Open(3), send(2, 20)]
        );
        bench.sent(2, 21);
        bench.tell(Event::Up(3));
        // The second time it waits twice as long, and a late answer teaches nothing.
        assert_eq!(bench.pass(OVERDUE_MIN), []);
        bench.tell(Event::Acknowledged(21));
        assert!(
            bench
                .sender
                .usual
                .overdue_after()
                .is_some_and(|usual| usual < OVERDUE_MIN)
        );
    }

    #[test]
    fn what_has_no_answer_a_moment_later_is_copied_once() {
        let mut bench = Bench::with_copies(0);
        let copy = |from, until| Command::Copy {
            generation: 3,
            from,
            until,
        };
        assert_eq!(bench.tell(Event::Durable(2)), [send(1, 0)]);
        assert_eq!(bench.sent(1, 2), []);
        let after = bench.sender.usual.copy_after();
        assert_eq!(bench.sender.deadline(), Some(bench.now + after));
        assert_eq!(bench.pass(after), [copy(0, 2)]);
        assert_eq!(bench.sent(3, 2), []);
        assert_eq!(bench.pass(after), []);
        // What was sent meanwhile is copied with the next one, and nothing is skipped.
        assert_eq!(bench.tell(Event::Durable(3)), [send(1, 2)]);
        bench.sent(1, 3);
        assert_eq!(bench.pass(after), [copy(2, 3)]);
        bench.sent(3, 3);
        // Either answer counts.
        assert_eq!(bench.tell(Event::Acknowledged(3)), [Command::Trim(3)]);
        // What is answered in time is not copied, and what comes after it begins there.
        assert_eq!(bench.tell(Event::Durable(4)), [send(1, 3)]);
        bench.sent(1, 4);
        bench.tell(Event::Acknowledged(4));
        assert_eq!(bench.pass(after), []);
        assert_eq!(bench.tell(Event::Durable(5)), [send(1, 4)]);
        bench.sent(1, 5);
        assert_eq!(bench.pass(after), [copy(4, 5)]);
    }

    #[test]
    fn a_backlog_is_not_copied() {
        let mut bench = Bench::with_copies(0);
        bench.tell(Event::Durable(COPIED_ENTRIES_MAX + 1));
        bench.sent(1, COPIED_ENTRIES_MAX + 1);
        assert_eq!(bench.pass(Duration::from_millis(100)), []);
    }

    #[test]
    fn the_link_of_copies_goes_with_the_path() {
        let mut bench = Bench::with_copies(0);
        bench.tell(Event::Durable(1));
        bench.sent(1, 1);
        bench.pass(Duration::from_millis(20));
        bench.sent(3, 1);
        // It may have bytes on the dead path: the idle spare takes over.
        let taken = [Command::Close(1), Command::Close(3), send(2, 0)];
        assert_eq!(bench.tell(Event::PathDown), taken);
        bench.sent(2, 1);
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(4)]);
        bench.tell(Event::Up(4));
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(5)]);
        // When it is lost alone, or takes no more, the others go on.
        let copy = |generation| Command::Copy {
            generation,
            from: 0,
            until: 1,
        };
        assert_eq!(bench.tell(Event::Up(5)), [copy(5)]);
        assert_eq!(bench.sent(5, 1), []);
        assert_eq!(bench.tell(Event::Lost(5, 0.5)), []);
        assert_eq!(bench.pass(Duration::from_secs(1)), [Command::Open(6)]);
        assert_eq!(bench.tell(Event::Up(6)), [copy(6)]);
        assert_eq!(bench.sent(6, 0), [Command::Close(6)]);
    }

    #[test]
    fn silence_of_ingest_counts_as_death() {
        let mut bench = Bench::new(10);
        bench.commands();
        bench.tell(Event::Up(1));
        bench.sent(1, 10);
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
        let late = LIMITS.acknowledge_limit - REOPEN_INTERVAL;
        assert_eq!(bench.sender.deadline(), Some(bench.now + late));
        // A spare that is still not up is doubtful, too.
        assert_eq!(bench.pass(late), [Command::Close(2), Command::Open(3)]);
        // But a slow network gets its time.
        assert_eq!(bench.pass(Duration::from_secs(2)), []);
        assert_eq!(
            bench.tell(Event::Up(3)),
            [Command::Close(1), Command::Open(4), send(3, 0)]
        );
    }

    #[test]
    fn a_lost_link_is_retried_with_growing_pauses_until_data_flows() {
        let mut bench = Bench::new(10);
        bench.commands();
        let mut pauses = Vec::new();
        for generation in 1..8 {
            let before = bench.now;
            assert_eq!(bench.tell(Event::Lost(generation, 0.999)), []);
            let mut commands = Vec::new();
            while commands.is_empty() {
                match bench.sender.deadline() {
                    Some(at) if at > bench.now => bench.now = at,
                    other => panic!("stuck at {other:?}"),
                }
                commands = bench.commands();
            }
            assert_eq!(commands, [Command::Open(generation + 1)]);
            pauses.push(bench.now - before);
        }
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= RETRY_MAX));
        assert!(pauses.last() > Some(&Duration::from_secs(1)));
    }

    #[test]
    fn any_mix_of_events_sends_everything_in_the_end() {
        for seed in 0..300_u64 {
            let mut state = seed;
            let mut random = move |bound: u64| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            let copies = seed % 2 == 1;
            let mut bench = Bench::with(Limits { copies, ..LIMITS }, 0);
            let mut durable = 0;
            // Where each link has come to: none may skip an entry that was not acknowledged.
            let mut reached: std::collections::BTreeMap<u64, u64> = Default::default();
            let mut delivered: Vec<(u64, u64)> = Vec::new();
            let mut opening = Vec::new();
            let mut current = None;
            for step in 0..2000 {
                let commands = bench.commands();
                for command in commands {
                    match command {
                        Command::Open(generation) => opening.push(generation),
                        Command::Close(generation) => {
                            opening.retain(|other| *other != generation);
                            if current == Some(generation) {
                                current = None;
                            }
                        }
                        Command::Trim(position) => assert!(position <= durable),
                        Command::Send { generation, from } => {
                            assert!(from < durable);
                            let end = (from + 1 + random(5)).min(durable);
                            let before = reached.insert(generation, end).unwrap_or(0);
                            assert!(from <= before.max(bench.sender.acknowledged));
                            delivered.push((from, end));
                            bench
                                .sender
                                .on_event(bench.now, Event::Sent { generation, end });
                        }
                        Command::Copy {
                            generation,
                            from,
                            until,
                        } => {
                            assert!(copies && from < until && until <= durable);
                            let end = (from + 1 + random(5)).min(until);
                            let before = reached.insert(generation, end).unwrap_or(0);
                            assert!(from <= before.max(bench.sender.acknowledged));
                            bench
                                .sender
                                .on_event(bench.now, Event::Sent { generation, end });
                        }
                    }
                }
                let calm = step >= 300;
                if calm && bench.sender.is_idle() && bench.sender.durable == durable {
                    break;
                }
                match random(if calm { 3 } else { 6 }) {
                    0 => {
                        if !calm {
                            durable += random(10);
                        }
                        bench.sender.on_event(bench.now, Event::Durable(durable));
                    }
                    1 => {
                        // Ingest acknowledges the longest run it has without a hole.
                        let mut held = 0;
                        let mut runs = delivered.clone();
                        runs.sort_unstable();
                        for (from, end) in runs {
                            assert!(from <= held, "seed {seed}: a hole before {from}");
                            held = held.max(end);
                        }
                        bench.sender.on_event(bench.now, Event::Acknowledged(held));
                    }
                    2 => {
                        if let Some(generation) = opening.pop() {
                            current = Some(generation);
                            bench.sender.on_event(bench.now, Event::Up(generation));
                        }
                    }
                    3 => bench.sender.on_event(bench.now, Event::PathDown),
                    4 => {
                        if let Some(generation) = current.take() {
                            bench
                                .sender
                                .on_event(bench.now, Event::Lost(generation, 0.5));
                        }
                    }
                    _ => {}
                }
                bench.now += Duration::from_millis(random(400));
            }
            assert!(bench.sender.is_idle(), "seed {seed}: {:?}", bench.sender);
        }
    }
}
