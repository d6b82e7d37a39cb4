//! A crash at every boundary between the journal and its disk.
//!
//! For each seed a scripted gateway runs once without a crash, to count the boundaries, and then
//! once per boundary and kind of crash. After each crash it recovers (some recoveries crash as
//! well), goes on, and delivers everything. A model of the two ends then checks:
//! - no accepted sample is lost without a gap,
//! - no sample appears twice,
//! - sequences have no holes,
//! - a sequence never means two different samples.

use contracts::vitals::EdgeAlert;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use testkit::disk::{Crash, FakeDisk};

use super::two_ends::{STREAMS, World, batch, deliver, limits};
use crate::journal::{Limits, Overflow, StageError, Staged, log::Log, test_disk::TestDisk};

/// Returns whether the disk still works at the end.
fn work(
    log: &mut Log<TestDisk>,
    disk: &FakeDisk,
    world: &mut World,
    rng: &mut ChaCha8Rng,
    steps: usize,
    alerts: bool,
) -> bool {
    for _ in 0..steps {
        match rng.random_range(0..10) {
            0..6 => {
                let samples = (0..rng.random_range(1..6))
                    .map(|_| {
                        let stream = rng.random_range(0..STREAMS.len());
                        world.sample(stream)
                    })
                    .collect();
                batch(log, world, samples, alerts && rng.random_bool(0.2));
            }
            6 => {
                // A full disk for a while, and the sensors' retries after it.
                disk.fail_next(rng.random_range(1..4));
                let sample = world.sample(0);
                batch(log, world, vec![sample], false);
                disk.fail_next(0);
                let again = std::mem::take(&mut world.unconfirmed);
                batch(log, world, again, false);
            }
            _ => deliver(log, world, rng, false),
        }
        if disk.is_dead() {
            return false;
        }
    }
    true
}

/// Recovers, with `crashes` further crashes on the way.
fn recover(
    disk: &FakeDisk,
    limits: Limits,
    rng: &mut ChaCha8Rng,
    mut crash: Crash,
    crashes: usize,
) -> Log<TestDisk> {
    for n in 0.. {
        disk.restart(crash);
        if n < crashes {
            disk.crash_at(disk.boundaries() + rng.random_range(0..6));
        }
        match Log::open(TestDisk(disk.clone()), limits) {
            Ok((log, summary)) if !disk.is_dead() => {
                assert_eq!(summary.damaged_segments, 0, "a crash is no decay");
                disk.restart_cleanly();
                return log;
            }
            Ok(_) | Err(_) => {
                assert!(disk.is_dead(), "recovery failed on a disk that works");
                crash = if rng.random_bool(0.5) {
                    Crash::Power
                } else {
                    Crash::Process
                };
            }
        }
    }
    unreachable!()
}

trait RestartCleanly {
    fn restart_cleanly(&self);
}

impl RestartCleanly for FakeDisk {
    /// Cancels a crash that was ordered but not reached.
    fn restart_cleanly(&self) {
        self.crash_at(u64::MAX);
    }
}

fn run(seed: u64, limits: Limits, crash: Option<(u64, Crash)>) -> u64 {
    // A journal that drops segments holds no alerts.
    let alerts = limits.overflow == Overflow::Refuse;
    let disk = FakeDisk::new(seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World::default();
    if let Some((boundary, _)) = crash {
        disk.crash_at(boundary);
    }
    let mut alive = false;
    let mut first_life = None;
    if let Ok((log, _)) = Log::open(TestDisk(disk.clone()), limits) {
        let log = first_life.insert(log);
        alive = work(log, &disk, &mut world, &mut rng, 30, alerts);
    }
    let boundaries = disk.boundaries();
    let mut log = match (first_life, crash) {
        (Some(log), _) if alive => log,
        (first_life, Some((_, kind))) => {
            drop(first_life);
            // Events after the crash have their own random numbers, different at each boundary.
            rng = ChaCha8Rng::seed_from_u64(seed ^ boundaries << 20);
            let crashes = rng.random_range(0..3);
            recover(&disk, limits, &mut rng, kind, crashes)
        }
        (_, None) => panic!("the journal failed without a crash"),
    };
    // The sensors repeat unconfirmed samples, the gateway goes on, and in the end everything is
    // delivered.
    let again = std::mem::take(&mut world.unconfirmed);
    batch(&mut log, &mut world, again, false);
    assert!(work(&mut log, &disk, &mut world, &mut rng, 10, alerts));
    let again = std::mem::take(&mut world.unconfirmed);
    assert!(batch(&mut log, &mut world, again, false));
    deliver(&mut log, &mut world, &mut rng, true);
    assert_eq!(log.reader().head(), log.reader().durable());
    world.check(limits.overflow == Overflow::DropOldest);
    assert!(!world.received.is_empty());

    // Counters survive with only the newest segment left.
    log.commit().unwrap();
    drop(log);
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let sample = world.sample(0);
    assert!(batch(&mut log, &mut world, vec![sample], alerts));
    deliver(&mut log, &mut world, &mut rng, true);
    world.check(limits.overflow == Overflow::DropOldest);
    boundaries
}

fn every_boundary(limits: Limits, seeds: std::ops::Range<u64>) -> u64 {
    let mut crashes = 0;
    for seed in seeds {
        let boundaries = run(seed, limits, None);
        assert!(boundaries > 50, "seed {seed}: only {boundaries} boundaries");
        for boundary in 0..boundaries {
            for kind in [Crash::Process, Crash::Power] {
                let result = std::panic::catch_unwind(|| run(seed, limits, Some((boundary, kind))));
                if let Err(panic) = result {
                    eprintln!("seed {seed}, boundary {boundary}, {kind:?}");
                    std::panic::resume_unwind(panic);
                }
                crashes += 1;
            }
        }
    }
    crashes
}

#[test]
fn no_crash_loses_or_doubles_an_accepted_sample() {
    let roomy = limits(Overflow::Refuse, 1 << 20);
    assert!(every_boundary(roomy, 0..12) > 1000);
}

#[test]
fn no_crash_loses_a_sample_without_a_gap_when_the_journal_is_full() {
    let tight = limits(Overflow::DropOldest, 4 * 600);
    assert!(every_boundary(tight, 100..112) > 1000);
}

#[test]
fn a_full_journal_stays_within_its_bound_and_reports_its_gaps() {
    let limits = limits(Overflow::DropOldest, 4 * 600);
    let disk = FakeDisk::new(7);
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let mut world = World::default();
    for _ in 0..500 {
        let samples = vec![world.sample(0), world.sample(1)];
        assert!(batch(&mut log, &mut world, samples, false));
        assert!(
            log.reader().bytes() <= limits.bytes_max + 2 * 600,
            "{}",
            log.reader().bytes()
        );
    }
    assert!(log.dropped_entries() > 500);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    deliver(&mut log, &mut world, &mut rng, true);
    world.check(true);
    // Later gaps repeat gaps that were dropped themselves: one range per stream is left, or two
    // where it was cut.
    assert!(world.gaps.len() <= 8, "{:?}", world.gaps);
    assert!(world.gaps.iter().any(|gap| gap.first_sequence == 1));
}

#[test]
fn alerts_are_refused_and_never_dropped() {
    let limits = limits(Overflow::Refuse, 4 * 600);
    let disk = FakeDisk::new(7);
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let mut accepted = 0;
    let mut refused = 0;
    for n in 0..200 {
        let mut alert = EdgeAlert {
            time_us: n,
            summary: "x".repeat(40),
            ..EdgeAlert::default()
        };
        match log.stage_alert(&mut alert) {
            Ok(_) => accepted += 1,
            Err(StageError::Full { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        log.commit().unwrap();
    }
    assert!(accepted > 10 && refused > 10);
    let mut world = World {
        alerts_accepted: accepted,
        ..World::default()
    };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    deliver(&mut log, &mut world, &mut rng, true);
    world.check(false);
    // Delivered alerts make room for new ones.
    assert!(matches!(
        log.stage_alert(&mut EdgeAlert::default()),
        Ok(Staged::New { .. })
    ));
}

/// The reading of an alert may be hours old if a sensor stored it.
#[test]
fn alerts_after_a_wiped_disk_have_new_sequences() {
    let first_alert_at = |gateway_time_us, time_us| {
        let limits = limits(Overflow::Refuse, 1 << 20);
        let (mut log, _) = Log::open(TestDisk(FakeDisk::new(7)), limits).unwrap();
        let mut alert = EdgeAlert {
            gateway_time_us,
            time_us,
            ..EdgeAlert::default()
        };
        log.stage_alert(&mut alert).unwrap();
        alert.sequence
    };
    let now_us = 1_790_000_000_000_000;
    let before = first_alert_at(now_us, now_us);
    let after = first_alert_at(now_us + 10_000_000, now_us - 3_600_000_000);
    assert!(after > before, "{after} {before}");
}
