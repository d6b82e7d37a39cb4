//! A signal is missed by its own rhythm.

use super::*;

/// Ann's clip sends the pulse and the oxygen saturation.
fn clip() -> Scene {
    let spo2 = |at_s| heard("ann", "clip", "g1", Metric::Spo2, 98.0, at_s);
    Scene {
        latest: vec![pulse("ann", "clip", "g1", 0), spo2(0)],
        ..Scene::default()
    }
}

impl Scene {
    /// Rounds each 5 s. Pulse and saturation have each these seconds between two readings; `None`:
    /// there are none. The transitions, each with its second.
    fn rounds(
        &mut self,
        from_s: i64,
        to_s: i64,
        pulse: Option<i64>,
        spo2: Option<i64>,
    ) -> Vec<(i64, String, bool)> {
        let mut all = Vec::new();
        for at_s in (from_s..=to_s).step_by(5) {
            for (row, every_s) in [(0, pulse), (1, spo2)] {
                if let Some(every_s) = every_s {
                    self.latest[row].ingest_time_us = T0 + (at_s - at_s % every_s) * S;
                }
            }
            let said = self.round(at_s).into_iter();
            all.extend(said.map(|(rule, _, begins)| (at_s, rule, begins)));
        }
        all
    }
}

fn at(at_s: i64, begins: bool) -> (i64, String, bool) {
    (at_s, SIGNAL.to_owned(), begins)
}

#[test]
fn a_signal_that_stops_is_missed_after_three_intervals_and_at_least_half_a_minute() {
    for (interval_s, begins_s) in [(1, 335), (20, 365), (60, 485)] {
        let mut scene = clip();
        let steady = scene.rounds(0, 300, Some(1), Some(interval_s));
        assert_eq!(steady, [], "each {interval_s} s");
        let stopped = scene.rounds(305, 600, Some(1), None);
        assert_eq!(stopped, [at(begins_s, true)], "each {interval_s} s");
        assert_eq!(scene.open[0].alert.since_us, T0 + 300 * S);
        assert!(scene.summary(SIGNAL).contains("the sensor is off or moved"));
        let again = scene.rounds(605, 700, Some(1), Some(interval_s));
        assert_eq!(again.len(), 1, "it ends with the next reading: {again:?}");
        assert!(scene.open.is_empty());
    }
}

/// One signal arrives some rounds before the other.
#[test]
fn the_return_of_a_device_that_was_cut_off_misses_no_signal() {
    let mut scene = clip();
    assert_eq!(scene.rounds(0, 300, Some(1), Some(1)), []);
    assert_eq!(scene.rounds(305, 410, None, None), []);
    assert_eq!(scene.rounds(415, 430, Some(1), None), []);
    assert_eq!(scene.rounds(435, 900, Some(1), Some(1)), []);
}

#[test]
fn a_backlog_and_a_pause_change_no_rhythm() {
    let mut scene = clip();
    assert_eq!(scene.rounds(0, 300, Some(20), Some(20)), []);
    // Nothing for a while, then what was kept, each round anew.
    assert_eq!(scene.rounds(305, 380, None, None), []);
    assert_eq!(scene.rounds(385, 400, Some(5), Some(5)), []);
    assert_eq!(scene.rounds(405, 1_200, Some(20), Some(20)), []);
    let stopped = scene.rounds(1_205, 1_400, Some(1), None);
    assert_eq!(stopped, [at(1_265, true)]);
}

/// The signal stopped before the start: no rhythm is known, and the rules' limit holds.
#[test]
fn a_restart_delays_the_verdict_up_to_the_limit_and_ends_none() {
    let mut scene = clip();
    assert_eq!(scene.rounds(0, 300, Some(1), Some(1)), []);
    assert_eq!(scene.rounds(305, 325, Some(1), None), []);
    scene.restart();
    assert_eq!(scene.rounds(330, 1_000, Some(1), None), [at(905, true)]);
    scene.restart();
    assert_eq!(scene.rounds(1_005, 1_100, Some(1), None), []);
    let again = scene.rounds(1_105, 1_200, Some(1), Some(1));
    assert_eq!(again, [at(1_105, false)]);
}
