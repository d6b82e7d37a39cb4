//! An unreadable sector loses only the rest of its segment, which is reported as a gap; neither the
//! start nor another segment fails.

use std::{
    collections::BTreeSet,
    io::{self, ErrorKind},
    sync::Arc,
};

use contracts::vitals::{Gap, Sample};
use parking_lot::Mutex;
use testkit::disk::{Crash, FakeDisk};

use crate::journal::{
    Disk, Entry, Limits, Overflow, Staged,
    log::Log,
    test_disk::{Faulty, TestDisk, TestFile},
};

const PAGE: u64 = 4096;
const EIO: i32 = 5;
const LIMITS: Limits = Limits {
    bytes_max: 1 << 24,
    segment_bytes: 4 * PAGE,
    overflow: Overflow::DropOldest,
};

/// A disk with bad pages.
#[derive(Clone)]
struct Decaying {
    disk: TestDisk,
    bad: Arc<Mutex<Vec<(String, u64)>>>,
}

impl Faulty for Decaying {
    type File = TestFile;

    fn disk(&self) -> &TestDisk {
        &self.disk
    }
    fn new_file(&self, name: &str) -> io::Result<TestFile> {
        self.disk.create(name)
    }
    fn read(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let bytes = self.disk.read_at(name, offset, length)?;
        let end = offset + bytes.len() as u64;
        let bad = self.bad.lock();
        let meets = |(file, at): &(String, u64)| file == name && *at < end && at + PAGE > offset;
        if bad.iter().any(meets) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(bytes)
    }
}

/// A journal of five segments and its confirmed sequences.
fn filled() -> (Decaying, Log<Decaying>, BTreeSet<u64>) {
    let disk = Decaying {
        disk: TestDisk(FakeDisk::new(7)),
        bad: Arc::default(),
    };
    let (mut log, _) = Log::open(disk.clone(), LIMITS).unwrap();
    let mut accepted = BTreeSet::new();
    while disk.list().unwrap().len() < 5 || accepted.len() % 50 != 0 {
        accepted.insert(put(&mut log));
    }
    (disk, log, accepted)
}

fn put(log: &mut Log<Decaying>) -> u64 {
    let mut sample = Sample {
        device: "d".into(),
        stream: "s".into(),
        unit: "u".repeat(100),
        ..Sample::default()
    };
    let staged = log.stage_sample(&mut sample, None).unwrap();
    log.commit().unwrap();
    match staged {
        Staged::New { sequence } => sequence,
        Staged::Retry => panic!("it is no retry"),
    }
}

/// Delivers everything like the courier: the arrived sequences, and the gaps.
fn deliver(log: &mut Log<Decaying>) -> (BTreeSet<u64>, Vec<Gap>) {
    let (mut arrived, mut gaps) = (BTreeSet::new(), Vec::new());
    let mut next = 0;
    let mut given_up = 0;
    loop {
        match log.reader().read(next, 64, 1 << 20) {
            Ok(chunk) if chunk.entries.is_empty() => break,
            Ok(chunk) => {
                next = chunk.next;
                for (_, entry) in chunk.entries {
                    match entry {
                        Entry::Sample(sample) => assert!(arrived.insert(sample.sequence)),
                        Entry::Gaps(more) => gaps.extend(more),
                        Entry::Alert(_) => {}
                    }
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
                given_up += 1;
                assert!(given_up < 10, "it does not get behind the damage");
                log.give_up(next.max(log.reader().head())).unwrap();
            }
        }
    }
    log.acknowledge(next).unwrap();
    log.commit().unwrap();
    (arrived, gaps)
}

fn check(accepted: &BTreeSet<u64>, arrived: &BTreeSet<u64>, gaps: &[Gap], case: &str) {
    let lost: Vec<u64> = accepted.difference(arrived).copied().collect();
    assert!(!lost.is_empty(), "{case}");
    let of_a_segment = (LIMITS.segment_bytes / 100) as usize;
    assert!(lost.len() < of_a_segment, "{case}: {} are lost", lost.len());
    let told = |it: &u64| {
        let mut gaps = gaps.iter();
        gaps.any(|gap| (gap.first_sequence..=gap.last_sequence).contains(it))
    };
    assert!(lost.iter().all(told), "{case}: untold");
}

fn segments(disk: &Decaying) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.sort();
    names
}

#[test]
fn a_start_loses_the_rest_of_a_segment_with_a_bad_sector_and_no_other_segment() {
    for (victim, page) in [(0, 1), (2, 1), (2, 0), (2, 3), (3, 2), (4, 0), (4, 1)] {
        let case = format!("segment {victim}, page {page}");
        let (disk, log, accepted) = filled();
        drop(log);
        let name = segments(&disk)[victim].clone();
        disk.disk.0.restart(Crash::Process);
        disk.bad.lock().push((name.clone(), page * PAGE));
        let (mut log, summary) = Log::open(disk.clone(), LIMITS).unwrap();
        assert!(summary.damaged_segments > 0, "{case}");
        let new = put(&mut log);
        assert!(!accepted.contains(&new), "{case}: {new} means two samples");
        let (arrived, gaps) = deliver(&mut log);
        assert!(arrived.contains(&new));
        check(&accepted, &arrived, &gaps, &case);
        let aside = format!("{name}.damaged");
        assert!(disk.list().unwrap().contains(&aside), "{case}: not kept");
    }
}

#[test]
fn a_sector_that_goes_bad_under_a_running_gateway_becomes_a_gap() {
    for (victim, page) in [(0, 0), (0, 1), (2, 0), (2, 1), (2, 3), (4, 0)] {
        let case = format!("segment {victim}, page {page}");
        let (disk, mut log, accepted) = filled();
        let name = segments(&disk)[victim].clone();
        disk.bad.lock().push((name, page * PAGE));
        let (arrived, gaps) = deliver(&mut log);
        check(&accepted, &arrived, &gaps, &case);
    }
}
