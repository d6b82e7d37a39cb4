//! A journal with its largest number of streams makes room for others, and repeats no number.

use std::collections::BTreeMap;

use contracts::vitals::{Gap, Sample};
use testkit::disk::{Crash, FakeDisk};

use crate::journal::{Entry, Limits, Overflow, StageError, Staged, log::Log, test_disk::TestDisk};

const STREAMS_MAX: usize = 4096;
const CLOCK_US: i64 = 1_790_000_000_000_000;
const HOUR_US: i64 = 3600 * 1_000_000;
const LIMITS: Limits = Limits {
    bytes_max: 256 << 20,
    segment_bytes: 4 << 20,
    overflow: Overflow::DropOldest,
};

fn open(disk: &FakeDisk) -> Log<TestDisk> {
    Log::open(TestDisk(disk.clone()), LIMITS).unwrap().0
}

fn sample(device: &str, hour: i64, wall_us: i64) -> Sample {
    Sample {
        device: device.into(),
        stream: "hr".into(),
        device_time_us: CLOCK_US,
        gateway_time_us: wall_us,
        gateway_uptime_us: hour * HOUR_US,
        gateway_boot: 1,
        ..Sample::default()
    }
}

fn take(log: &mut Log<TestDisk>, device: &str, hour: i64, wall_us: i64) -> Result<u64, StageError> {
    match log.stage_sample(&mut sample(device, hour, wall_us), None)? {
        Staged::New { sequence } => Ok(sequence),
        Staged::Retry => panic!("it has no number"),
    }
}

/// A full journal: five samples of `d0`, then one of each other stream.
fn filled(disk: &FakeDisk) -> Log<TestDisk> {
    let mut log = open(disk);
    for n in 0..5 {
        let sequence = take(&mut log, "d0", 0, CLOCK_US).unwrap();
        assert_eq!(sequence, CLOCK_US as u64 + n);
    }
    for n in 1..STREAMS_MAX {
        take(&mut log, &format!("d{n}"), 0, CLOCK_US).unwrap();
    }
    log.commit().unwrap();
    log
}

/// The core's view: sequences in order of arrival by device, and gaps.
fn delivered(log: &Log<TestDisk>) -> (BTreeMap<String, Vec<u64>>, Vec<Gap>) {
    let (mut sequences, mut gaps) = (BTreeMap::<String, Vec<u64>>::new(), Vec::new());
    let reader = log.reader();
    let mut from = reader.head();
    loop {
        let chunk = reader.read(from, 1024, 1 << 20).unwrap();
        if chunk.entries.is_empty() {
            return (sequences, gaps);
        }
        from = chunk.next;
        for (_, entry) in chunk.entries {
            match entry {
                Entry::Sample(sample) => {
                    let device = sequences.entry(sample.device).or_default();
                    device.push(sample.sequence);
                }
                Entry::Gaps(told) => gaps.extend(told),
                Entry::Alert(alert) => panic!("{alert:?}"),
            }
        }
    }
}

#[test]
fn a_full_journal_takes_new_streams_and_repeats_no_number_whatever_the_clock_shows() {
    let disk = FakeDisk::new(1);
    let mut log = filled(&disk);
    let refused = take(&mut log, "new", 23, CLOCK_US);
    assert!(
        matches!(refused, Err(StageError::TooManyStreams)),
        "{refused:?}"
    );
    // The clock is far behind, and the disk refuses the first attempt.
    let (hour, wall_us) = (24, CLOCK_US / 2);
    disk.fail_next(1);
    take(&mut log, "new", hour, wall_us).unwrap();
    log.commit().unwrap_err();
    disk.fail_next(0);
    // The refused stream took no place: it was that of d0, which goes on as before.
    let goes_on = take(&mut log, "d0", hour, wall_us).unwrap();
    assert_eq!(goes_on, CLOCK_US as u64 + 5);
    log.commit().unwrap();

    for round in 0..3_u64 {
        // The streams used longest ago are d1, d3 and d5, since d1, d2 and d3 come back in the
        // places of d2, d4 and d6.
        let gone = format!("d{}", round + 1);
        let first = take(&mut log, &format!("new{round}"), hour, wall_us).unwrap();
        assert_eq!(first, CLOCK_US as u64 + 6 + 2 * round);
        log.commit().unwrap();
        drop(log);
        disk.restart(if round == 1 {
            Crash::Power
        } else {
            Crash::Process
        });
        log = open(&disk);
        // In the place of another stream, above all sequences.
        let back = take(&mut log, &gone, hour, wall_us).unwrap();
        assert!(back > first, "{back} {first}");
        log.commit().unwrap();
    }
    let (sequences, gaps) = delivered(&log);
    assert_eq!(gaps, []);
    assert_eq!(sequences.len(), STREAMS_MAX + 3);
    for (device, sequences) in sequences {
        assert!(
            sequences.is_sorted_by(|a, b| a < b),
            "{device}: {sequences:?}"
        );
    }
}

#[test]
fn a_returned_stream_on_a_damaged_medium_reports_only_existing_samples() {
    let disk = FakeDisk::new(1);
    let mut log = filled(&disk);
    // The clock is later as well: the numbers in between were never given.
    let now_us = CLOCK_US + 48 * HOUR_US;
    take(&mut log, "new", 48, now_us).unwrap();
    log.commit().unwrap();
    take(&mut log, "d0", 48, now_us).unwrap();
    log.commit().unwrap();
    drop(log);
    let [first] = disk.list().unwrap().try_into().unwrap();
    let before: usize = disk.file_bytes(&first).unwrap();
    // The next segment has the counters after both.
    let log = open(&disk);
    drop(log);
    disk.flip_bit(&first, (before - 100) * 8);
    disk.restart(Crash::Process);
    let (_, gaps) = delivered(&open(&disk));
    let told: Vec<_> = gaps
        .iter()
        .map(|gap| {
            (
                gap.device.as_str(),
                gap.last_sequence - gap.first_sequence + 1,
            )
        })
        .collect();
    assert_eq!(told, [("d0", 2), ("new", 2)]);
}
