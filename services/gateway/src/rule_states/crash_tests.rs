//! Crashes and the states of the rules at the edge. A gateway killed at any point raises and ends
//! the same stretches as one that was never killed, with the same beginnings.

use std::collections::BTreeSet;

use contracts::vitals::{EdgeAlert, Metric, Sample, sample::Reading};
use proptest::prelude::*;
use testkit::disk::{Crash, FakeDisk};
use vitals::{Condition, Rule, RuleSet, fill_defaults};

use crate::{
    clock::Moment,
    edge_rules::EdgeRules,
    journal::{
        Disk, DiskFile,
        test_disk::{Keyed, TestDisk},
    },
    rule_states::{StateLog, States},
    sealing::Keys,
};

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;

fn rules() -> RuleSet {
    let rule = |id: &str, for_s: u64| Rule {
        id: id.into(),
        priority: contracts::vitals::Priority::High,
        condition: Condition::Above {
            metric: Metric::HeartRate,
            limit: 130.0,
            clear: 120.0,
        },
        for_ms: for_s * 1000,
        clear_for_ms: for_s * 1000,
    };
    RuleSet {
        name: "test".into(),
        version: 1,
        stale_after_s: [("heart-rate".to_owned(), 600)].into(),
        rules: vec![rule("at-once", 0), rule("later", 7), rule("much-later", 20)],
    }
}

fn sample(device: &str, second: i64, value: f64) -> Sample {
    let mut sample = Sample {
        device: device.into(),
        metric: Metric::HeartRate.into(),
        device_time_us: T0 + second * S,
        gateway_time_us: T0 + second * S,
        reading: Some(Reading::Value(value)),
        ..Sample::default()
    };
    fill_defaults(&mut sample);
    sample
}

fn at(second: i64) -> Moment {
    Moment {
        wall_us: T0 + second * S,
        ..Moment::default()
    }
}

/// A transition, without its evidence.
type Fact = (String, String, i64, i64, bool);

fn fact(alert: &EdgeAlert) -> Fact {
    let EdgeAlert {
        device,
        rule,
        since_us,
        time_us,
        resolved,
        ..
    } = alert;
    (device.clone(), rule.clone(), *since_us, *time_us, *resolved)
}

/// A gateway with its disk. A crash may strike at each step of a write.
struct Gateway {
    disk: FakeDisk,
    rules: EdgeRules,
    log: StateLog<TestDisk>,
    reported: Vec<Fact>,
}

impl Gateway {
    fn start(disk: FakeDisk, now: Moment) -> Gateway {
        let (log, kept) = StateLog::open(TestDisk(disk.clone())).unwrap();
        let mut rules = EdgeRules::new(rules());
        rules.restore(kept, now);
        Gateway {
            disk,
            rules,
            log,
            reported: Vec::new(),
        }
    }

    /// As the intake does: first the alerts are on disk, then the states, then the answer.
    fn take(&mut self, sample: &Sample) -> bool {
        let raised = self.rules.raise(std::slice::from_ref(sample));
        self.reported.extend(raised.alerts.iter().map(fact));
        let has_changed = |subject: &String| self.rules.has_changed(subject);
        if !raised.touched.iter().any(has_changed) {
            return true;
        }
        let states = match self.log.wants_all() {
            true => self.rules.take_all(),
            false => self.rules.take_changed(|_| true),
        };
        self.log.write(&states).is_ok()
    }

    fn restart(self, crash: Crash, now: Moment) -> Gateway {
        self.disk.restart(crash);
        let reported = self.reported;
        Gateway {
            reported,
            ..Gateway::start(self.disk, now)
        }
    }
}

fn readings() -> impl Strategy<Value = Vec<(bool, i64, f64)>> {
    let value = prop_oneof![3 => Just(80.0), 1 => Just(125.0), 4 => Just(140.0)];
    prop::collection::vec((any::<bool>(), 1_i64..6, value), 1..80)
}

fn samples(readings: &[(bool, i64, f64)]) -> Vec<(i64, Sample)> {
    let mut second = 0;
    let samples = readings.iter().map(|(is_first, gap, value)| {
        second += gap;
        let device = if *is_first { "belt-1" } else { "belt-2" };
        (second, sample(device, second, *value))
    });
    samples.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_gateway_that_is_killed_at_any_point_reports_the_same_stretches(
        readings in readings(),
        seed in any::<u64>(),
        kills in prop::collection::vec((0_u64..12, any::<bool>()), 1..60),
    ) {
        let samples = samples(&readings);
        let mut steady = Gateway::start(FakeDisk::new(seed), at(0));
        for (_, sample) in &samples {
            prop_assert!(steady.take(sample));
        }
        let mut killed = Gateway::start(FakeDisk::new(seed), at(0));
        let mut kills = kills.into_iter();
        let mut kill = |gateway: &Gateway| {
            // After the last kill the gateway lives, or a write might never end.
            let Some((after, is_process)) = kills.next() else {
                return Crash::Process;
            };
            gateway.disk.crash_at(gateway.disk.boundaries() + after);
            if is_process { Crash::Process } else { Crash::Power }
        };
        let mut crash = kill(&killed);
        for (second, sample) in &samples {
            // A sensor that got no answer sends the reading again.
            while !killed.take(sample) {
                killed = killed.restart(crash, at(*second));
                crash = kill(&killed);
            }
        }
        let reported = |gateway: &Gateway| -> BTreeSet<Fact> {
            gateway.reported.iter().cloned().collect()
        };
        prop_assert_eq!(reported(&killed), reported(&steady));
    }
}

#[test]
fn a_restart_in_the_midst_of_a_stretch_continues_it() {
    for restart in 0..70 {
        let mut gateway = Gateway::start(FakeDisk::new(7), at(0));
        for second in 0..70 {
            if second == restart {
                gateway = gateway.restart(Crash::Power, at(second));
            }
            let value = if (10..40).contains(&second) {
                140.0
            } else {
                80.0
            };
            assert!(gateway.take(&sample("belt-1", second, value)));
        }
        let raised: Vec<&Fact> = gateway.reported.iter().filter(|it| !it.4).collect();
        assert_eq!(raised.len(), 3, "restart at {restart}: {raised:?}");
        assert!(raised.iter().all(|it| it.2 == T0 + 10 * S), "{raised:?}");
        assert_eq!(gateway.reported.len(), 6, "each of them ends");
    }
}

#[test]
fn a_clock_that_was_set_back_while_the_gateway_was_off_leaves_no_rule_deaf() {
    let mut gateway = Gateway::start(FakeDisk::new(7), at(0));
    for second in 0..20 {
        gateway.take(&sample("belt-1", second, 140.0));
    }
    // Without a battery the clock begins in 1970.
    let mut gateway = gateway.restart(Crash::Process, Moment::default());
    gateway.reported.clear();
    for second in 0..20 {
        let mut sample = sample("belt-1", second, 140.0);
        sample.device_time_us -= T0;
        sample.gateway_time_us -= T0;
        gateway.take(&sample);
    }
    assert!(
        !gateway.reported.is_empty(),
        "no alert in spite of tachycardia"
    );
}

#[test]
fn a_sensor_whose_clock_is_set_back_over_a_restart_is_heard_after_a_moment() {
    let mut gateway = Gateway::start(FakeDisk::new(7), at(0));
    for second in 0..20 {
        gateway.take(&sample("belt-1", second, 80.0));
    }
    let mut gateway = gateway.restart(Crash::Process, at(20));
    for second in 20..90 {
        let mut sample = sample("belt-1", second, 140.0);
        sample.device_time_us -= 3_600 * S;
        sample.gateway_uptime_us = second * S;
        gateway.take(&sample);
    }
    assert!(gateway.reported.iter().any(|it| it.1 == "later"));
}

#[test]
fn damage_leaves_the_states_before_it_and_a_log_that_can_be_written() {
    let disk = TestDisk(FakeDisk::new(3));
    let states = |names: &[&str]| States {
        newest: Moment {
            wall_us: T0,
            uptime_us: 5 * S,
            boot: 7,
        },
        clock: 3,
        engines: names
            .iter()
            .map(|name| ((*name).to_owned(), b"{}".to_vec()))
            .collect(),
    };
    let (mut log, kept) = StateLog::open(disk.clone()).unwrap();
    assert_eq!(kept, States::default());
    log.write(&states(&["ada"])).unwrap();
    let first_bytes = disk.0.file_bytes("states").unwrap();
    log.write(&states(&["ben", "eve"])).unwrap();
    let read = || StateLog::open(disk.clone()).unwrap().1;
    assert_eq!(read(), states(&["ada", "ben", "eve"]));
    let bytes = disk.read_at("states", 0, 1 << 20).unwrap();
    for at in 0..bytes.len() {
        disk.0.flip_bit("states", at * 8 + 3);
        let kept = read();
        let is_second = at >= first_bytes;
        assert_eq!(kept.engines.contains_key("ada"), is_second, "byte {at}");
        assert!(kept.engines.len() < 3, "byte {at}");
        disk.0.flip_bit("states", at * 8 + 3);
    }
    let mut cut = disk.create("states").unwrap();
    cut.append(&bytes[..bytes.len() - 1]).unwrap();
    let (mut log, kept) = StateLog::open(disk.clone()).unwrap();
    assert_eq!(kept, states(&["ada", "ben"]));
    log.write(&kept).unwrap();
    // An empty state takes a subject out.
    let mut gone = states(&["ada"]);
    gone.engines.insert("ada".to_owned(), Vec::new());
    log.write(&gone).unwrap();
    assert_eq!(read(), states(&["ben"]));
}

#[test]
fn a_log_in_clear_is_sealed_at_the_start() {
    let fake = FakeDisk::new(3);
    let states = States {
        engines: [("the-belt-of-ada".to_owned(), vec![7; 100])].into(),
        ..States::default()
    };
    let open = |keys: Keys| StateLog::open(Keyed(TestDisk(fake.clone()), keys)).unwrap();
    let names_subject = || {
        let bytes = fake.read_at("states", 0, 1 << 20).unwrap();
        bytes.windows(15).any(|it| it == b"the-belt-of-ada")
    };
    open(Keys::none()).0.write(&states).unwrap();
    assert!(names_subject());
    let sealed = Keys::new(&[1; 32], b"", true);
    assert_eq!(open(sealed.clone()).1, states);
    assert!(!names_subject());
    assert_eq!(open(sealed).1, states);
}

#[test]
fn the_log_stays_small() {
    let disk = TestDisk(FakeDisk::new(3));
    let (mut log, _) = StateLog::open(disk.clone()).unwrap();
    let states = States {
        engines: [("ada".to_owned(), vec![7; 100_000])].into(),
        ..States::default()
    };
    let mut largest = 0;
    for _ in 0..200 {
        log.write(&states).unwrap();
        largest = largest.max(disk.0.file_bytes("states").unwrap());
    }
    assert!(largest < 5 << 20, "{largest} bytes");
    assert_eq!(StateLog::open(disk).unwrap().1, states);
}

#[test]
fn the_log_stays_smaller_while_room_is_spared() {
    let disk = TestDisk(FakeDisk::new(3));
    let (mut log, _) = StateLog::open(disk.clone()).unwrap();
    log.spare_room(true);
    let states = States {
        engines: [("ada".to_owned(), vec![7; 10_000])].into(),
        ..States::default()
    };
    let mut largest = 0;
    for _ in 0..200 {
        log.write(&states).unwrap();
        largest = largest.max(disk.0.file_bytes("states").unwrap());
    }
    assert!(largest < 160 << 10, "{largest} bytes");
}
