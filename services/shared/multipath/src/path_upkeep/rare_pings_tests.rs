//! Rare pings: the meaning of silence on a path that was busy before.

use std::time::{Duration, Instant};

use noq_proto::PathId;

use crate::{Command, Event, Keepalive, PathScheduler, PathUpkeep, Side, UpkeepConfig};

const MS: Duration = Duration::from_millis(1);
/// Commands after which a round of polling has not ended.
const COMMANDS_PER_ROUND_MAX: usize = 200;

/// A client's two paths with rare pings. Both are busy, the first one until `dense`; later only its
/// pings are answered, until it is cut. Returns the closes, and the pings on the first path.
fn closings_after_dense_traffic(dense: Duration, cut: Duration) -> (Vec<(Duration, PathId)>, u32) {
    const TICK_MS: u32 = 5;
    let round_trip_ticks = 8;
    let interval = Duration::from_secs(2);
    let start = Instant::now();
    let scheduler = PathScheduler::new();
    let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Client), scheduler.clone());
    scheduler.enter();
    steering.on_event(start, Event::Connected { interface: None });
    let paths = [PathId::ZERO, PathId::from(1u32)];
    scheduler.enter();
    steering.on_event(start, Event::Established { path: paths[1] });
    let keepalive = Keepalive {
        interval,
        silent_intervals: 4,
    };
    steering.on_event(start, Event::Keepalive(keepalive.into()));
    let mut heard = [0; 2];
    let mut answers: Vec<(u32, usize)> = Vec::new();
    let (mut closed, mut pings) = (Vec::new(), 0);
    for tick in 1..20_000 {
        let passed = MS * TICK_MS * tick;
        let now = start + passed;
        for (index, path) in paths.into_iter().enumerate() {
            let is_cut = index == 0 && passed >= cut;
            let answered = answers.iter().any(|(at, of)| (*at, *of) == (tick, index));
            let peer_pings = passed.as_millis().is_multiple_of(interval.as_millis());
            if !is_cut && (index == 1 || passed < dense || answered || peer_pings) {
                heard[index] += 1;
            }
            let event = Event::Received {
                path,
                datagrams: heard[index],
                rtt: MS * TICK_MS * round_trip_ticks,
            };
            steering.on_event(now, event);
        }
        answers.retain(|(at, _)| *at > tick);
        for round in 0.. {
            assert!(round < COMMANDS_PER_ROUND_MAX, "polling does not end");
            match steering.poll(now) {
                None => break,
                Some(Command::Ping { path }) => {
                    let index = usize::from(path != PathId::ZERO);
                    pings += u32::from(index == 0);
                    if index == 1 || passed < cut {
                        answers.push((tick + round_trip_ticks, index));
                    }
                }
                Some(Command::Close { path }) => closed.push((passed, path)),
                Some(_) => {}
            }
        }
    }
    (closed, pings)
}

/// With pings each 2 s a busy path becomes silent when the traffic ends, and is not dead.
#[test]
fn the_end_of_dense_traffic_is_not_the_death_of_a_path() {
    let never = Duration::MAX;
    let (closed, pings) = closings_after_dense_traffic(MS * 3_000, never);
    assert_eq!(closed, []);
    // One in each interval, and the questions until the rhythm is that of the pings.
    assert!((50..=70).contains(&pings), "{pings}");
}

#[test]
fn a_path_that_is_cut_is_found_dead_by_asking_or_by_its_keepalive() {
    let closed_after = |dense_ms: u32, cut_ms: u32| {
        let (closed, _) = closings_after_dense_traffic(MS * dense_ms, MS * cut_ms);
        assert_eq!(closed.len(), 1, "{closed:?}");
        assert_eq!(closed[0].1, PathId::ZERO);
        closed[0].0 - MS * cut_ms
    };
    // Within traffic: overdue after 90 ms, four questions 50 ms apart, the answer is overdue after
    // 140 ms.
    let dense = closed_after(60_000, 20_000);
    assert!(dense > MS * 200 && dense <= MS * 450, "{dense:?}");
    // Long after the traffic: four intervals.
    let idle = closed_after(3_000, 40_010);
    assert!(idle > MS * 4_000 && idle <= MS * 8_000, "{idle:?}");
}
