//! A path that leaves its data to others, as when its cap is reached, is not taken for dead.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use noq_proto::PathId;

use crate::coupling::Coupling;
use crate::path_scheduler::{Admission, PathModel};
use crate::steering_rules::{PathSchedule, Rank};
use crate::{Command, Event, PathScheduler, PathUpkeep, Side, UpkeepConfig};

const MS: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(5);
const LASTS_TICKS: u32 = 1_000;
/// Commands after which a round of polling has not ended.
const COMMANDS_PER_ROUND_MAX: usize = 200;

/// Each path was busy until its data was left to the first one. Returns the longest pause of the
/// second one in sending, at this end.
fn longest_pause(side: Side, rank: Option<Rank>) -> Duration {
    let paths = [PathId::ZERO, PathId::from(1u32)];
    let start = Instant::now();
    let scheduler = PathScheduler::new();
    let mut steering = PathUpkeep::new(UpkeepConfig::new(side), scheduler.clone());
    scheduler.enter();
    steering.on_event(start, Event::Connected { interface: None });
    scheduler.enter();
    steering.on_event(start, Event::Established { path: paths[1] });
    for (slot, path) in paths.into_iter().enumerate() {
        steering.on_event(start, Event::Slot { path, slot });
        let first = PathSchedule {
            place: 0,
            ..PathSchedule::FREE
        };
        let second = PathSchedule {
            place: 1,
            rank,
            weight: None,
            carries_copies: false,
        };
        let schedule = [first, second][slot];
        steering.on_event(start, Event::Scheduled { path, schedule });
    }
    let (mut wants_ping, mut sent_at, mut pause) = (false, start, Duration::ZERO);
    for tick in 1..LASTS_TICKS {
        let now = start + TICK * tick;
        // The first path is busy. The second one measures no more than its pings.
        for (slot, rate_bytes_per_s) in [(0, 2.5e6), (1, 300.0)] {
            let model = PathModel {
                busy: slot == 0,
                rate_bytes_per_s,
                promised_bytes_per_s: rate_bytes_per_s,
                rtt_smoothed: MS * 20,
                rtt_latest: MS * 20,
                rtt_min: MS * 20,
                window_bytes: 60_000,
                in_flight_bytes: 0,
                ..scheduler.models()[slot]
            };
            scheduler.report(now, model, false, Coupling::Off);
        }
        scheduler.tick(now);
        scheduler.sent(0, 1_200, 0);
        steering.on_event(now, Event::Backlog { bytes: 100_000 });
        for path in paths {
            let (datagrams, rtt) = (u64::from(tick), MS * 20);
            let event = Event::Received {
                path,
                datagrams,
                rtt,
            };
            steering.on_event(now, event);
        }
        for round in 0.. {
            assert!(round < COMMANDS_PER_ROUND_MAX, "polling does not end");
            match steering.poll(now) {
                None => break,
                Some(Command::Ping { path }) => wants_ping |= path == paths[1],
                Some(Command::Close { path }) => panic!("{path} is closed"),
                Some(_) => {}
            }
        }
        if wants_ping && scheduler.admission(1, true) == Admission::Unconditional {
            scheduler.sent(1, 30, 0);
            wants_ping = false;
            sent_at = now;
        }
        pause = pause.max(now - sent_at);
    }
    pause
}

#[test]
fn pings_of_a_path_that_leaves_its_data_to_others_pass_at_once() {
    for side in [Side::Client, Side::Server] {
        for rank in [Some(Rank::Standby), None] {
            let pause = longest_pause(side, rank);
            assert!(pause <= MS * 110, "{side:?} {rank:?}: {pause:?}");
        }
    }
}
