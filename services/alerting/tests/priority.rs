//! High alerts overtake a flood of others on the way to people.

#![allow(clippy::unwrap_used)]

#[path = "support/hook.rs"]
mod hook;
#[path = "support/stage.rs"]
mod stage;

use contracts::{
    alerts::{Alert, AlertState, Notice},
    vitals::Priority,
};
use hook::Hook;
use stage::{World, until};
use store::{AlertsBatch, NoticesBatch};

const OTHERS: usize = 2_000;
/// Far more than a machine delivers until the outbox is looked at again.
const DECISIONS: usize = 6_000;
const HIGH: usize = 20;
/// Calls that may come before a high one: what the worker has in hand, some times over, because
/// both are counted by different tasks.
const BEFORE_MAX: usize = 300;

fn alert(id: &str, priority: Priority) -> Alert {
    Alert {
        id: id.into(),
        patient: format!("of-{id}"),
        rule: "r".into(),
        state: AlertState::Active.into(),
        priority: priority.into(),
        since_us: contracts::now_us(),
        changed_us: contracts::now_us(),
        recorded_us: contracts::now_us(),
        revision: 1,
        ..Alert::default()
    }
}

fn notice(id: &str, priority: Priority) -> Notice {
    Notice {
        id: format!("{id}/1/webhook"),
        alert: Some(alert(id, priority)),
        channel: "webhook".into(),
        created_us: contracts::now_us(),
        due_us: contracts::now_us(),
        ..Notice::default()
    }
}

fn batch(notices: Vec<Notice>) -> NoticesBatch {
    NoticesBatch {
        notices,
        ..NoticesBatch::default()
    }
}

fn ids(hook: &Hook) -> Vec<String> {
    let calls = hook.calls.lock();
    let of_alerts = calls.iter().filter_map(|call| call["id"].as_str());
    of_alerts.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn high_notices_overtake_thousands_of_others_in_the_queue() {
    let world = World::new();
    let others = (0..OTHERS).map(|n| notice(&format!("low-{n}"), Priority::Low));
    let queued = world.store.write_notices(batch(others.collect())).await;
    assert_eq!(queued.unwrap(), OTHERS as u64);
    let hook = Hook::start(hook::confirming).await;
    let running = world.start_with(|config| config.people.webhook = Some(hook.url()));
    until("the flood goes out", || ids(&hook).len() > 100).await;
    let mut before = Vec::new();
    for n in 0..HIGH {
        let id = format!("high-{n}");
        before.push((id.clone(), ids(&hook).len()));
        let high = batch(vec![notice(&id, Priority::High)]);
        world.store.write_notices(high).await.unwrap();
    }
    until("everything", || ids(&hook).len() >= OTHERS + HIGH).await;
    let told = ids(&hook);
    for (id, before) in before {
        let place = told.iter().position(|it| *it == id).unwrap();
        assert!(
            place <= before + BEFORE_MAX,
            "{id} at {place}, queued at {before}"
        );
    }
    let mut once = told.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), told.len(), "each once");
    running.stop().await;
}

/// The bus has the flood first; the decisions about high alerts do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_high_alert_waits_for_no_backlog_of_decisions() {
    let world = World::new();
    let hook = Hook::start(hook::confirming).await;
    let running = world.start_with(|config| config.people.webhook = Some(hook.url()));
    let write = async |alerts: Vec<Alert>| {
        let batch = AlertsBatch {
            transitions: alerts,
            ..AlertsBatch::default()
        };
        world.store.write_alerts(batch, Vec::new()).await.unwrap();
    };
    write(
        (0..DECISIONS)
            .map(|n| alert(&format!("low-{n}"), Priority::Medium))
            .collect(),
    )
    .await;
    until("the flood goes out", || ids(&hook).len() > 50).await;
    let before = ids(&hook).len();
    write(vec![alert("high", Priority::High)]).await;
    until("the high one", || ids(&hook).iter().any(|id| id == "high")).await;
    let place = ids(&hook).iter().position(|id| id == "high").unwrap();
    // The outbox is looked at twice a second, in which a quick machine delivers a quarter of them.
    assert!(place < DECISIONS / 2, "{place}");
    until("everything", || ids(&hook).len() > DECISIONS).await;
    println!("the high alert was at {place} of {DECISIONS}, stored at {before}");
    running.stop().await;
}
