use super::*;

const S: i64 = SECOND_US;
const HOUR: i64 = 3600 * S;
const T0: i64 = 1_800_000_000 * S;

fn gateway(n: usize) -> String {
    format!("g{n}")
}

/// Times of a gateway that does not send its uptime.
fn by_wall(wall_us: i64) -> Sent {
    Sent {
        wall_us,
        ..Sent::default()
    }
}

/// Errors after uploads each second with these delays, by a clock that is `behind_us` behind.
fn given(clocks: &mut Clocks, from_s: i64, behind_us: i64, delays_ms: &[i64]) -> Vec<i64> {
    let uploads = delays_ms.iter().zip(from_s..).map(|(delay_ms, second)| {
        let sent_us = T0 + second * S;
        let error = clocks.on_request(
            "t",
            &gateway(0),
            by_wall(sent_us - behind_us),
            sent_us + delay_ms * 1000,
        );
        error.map_or(i64::MIN, |clock| clock.current().behind_us)
    });
    uploads.collect()
}

#[test]
fn an_hour_off_is_known_by_the_first_upload() {
    for behind_us in [HOUR, -HOUR] {
        let mut clocks = Clocks::default();
        let first = given(&mut clocks, 0, behind_us, &[300]);
        assert!((first[0] - behind_us).abs() <= S, "{first:?}");
        let later = given(&mut clocks, 1, behind_us, &[40, 900, 1500, 60]);
        assert!(later.iter().all(|it| *it == first[0]), "{later:?}");
    }
}

#[test]
fn a_first_upload_that_was_long_on_its_way_is_put_right_by_the_next() {
    let mut clocks = Clocks::default();
    let given = given(&mut clocks, 0, HOUR, &[40_000, 200, 40_000]);
    assert_eq!(given, [HOUR + 40 * S, HOUR, HOUR]);
}

#[test]
fn a_right_clock_is_left_alone_however_long_the_way() {
    let mut clocks = Clocks::default();
    let delays: Vec<i64> = (0..600).map(|n| [99_000, 20, 500_000][n % 3]).collect();
    for behind_us in [0, 20 * S, -20 * S] {
        let given = given(&mut clocks, 0, behind_us, &delays);
        assert!(given.iter().all(|it| *it == 0), "{given:?}");
    }
}

#[test]
fn a_clock_that_is_set_is_followed_at_once() {
    let mut clocks = Clocks::default();
    for (from_s, behind_us) in [(0, -HOUR), (100, 0), (200, HOUR), (300, -HOUR)] {
        let given = given(&mut clocks, from_s, behind_us, &[50; 100]);
        assert!(given.iter().all(|it| *it == behind_us), "{given:?}");
    }
}

#[test]
fn a_clock_that_drifts_is_followed() {
    let mut clocks = Clocks::default();
    for minute in 0..240 {
        let behind_us = HOUR + minute * S;
        let given = given(&mut clocks, minute * 60, behind_us, &[50; 60]);
        // A growing error is known once both buckets are newer than it.
        assert!((given[59] - behind_us).abs() <= 23 * S, "{given:?}");
    }
}

#[test]
fn who_says_no_time_has_none() {
    let mut clocks = Clocks::default();
    for sent_us in [0, -1, 1, i64::MIN, i64::MAX, T0 - 401 * 24 * HOUR] {
        assert_eq!(
            clocks.on_request("t", &gateway(0), by_wall(sent_us), T0),
            None
        );
    }
    assert!(clocks.0.is_empty());
}

#[test]
fn gateways_are_apart_and_bounded() {
    let mut clocks = Clocks::default();
    for n in 0..=GATEWAYS_MAX {
        let behind_us = if n % 2 == 0 { HOUR } else { 0 };
        let clock = clocks.on_request("t", &gateway(n), by_wall(T0 - behind_us), T0);
        let error = clock.map(|clock| clock.current());
        assert_eq!(error, Some(ClockError::behind(behind_us)));
    }
    assert_eq!(clocks.0.len(), 1);
}

#[test]
fn each_device_is_known_by_what_is_possible() {
    for behind_us in [HOUR, -HOUR, 130 * S, -130 * S] {
        let error = ClockError::behind(behind_us);
        let taken_us = T0;
        let true_us = taken_us + behind_us;
        // A device without a clock, or set by the gateway, including readings that it stored for
        // less long than the clock is off.
        for kept_us in [0, 10 * S, behind_us.abs() / 3] {
            assert_eq!(error.of_event_us(taken_us - kept_us, taken_us), behind_us);
            // A device with its own right clock, even if slightly ahead.
            if behind_us.abs() == HOUR {
                assert_eq!(error.of_event_us(true_us - kept_us, taken_us), 0);
                assert_eq!(error.of_event_us(true_us + 5 * S, taken_us), 0);
            }
        }
    }
    assert_eq!(ClockError::behind(0).of_event_us(T0 - HOUR, T0), 0);
    for nonsense in [i64::MIN, i64::MAX] {
        ClockError::behind(HOUR).of_event_us(nonsense, T0);
        ClockError::behind(-HOUR).of_event_us(T0, nonsense);
    }
}

#[test]
fn gaps_move_with_their_samples() {
    let gap = |behind_us, to_time_us| {
        let mut gap = Gap {
            from_time_us: to_time_us - S,
            to_time_us,
            ..Gap::default()
        };
        ClockError::behind(behind_us).put_right_gap(&mut gap, T0);
        assert_eq!(gap.to_time_us - gap.from_time_us, S);
        gap.to_time_us
    };
    assert_eq!(gap(-HOUR, T0), T0 - HOUR);
    assert_eq!(gap(HOUR, T0 - 2 * HOUR), T0 - HOUR);
    assert_eq!(gap(HOUR, T0), T0, "that would not have happened yet");
}

#[test]
fn a_report_is_put_right_and_never_of_the_future() {
    let put_right = |behind_us, time_us| {
        let mut report = PathReport {
            time_us,
            ..PathReport::default()
        };
        ClockError::behind(behind_us).put_right_report(&mut report, T0);
        report.time_us
    };
    assert_eq!(put_right(HOUR, T0 - HOUR - S), T0 - S);
    assert_eq!(put_right(-HOUR, T0 + HOUR - S), T0 - S);
    // Taken by a clock that was set since, or by a gateway that does not send its time.
    assert_eq!(put_right(0, T0 - HOUR), T0 - HOUR);
    assert_eq!(put_right(0, T0 + HOUR), T0);
    assert_eq!(put_right(HOUR, i64::MAX), T0);
}

/// A gateway whose machine was started at `T0`: the true time, and the time by which its clock is
/// ahead.
fn taken(true_us: i64, ahead_us: i64) -> Taken {
    Taken {
        wall_us: true_us + ahead_us,
        uptime_us: true_us - T0,
        boot: 7,
        behind_us: None,
    }
}

fn sent(true_us: i64, ahead_us: i64) -> Sent {
    let Taken {
        wall_us,
        uptime_us,
        boot,
        ..
    } = taken(true_us, ahead_us);
    Sent {
        wall_us,
        uptime_us,
        boot,
    }
}

fn clock_of(sent: Sent, arrived_us: i64) -> GatewayClock {
    let mut clocks = Clocks::default();
    let clock = clocks.on_request("t", "g", sent, arrived_us);
    clock.unwrap_or(GatewayClock {
        current: ClockError::behind(i64::MIN),
        start: None,
        expected_us: None,
    })
}

#[test]
fn a_step_of_the_gateways_clock_moves_no_time_that_was_right() {
    for ahead_us in [90 * S, -90 * S, HOUR, -HOUR] {
        let left_us = T0 + 2 * HOUR;
        let clock = clock_of(sent(left_us, ahead_us), left_us + S / 2);
        for ago_us in [S, 60 * S, HOUR] {
            let true_us = left_us - ago_us;
            // Taken before the step, by sensors with and without a clock.
            assert_eq!(clock.event_us(true_us, taken(true_us, 0)), true_us);
            // Taken after the step, by a sensor with its own clock.
            let right_us = clock.event_us(true_us, taken(true_us, ahead_us));
            assert!((right_us - true_us).abs() <= S, "{ahead_us}");
        }
    }
}

#[test]
fn what_was_taken_before_the_clock_was_set_gets_its_time() {
    for behind_us in [T0 - 20 * S, 60 * HOUR, 130 * S, -HOUR] {
        let true_us = T0 + HOUR;
        let left_us = true_us + 2 * HOUR;
        let clock = clock_of(sent(left_us, 0), left_us);
        let taken = taken(true_us, -behind_us);
        // A sensor without a clock, and a sensor with its own right clock.
        for event_us in [taken.wall_us, true_us] {
            assert_eq!(clock.event_us(event_us, taken), true_us, "{behind_us}");
        }
    }
}

#[test]
fn an_entry_of_an_earlier_start_keeps_the_error_that_was_known_then() {
    let true_us = T0 - 3 * HOUR;
    let earlier = |ahead_us: i64, behind_us| Taken {
        wall_us: true_us + ahead_us,
        uptime_us: HOUR,
        boot: 6,
        behind_us,
    };
    for ahead_us in [0, HOUR, -HOUR] {
        let clock = clock_of(sent(T0 + HOUR, ahead_us), T0 + HOUR);
        let right = |taken: Taken| clock.event_us(taken.wall_us, taken);
        assert_eq!(right(earlier(0, Some(0))), true_us, "{ahead_us}");
        assert_eq!(right(earlier(HOUR, Some(-HOUR))), true_us);
        // Unknown then: it stays, unless it would be later than this start of the machine.
        assert_eq!(right(earlier(0, None)), true_us);
    }
    let clock = clock_of(sent(T0 + HOUR, 5 * HOUR), T0 + HOUR);
    let late = earlier(5 * HOUR, None);
    assert_eq!(clock.event_us(late.wall_us, late), true_us);
}

#[test]
fn a_sensor_whose_clock_is_ahead_measured_when_the_gateway_took_it() {
    let clock = clock_of(sent(T0 + HOUR, 0), T0 + HOUR);
    let taken = taken(T0 + HOUR, 0);
    let event = |ahead_us| clock.event_us(T0 + HOUR + ahead_us, taken) - T0 - HOUR;
    assert_eq!(event(TOLERATED_US), TOLERATED_US);
    assert_eq!(event(TOLERATED_US + 1), 0);
    assert_eq!(event(HOUR), 0);
}

/// A gateway with outages whose clock, and whose sensors' clocks, step by up to an hour at random
/// times. A sensor without a clock uses the gateway's.
#[test]
fn random_steps_move_no_right_time_and_leave_none_in_the_future() {
    /// Largest remaining error: the tolerated error, and the rounding to whole seconds.
    const BOUND_US: i64 = TOLERATED_US + 2 * S;
    let mut state = 1_u64;
    let mut below = move |end: i64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % end.unsigned_abs()) as i64
    };
    for _ in 0..300 {
        let mut clocks = Clocks::default();
        let (mut gateway_us, mut sensor_us) = (0, 0);
        let (mut now_us, mut journal) = (T0, Vec::new());
        for _ in 0..30 {
            if below(4) == 0 {
                gateway_us = (below(7200) - 3600) * S;
            }
            if below(4) == 0 {
                sensor_us = if below(2) == 0 {
                    0
                } else {
                    (below(7200) - 3600) * S
                };
            }
            // An outage of up to an hour with a reading each minute.
            for _ in 0..=below(60) {
                now_us += 60 * S;
                let taken = taken(now_us, gateway_us);
                journal.push((taken, now_us, now_us, sensor_us == 0));
                if let Some(last) = journal.last_mut() {
                    last.1 += sensor_us;
                }
                journal.push((taken, taken.wall_us, now_us, true));
            }
            let sent = sent(now_us, gateway_us);
            let arrived_us = now_us + below(2000) * 1000;
            let Some(clock) = clocks.on_request("t", "g", sent, arrived_us) else {
                continue;
            };
            for (taken, event_us, true_us, is_right) in journal.drain(..) {
                let off_us = clock.event_us(event_us, taken) - true_us;
                assert!(off_us <= BOUND_US, "{off_us} us in the future");
                assert!(!is_right || off_us.abs() <= BOUND_US, "{off_us} us off");
                if taken.wall_us == true_us {
                    assert!(
                        !is_right || off_us == 0,
                        "a right time moved by {off_us} us"
                    );
                }
            }
        }
    }
}

#[test]
fn an_error_that_most_gateways_share_is_the_cores() {
    let shared = |errors_s: &[i64]| {
        let mut clocks = Clocks::default();
        for (n, behind_s) in errors_s.iter().enumerate() {
            clocks.on_request("t", &gateway(n), by_wall(T0 - behind_s * S), T0);
        }
        clocks
            .shared_error()
            .map(|it| (it.behind_us / S, it.agreeing))
    };
    assert_eq!(shared(&[]), None);
    assert_eq!(shared(&[0, 0, 0, 3600]), None);
    assert_eq!(shared(&[3600, 3600]), None, "two are too few");
    assert_eq!(shared(&[3600, -3600, 1800, 0]), None, "each has its own");
    assert_eq!(shared(&[3600, 3601, 3599, 0, 7200]), Some((3600, 3)));
    assert_eq!(shared(&[-300, -300, -300]), Some((-300, 3)));
}
