//! Memory of a burst of sign-ins. It is measured for the process, so this test has a process of its
//! own.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use dashboard::accounts::{ensure, verify};
use store::{Role, SqliteStore};
use tokio::task::JoinSet;

const NAME: &str = "admin";
const PASSWORD: &str = "correct horse";
/// Callers that give up while their password is hashed, one after the other, and callers that wait,
/// all at once.
const IMPATIENT: usize = 48;
const PATIENT: usize = 48;
const PATIENCE: Duration = Duration::from_millis(20);
/// Two concurrent hashes need 38 MiB. A hash for every caller that gave up, or for every thread,
/// would need hundreds.
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
        // The result is irrelevant, in time or not.
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

/// Peak memory of this process.
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
