//! A crash at every boundary between the journal and its disk.
//!
//! For each seed a scripted gateway runs once without a crash, to count the boundaries, and then once per boundary and kind of
//! crash. After each crash it recovers (some recoveries crash, too), goes on, and delivers everything. A model of the two ends
//! then checks: no accepted sample is lost without a gap that says so, none appears twice, sequences have no holes, and
//! a sequence never means two different samples.

#![allow(clippy::unwrap_used)]

#[path = "support/test_disk.rs"]
mod test_disk;

use std::collections::{BTreeMap, BTreeSet};

use contracts::vitals::{EdgeAlert, Gap, Sample, sample::Reading};
use gateway::journal::{Entry, Limits, Log, Overflow, StageError, Staged};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use test_disk::TestDisk;
use testkit::disk::{Crash, FakeDisk};

const STREAMS: [(&str, &str); 3] = [("d1", "heart-rate"), ("d1", "spo2"), ("d2", "heart-rate")];

fn limits(overflow: Overflow, bytes_max: u64) -> Limits {
    Limits {
        bytes_max,
        segment_bytes: 600,
        overflow,
    }
}

/// What the sensors believe to be accepted and what the core has got.
#[derive(Default)]
struct World {
    /// Unique values, by stream, that the journal has confirmed.
    accepted: BTreeMap<usize, BTreeSet<u64>>,
    /// Values sent but not confirmed: the sensors send them again after a restart.
    unconfirmed: Vec<Sample>,
    /// What the core holds: sequence to value, by (device, stream).
    received: BTreeMap<(String, String), BTreeMap<u64, u64>>,
    gaps: Vec<Gap>,
    alerts_accepted: u64,
    alerts_received: BTreeSet<u64>,
    next_value: u64,
}

impl World {
    /// A new sample; its value tells it from all others, and the sensor numbers it so that it can send it again.
    fn sample(&mut self, stream: usize) -> Sample {
        self.next_value += 1;
        let (device, name) = STREAMS[stream];
        Sample {
            device: device.into(),
            stream: name.into(),
            device_time_us: self.next_value as i64,
            reading: Some(Reading::Value(self.next_value as f64)),
            sensor_sequence: Some(self.next_value),
            ..Sample::default()
        }
    }

    fn deliver(&mut self, entry: Entry) {
        match entry {
            Entry::Sample(sample) => {
                let stream = self
                    .received
                    .entry((sample.device.clone(), sample.stream.clone()))
                    .or_default();
                let before = stream.insert(sample.sequence, value(&sample));
                assert!(
                    before.is_none_or(|before| before == value(&sample)),
                    "sequence {} of {} means two samples",
                    sample.sequence,
                    sample.stream
                );
            }
            Entry::Alert(alert) => {
                self.alerts_received.insert(alert.sequence);
            }
            Entry::Gaps(gaps) => self.gaps.extend(gaps),
        }
    }

    fn check(&self, gaps_allowed: bool) {
        assert!(gaps_allowed || self.gaps.is_empty(), "{:?}", self.gaps);
        for (n, (device, name)) in STREAMS.iter().enumerate() {
            let key = ((*device).to_owned(), (*name).to_owned());
            let empty = BTreeMap::new();
            let received = self.received.get(&key).unwrap_or(&empty);
            let values: BTreeSet<u64> = received.values().copied().collect();
            assert_eq!(
                values.len(),
                received.len(),
                "a sample of {key:?} has two sequences"
            );

            let mut known: BTreeSet<u64> = received.keys().copied().collect();
            let mut in_gaps = BTreeSet::new();
            for gap in self
                .gaps
                .iter()
                .filter(|gap| gap.device == *device && gap.stream == *name)
            {
                assert!(gap.first_sequence >= 1 && gap.first_sequence <= gap.last_sequence);
                in_gaps.extend(gap.first_sequence..=gap.last_sequence);
            }
            known.extend(&in_gaps);
            let last = known.last().copied().unwrap_or(0);
            assert_eq!(known.len() as u64, last, "holes in {key:?}: {known:?}");

            let accepted = self.accepted.get(&n).cloned().unwrap_or_default();
            let missing = accepted.difference(&values).count();
            assert!(
                missing
                    <= in_gaps
                        .difference(&received.keys().copied().collect())
                        .count(),
                "{missing} accepted samples of {key:?} are lost without a gap"
            );
        }
        let numbered = self.alerts_received.last().copied().unwrap_or(0);
        assert_eq!(
            self.alerts_received.len() as u64,
            numbered,
            "a hole in the alerts"
        );
        assert!(
            numbered >= self.alerts_accepted,
            "an accepted alert is lost"
        );
    }
}

fn value(sample: &Sample) -> u64 {
    match sample.reading {
        Some(Reading::Value(value)) => value as u64,
        _ => 0,
    }
}

fn stream_of(sample: &Sample) -> usize {
    STREAMS
        .iter()
        .position(|(device, stream)| sample.device == *device && sample.stream == *stream)
        .unwrap()
}

/// One batch of samples, and perhaps an alert, as the writer would commit it.
fn batch(log: &mut Log<TestDisk>, world: &mut World, samples: Vec<Sample>, alert: bool) -> bool {
    let mut taken = Vec::new();
    for sample in samples {
        let mut staged = sample.clone();
        match log.stage_sample(&mut staged) {
            Ok(Staged::New { .. } | Staged::Retry) => taken.push(sample),
            Err(StageError::Full { .. }) => {}
            Err(_) => world.unconfirmed.push(sample),
        }
    }
    let alert = alert && {
        // At this clock numbers begin at 1, so that holes can be counted.
        log.stage_alert(&mut EdgeAlert {
            time_us: 1,
            ..EdgeAlert::default()
        })
        .is_ok()
    };
    if log.commit().is_ok() {
        for sample in taken {
            world
                .accepted
                .entry(stream_of(&sample))
                .or_default()
                .insert(value(&sample));
        }
        world.alerts_accepted += u64::from(alert);
        true
    } else {
        world.unconfirmed.extend(taken);
        false
    }
}

/// Reads from the head on, as the sender does after a reconnect, and acknowledges a part.
fn deliver(log: &mut Log<TestDisk>, world: &mut World, rng: &mut impl Rng, everything: bool) {
    let reader = log.reader();
    let mut from = reader.head();
    loop {
        let chunk = match reader.read(from, 1 + rng.random_range(0..20), 1 << 20) {
            Ok(chunk) => chunk,
            Err(_) => return,
        };
        if chunk.entries.is_empty() {
            break;
        }
        for (position, entry) in chunk.entries {
            assert!(position >= from && position < chunk.next);
            world.deliver(entry);
        }
        from = chunk.next;
        if !everything && rng.random_bool(0.4) {
            break;
        }
    }
    if everything || rng.random_bool(0.7) {
        let _ = log.acknowledge(from);
    }
}

/// Returns whether the disk still lives at the end.
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
    /// Takes back a crash that was ordered but not reached.
    fn restart_cleanly(&self) {
        self.crash_at(u64::MAX);
    }
}

fn run(seed: u64, limits: Limits, crash: Option<(u64, Crash)>) -> u64 {
    // A journal that drops is not for alerts.
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
            // What happens after the crash has its own chance, different at each boundary.
            rng = ChaCha8Rng::seed_from_u64(seed ^ boundaries << 20);
            let crashes = rng.random_range(0..3);
            recover(&disk, limits, &mut rng, kind, crashes)
        }
        (_, None) => panic!("the journal failed without a crash"),
    };
    // The sensors repeat what was never confirmed, life goes on, and in the end everything is delivered.
    let again = std::mem::take(&mut world.unconfirmed);
    batch(&mut log, &mut world, again, false);
    assert!(work(&mut log, &disk, &mut world, &mut rng, 10, alerts));
    let again = std::mem::take(&mut world.unconfirmed);
    assert!(batch(&mut log, &mut world, again, false));
    deliver(&mut log, &mut world, &mut rng, true);
    assert_eq!(log.reader().head(), log.reader().durable());
    world.check(limits.overflow == Overflow::DropOldest);
    assert!(!world.received.is_empty());

    // Counters survive with nothing left but the newest segment.
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
fn a_full_journal_stays_within_its_bound_and_tells_what_it_dropped() {
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
    // Gaps that were dropped themselves live on in later ones: one range per stream is left, or two where it was cut.
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

#[test]
fn decay_of_the_medium_becomes_a_gap_once() {
    let limits = limits(Overflow::DropOldest, 1 << 20);
    for seed in 0..40 {
        let disk = FakeDisk::new(seed);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
        let mut world = World::default();
        for _ in 0..40 {
            let samples = (0..3).map(|stream| world.sample(stream)).collect();
            assert!(batch(&mut log, &mut world, samples, false));
        }
        drop(log);
        let mut names = disk.list().unwrap();
        names.sort();
        let victim = &names[rng.random_range(0..names.len() - 1)];
        let bits = disk.file_bytes(victim).unwrap() * 8;
        disk.flip_bit(victim, rng.random_range(0..bits));
        disk.restart(Crash::Process);
        let (log, summary) = Log::open(TestDisk(disk.clone()), limits).unwrap();
        // A damaged oldest header leaves nothing to compare with: its segment is gone as if it had been delivered.
        if victim != &names[0] || summary.damaged_segments > 0 {
            assert!(summary.damaged_segments > 0, "seed {seed}");
        }
        drop(log);
        let (mut log, summary) = Log::open(TestDisk(disk.clone()), limits).unwrap();
        deliver(&mut log, &mut world, &mut rng, true);
        if summary.damaged_segments == 0 && victim != &names[0] {
            world.check(true);
            let lost: u64 = world
                .gaps
                .iter()
                .map(|gap| gap.last_sequence - gap.first_sequence + 1)
                .sum();
            assert!((1..60).contains(&lost), "seed {seed}: {lost}");
        }
    }
}

#[test]
fn a_stream_whose_beginning_is_lost_has_a_gap_of_what_was_there() {
    const CLOCK_US: i64 = 1_800_000_000_000_000;
    let disk = FakeDisk::new(3);
    let limits = limits(Overflow::DropOldest, 1 << 20);
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let mut segments = 0;
    while segments < 3 {
        let mut sample = Sample {
            device: "d".into(),
            stream: "s".into(),
            gateway_time_us: CLOCK_US,
            ..Sample::default()
        };
        log.stage_sample(&mut sample).unwrap();
        log.commit().unwrap();
        segments = disk.list().unwrap().len();
    }
    drop(log);
    let mut names = disk.list().unwrap();
    names.sort();
    let header = disk.read_at(&names[0], 0, 4).unwrap();
    let header = u32::from_le_bytes(header.try_into().unwrap()) as usize;
    disk.flip_bit(&names[0], (8 + header + 20) * 8);
    disk.restart(Crash::Process);
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let mut world = World::default();
    deliver(
        &mut log,
        &mut world,
        &mut ChaCha8Rng::seed_from_u64(1),
        true,
    );
    let [gap] = world.gaps.as_slice() else {
        panic!("{:?}", world.gaps);
    };
    assert_eq!(gap.first_sequence, CLOCK_US as u64);
    assert!(gap.last_sequence < CLOCK_US as u64 + 100, "{gap:?}");
}

#[test]
fn decay_of_what_waited_through_restarts_becomes_a_gap_once() {
    let limits = limits(Overflow::DropOldest, 1 << 20);
    let disk = FakeDisk::new(5);
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let mut world = World::default();
    for _ in 0..40 {
        let samples = (0..3).map(|stream| world.sample(stream)).collect();
        assert!(batch(&mut log, &mut world, samples, false));
    }
    drop(log);
    let mut names = disk.list().unwrap();
    names.sort();
    // Behind the recoveries of two restarts, one and then another segment decays.
    for (damaged, victim) in [(0, None), (0, None), (1, Some(1)), (1, Some(3)), (0, None)] {
        disk.restart(Crash::Process);
        if let Some(victim) = victim {
            let name: &String = &names[victim];
            disk.flip_bit(name, disk.file_bytes(name).unwrap() * 8 / 2);
        }
        let (_, summary) = Log::open(TestDisk(disk.clone()), limits).unwrap();
        assert_eq!(summary.damaged_segments, damaged, "{victim:?}");
    }
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    deliver(
        &mut log,
        &mut world,
        &mut ChaCha8Rng::seed_from_u64(1),
        true,
    );
    world.check(true);
    let mut told: Vec<_> = world
        .gaps
        .iter()
        .map(|gap| (&gap.device, &gap.stream, gap.first_sequence))
        .collect();
    told.sort();
    told.dedup();
    assert_eq!(told.len(), world.gaps.len(), "{:?}", world.gaps);
}

#[test]
fn decay_of_two_neighbours_does_not_stop_what_is_behind_them() {
    let limits = limits(Overflow::DropOldest, 1 << 20);
    let disk = FakeDisk::new(3);
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let mut world = World::default();
    for _ in 0..40 {
        let samples = (0..3).map(|stream| world.sample(stream)).collect();
        assert!(batch(&mut log, &mut world, samples, false));
    }
    drop(log);
    let mut names = disk.list().unwrap();
    names.sort();
    let [_, first, second, ..] = names.as_slice() else {
        panic!("{names:?}");
    };
    // The one in its middle, the other just behind its header: it begins behind a hole, and nothing of it can be read.
    disk.flip_bit(first, disk.file_bytes(first).unwrap() * 8 / 2);
    let header = disk.read_at(second, 0, 4).unwrap();
    let header = u32::from_le_bytes(header.try_into().unwrap()) as usize;
    disk.flip_bit(second, (8 + header + 20) * 8);
    disk.restart(Crash::Process);
    let (mut log, summary) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    assert_eq!(summary.damaged_segments, 2);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    deliver(&mut log, &mut world, &mut rng, true);
    world.check(true);
    assert_eq!(log.reader().head(), log.reader().durable());
}
