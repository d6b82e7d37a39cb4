use std::collections::{BTreeMap, BTreeSet};

use super::harness::ASK_AGAIN_AFTER;
use super::{
    Harness, PATIENCE, follow, join, next, number, numbered, publish, read, wait_for_partitions,
};
use crate::{CommitError, Event, Extent, Topic};

/// Takes turns with two members of a group until each has `counts` partitions.
async fn settle(
    members: [(&mut Box<dyn crate::Consumer>, &mut BTreeSet<u32>); 2],
    counts: [usize; 2],
) {
    let [(first, first_mine), (second, second_mine)] = members;
    tokio::join!(
        follow(first, first_mine, counts[0]),
        follow(second, second_mine, counts[1])
    );
}

pub async fn members_share_the_partitions(harness: &dyn Harness) {
    let (one, other) = (harness.start().await.bus, harness.start().await.bus);
    let all = one
        .partitions(Topic::Vitals)
        .await
        .unwrap_or_else(|e| panic!("{e}")) as usize;
    let mut first = join(&one, Topic::Vitals, "share").await;
    let mut first_mine = wait_for_partitions(&mut first, all).await;
    let mut second = join(&other, Topic::Vitals, "share").await;
    let mut second_mine = BTreeSet::new();
    settle(
        [
            (&mut first, &mut first_mine),
            (&mut second, &mut second_mine),
        ],
        [all - all / 2, all / 2],
    )
    .await;
    assert!(first_mine.is_disjoint(&second_mine));

    publish(
        &one,
        Topic::Vitals,
        (0..200).map(|n| numbered(&format!("k{n}"), n)).collect(),
    )
    .await;
    let mut numbers = BTreeSet::new();
    while numbers.len() < 200 {
        let (event, mine) = tokio::select! {
            event = next(&mut first) => (event, &first_mine),
            event = next(&mut second) => (event, &second_mine),
        };
        let Event::Batch(batch) = event else {
            panic!("{event:?} without a change of members")
        };
        for delivery in batch {
            assert!(
                mine.contains(&delivery.partition),
                "only its own partitions"
            );
            assert!(numbers.insert(number(&delivery)), "each record came once");
        }
    }
    // A member that leaves gives everything to the one that stays.
    drop(second);
    follow(&mut first, &mut first_mine, all).await;
}

pub async fn a_dead_member_is_replaced(harness: &dyn Harness) {
    let (doomed, other) = (harness.start().await, harness.start().await.bus);
    let all = other
        .partitions(Topic::Vitals)
        .await
        .unwrap_or_else(|e| panic!("{e}")) as usize;
    let mut first = join(&doomed.bus, Topic::Vitals, "death").await;
    wait_for_partitions(&mut first, all).await;
    publish(
        &other,
        Topic::Vitals,
        (0..50).map(|n| numbered(&format!("k{n}"), n)).collect(),
    )
    .await;
    // It reads all, commits nothing and dies.
    read(&mut first, 50).await;
    (doomed.kill)();
    let mut second = join(&other, Topic::Vitals, "death").await;
    let numbers: BTreeSet<u32> = read(&mut second, 50).await.iter().map(number).collect();
    assert_eq!(numbers.len(), 50, "what was not committed comes again");
}

pub async fn a_commit_survives_and_the_rest_comes_again(harness: &dyn Harness) {
    let process = harness.start().await;
    publish(
        &process.bus,
        Topic::DeadLetters,
        (0..10).map(|n| numbered("k", n)).collect(),
    )
    .await;
    let mut consumer = join(&process.bus, Topic::DeadLetters, "commit").await;
    let got = read(&mut consumer, 10).await;
    let (partition, offset) = (got[3].partition, got[3].offset);
    consumer
        .commit(&[(partition, offset + 1)])
        .await
        .unwrap_or_else(|e| panic!("commit: {e}"));
    (process.kill)();
    let bus = harness.start().await.bus;
    let mut consumer = join(&bus, Topic::DeadLetters, "commit").await;
    let numbers: Vec<u32> = read(&mut consumer, 6).await.iter().map(number).collect();
    assert_eq!(numbers, [4, 5, 6, 7, 8, 9]);
}

pub async fn a_lost_partition_cannot_be_committed(harness: &dyn Harness) {
    let (one, other) = (harness.start().await.bus, harness.start().await.bus);
    let all = one
        .partitions(Topic::Vitals)
        .await
        .unwrap_or_else(|e| panic!("{e}")) as usize;
    let mut first = join(&one, Topic::Vitals, "fence").await;
    let mut first_mine = wait_for_partitions(&mut first, all).await;
    let mut second = join(&other, Topic::Vitals, "fence").await;
    let mut second_mine = BTreeSet::new();
    settle(
        [
            (&mut first, &mut first_mine),
            (&mut second, &mut second_mine),
        ],
        [all - all / 2, all / 2],
    )
    .await;
    let lost: Vec<(u32, u64)> = second_mine.iter().map(|p| (*p, 0)).collect();
    let refused = first.commit(&lost).await;
    let Err(CommitError::NotOwner(partitions)) = refused else {
        panic!("committing lost partitions gave {refused:?}")
    };
    assert_eq!(BTreeSet::from_iter(partitions), second_mine);
}

pub async fn groups_are_independent(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    publish(
        &bus,
        Topic::Vitals,
        (0..20).map(|n| numbered(&format!("k{n}"), n)).collect(),
    )
    .await;
    for group in ["one", "two"] {
        let mut consumer = join(&bus, Topic::Vitals, group).await;
        let got = read(&mut consumer, 20).await;
        let done: Vec<(u32, u64)> = got.iter().map(|d| (d.partition, d.offset + 1)).collect();
        consumer
            .commit(&done)
            .await
            .unwrap_or_else(|e| panic!("commit: {e}"));
    }
}

/// A process that neither publishes nor joins learns the ends from the engine.
pub async fn an_observer_sees_the_ends_and_what_a_group_has_done(harness: &dyn Harness) {
    let (process, observer) = (harness.start().await, harness.start().await.bus);
    // A cluster that has just begun has no leader of the partition or coordinator of the group yet.
    let observer = &observer;
    let extents = || async {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match observer.extents(Topic::DeadLetters).await {
                Ok(extents) => return extents,
                Err(error) if tokio::time::Instant::now() > deadline => panic!("extents: {error}"),
                Err(_) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
            }
        }
    };
    let committed = |group: &'static str| {
        let asking = move || observer.committed(Topic::DeadLetters, group);
        async move {
            let deadline = tokio::time::Instant::now() + PATIENCE;
            loop {
                match asking().await {
                    Ok(committed) => return committed,
                    Err(error) if tokio::time::Instant::now() > deadline => panic!("{error}"),
                    Err(_) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
                }
            }
        }
    };
    let all = extents().await;
    let partitions = observer.partitions(Topic::DeadLetters).await;
    assert_eq!(Some(all.len()), partitions.ok().map(|count| count as usize));
    assert!(all.values().all(|it| it.oldest == it.next), "{all:?}");
    assert_eq!(
        committed("watched").await,
        BTreeMap::new(),
        "nobody committed"
    );

    let records = (0..10).map(|n| numbered("k", n)).collect();
    publish(&process.bus, Topic::DeadLetters, records).await;
    let mut consumer = join(&process.bus, Topic::DeadLetters, "watched").await;
    let got = read(&mut consumer, 10).await;
    let (partition, next) = (got[9].partition, got[9].offset + 1);
    let oldest = got[0].offset;
    assert_eq!(extents().await[&partition], Extent { oldest, next });
    let done = consumer.commit(&[(partition, oldest + 4)]).await;
    done.unwrap_or_else(|e| panic!("commit: {e}"));
    assert_eq!(
        committed("watched").await,
        BTreeMap::from([(partition, oldest + 4)])
    );
    assert_eq!(committed("other").await, BTreeMap::new(), "another group's");
}
