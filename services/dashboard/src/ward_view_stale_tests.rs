//! A value is too old by the rhythm of its own stream.

use super::*;

/// The clip falls off the finger, and the belt goes on.
#[test]
fn a_parameter_is_too_old_by_the_rhythm_of_its_own_stream() {
    for (interval, too_old_s) in [(1, 31), (20, 61)] {
        let mut ward = ward(&["a"]);
        healthy(&mut ward, "a");
        let at = |second: i64| NOW + second * 1_000_000;
        for second in 1..=120 {
            ward.on_sample(&sample("a", Metric::HeartRate, 70.0, at(second)));
            ward.on_sample(&sample("a", Metric::RespirationRate, 15.0, at(second)));
            if second % interval == 0 {
                ward.on_sample(&sample("a", Metric::Spo2, 98.0, at(second)));
            }
        }
        for second in 121..=120 + too_old_s {
            ward.on_sample(&sample("a", Metric::HeartRate, 70.0, at(second)));
            ward.on_sample(&sample("a", Metric::RespirationRate, 15.0, at(second)));
            let a = ward.snapshot(at(second)).of("t")[0].clone();
            assert!(a.unknown.is_none(), "readings arrive");
            let news2 = a.news2.unwrap();
            if second < 120 + too_old_s {
                assert_eq!(news2.risk(), Risk::Low, "{interval}: {second}");
                continue;
            }
            assert_eq!(news2.stale, [Metric::Spo2.number()], "{interval}");
            assert_eq!((news2.score, news2.risk()), (None, Risk::Unspecified));
            assert_eq!(news2.unknown.unwrap().since_us, at(120));
        }
        // The clip is back.
        let back = at(120 + too_old_s);
        ward.on_sample(&sample("a", Metric::Spo2, 98.0, back));
        let news2 = ward.snapshot(back).of("t")[0].news2.clone().unwrap();
        assert_eq!((news2.score, news2.risk()), (Some(0), Risk::Low));
    }
}

/// Another dashboard takes over after the clip fell off: it knows no rhythm.
#[test]
fn a_fresh_dashboard_is_calmed_by_no_value_from_before_its_start() {
    let latest = |metric, value, time_us| LatestVital {
        patient: "a".to_owned(),
        metric,
        value,
        device_time_us: time_us,
        ingest_time_us: time_us,
        device: "d".to_owned(),
        gateway: "g1".to_owned(),
    };
    let start = NOW + 200_000_000;
    let shown = |ward: &WardView, at| ward.snapshot(at).of("t")[0].news2.clone().unwrap();
    let mut ward = ward(&["a"]);
    for (metric, value, time_us) in [
        (Metric::RespirationRate, 15.0, start),
        (Metric::Spo2, 98.0, NOW),
        (Metric::SupplementalOxygen, 0.0, NOW),
        (Metric::SystolicPressure, 125.0, NOW),
        (Metric::HeartRate, 70.0, start),
        (Metric::Consciousness, 0.0, NOW),
        (Metric::Temperature, 36.8, NOW),
    ] {
        ward.on_latest(&latest(metric, value, time_us));
    }
    let news2 = shown(&ward, start);
    assert_eq!(news2.stale, [Metric::Spo2.number()], "the cuff's is fresh");
    assert_eq!((news2.score, news2.risk()), (None, Risk::Unspecified));
    // The store is read again, and has nothing new.
    ward.on_latest(&latest(Metric::Spo2, 98.0, NOW));
    assert_eq!(shown(&ward, start).stale, [Metric::Spo2.number()]);
    // A stream of one reading in five minutes goes on. The rules' limit holds from here.
    ward.on_sample(&sample("a", Metric::Spo2, 98.0, start));
    for metric in [Metric::HeartRate, Metric::RespirationRate] {
        ward.on_sample(&sample("a", metric, 15.0, start + 250_000_000));
    }
    assert!(shown(&ward, start + 250_000_000).stale.is_empty());
}

#[test]
fn a_clock_a_little_ahead_makes_no_reading_too_old() {
    let mut ward = ward(&["a"]);
    let second_us = 1_000_000;
    for second in 0..60 {
        let arrived_us = NOW + second * second_us;
        for (metric, value) in [(Metric::HeartRate, 70.0), (Metric::Spo2, 98.0)] {
            ward.on_sample(&Sample {
                ingest_time_us: arrived_us,
                ..sample("a", metric, value, arrived_us + 90 * second_us)
            });
        }
        let news2 = ward.snapshot(arrived_us).of("t")[0].news2.clone().unwrap();
        assert!(news2.stale.is_empty(), "{second}");
    }
}
