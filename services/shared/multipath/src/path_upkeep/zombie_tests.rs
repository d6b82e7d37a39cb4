//! A zombie path in virtual time: its round trip grows a hundredfold at 7 % loss, and it still
//! answers. A small urgent flow, such as an alert's, must leave it within half a second and must
//! not return while it is slow. A round trip that grows at once may count as the death of the path.

use std::time::{Duration, Instant};

use noq_proto::{PathId, PathStatus};

use super::keepalive_plan_tests::Random;
use super::keepalive_world_tests::MS;
use crate::{Command, Coupling, Event, PathModel, PathScheduler, PathUpkeep, Side, UpkeepConfig};

const TICK: Duration = Duration::from_millis(1);
/// Longest pause of the IO shell between two polls.
const TURN_MAX: Duration = Duration::from_millis(50);
const ZOMBIE_FROM: Duration = Duration::from_secs(5);
const LENGTH: Duration = Duration::from_secs(25);
/// Interval of the urgent packets.
const URGENT_EVERY: Duration = Duration::from_millis(50);
const PACKET_BYTES: u64 = 600;

struct World {
    steering: PathUpkeep,
    scheduler: std::sync::Arc<PathScheduler>,
    random: Random,
    start: Instant,
    now: Instant,
    paths: [PathId; 2],
    statuses: [PathStatus; 2],
    heard: [u64; 2],
    rtts: [Duration; 2],
    /// Arrival of the answer, path, and time of sending. A lost packet has no arrival.
    flying: Vec<(Option<Instant>, usize, Instant)>,
    /// Time in which the round trip grows.
    growth: Duration,
    closed: bool,
}

impl World {
    fn new(seed: u64, growth: Duration) -> Self {
        let (start, scheduler) = (Instant::now(), PathScheduler::new());
        let paths = [PathId::ZERO, PathId::from(1u8)];
        let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Client), scheduler.clone());
        for (index, path) in paths.into_iter().enumerate() {
            scheduler.enter();
            let event = match index {
                0 => Event::Connected { interface: None },
                _ => Event::Established { path },
            };
            steering.on_event(start, event);
        }
        Self {
            steering,
            scheduler,
            random: Random(seed),
            start,
            now: start,
            paths,
            statuses: [PathStatus::Available; 2],
            heard: [0; 2],
            rtts: [MS * 20, MS * 60],
            flying: Vec::new(),
            growth,
            closed: false,
        }
    }

    fn is_zombie(&self, path: usize) -> bool {
        path == 0 && self.now >= self.start + ZOMBIE_FROM
    }

    /// The path of the next packet: the library asks them in this order.
    fn next_path(&self) -> usize {
        let is_first = self.statuses[0] == PathStatus::Available && !self.closed;
        usize::from(!is_first)
    }

    fn in_flight(&self, path: usize) -> u64 {
        let packets = self.flying.iter().filter(|packet| packet.1 == path);
        packets.count() as u64 * PACKET_BYTES
    }

    fn send(&mut self, path: usize) {
        let rtt = match (path, self.is_zombie(path)) {
            (0, true) => {
                let age = self.now - self.start - ZOMBIE_FROM;
                let grown = age.div_duration_f64(self.growth.max(MS)).min(1.0);
                MS * 20 + (MS * 1_980).mul_f64(grown)
            }
            (0, false) => MS * 20,
            _ => MS * 60,
        };
        // Either direction loses 7 %.
        let mut lost = || self.random.below(100) < 7;
        let is_lost = (lost() || lost()) && self.is_zombie(path);
        let jitter = self.random.ms(0, 4);
        let arrives = (!is_lost).then_some(self.now + rtt + jitter);
        self.flying.push((arrives, path, self.now));
        self.scheduler
            .sent(path, PACKET_BYTES, self.in_flight(path));
    }

    fn arrive(&mut self) {
        let now = self.now;
        let due = |packet: &(Option<Instant>, usize, Instant)| packet.0.is_some_and(|at| at <= now);
        let (arrived, flying) = std::mem::take(&mut self.flying).into_iter().partition(due);
        self.flying = flying;
        let arrived: Vec<_> = arrived;
        for (_, path, sent) in arrived {
            // An acknowledgement shows which earlier packets were lost.
            self.flying
                .retain(|it| it.1 != path || it.0.is_some() || it.2 > sent);
            self.heard[path] += 1;
            let sample = now - sent;
            self.rtts[path] = (self.rtts[path] * 7 + sample) / 8;
            let model = PathModel {
                acked_sent_at: Some(sent),
                rtt_smoothed: self.rtts[path],
                rtt_latest: sample,
                in_flight_bytes: self.in_flight(path),
                ..self.scheduler.models()[path]
            };
            self.scheduler.report(now, model, false, Coupling::Off);
        }
    }

    fn turn(&mut self) {
        let now = self.now;
        self.scheduler.tick(now);
        for index in usize::from(self.closed)..2 {
            let event = Event::Received {
                path: self.paths[index],
                datagrams: self.heard[index],
                rtt: self.rtts[index],
            };
            self.steering.on_event(now, event);
        }
        while let Some(command) = self.steering.poll(now) {
            match command {
                Command::Ping { path } => self.send(usize::from(path != PathId::ZERO)),
                Command::SetStatus { path, status } => {
                    self.statuses[usize::from(path != PathId::ZERO)] = status;
                }
                Command::Close { path } => {
                    assert!(path == PathId::ZERO && self.is_zombie(0), "{path:?}");
                    self.closed = true;
                    self.steering.on_event(now, Event::Abandoned { path });
                    self.steering.on_event(now, Event::Discarded { path });
                }
                other => panic!("not here: {other:?}"),
            }
        }
    }

    /// When the urgent flow last used the zombie, counted from its beginning.
    fn run(mut self) -> Duration {
        let (mut turn_at, mut urgent_at) = (self.now, self.now);
        let mut last = Duration::ZERO;
        let mut was_on_it = false;
        while self.now < self.start + LENGTH {
            self.arrive();
            if self.now >= turn_at {
                self.turn();
                let wake = self.steering.next_deadline().unwrap_or(self.now + TURN_MAX);
                turn_at = wake.clamp(self.now + TICK * 2, self.now + TURN_MAX);
            }
            if self.now >= urgent_at {
                urgent_at = self.now + URGENT_EVERY;
                let path = self.next_path();
                if self.is_zombie(path) {
                    last = self.now - self.start - ZOMBIE_FROM;
                }
                was_on_it |= path == 0 && !self.is_zombie(path);
                self.send(path);
            }
            self.now += TICK;
        }
        assert!(was_on_it, "the quicker path carried the flow before");
        last
    }
}

#[test]
fn a_zombie_path_leaves_the_lane_of_urgent_traffic_within_half_a_second() {
    for growth in [MS, MS * 300, MS * 1_000, MS * 4_000] {
        let worst = (1..=40).map(|seed| World::new(seed, growth).run()).max();
        assert!(
            worst.is_some_and(|last| last <= MS * 500),
            "{growth:?}: {worst:?}"
        );
    }
}
