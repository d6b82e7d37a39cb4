//! Both ends of a connection in virtual time while policies change. There are two paths with delay,
//! jitter and loss, and a stream that carries the messages of the agreement in order, late or
//! never. Acknowledgements use the lowest Available path, as in the library, so the other path
//! receives only pings. The pauses of the IO shell are those of the tunnel.

use std::time::{Duration, Instant};

use noq_proto::{PathId, PathStatus};

use crate::{
    Command, Coupling, Event, Keepalive, KeepaliveAcceptor, KeepaliveProposer, KeepaliveTerms,
    PathModel, PathScheduler, PathUpkeep, Rest, Side, UpkeepConfig,
};

use super::keepalive_plan_tests::{Plan, Random};

pub(super) const MS: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(2);
/// Longest pause of the IO shell between two polls.
const TURN_MAX: Duration = Duration::from_millis(50);
/// Longest time between two probes for a packet that is not acknowledged.
const PROBE_MAX: Duration = Duration::from_secs(2);
const COMMANDS_PER_TURN_MAX: usize = 200;
const PATHS: [PathId; 2] = [PathId::ZERO, PathId::MAX];
pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;

#[derive(Debug, Clone, Copy)]
enum Message {
    Propose(Keepalive),
    Accept(Keepalive),
    Confirm(Keepalive),
}

#[derive(Debug, Clone, Copy)]
enum Arrival {
    Packet {
        path: usize,
        sent: Instant,
    },
    /// A packet on `path` that acknowledges a packet of the path `of`.
    Ack {
        path: usize,
        of: usize,
        sent: Instant,
    },
    Message(Message),
    /// The peer's status of a path.
    Status(PathId, PathStatus),
    /// Whether the client's schedule has copies.
    Copies(bool),
    /// A copy of an alert.
    Alert(u64),
}

/// The role of the end in the agreement.
enum Agreeing {
    Client(KeepaliveProposer),
    Server(KeepaliveAcceptor),
    /// An older release: applies a proposal from its next ping on, and answers nothing.
    Old,
}

pub(super) struct End {
    steering: PathUpkeep,
    scheduler: std::sync::Arc<PathScheduler>,
    agreeing: Agreeing,
    statuses: [PathStatus; 2],
    heard: [u64; 2],
    turn_at: Instant,
    /// State of an older end: its interval, and the next ping of each path.
    old: (Duration, [Instant; 2]),
    pub(super) closed: Vec<(Duration, usize)>,
    /// The longest silence that the terms allowed since the cut.
    pub(super) promised: Duration,
    last_message_at: Instant,
    /// Packets sent on each path, without acknowledgements.
    pub(super) sent: [u32; 2],
    /// Time of the next probe of each path with an unacknowledged packet, and its time-out.
    probes: [Option<(Instant, Duration)>; 2],
    rest: Rest,
}

impl End {
    fn new(side: Side, agreeing: Agreeing, start: Instant, rest: Rest) -> Self {
        let scheduler = PathScheduler::new();
        let mut config = UpkeepConfig::new(side);
        config.rest = rest;
        let mut steering = PathUpkeep::new(config, scheduler.clone());
        for (index, path) in PATHS.into_iter().enumerate() {
            scheduler.enter();
            let event = match index {
                0 => Event::Connected { interface: None },
                _ => Event::Established { path },
            };
            steering.on_event(start, event);
            if rest.rests && side == Side::Server {
                steering.on_event(start, Event::Slot { path, slot: index });
            }
        }
        Self {
            steering,
            scheduler,
            agreeing,
            statuses: [PathStatus::Available; 2],
            heard: [0; 2],
            turn_at: start,
            old: (Keepalive::default().interval, [start; 2]),
            closed: Vec::new(),
            promised: Duration::ZERO,
            last_message_at: start,
            sent: [0; 2],
            probes: [None; 2],
            rest,
        }
    }

    pub(super) fn terms(&self) -> KeepaliveTerms {
        match &self.agreeing {
            Agreeing::Client(proposer) => proposer.terms(),
            Agreeing::Server(acceptor) => acceptor.terms(),
            Agreeing::Old => KeepaliveTerms::default(),
        }
    }

    fn apply_terms(&mut self, now: Instant) {
        let terms = self.terms().with_rest(self.rest);
        self.steering.on_event(now, Event::Keepalive(terms));
    }

    fn ack_path(&self) -> usize {
        let available = |status: &PathStatus| *status == PathStatus::Available;
        self.statuses.iter().position(available).unwrap_or(0)
    }
}

pub(super) struct World {
    plan: Plan,
    random: Random,
    start: Instant,
    now: Instant,
    ends: [End; 2],
    delays: [Duration; 2],
    flying: Vec<(Instant, usize, Arrival)>,
    copies: bool,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let start = Instant::now();
        let answers = plan.old != Some(SERVER);
        let client = match plan.old {
            Some(CLIENT) => Agreeing::Old,
            _ => Agreeing::Client(KeepaliveProposer::new(answers)),
        };
        let server = match plan.old {
            Some(SERVER) => Agreeing::Old,
            _ => Agreeing::Server(KeepaliveAcceptor::default()),
        };
        let mut random = Random(plan.seed);
        let delays = [random.ms(5, 60), random.ms(5, 300)];
        Self {
            random,
            start,
            now: start,
            ends: [
                End::new(Side::Client, client, start, plan.rest),
                End::new(Side::Server, server, start, plan.rest),
            ],
            delays,
            flying: Vec::new(),
            copies: false,
            plan,
        }
    }

    pub(super) fn run(mut self) -> [End; 2] {
        let mut policies = std::mem::take(&mut self.plan.policies)
            .into_iter()
            .peekable();
        // End of the last handshake.
        for (from, path) in [(CLIENT, 0), (CLIENT, 1), (SERVER, 0), (SERVER, 1)] {
            self.send(from, path);
        }
        while self.now < self.start + self.plan.length {
            self.now += TICK;
            let passed = self.now - self.start;
            while let Some((_, policy)) = policies.next_if(|(at, _)| *at <= passed) {
                self.policy(policy);
            }
            self.arrive();
            self.probe();
            let (gap_ms, ends) = match self.plan.one_way {
                true => (40, &[CLIENT][..]),
                false => (10, &[CLIENT, SERVER][..]),
            };
            if (self.plan.busy)(passed.as_secs()) && passed.as_millis().is_multiple_of(gap_ms) {
                self.send_on_all(ends);
            }
            self.copy(passed);
            for index in [CLIENT, SERVER] {
                self.admission(index);
            }
        }
        self.ends
    }

    fn send_on_all(&mut self, ends: &[usize]) {
        for from in ends {
            for path in 0..2 {
                if self.ends[*from].statuses[path] == PathStatus::Available {
                    self.send(*from, path);
                }
            }
        }
    }

    fn copy(&mut self, passed: Duration) {
        let copies = (self.plan.copies)(passed.as_secs());
        if self.copies != copies {
            self.copies = copies;
            self.spread(CLIENT, copies);
            self.deliver(CLIENT, Arrival::Copies(copies));
        }
        if copies && passed.as_millis().is_multiple_of(500) {
            self.send_on_all(&[CLIENT, SERVER]);
        }
        if (self.plan.alerts)(passed.as_secs()) && passed.as_millis().is_multiple_of(250) {
            let bytes = passed.as_millis() as u64;
            self.alert(CLIENT, bytes);
            for path in 0..2 {
                self.fly(SERVER, path, Arrival::Alert(bytes));
            }
        }
    }

    /// The end writes an alert, or its answer.
    fn alert(&mut self, index: usize, bytes: u64) {
        let event = Event::Urgent { bytes };
        self.ends[index].steering.on_event(self.now, event);
        for path in 0..2 {
            self.send(index, path);
        }
    }

    fn spread(&mut self, index: usize, copies: bool) {
        let event = Event::Spread {
            gathers: true,
            copies: 1 + u8::from(copies),
        };
        self.ends[index].steering.on_event(self.now, event);
    }

    fn policy(&mut self, policy: Keepalive) {
        let client = &mut self.ends[CLIENT];
        match &mut client.agreeing {
            Agreeing::Client(proposer) => proposer.want(policy),
            Agreeing::Server(_) => {}
            Agreeing::Old => {
                client.old.0 = policy.interval;
                self.deliver(CLIENT, Arrival::Message(Message::Propose(policy)));
            }
        }
        self.propose();
    }

    fn propose(&mut self) {
        if let Agreeing::Client(proposer) = &mut self.ends[CLIENT].agreeing
            && let Some(proposal) = proposer.propose()
        {
            self.ends[CLIENT].apply_terms(self.now);
            self.deliver(CLIENT, Arrival::Message(Message::Propose(proposal)));
        }
    }

    /// Messages arrive in order, and late after a loss.
    fn deliver(&mut self, from: usize, message: Arrival) {
        if self.now - self.start >= self.plan.mute {
            return;
        }
        let late = if self.random.below(4) == 0 { 600 } else { 30 };
        let at = self.now + self.delays[0] + self.random.ms(0, late);
        let at = at.max(self.ends[from].last_message_at);
        self.ends[from].last_message_at = at;
        self.flying.push((at, 1 - from, message));
    }

    fn fly(&mut self, to: usize, path: usize, arrival: Arrival) {
        let passed = self.now - self.start;
        let is_cut = path == 1 && passed >= self.plan.cut;
        // Handshakes are not lost.
        let is_lost = passed > MS * 1_000 && self.random.below(100) < self.plan.loss;
        if is_cut || is_lost {
            return;
        }
        let at = self.now + self.delays[path] + self.random.ms(0, 15);
        self.flying.push((at, to, arrival));
    }

    fn send(&mut self, from: usize, path: usize) {
        let sent = self.now;
        let end = &mut self.ends[from];
        end.sent[path] += 1;
        if self.plan.rest.rests {
            end.scheduler.sent(path, 50, 50);
            let timeout = (self.delays[0] + self.delays[1]) * 3;
            end.probes[path].get_or_insert((sent + timeout, timeout));
        }
        self.fly(1 - from, path, Arrival::Packet { path, sent });
    }

    /// The library probes a path with an unacknowledged packet, ever more rarely.
    fn probe(&mut self) {
        for index in [CLIENT, SERVER] {
            for path in 0..2 {
                let end = &mut self.ends[index];
                let is_closed = end.closed.iter().any(|(_, closed)| *closed == path);
                let due = end.probes[path].filter(|(at, _)| *at <= self.now && !is_closed);
                if let Some((_, timeout)) = due {
                    let next = (timeout * 2).min(PROBE_MAX);
                    end.probes[path] = Some((self.now + next, next));
                    self.send(index, path);
                }
            }
        }
    }

    fn arrive(&mut self) {
        let now = self.now;
        let (due, flying) = std::mem::take(&mut self.flying)
            .into_iter()
            .partition(|(at, ..)| *at <= now);
        self.flying = flying;
        let due: Vec<_> = due;
        for (_, to, arrival) in due {
            match arrival {
                Arrival::Packet { path, sent } => {
                    self.ends[to].heard[path] += 1;
                    let by = self.ends[to].ack_path();
                    let ack = Arrival::Ack {
                        path: by,
                        of: path,
                        sent,
                    };
                    self.fly(1 - to, by, ack);
                }
                Arrival::Ack { path, of, sent } => {
                    let end = &mut self.ends[to];
                    end.heard[path] += 1;
                    end.probes[of] = None;
                    let models = end.scheduler.models();
                    let model = PathModel {
                        acked_sent_at: models[of].acked_sent_at.max(Some(sent)),
                        in_flight_bytes: 0,
                        ..models[of]
                    };
                    end.scheduler.report(now, model, false, Coupling::Off);
                }
                Arrival::Message(message) => self.take(to, message),
                Arrival::Copies(copies) => self.spread(to, copies),
                Arrival::Alert(bytes) => self.alert(to, bytes),
                Arrival::Status(path, status) => {
                    let event = Event::RemoteStatus { path, status };
                    self.ends[to].steering.on_event(now, event);
                }
            }
        }
    }

    fn take(&mut self, to: usize, message: Message) {
        let now = self.now;
        let end = &mut self.ends[to];
        match (&mut end.agreeing, message) {
            (Agreeing::Server(acceptor), Message::Propose(keepalive)) => {
                let accepted = acceptor.on_propose(keepalive);
                end.apply_terms(now);
                self.deliver(to, Arrival::Message(Message::Accept(accepted)));
            }
            (Agreeing::Client(proposer), Message::Accept(keepalive)) => {
                assert!(proposer.on_accept(keepalive));
                end.apply_terms(now);
                self.deliver(to, Arrival::Message(Message::Confirm(keepalive)));
                self.propose();
            }
            (Agreeing::Server(acceptor), Message::Confirm(keepalive)) => {
                acceptor.on_confirm(keepalive);
                end.apply_terms(now);
            }
            (Agreeing::Old, Message::Propose(keepalive)) => end.old.0 = keepalive.interval,
            (Agreeing::Old, _) => {}
            (_, message) => panic!("{message:?} to the wrong end"),
        }
    }

    /// As in the IO shell: counters, then commands, at deadlines and at least every [`TURN_MAX`].
    fn admission(&mut self, index: usize) {
        let now = self.now;
        if matches!(self.ends[index].agreeing, Agreeing::Old) {
            for path in 0..2 {
                let (interval, ping_at) = &mut self.ends[index].old;
                if now >= ping_at[path] {
                    ping_at[path] = now + *interval;
                    self.send(index, path);
                }
            }
            return;
        }
        if now < self.ends[index].turn_at {
            return;
        }
        let passed = now - self.start;
        let end = &mut self.ends[index];
        if passed >= self.plan.cut && end.closed.is_empty() {
            end.promised = end.promised.max(end.terms().judge_by.silence_max());
        }
        if self.plan.bulk && (self.plan.busy)(passed.as_secs()) {
            end.steering.on_event(now, Event::Backlog { bytes: 1 });
        }
        for (number, path) in PATHS.into_iter().enumerate() {
            let event = Event::Received {
                path,
                datagrams: end.heard[number],
                rtt: self.delays[number] + self.delays[0],
            };
            end.steering.on_event(now, event);
        }
        for round in 0.. {
            assert!(round < COMMANDS_PER_TURN_MAX, "polling does not end");
            let number = |path| usize::from(path != PathId::ZERO);
            match self.ends[index].steering.poll(now) {
                None => break,
                Some(Command::Ping { path }) => self.send(index, number(path)),
                Some(Command::SetStatus { path, status }) => {
                    self.ends[index].statuses[number(path)] = status;
                    // Frames of status are repeated until they arrive.
                    if self.plan.rest.rests {
                        let at = now + self.delays[0].max(self.delays[1]);
                        self.flying
                            .push((at, 1 - index, Arrival::Status(path, status)));
                    }
                }
                Some(Command::Close { path }) => {
                    self.ends[index].closed.push((passed, number(path)));
                }
                Some(command) => panic!("{command:?}"),
            }
        }
        let end = &mut self.ends[index];
        let wake = end.steering.next_deadline().unwrap_or(now + TURN_MAX);
        end.turn_at = wake.clamp(now + TICK, now + TURN_MAX);
    }
}
