//! What a burst of sign-ins takes of memory, which belongs to a process: so this test has one of its own.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use dashboard::accounts::{ensure, verify};
use store::{Role, SqliteStore};
use tokio::task::JoinSet;

const NAME: &str = "admin";
const PASSWORD: &str = "correct horse";
/// Who give up while their password is being hashed, one after the other; and who wait for their answer, all at once.
const IMPATIENT: usize = 48;
const PATIENT: usize = 48;
const PATIENCE: Duration = Duration::from_millis(20);
/// Two hashes at once are 38 MiB. Those of everybody who gave up would be hundreds, as would be one kept for every thread of the runtime.
const GROWTH_KIB_MAX: u64 = 120 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_of_sign_ins_takes_the_memory_of_two() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(dir.path()).unwrap());
    let before = resident_max_kib();
    ensure(store.as_ref(), NAME, PASSWORD, Role::Viewer)
        .await
        .unwrap();
    for _ in 0..IMPATIENT {
        // Whether it was in time is of no interest.
        let _ = tokio::time::timeout(PATIENCE, verify(store.as_ref(), NAME, PASSWORD)).await;
    }
    let mut patient = JoinSet::new();
    for number in 0..PATIENT {
        let store = store.clone();
        let password = if number % 2 == 0 { PASSWORD } else { "wrong" };
        patient.spawn(async move {
            let account = verify(store.as_ref(), NAME, password).await.unwrap();
            assert_eq!(account.is_some(), password == PASSWORD);
        });
    }
    while let Some(answered) = patient.join_next().await {
        answered.unwrap();
    }
    let growth = resident_max_kib() - before;
    assert!(growth < GROWTH_KIB_MAX, "{growth} KiB more at the peak");
    println!("{growth} KiB more at the peak");
}

/// The most that this process ever had.
fn resident_max_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}
