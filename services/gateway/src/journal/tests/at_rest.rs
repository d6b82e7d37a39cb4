//! The disk of a journal: sealed, each record bound to its place, and refused under another key.

use std::io::{self, ErrorKind};

use contracts::vitals::Sample;
use testkit::disk::{Crash, FakeDisk};

use crate::{
    journal::{
        Disk, DiskFile, Entry, Limits, Overflow,
        format::parse_segment_name,
        log::Log,
        recovery::OpenError,
        test_disk::{Keyed, TestDisk},
    },
    sealing::Keys,
};

const DEVICE: &str = "the-belt-of-ada";
const LIMITS: Limits = Limits {
    bytes_max: 1 << 20,
    segment_bytes: 2_000,
    overflow: Overflow::DropOldest,
};

fn keyed(disk: &FakeDisk, key: u8) -> Keyed {
    Keyed(TestDisk(disk.clone()), Keys::new(&[key; 32], b"", true))
}

fn in_clear(disk: &FakeDisk) -> Keyed {
    Keyed(TestDisk(disk.clone()), Keys::none())
}

fn sample() -> Sample {
    Sample {
        device: DEVICE.into(),
        stream: "heart-rate".into(),
        gateway_time_us: 1_800_000_000_000_000,
        ..Sample::default()
    }
}

/// Stages and commits, each sample alone.
fn fill(log: &mut Log<Keyed>, samples: u64) {
    for _ in 0..samples {
        log.stage_sample(&mut sample(), None).unwrap();
        log.commit().unwrap();
    }
}

fn segments(disk: &FakeDisk) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| parse_segment_name(name).is_some());
    names.sort();
    names
}

fn bytes(disk: &FakeDisk, name: &str) -> Vec<u8> {
    disk.read_at(name, 0, 1 << 20).unwrap()
}

fn replace(disk: &FakeDisk, name: &str, bytes: &[u8]) {
    let mut file = TestDisk(disk.clone()).create(name).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
}

fn names_device(bytes: &[u8]) -> bool {
    bytes
        .windows(DEVICE.len())
        .any(|it| it == DEVICE.as_bytes())
}

/// Sequences of all entries that can be read.
fn sequences(log: &Log<Keyed>) -> Vec<u64> {
    let entries = log.reader().read(0, 10_000, 1 << 20).unwrap().entries;
    let samples = entries.into_iter().filter_map(|(_, entry)| match entry {
        Entry::Sample(sample) => Some(sample.sequence),
        Entry::Alert(_) | Entry::Gaps(_) => None,
    });
    samples.collect()
}

#[test]
fn a_journal_in_clear_is_read_and_what_follows_is_sealed() {
    let disk = FakeDisk::new(1);
    let (mut log, _) = Log::open(in_clear(&disk), LIMITS).unwrap();
    fill(&mut log, 40);
    let clear = segments(&disk);
    assert!(clear.len() > 1 && clear.iter().all(|it| names_device(&bytes(&disk, it))));
    drop(log);
    disk.restart(Crash::Power);

    let (mut log, summary) = Log::open(keyed(&disk, 1), LIMITS).unwrap();
    assert_eq!((summary.waiting, summary.damaged_segments), (40, 0));
    fill(&mut log, 40);
    let first = sample().gateway_time_us as u64;
    let all: Vec<u64> = (first..first + 80).collect();
    assert_eq!(sequences(&log), all);
    let new: Vec<_> = segments(&disk).split_off(clear.len());
    assert!(new.len() > 1 && new.iter().all(|it| !names_device(&bytes(&disk, it))));
    drop(log);
    disk.restart(Crash::Power);

    // And the way back: what is sealed is read, and what follows is in clear.
    let back = Keys::new(&[1; 32], b"", false);
    let (mut log, _) = Log::open(Keyed(TestDisk(disk.clone()), back), LIMITS).unwrap();
    fill(&mut log, 1);
    assert_eq!(sequences(&log).len(), 81);
    assert!(log.reader().has_sealed());
    assert!(names_device(&bytes(&disk, segments(&disk).last().unwrap())));
    log.acknowledge(80).unwrap();
    assert!(!log.reader().has_sealed());
}

#[test]
fn a_record_in_another_place_is_damage() {
    let disk = FakeDisk::new(2);
    let (mut log, _) = Log::open(keyed(&disk, 1), LIMITS).unwrap();
    fill(&mut log, 60);
    let names = segments(&disk);
    drop(log);
    let untouched = bytes(&disk, &names[1]);
    let other = bytes(&disk, &names[2]);
    // All have the same length, since the bodies have.
    let record = |of: &[u8], back: usize| {
        let length = (of.len() - header(of)) / entries(of);
        let end = of.len() - back * length;
        end - length..end
    };
    let swapped = {
        let mut bytes = untouched.clone();
        let (last, before) = (record(&bytes, 0), record(&bytes, 1));
        let kept = bytes[last.clone()].to_vec();
        bytes.copy_within(before.clone(), last.start);
        bytes[before].copy_from_slice(&kept);
        bytes
    };
    let of_another = {
        let mut bytes = untouched.clone();
        let place = record(&bytes, 0);
        bytes[place].copy_from_slice(&other[record(&other, 0)]);
        bytes
    };
    for (what, forged, lost) in [
        ("swapped", swapped, 2),
        ("of another segment", of_another, 1),
    ] {
        replace(&disk, &names[1], &forged);
        disk.restart(Crash::Process);
        let (log, summary) = Log::open(keyed(&disk, 1), LIMITS).unwrap();
        assert_eq!(summary.damaged_segments, 1, "{what}");
        assert_eq!(sequences(&log).len(), 60 - lost, "{what}: as damage today");
        drop(log);
        // Without the gaps that the recovery wrote.
        for name in segments(&disk).split_off(names.len()) {
            disk.remove(&name).unwrap();
        }
        replace(&disk, &names[1], &untouched);
    }
    // A whole segment under the name of another.
    replace(&disk, &names[1], &other);
    disk.restart(Crash::Process);
    let (log, summary) = Log::open(keyed(&disk, 1), LIMITS).unwrap();
    assert!(summary.damaged_segments > 0);
    assert_eq!(sequences(&log).len(), 60 - entries(&untouched));
}

/// Bytes of the first frame.
fn header(segment: &[u8]) -> usize {
    8 + u32::from_le_bytes(segment[..4].try_into().unwrap()) as usize
}

/// Frames behind the header.
fn entries(segment: &[u8]) -> usize {
    let (mut at, mut count) = (header(segment), 0);
    while at < segment.len() {
        at += header(&segment[at..]);
        count += 1;
    }
    count
}

#[test]
fn another_key_opens_nothing_and_throws_nothing_away() {
    let disk = FakeDisk::new(3);
    let (mut log, _) = Log::open(keyed(&disk, 1), LIMITS).unwrap();
    fill(&mut log, 40);
    drop(log);
    disk.restart(Crash::Power);
    let before: Vec<_> = segments(&disk).iter().map(|it| bytes(&disk, it)).collect();
    for (other, says) in [
        (keyed(&disk, 2), "encrypted with another key"),
        (in_clear(&disk), "this gateway has no key"),
    ] {
        let Err(OpenError(error)) = Log::open(other, LIMITS) else {
            panic!("{says}");
        };
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains(says), "{error}");
    }
    let after: Vec<_> = segments(&disk).iter().map(|it| bytes(&disk, it)).collect();
    assert!(before == after);
    let (log, summary) = Log::open(keyed(&disk, 1), LIMITS).unwrap();
    assert_eq!((sequences(&log).len(), summary.damaged_segments), (40, 0));
}

#[test]
fn a_destroyed_key_ends_reading_and_writing_at_once() {
    let disk = FakeDisk::new(4);
    let keyed = keyed(&disk, 1);
    let (mut log, _) = Log::open(keyed.clone(), LIMITS).unwrap();
    fill(&mut log, 40);
    let reader = log.reader();
    keyed.1.forget();
    let refused = |error: io::Error| error.kind() == ErrorKind::PermissionDenied;
    assert!(reader.read(0, 10, 1 << 20).is_err_and(refused));
    let _ = log.stage_sample(&mut sample(), None);
    assert!(log.commit().is_err_and(refused));
    assert!(log.stage_sample(&mut sample(), None).is_err());
}
