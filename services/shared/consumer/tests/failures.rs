//! The failures that every consumer meets, with the embedded engines and a toy sink. No record is
//! lost or stored twice. A bad record is buried once, and all others are stored.

#![allow(clippy::unwrap_used)]

#[path = "support/stage.rs"]
mod stage;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use bus::Topic;
use stage::{Faults, GROUP, LIMIT, Stage, TURNS, names, record, records, unreadable};
use store::{ProgressStore, SqliteStore};

const UNREADABLE: &str = "unreadable";
const NEVER: &str = "never";

/// Eight good records, and a culprit of each kind between them.
fn mixed() -> Vec<bus::Record> {
    let mut mixed = records(0..4);
    mixed.extend([unreadable(UNREADABLE), record(NEVER)]);
    mixed.extend(records(4..8));
    mixed
}

/// Stops a member at each of its steps, and lets another one complete its work.
async fn kill_at_each_step(is_on_bus: bool) {
    let mut stopped_at = Vec::new();
    for step in 1.. {
        let stage = Stage::new();
        stage.publish(mixed()).await;
        let faults = |step| {
            Arc::new(Faults {
                is_on_bus,
                never: vec![NEVER],
                stops_at: step,
                ..Faults::default()
            })
        };
        let done = async || match is_on_bus {
            true => stage.committed().await,
            false => stage.done().await,
        };
        let first = stage.start(faults(step));
        let has_stopped = tokio::select! {
            () = first.faults.has_stopped.notified() => true,
            () = done() => false,
        };
        let mut twice = first.counted(|it| &it.duplicate);
        first.kill().await;
        if has_stopped {
            stopped_at.push(step);
            let second = stage.start(faults(0));
            done().await;
            twice += second.counted(|it| &it.duplicate);
            second.stop().await;
        }
        assert_eq!(stage.rows().await, names(0..8), "step {step}");
        // Without a fence in the store rows come again, and their identity keeps them single.
        assert!(is_on_bus || twice == 0, "step {step}: {twice} rows twice");
        let letters = stage.letters().await;
        for culprit in [UNREADABLE, NEVER] {
            let count = letters.iter().filter(|(key, _)| key == culprit).count();
            // A letter is durable before its record is passed: a kill in between doubles it.
            let bound = if has_stopped { 1..=2 } else { 1..=1 };
            assert!(bound.contains(&count), "step {step}: {letters:?}");
        }
        assert!(letters.iter().all(|(key, _)| !key.starts_with("path-")));
        if !has_stopped {
            break;
        }
    }
    assert!(stopped_at.len() > 12, "{stopped_at:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_between_any_two_steps_a_member_is_followed_by_one_that_completes_its_work() {
    kill_at_each_step(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_holds_for_a_group_that_keeps_its_positions_on_the_bus() {
    kill_at_each_step(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_on_the_bus_continues_behind_its_last_commit() {
    let stage = Stage::new();
    let on_bus = || {
        Arc::new(Faults {
            is_on_bus: true,
            ..Faults::default()
        })
    };
    stage.publish(records(0..8)).await;
    let first = stage.start(on_bus());
    stage.committed().await;
    first.stop().await;
    stage.publish(records(8..12)).await;
    let second = stage.start(on_bus());
    stage.committed().await;
    assert_eq!(stage.rows().await, names(0..12));
    assert_eq!(second.counted(|it| &it.new), 4);
    assert_eq!(second.counted(|it| &it.duplicate), 0);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_dies_without_leaving_its_group_is_replaced() {
    let stage = Stage::new();
    stage.publish(mixed()).await;
    // After its first event.
    let first = stage.start(Faults::stopping_at(2));
    first.faults.has_stopped.notified().await;
    first.bus.abandon();
    let second = stage.start(Arc::new(Faults {
        never: vec![NEVER],
        ..Faults::default()
    }));
    stage.done().await;
    assert_eq!(stage.rows().await, names(0..8));
    assert_eq!(stage.letters().await.len(), 2);
    second.stop().await;
    first.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_culprit_is_buried_once_with_its_reason_and_all_others_are_stored() {
    let stage = Stage::new();
    let mut published = records(0..30);
    published.insert(7, unreadable(UNREADABLE));
    published.insert(20, record(NEVER));
    stage.publish(published).await;
    let member = stage.start(Arc::new(Faults {
        never: vec![NEVER],
        ..Faults::default()
    }));
    stage.done().await;
    stage.publish(records(30..40)).await;
    stage.done().await;
    assert_eq!(stage.rows().await, names(0..40));
    let letters = stage.letters().await;
    assert_eq!(letters.len(), 2, "{letters:?}");
    assert_eq!(letters[0], (NEVER.to_owned(), "never".to_owned()));
    assert_eq!(letters[1].0, UNREADABLE);
    assert!(letters[1].1.starts_with("no PathsRecord"), "{letters:?}");
    assert_eq!(member.counted(|it| &it.duplicate), 0, "no row twice");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_always_contradicts_one_record_costs_that_record() {
    let stage = Stage::new();
    let mut published = records(0..8);
    published.insert(3, record("contradicted"));
    stage.publish(published).await;
    let member = stage.start(Arc::new(Faults {
        contradicts: vec!["contradicted"],
        ..Faults::default()
    }));
    stage.done().await;
    assert_eq!(stage.rows().await, names(0..8));
    let letters = stage.letters().await;
    assert_eq!(letters.len(), 1);
    assert!(letters[0].1.contains("contradicted 8 tries"), "{letters:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_are_away_cost_time_only_and_no_membership() {
    let stage = Stage::new();
    stage.publish(mixed()).await;
    let member = stage.start(Arc::new(Faults {
        never: vec![NEVER],
        bus_away: AtomicUsize::new(3),
        store_away: AtomicUsize::new(3),
        ..Faults::default()
    }));
    stage.done().await;
    assert_eq!(stage.rows().await, names(0..8));
    assert_eq!(stage.letters().await.len(), 2);
    let away = member.faults.away.lock().clone();
    let of = |engine: &str| away.iter().filter(|it| it.starts_with(engine)).count();
    assert_eq!((of("Bus"), of("Store")), (3, 3), "{away:?}");
    assert_eq!(member.faults.subscribed.load(Ordering::Relaxed), 1);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_claims_were_taken_in_passing_claims_them_again() {
    let stage = Stage::new();
    stage.publish(records(0..4)).await;
    let member = stage.start(Arc::default());
    stage.done().await;
    // Another caller claims all partitions and leaves, and no event of the group reports it.
    let store = SqliteStore::open(stage.dir.path()).unwrap();
    for partition in 0..Topic::Paths.default_partitions() {
        let log = stage.log(partition).await;
        store
            .claim(GROUP, Topic::Paths, partition, &log)
            .await
            .unwrap();
    }
    stage.publish(records(4..12)).await;
    stage.done().await;
    assert_eq!(stage.rows().await, names(0..12));
    assert_eq!(member.counted(|it| &it.new), 12);
    assert_eq!(stage.letters().await, []);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_claims_are_lost_stores_nothing_and_its_records_come_again() {
    let stage = Stage::new();
    stage.publish(records(0..8)).await;
    // Subscribed, assigned, a batch taken: it stops before its first write.
    let member = stage.start(Faults::stopping_at(4));
    member.faults.has_stopped.notified().await;
    let store = SqliteStore::open(stage.dir.path()).unwrap();
    for partition in 0..Topic::Paths.default_partitions() {
        let log = stage.log(partition).await;
        store
            .claim(GROUP, Topic::Paths, partition, &log)
            .await
            .unwrap();
    }
    member.faults.resumes.notify_one();
    stage.done().await;
    assert_eq!(stage.rows().await, names(0..8));
    assert_eq!(member.counted(|it| &it.new), 8);
    assert_eq!(member.counted(|it| &it.duplicate), 0);
    assert!(member.faults.writes.load(Ordering::Relaxed) > 1);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_never_returns_is_reported_and_a_restart_loses_nothing() {
    let stage = Stage::new();
    stage.publish(records(0..8)).await;
    let first = stage.start(Faults::stopping_at(4));
    first.faults.has_stopped.notified().await;
    let deadline = Instant::now() + LIMIT;
    let is_stalled = || {
        let stalled = first.context.health().stalled(Instant::now());
        stalled.iter().any(|(name, _)| *name == TURNS)
    };
    while !is_stalled() {
        assert!(Instant::now() < deadline, "nobody is told");
        tokio::task::yield_now().await;
    }
    first.kill().await;
    let second = stage.start(Arc::default());
    stage.done().await;
    assert_eq!(stage.rows().await, names(0..8));
    assert_eq!(second.counted(|it| &it.new), 8);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_move_between_members_and_each_row_is_written_once() {
    let stage = Stage::new();
    let steady = stage.start(Arc::default());
    let mut new = 0;
    for round in 0..4 {
        let passing = stage.start(Arc::default());
        stage.publish(records(round * 10..round * 10 + 10)).await;
        stage.done().await;
        new += passing.counted(|it| &it.new);
        passing.stop().await;
    }
    new += steady.counted(|it| &it.new);
    assert_eq!(new, 40);
    assert_eq!(stage.rows().await, names(0..40));
    assert_eq!(stage.letters().await, []);
    steady.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_were_published_twice_are_stored_once() {
    let stage = Stage::new();
    stage.publish([records(0..8), records(0..8)].concat()).await;
    let member = stage.start(Arc::default());
    stage.done().await;
    assert_eq!(stage.rows().await, names(0..8));
    assert_eq!(member.counted(|it| &it.new), 8);
    assert_eq!(member.counted(|it| &it.duplicate), 8);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_restored_from_a_backup_gets_what_the_group_had_passed() {
    let stage = Stage::new();
    let backup = tempfile::tempdir().unwrap();
    let live = tempfile::tempdir().unwrap();
    stage.publish(records(0..10)).await;
    let before = stage.start_on(live.path(), Arc::default());
    stage.done_on(live.path()).await;
    before.stop().await;
    for entry in std::fs::read_dir(live.path()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, backup.path().join(path.file_name().unwrap())).unwrap();
    }
    stage.publish(records(10..20)).await;
    let after = stage.start_on(live.path(), Arc::default());
    stage.done_on(live.path()).await;
    after.stop().await;
    assert_eq!(stage.rows_on(backup.path()).await, names(0..10));
    let restored = stage.start_on(backup.path(), Arc::default());
    stage.done_on(backup.path()).await;
    assert_eq!(stage.rows_on(backup.path()).await, names(0..20));
    assert_eq!(restored.counted(|it| &it.new), 10);
    restored.stop().await;
}

/// The bus file is gone while the service is stopped, and the store's positions are not.
async fn a_bus_that_was_lost(is_on_bus: bool) {
    let mut stage = Stage::new();
    let faults = || {
        Arc::new(Faults {
            is_on_bus,
            ..Faults::default()
        })
    };
    let done = async |stage: &Stage| match is_on_bus {
        true => stage.committed().await,
        false => stage.done().await,
    };
    stage.publish(records(0..8)).await;
    let first = stage.start(faults());
    done(&stage).await;
    first.until_replaced(0).await;
    assert!(first.context.health().warnings().is_empty());
    first.stop().await;

    stage.lose_bus();
    // Fewer than before: their offsets are behind the stored positions.
    stage.publish(records(8..12)).await;
    let before_us = contracts::now_us();
    let second = stage.start(faults());
    done(&stage).await;
    assert_eq!(stage.rows().await, names(0..12), "nothing is passed over");
    assert_eq!(second.counted(|it| &it.new), 4);
    second.until_replaced(1).await;
    let warnings = second.context.health().warnings();
    let (name, warning) = &warnings[0];
    assert_eq!((warnings.len(), *name), (1, "storing-paths-log"));
    let says = "the bus is another one than before: records of paths that it had taken between 20";
    let of_unknown =
        "the bus is another one than before: records of paths that it had taken between an unknown";
    let says = if is_on_bus { of_unknown } else { says };
    assert!(warning.says.starts_with(says), "{}", warning.says);
    second.stop().await;
    let store = SqliteStore::open(stage.dir.path()).unwrap();
    let gaps = store.log_gaps(before_us).await.unwrap();
    assert!(!gaps.is_empty() && gaps.iter().all(|gap| gap.group == GROUP));
    drop(store);

    // The same bus again: it is said, and nothing is read twice.
    let third = stage.start(faults());
    third.until_replaced(1).await;
    done(&stage).await;
    assert_eq!(third.counted(|it| &it.duplicate), 0);
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bus_that_was_lost_is_read_from_its_beginning_and_said() {
    a_bus_that_was_lost(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_keeps_its_positions_on_the_bus_says_so_too() {
    a_bus_that_was_lost(true).await;
}
