//! Entries that the medium loses become a gap, once, and delay no other entry.

use contracts::vitals::Sample;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use testkit::disk::{Crash, FakeDisk};

use super::two_ends::{World, batch, deliver, limits};
use crate::journal::{Limits, Overflow, log::Log, test_disk::TestDisk};

/// A journal of 120 samples in three streams, none delivered.
fn filled(disk: &FakeDisk, limits: Limits) -> (Log<TestDisk>, World) {
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let mut world = World::default();
    for _ in 0..40 {
        let samples = (0..3).map(|stream| world.sample(stream)).collect();
        assert!(batch(&mut log, &mut world, samples, false));
    }
    (log, world)
}

#[test]
fn decay_of_the_medium_becomes_a_gap_once() {
    let limits = limits(Overflow::DropOldest, 1 << 20);
    for seed in 0..40 {
        let disk = FakeDisk::new(seed);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (_, mut world) = filled(&disk, limits);
        let mut names = disk.list().unwrap();
        names.sort();
        let victim = &names[rng.random_range(0..names.len() - 1)];
        let bits = disk.file_bytes(victim).unwrap() * 8;
        disk.flip_bit(victim, rng.random_range(0..bits));
        disk.restart(Crash::Process);
        let (log, summary) = Log::open(TestDisk(disk.clone()), limits).unwrap();
        // A damaged oldest header leaves no counters to compare with: its segment counts as
        // delivered.
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
fn a_stream_with_a_lost_beginning_reports_only_existing_samples() {
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
        log.stage_sample(&mut sample, None).unwrap();
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
fn decay_of_entries_that_waited_through_restarts_becomes_a_gap_once() {
    let limits = limits(Overflow::DropOldest, 1 << 20);
    let disk = FakeDisk::new(5);
    let (_, mut world) = filled(&disk, limits);
    let mut names = disk.list().unwrap();
    names.sort();
    // After the recoveries of two restarts, one segment and then another decays.
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
fn decay_of_two_neighbours_does_not_stop_later_entries() {
    let limits = limits(Overflow::DropOldest, 1 << 20);
    let disk = FakeDisk::new(3);
    let (_, mut world) = filled(&disk, limits);
    let mut names = disk.list().unwrap();
    names.sort();
    let [_, first, second, ..] = names.as_slice() else {
        panic!("{names:?}");
    };
    // One is damaged in its middle, the other right after its header: it begins after a hole, and
    // no entry of it is readable.
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

/// Later entries were accepted, and perhaps delivered: their numbers must not mean other samples.
#[test]
fn decay_of_the_newest_segment_is_reported_and_repeats_no_number() {
    let mut limits = limits(Overflow::DropOldest, 1 << 20);
    limits.segment_bytes = 1 << 16;
    for seed in 0..40 {
        let disk = FakeDisk::new(seed);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut log, mut world) = filled(&disk, limits);
        if seed % 2 == 0 {
            deliver(&mut log, &mut world, &mut rng, true);
        }
        drop(log);
        let [newest] = disk.list().unwrap().try_into().unwrap();
        let bits = disk.file_bytes(&newest).unwrap() * 8;
        // After the header, and before the last batches.
        disk.flip_bit(&newest, rng.random_range(bits / 4..bits * 3 / 4));
        disk.restart(Crash::Process);
        let (mut log, summary) = Log::open(TestDisk(disk.clone()), limits).unwrap();
        assert_eq!(summary.damaged_segments, 1, "seed {seed}");
        for _ in 0..10 {
            let samples = (0..3).map(|stream| world.sample(stream)).collect();
            assert!(batch(&mut log, &mut world, samples, false));
        }
        deliver(&mut log, &mut world, &mut rng, true);
        world.check(true);
    }
}
