use bus::Topic;
use contracts::{alerts::Alert, paths::PathReport, vitals::Metric};

use super::{Harness, SECOND_US, batch, log, ok, sample};
use crate::{AlertsBatch, LOG_GAPS_MAX, Progress, Scope, WriteError};

const GROUP: &str = "writers";

pub async fn a_newer_claim_fences_the_older(harness: &dyn Harness) {
    let (one, other) = (harness.start().await.store, harness.start().await.store);
    let old = ok(one.claim(GROUP, Topic::Vitals, 3, &log()).await);
    assert_eq!(old.next_offset, None, "nothing was stored yet");
    let heart = |sequence| batch(vec![sample("belt", "ann", Metric::HeartRate, sequence)]);
    ok(one.write_vitals(heart(1), vec![old.progress(10)]).await);

    let new = ok(other.claim(GROUP, Topic::Vitals, 3, &log()).await);
    assert_eq!(new.epoch, old.epoch + 1);
    assert_eq!(new.next_offset, Some(10), "it goes on where the other was");
    let fenced = one.write_vitals(heart(2), vec![old.progress(20)]).await;
    assert!(
        matches!(&fenced, Err(WriteError::Fenced(p)) if p == &[(Topic::Vitals, 3)]),
        "{fenced:?}"
    );
    ok(other.write_vitals(heart(3), vec![new.progress(11)]).await);
    assert_eq!(ok(one.stream_count("belt", "heart-rate").await), (2, 3));
    assert_eq!(ok(one.progress(GROUP, Topic::Vitals).await), [(3, 11)]);
    // Neither another group nor another partition nor another topic is touched.
    for (group, topic, partition) in [
        ("others", Topic::Vitals, 3),
        (GROUP, Topic::Paths, 3),
        (GROUP, Topic::Vitals, 4),
    ] {
        let claim = ok(one.claim(group, topic, partition, &log()).await);
        assert_eq!(
            (claim.epoch, claim.next_offset),
            (1, None),
            "{group} {topic} {partition}"
        );
    }
}

pub async fn a_fenced_write_leaves_nothing(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let stale = ok(store.claim(GROUP, Topic::Vitals, 0, &log()).await);
    let good = ok(store.claim(GROUP, Topic::Vitals, 1, &log()).await);
    ok(store.claim(GROUP, Topic::Vitals, 0, &log()).await);
    let progress = vec![good.progress(5), stale.progress(5)];

    let heart = batch(vec![sample("belt", "ann", Metric::HeartRate, 1)]);
    let vitals = store.write_vitals(heart, progress.clone()).await;
    let alert = Alert {
        id: "a".into(),
        revision: 1,
        ..Alert::default()
    };
    let alerts = AlertsBatch {
        transitions: vec![alert],
        states: Vec::new(),
    };
    let alerts = store.write_alerts(alerts, progress.clone()).await;
    let report = PathReport {
        gateway: "g".into(),
        ..PathReport::default()
    };
    let paths = store.write_paths(vec![report], progress).await;
    for result in [vitals, alerts, paths] {
        assert!(
            matches!(&result, Err(WriteError::Fenced(p)) if p == &[(Topic::Vitals, 0)]),
            "{result:?}"
        );
    }
    assert_eq!(ok(store.stream_count("belt", "heart-rate").await), (0, 0));
    assert_eq!(ok(store.alert(&Scope::Service, "a").await), None);
    assert_eq!(ok(store.outbox(10).await), []);
    assert_eq!(ok(store.latest_paths(&Scope::Service, None).await), []);
    assert_eq!(
        ok(store.progress(GROUP, Topic::Vitals).await),
        [],
        "nor the progress of the good partition"
    );
    // Rows of the good partition alone are stored, with keys that the undone writes had created.
    let heart = batch(vec![sample("belt", "ann", Metric::HeartRate, 2)]);
    ok(store.write_vitals(heart, vec![good.progress(5)]).await);
    assert_eq!(
        ok(store.latest_vitals(&Scope::Service, Some("ann")).await).len(),
        1
    );
}

pub async fn progress_survives_reopening(harness: &dyn Harness) {
    for round in 1..4 {
        let process = harness.start().await;
        let claim = ok(process.store.claim(GROUP, Topic::Vitals, 0, &log()).await);
        assert_eq!(claim.epoch, round);
        assert_eq!(claim.next_offset, (round > 1).then_some((round - 1) * 100));
        let heart = batch(vec![sample("belt", "ann", Metric::HeartRate, round)]);
        ok(process
            .store
            .write_vitals(heart, vec![claim.progress(round * 100)])
            .await);
        (process.kill)();
    }
    let store = harness.start().await.store;
    assert_eq!(ok(store.stream_count("belt", "heart-rate").await), (3, 3));
}

/// A bus that was lost and made anew has other records under the same offsets.
pub async fn a_position_counts_for_the_log_that_it_names(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let of = |identity: &str, next| bus::Log {
        identity: identity.to_owned(),
        next,
    };
    let claim = async |log: &bus::Log| ok(store.claim(GROUP, Topic::Vitals, 0, log).await);
    let first = claim(&of("one", Some(0))).await;
    assert_eq!((first.next_offset, first.gap), (None, None), "a new group");
    let first = claim(&of("one", Some(0))).await;
    let done = Progress {
        read_us: Some(7 * SECOND_US),
        ..first.progress(10)
    };
    ok(store.write_vitals(batch(Vec::new()), vec![done]).await);
    // A write that does not know the time leaves it as it is.
    ok(store
        .write_vitals(batch(Vec::new()), vec![first.progress(11)])
        .await);
    for end in [Some(11), Some(90), None] {
        let same = claim(&of("one", end)).await;
        assert_eq!((same.next_offset, same.gap), (Some(11), None), "{end:?}");
    }
    assert_eq!(ok(store.log_gaps(0).await), []);

    // Another log, and a younger copy of the same.
    for (log, position) in [(of("two", Some(90)), 5), (of("two", Some(4)), 3)] {
        let before_us = contracts::now_us();
        let other = claim(&log).await;
        let Some(gap) = other.gap.clone() else {
            panic!("{log:?} is another log")
        };
        assert_eq!(other.next_offset, None, "reading begins anew");
        assert_eq!((gap.topic, gap.partition), (Topic::Vitals, 0));
        assert_eq!(
            (gap.group.as_str(), gap.from_us),
            (GROUP, Some(7 * SECOND_US))
        );
        assert!(gap.to_us >= before_us);
        assert_eq!(
            ok(store.log_gaps(before_us).await),
            std::slice::from_ref(&gap)
        );
        assert_eq!(ok(store.log_gaps(gap.to_us + 1).await), []);
        assert_eq!(ok(store.progress(GROUP, Topic::Vitals).await), []);
        let again = claim(&log).await;
        assert_eq!((again.next_offset, &again.gap), (None, &None), "told once");
        let moved = vec![again.progress(position)];
        ok(store.write_vitals(batch(Vec::new()), moved).await);
        // The next gap must have a time of its own.
        while contracts::now_us() <= gap.to_us {
            tokio::task::yield_now().await;
        }
    }
    let of_both = ok(store.log_gaps(0).await);
    assert_eq!(of_both.len(), 2);
    assert!(of_both[0].to_us < of_both[1].to_us);
    assert_eq!(claim(&of("two", Some(4))).await.next_offset, Some(3));
}

pub async fn gaps_of_logs_have_a_bound(harness: &dyn Harness) {
    let store = harness.start().await.store;
    for round in 0..LOG_GAPS_MAX + 3 {
        let log = bus::Log {
            identity: format!("log {round}"),
            next: Some(0),
        };
        ok(store.claim(GROUP, Topic::Paths, 1, &log).await);
        let after_us = contracts::now_us();
        while contracts::now_us() <= after_us {
            tokio::task::yield_now().await;
        }
    }
    let kept = ok(store.log_gaps(0).await);
    assert_eq!(kept.len(), LOG_GAPS_MAX as usize);
    assert!(kept.iter().all(|gap| gap.from_us.is_none()));
}

pub async fn two_processes_write_at_once(harness: &dyn Harness) {
    let processes = [harness.start().await.store, harness.start().await.store];
    // Both know all texts from the first batch on, and both meet the same samples.
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let store = processes[(task % 2) as usize].clone();
            tokio::spawn(async move {
                let mut new = 0;
                for round in 0..20_u64 {
                    let samples = (0..10)
                        .map(|n| {
                            // Tasks 2n and 2n + 1 write the same, each through its own process.
                            let device = format!("belt-{}-{}", task / 2, n % 3);
                            sample(
                                &device,
                                &format!("p{}", n % 4),
                                Metric::HeartRate,
                                round * 10 + n,
                            )
                        })
                        .collect();
                    new += ok(store.write_vitals(batch(samples), Vec::new()).await).new;
                }
                new
            })
        })
        .collect();
    let mut new = 0;
    for task in tasks {
        new += ok(task.await);
    }
    assert_eq!(new, 4 * 200, "each sample was new exactly once");
    let mut rows = 0;
    for task in 0..4 {
        for n in 0..3 {
            rows += ok(processes[0]
                .stream_count(&format!("belt-{task}-{n}"), "heart-rate")
                .await)
            .0;
        }
    }
    assert_eq!(rows, 4 * 200);
}

pub async fn writes_are_ready_and_durable(harness: &dyn Harness) {
    let process = harness.start().await;
    ok(process.store.ready().await);
    let heart = batch(vec![sample("belt", "ann", Metric::HeartRate, 1)]);
    ok(process.store.write_vitals(heart, Vec::new()).await);
    (process.kill)();
    let store = harness.start().await.store;
    assert_eq!(ok(store.stream_count("belt", "heart-rate").await), (1, 1));
}
