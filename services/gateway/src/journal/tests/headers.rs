//! The cost of many streams' counters, with which every segment begins.

use contracts::vitals::Sample;
use testkit::disk::FakeDisk;

use crate::journal::{Limits, Overflow, log::Log, test_disk::TestDisk};

#[test]
fn a_header_larger_than_a_segment_does_not_begin_one_with_each_batch() {
    let limits = Limits {
        bytes_max: 4 << 20,
        segment_bytes: 64 << 10,
        overflow: Overflow::DropOldest,
    };
    let disk = FakeDisk::new(1);
    let (mut log, _) = Log::open(TestDisk(disk.clone()), limits).unwrap();
    let sample = |n: u64| Sample {
        device: format!("{n:0>100}"),
        stream: "hr".into(),
        ..Sample::default()
    };
    for n in 0..1_000 {
        log.stage_sample(&mut sample(n), None).unwrap();
    }
    log.commit().unwrap();
    for n in 0..500 {
        log.stage_sample(&mut sample(n), None).unwrap();
        log.commit().unwrap();
    }
    // The first segment has grown with the first batch; with the next 500 entries of 150 bytes none
    // is full yet.
    let names = disk.list().unwrap();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(log.dropped_entries(), 0);
}
