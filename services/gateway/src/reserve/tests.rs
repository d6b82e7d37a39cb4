#![allow(clippy::unwrap_used)]

use service_kit::Context;
use testkit::disk::FakeDisk;

use super::*;
use crate::{
    journal::{Directory, test_disk::TestDisk},
    sealing::Keys,
};

#[test]
fn the_space_of_an_earlier_life_is_used_and_a_part_of_it_is_not() {
    let disk = TestDisk(FakeDisk::new(1));
    disk.create(FILE_NEW).unwrap().append(&[1; 9]).unwrap();
    let reserve = Reserve::open(disk.clone());
    assert!(!reserve.is_in_use());
    assert_eq!(disk.0.file_bytes(RESERVE), Some(RESERVE_BYTES));
    disk.0.leave_room(0);
    let reserve = Reserve::open(disk.clone());
    assert!(!reserve.is_in_use());
    assert!(reserve.release() && reserve.is_in_use());
    assert!(
        reserve.release(),
        "another write that failed is tried again as well"
    );
    assert_eq!(disk.0.file_bytes(RESERVE), None);
    assert!(
        Reserve::open(disk).is_in_use(),
        "a restart finds a full disk"
    );
}

#[test]
fn a_disk_that_refuses_for_another_reason_refuses_no_readings() {
    let disk = FakeDisk::new(1);
    disk.crash_at(disk.boundaries());
    let reserve = Reserve::open(TestDisk(disk));
    assert!(!reserve.is_in_use() && !reserve.release());
}

#[test]
fn a_real_directory_has_the_space_and_says_how_much_is_free() {
    let above = tempfile::tempdir().unwrap();
    let disk = Directory::open(above.path(), Keys::none()).unwrap();
    let before = disk.free_bytes().unwrap();
    assert!(before > 0);
    let reserve = Reserve::open(disk);
    let length = std::fs::metadata(above.path().join(RESERVE)).unwrap().len();
    assert_eq!(length, RESERVE_BYTES as u64);
    assert!(reserve.release());
    assert!(!above.path().join(RESERVE).exists());
}

#[tokio::test]
async fn a_full_disk_is_said_until_there_is_room() {
    let disk = FakeDisk::new(1);
    disk.leave_room(0);
    let reserve = Reserve::open(TestDisk(disk.clone()));
    let context = Context::new("gateway");
    let check = context.health().check("disk");
    let keeping = tokio::spawn(reserve.keep(check, context.shutdown().clone()));
    let says = |wanted: bool| {
        let health = context.health();
        move || {
            let failing = health.failing();
            failing.iter().any(|(_, reason)| reason.contains("is full")) == wanted
        }
    };
    until(says(true)).await;
    disk.leave_room(10 << 20);
    until(says(false)).await;
    assert_eq!(disk.file_bytes(RESERVE), Some(RESERVE_BYTES));
    context.shutdown().request();
    keeping.await.unwrap();
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    waited.expect("the check changes");
}
