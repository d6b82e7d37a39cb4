#![allow(clippy::unwrap_used)]

use std::sync::mpsc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::*;

/// Records of each partition: several steps of retention.
const RECORDS: usize = 3 * RETENTION_STEP as usize;

fn records(of_each: usize, partitions: u32) -> Vec<Record> {
    let mut keys = (0..).map(|number| format!("patient-{number}"));
    let mut records = Vec::new();
    for partition in 0..partitions {
        let key = keys.find(|key| partition_of(key, partitions) == partition);
        let record = Record {
            key: key.unwrap(),
            value: Bytes::from_static(b"reading"),
            headers: Vec::new(),
        };
        records.extend(std::iter::repeat_n(record, of_each));
    }
    records
}

fn publish(records: Vec<Record>) -> Command {
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned();
    Command::Publish(Job {
        topic: Topic::Vitals,
        bytes: records.iter().map(bytes_of).sum(),
        records,
        reply: oneshot::channel().0,
        permit: permit.unwrap(),
    })
}

/// Runs until these commands are done.
fn run(dir: &std::path::Path, retention_age: Duration, commands: Vec<Command>) {
    let connection = schema::open_records(dir).unwrap();
    let heads = Arc::new(Heads::new(&schema::heads(&connection).unwrap()));
    let options = EmbeddedOptions {
        retention_age,
        ..EmbeddedOptions::default()
    };
    let (sender, receiver) = mpsc::channel();
    for command in commands {
        sender.send(command).unwrap();
    }
    drop(sender);
    Writer::new(connection, heads, options).run(&receiver);
}

#[test]
fn a_publish_waits_for_one_step_of_retention_only() {
    let dir = tempfile::tempdir().unwrap();
    let connection = schema::open_records(dir.path()).unwrap();
    let heads = Heads::new(&schema::heads(&connection).unwrap());
    let partitions = heads.partitions(Topic::Vitals);
    let all = records(RECORDS, partitions);
    let week = EmbeddedOptions::default().retention_age;
    run(dir.path(), week, vec![publish(all)]);
    let left = || -> usize {
        let of_each = (0..partitions).map(|partition| {
            let table = schema::table(Topic::Vitals, partition);
            let count = format!("SELECT count(*) FROM {table}");
            connection
                .query_row(&count, [], |row| row.get::<_, usize>(0))
                .unwrap()
        });
        of_each.sum()
    };
    let before = left();
    assert_eq!(before, RECORDS * partitions as usize);

    // All are too old, and a round is asked for before the publish.
    let retain = Command::Retain(oneshot::channel().0);
    run(
        dir.path(),
        Duration::ZERO,
        vec![retain, publish(records(1, 1))],
    );
    let removed = before + 1 - left();
    assert!(removed <= RETENTION_STEP as usize, "{removed}");
}

#[test]
fn a_round_looks_at_each_partition_until_it_has_nothing_left_and_then_answers() {
    let mut retention = Retention::default();
    let now = Instant::now();
    assert!(retention.is_to_begin(now), "at the start");
    let partitions = [(Topic::Vitals, 0), (Topic::Vitals, 1)];
    retention.begin(now, 7, partitions.into_iter());
    assert!(!retention.is_to_begin(now) && retention.due().is_none());
    let mut looked_at = Vec::new();
    let mut steps = [500, 20, 499].into_iter();
    while let Some((topic, partition, now_us)) = retention.next() {
        assert_eq!(now_us, 7);
        looked_at.push(partition);
        retention.on_removed((topic, partition), steps.next().unwrap());
    }
    assert_eq!(looked_at, [0, 1, 0]);
    assert!(retention.due().is_some_and(|at| at > now));

    let (reply, mut answer) = oneshot::channel();
    retention.ask(reply);
    assert!(retention.is_to_begin(now));
    retention.begin(now, 8, partitions.into_iter());
    for _ in 0..2 {
        assert!(answer.try_recv().is_err(), "the round is under way");
        let (topic, partition, _) = retention.next().unwrap();
        retention.on_removed((topic, partition), 0);
    }
    assert!(answer.try_recv().is_ok());
}
