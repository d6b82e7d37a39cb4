use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use contracts::alerts::{Alert, AlertState, Document, Notice, NoticeOutcome, NoticeResult};
use contracts::vitals::Priority;

use super::{Harness, SECOND_US, START_US, ok};
use crate::{
    AlertsBatch, DOCUMENTS_BYTES_MAX, EscalationTimer, Expire, NoticesBatch, PatientEntry,
    REVOCATION, RULES, Scope, Spo2Scale, Store, Take, TimerChange, WriteError,
};

const ALL: Scope = Scope::Service;

fn alert(id: &str, patient: &str) -> Alert {
    Alert {
        id: id.into(),
        patient: patient.into(),
        state: AlertState::Active.into(),
        since_us: START_US,
        changed_us: START_US,
        revision: 1,
        ..Alert::default()
    }
}

fn notice(id: &str, of: &Alert, channel: &str, number: i64) -> Notice {
    Notice {
        id: id.into(),
        alert: Some(of.clone()),
        tenant: "one".into(),
        channel: channel.into(),
        created_us: START_US + number,
        due_us: START_US,
        ..Notice::default()
    }
}

fn outcome(notice: &str, result: NoticeResult) -> NoticeOutcome {
    NoticeOutcome {
        notice: notice.into(),
        result: result.into(),
        attempts: 1,
        at_us: START_US + SECOND_US,
        detail: String::new(),
    }
}

async fn take(store: &dyn Store, channel: &str, at_s: i64, limit: usize) -> Vec<String> {
    let now_us = START_US + at_s * SECOND_US;
    let taken = store
        .take_notices(Take {
            channel,
            now_us,
            until_us: now_us + 10 * SECOND_US,
            limit,
            least: Priority::Unspecified,
        })
        .await;
    ok(taken).into_iter().map(|taken| taken.notice.id).collect()
}

pub async fn notices_wait_in_order_until_they_have_an_outcome(harness: &dyn Harness) {
    let process = harness.start().await;
    // Both belong to one gateway, so they share one part of the queue.
    let at_gateway = |alert: Alert| Alert {
        gateway: "gw".into(),
        ..alert
    };
    let (a, b) = (at_gateway(alert("a", "ann")), at_gateway(alert("b", "bob")));
    let batch = NoticesBatch {
        notices: vec![
            notice("a/1", &a, "webhook", 1),
            notice("a/2", &a, "webhook", 2),
            notice("b/1", &b, "webhook", 3),
            notice("b/1/mail", &b, "email", 4),
            notice("b/2", &b, "webhook", 5),
        ],
        outcomes: vec![outcome("b/2", NoticeResult::Silenced)],
        timers: Vec::new(),
    };
    assert_eq!(ok(process.store.write_notices(batch.clone()).await), 5);
    assert_eq!(ok(process.store.write_notices(batch).await), 0, "once each");
    (process.kill)();

    let store = harness.start().await.store;
    let other = harness.start().await.store;
    assert_eq!(
        take(&*store, "webhook", -1, 10).await,
        [""; 0],
        "not yet due"
    );
    assert_eq!(take(&*store, "webhook", 0, 2).await, ["a/1", "a/2"]);
    assert_eq!(
        take(&*other, "webhook", 1, 10).await,
        ["b/1"],
        "the others are taken, and one has its outcome"
    );
    // The second notice of the first alert waits for the first. The other alert's notice does not.
    ok(store
        .delay_notices(&["a/1".to_owned()], START_US + 30 * SECOND_US)
        .await);
    assert_eq!(take(&*other, "webhook", 20, 10).await, ["b/1"]);
    let settled = NoticesBatch {
        outcomes: vec![
            outcome("b/1", NoticeResult::Delivered),
            outcome("a/1", NoticeResult::GivenUp),
        ],
        ..NoticesBatch::default()
    };
    ok(store.write_notices(settled).await);
    assert_eq!(take(&*store, "webhook", 40, 10).await, ["a/2"]);
    let again = ok(store
        .take_notices(Take {
            channel: "webhook",
            now_us: START_US + 60 * SECOND_US,
            until_us: START_US,
            limit: 10,
            least: Priority::Unspecified,
        })
        .await);
    assert_eq!(again[0].attempts, 3, "each try is counted");
    assert_eq!(take(&*store, "email", 0, 10).await, ["b/1/mail"]);
}

pub async fn no_notice_waits_for_a_clock_that_was_set_back(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let of = alert("a", "ann");
    let notices = (1..=2).map(|n| notice(&format!("a/{n}"), &of, "webhook", n));
    let batch = NoticesBatch {
        notices: notices.collect(),
        ..NoticesBatch::default()
    };
    ok(store.write_notices(batch).await);
    // One has failed and waits, and the holder of the other has died. Then the clock goes back by
    // three hours.
    assert_eq!(take(&*store, "webhook", 3 * 3600, 2).await, ["a/1", "a/2"]);
    ok(store
        .delay_notices(&["a/1".to_owned()], START_US + 3 * 3600 * SECOND_US)
        .await);
    assert_eq!(take(&*store, "webhook", 1, 2).await, ["a/1", "a/2"]);
}

pub async fn notices_that_fail_hold_up_no_others(harness: &dyn Harness) {
    const FAILING: usize = 20;
    let store = harness.start().await.store;
    let put = async |alert_id: &str, number: i64| {
        let of = alert(alert_id, "ann");
        let notices = vec![notice(
            &format!("{alert_id}/{number}"),
            &of,
            "webhook",
            number,
        )];
        let batch = NoticesBatch {
            notices,
            ..NoticesBatch::default()
        };
        ok(store.write_notices(batch).await);
    };
    for n in 0..FAILING {
        put(&format!("failing-{n:02}"), 1).await;
    }
    let failing = take(&*store, "webhook", 0, FAILING).await;
    assert_eq!(failing.len(), FAILING);
    // Due again, all of them, when another comes.
    ok(store.delay_notices(&failing, START_US + SECOND_US).await);
    put("failing-00", 2).await;
    put("fresh", 1).await;
    let mut taken = take(&*store, "webhook", 2, 4).await;
    taken.sort();
    assert_eq!(
        taken,
        ["failing-00/1", "failing-00/2", "failing-01/1", "fresh/1"],
        "the fresh one of an alert that fails goes with the first of its alert"
    );
    // Each of those that fail has its turn, however many there are.
    let mut turns = Vec::new();
    for at_s in 3..9 {
        let now_us = START_US + at_s * SECOND_US;
        let taken = take(&*store, "webhook", at_s, 4).await;
        ok(store.delay_notices(&taken, now_us).await);
        turns.extend(taken);
    }
    turns.sort();
    turns.dedup();
    assert!(turns.len() >= FAILING - 3, "{turns:?}");
}

pub async fn notices_that_nobody_has_tried_are_counted(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let of = alert("a", "ann");
    let other = alert("b", "ann");
    let mut notices: Vec<Notice> = (1..=2)
        .map(|n| notice(&format!("a/{n}"), &of, "webhook", n))
        .collect();
    notices.push(notice("b/1", &other, "email", 1));
    let batch = NoticesBatch {
        notices,
        ..NoticesBatch::default()
    };
    ok(store.write_notices(batch).await);
    let untried = async |due_s: i64, limit| {
        let due_us = START_US + due_s * SECOND_US;
        ok(store.untried_notices(due_us, due_us, limit).await)
    };
    assert_eq!(untried(0, 10).await, 0, "due now");
    assert_eq!(untried(1, 10).await, 3);
    assert_eq!(untried(1, 2).await, 2, "no more are counted");
    assert_eq!(
        untried(-3600, 10).await,
        3,
        "due by a clock that was set back since"
    );
    assert_eq!(take(&*store, "email", 1, 1).await, ["b/1"]);
    assert_eq!(untried(1, 10).await, 2);
    // The second of one alert stands behind the first, which has failed.
    assert_eq!(take(&*store, "webhook", 1, 1).await, ["a/1"]);
    assert_eq!(untried(1, 10).await, 0);
    let settled = NoticesBatch {
        outcomes: vec![outcome("a/1", NoticeResult::Delivered)],
        ..NoticesBatch::default()
    };
    ok(store.write_notices(settled).await);
    assert_eq!(untried(1, 10).await, 1);
}

fn of_priority(id: &str, priority: Priority) -> Alert {
    Alert {
        priority: priority.into(),
        ..alert(id, "ann")
    }
}

/// A take must stay cheap beside a long queue: it has a statement time-out, and people wait for it.
pub async fn the_most_urgent_notices_overtake_ten_thousand_others(harness: &dyn Harness) {
    const OTHERS: usize = 10_000;
    let store = harness.start().await.store;
    let put = async |notices: Vec<Notice>| {
        let batch = NoticesBatch {
            notices,
            ..NoticesBatch::default()
        };
        ok(store.write_notices(batch).await);
    };
    let of = |n: usize, priority| {
        let of = Alert {
            patient: format!("p{}", n % 1_700),
            ..of_priority(&format!("a{n}"), priority)
        };
        notice(&format!("a{n}/1"), &of, "webhook", n as i64)
    };
    let low = |n| of(n, [Priority::Low, Priority::Medium][n % 2]);
    put((0..OTHERS).map(low).collect()).await;
    put(vec![of(OTHERS, Priority::High)]).await;
    let begun = std::time::Instant::now();
    let high = format!("a{OTHERS}/1");
    assert_eq!(take(&*store, "webhook", 0, 1).await, [high.as_str()]);
    // Medium before low, and none of them for a place that is reserved.
    let reserved = Take {
        channel: "webhook",
        now_us: START_US,
        until_us: START_US + 10 * SECOND_US,
        limit: 10,
        least: Priority::High,
    };
    assert_eq!(ok(store.take_notices(reserved).await), []);
    for _ in 0..20 {
        let next = take(&*store, "webhook", 0, 32).await;
        let is_medium = |id: &String| {
            id[1..id.len() - 2]
                .parse::<usize>()
                .is_ok_and(|n| n % 2 == 1)
        };
        assert!(next.len() == 32 && next.iter().all(is_medium), "{next:?}");
        // All fail and wait, and none of the others waits for them.
        ok(store.delay_notices(&next, START_US + 30 * SECOND_US).await);
    }
    let took = begun.elapsed();
    let limit = std::time::Duration::from_secs(10);
    assert!(took < limit, "22 takes beside {OTHERS} took {took:?}");
    // One that has failed takes its place again before those of less urgency.
    ok(store
        .delay_notices(std::slice::from_ref(&high), START_US + SECOND_US)
        .await);
    assert_eq!(take(&*store, "webhook", 2, 2).await[0], high);
}

pub async fn a_lane_keeps_its_order_whatever_its_urgency(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let low = of_priority("a", Priority::Low);
    let high = of_priority("a", Priority::High);
    let ended = Alert {
        state: AlertState::Resolved.into(),
        ..high.clone()
    };
    let other = of_priority("b", Priority::Medium);
    for next in [
        notice("a/1", &low, "webhook", 1),
        notice("b/1", &other, "webhook", 2),
        notice("a/2", &high, "webhook", 3),
        notice("a/3", &ended, "webhook", 4),
    ] {
        let batch = NoticesBatch {
            notices: vec![next],
            ..NoticesBatch::default()
        };
        ok(store.write_notices(batch).await);
    }
    assert_eq!(
        take(&*store, "webhook", 0, 10).await,
        ["a/1", "a/2", "a/3", "b/1"]
    );
}

pub async fn what_has_failed_is_due_at_once_when_its_channel_returns(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let notices =
        ["a", "b", "c"].map(|id| notice(&format!("{id}/1"), &alert(id, "ann"), "webhook", 1));
    let batch = NoticesBatch {
        notices: notices.into(),
        ..NoticesBatch::default()
    };
    ok(store.write_notices(batch).await);
    let taken = take(&*store, "webhook", 0, 3).await;
    assert_eq!(taken, ["a/1", "b/1", "c/1"]);
    // Two have failed and wait, and one is in hand.
    ok(store
        .delay_notices(&taken[..2], START_US + 300 * SECOND_US)
        .await);
    assert_eq!(take(&*store, "webhook", 1, 3).await, [""; 0]);
    let now_us = START_US + SECOND_US;
    assert_eq!(ok(store.hasten_notices("email", now_us).await), 0);
    assert_eq!(ok(store.hasten_notices("webhook", now_us).await), 2);
    assert_eq!(take(&*store, "webhook", 1, 3).await, ["a/1", "b/1"]);
}

pub async fn two_members_take_each_notice_once(harness: &dyn Harness) {
    const NOTICES: usize = 60;
    let (one, other) = (harness.start().await.store, harness.start().await.store);
    let batch = NoticesBatch {
        notices: (0..NOTICES)
            .map(|n| {
                let of = alert(&format!("alert-{}", n % 7), "ann");
                notice(&format!("n-{n:02}"), &of, "webhook", n as i64)
            })
            .collect(),
        ..NoticesBatch::default()
    };
    ok(one.write_notices(batch).await);
    let total = std::sync::atomic::AtomicUsize::new(0);
    let all = async |store: &dyn Store| {
        let mut taken = Vec::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // A notice behind one that another member has in hand comes later.
        while total.load(SeqCst) < NOTICES && std::time::Instant::now() < deadline {
            let more = take(store, "webhook", 0, 4).await;
            total.fetch_add(more.len(), SeqCst);
            let outcomes = more.iter().map(|id| outcome(id, NoticeResult::Delivered));
            let batch = NoticesBatch {
                outcomes: outcomes.collect(),
                ..NoticesBatch::default()
            };
            ok(store.write_notices(batch).await);
            taken.extend(more);
        }
        taken
    };
    let (mut taken, others) = tokio::join!(all(&*one), all(&*other));
    taken.extend(others);
    taken.sort();
    let expected: Vec<String> = (0..NOTICES).map(|n| format!("n-{n:02}")).collect();
    assert_eq!(taken, expected);
}

pub async fn the_notices_of_one_gateway_delay_no_others(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let of = |id: String, patient: &str, gateway: &str| {
        let alert = Alert {
            gateway: gateway.into(),
            ..alert(&id, patient)
        };
        notice(&id, &alert, "webhook", 1)
    };
    let mut notices: Vec<Notice> = (0..500)
        .map(|n| of(format!("flood-{n:03}"), &format!("p{}", n % 50), "gw-loud"))
        .collect();
    notices.push(of("ann".into(), "ann", "gw-2"));
    notices.push(of("bob".into(), "bob", ""));
    notices.push(of("ann-later".into(), "ann", "gw-2"));
    let batch = NoticesBatch {
        notices,
        ..NoticesBatch::default()
    };
    ok(store.write_notices(batch).await);
    let mut first = take(&*store, "webhook", 0, 5).await;
    first.sort();
    assert_eq!(first, ["ann", "ann-later", "bob", "flood-000", "flood-001"]);
    let next = take(&*store, "webhook", 0, 2).await;
    assert_eq!(next, ["flood-002", "flood-003"], "in the order of writing");
}

pub async fn a_timer_belongs_to_whoever_changes_it_first(harness: &dyn Harness) {
    let (one, other) = (harness.start().await.store, harness.start().await.store);
    let set = |alert: &str, version, due_s: Option<i64>| {
        TimerChange::Set(EscalationTimer {
            alert: alert.into(),
            version,
            due_us: due_s.map(|due_s| START_US + due_s * SECOND_US),
            state: Bytes::from(format!("{alert} {version}")),
        })
    };
    let change = |changes: Vec<TimerChange>| NoticesBatch {
        timers: changes,
        ..NoticesBatch::default()
    };
    ok(one
        .write_notices(change(vec![
            set("a", 1, Some(20)),
            set("b", 1, Some(10)),
            set("c", 1, None),
        ]))
        .await);
    let due = async |at_s: i64| -> Vec<String> {
        let due = other.due_timers(START_US + at_s * SECOND_US, 10).await;
        ok(due).into_iter().map(|timer| timer.alert).collect()
    };
    assert_eq!(due(9).await, [""; 0]);
    assert_eq!(due(30).await, ["b", "a"], "the most overdue first");

    // Two callers act on the same timer. One loses, with everything it decided.
    let act = |channel: &str| NoticesBatch {
        notices: vec![notice(
            &format!("a/{channel}"),
            &alert("a", "ann"),
            channel,
            1,
        )],
        ..change(vec![set("a", 2, Some(50))])
    };
    ok(one.write_notices(act("webhook")).await);
    let late = other.write_notices(act("email")).await;
    assert!(
        matches!(&late, Err(WriteError::Conflict(ids)) if ids == &["a"]),
        "{late:?}"
    );
    assert_eq!(take(&*one, "email", 0, 10).await, [""; 0]);
    assert_eq!(take(&*one, "webhook", 0, 10).await, ["a/webhook"]);
    let again = one.write_notices(change(vec![set("b", 1, Some(1))])).await;
    assert!(matches!(again, Err(WriteError::Conflict(_))), "{again:?}");

    ok(one
        .write_notices(change(vec![TimerChange::End("b".into())]))
        .await);
    assert_eq!(due(100).await, ["a"]);
    let timer = ok(other.timer("a").await).map(|timer| (timer.version, timer.state));
    assert_eq!(timer, Some((2, Bytes::from_static(b"a 2"))));
    assert_eq!(ok(other.timer("b").await), None);
}

pub async fn a_failure_hastens_the_timer_of_its_alert_alone(harness: &dyn Harness) {
    let (one, other) = (harness.start().await.store, harness.start().await.store);
    let set = |alert: &str, version, due_s: Option<i64>| {
        TimerChange::Set(EscalationTimer {
            alert: alert.into(),
            version,
            due_us: due_s.map(|due_s| START_US + due_s * SECOND_US),
            state: Bytes::from_static(b"state"),
        })
    };
    let timers = |timers: Vec<TimerChange>| NoticesBatch {
        timers,
        ..NoticesBatch::default()
    };
    let hasten = |timer: &str, at_s: i64| TimerChange::Hasten {
        timer: timer.into(),
        at_us: START_US + at_s * SECOND_US,
    };
    let first = vec![
        set("a", 1, Some(900)),
        set("b", 1, Some(900)),
        set("acknowledged", 1, None),
    ];
    ok(one.write_notices(timers(first)).await);
    // The outcome and the timer change together. An alert without a timer is left alone.
    let failed = NoticesBatch {
        notices: vec![notice("a/1", &alert("a", "ann"), "webhook", 1)],
        outcomes: vec![outcome("a/1", NoticeResult::GivenUp)],
        timers: vec![
            hasten("a", 5),
            hasten("acknowledged", 5),
            hasten("unknown", 5),
        ],
    };
    ok(one.write_notices(failed).await);
    let due = async |at_s: i64| -> Vec<(String, u32)> {
        let due = other.due_timers(START_US + at_s * SECOND_US, 10).await;
        let due = ok(due).into_iter();
        due.map(|timer| (timer.alert, timer.version)).collect()
    };
    assert_eq!(due(4).await, []);
    assert_eq!(due(5).await, [("a".to_owned(), 2)]);
    // A decision that was made on the timer as it was before loses.
    let late = other
        .write_notices(timers(vec![set("a", 2, Some(950))]))
        .await;
    assert!(matches!(late, Err(WriteError::Conflict(_))), "{late:?}");
    // A timer that is due earlier stays.
    ok(one.write_notices(timers(vec![hasten("a", 60)])).await);
    assert_eq!(due(5).await, [("a".to_owned(), 2)]);
    assert_eq!(ok(other.timer("unknown").await), None);
    let acknowledged = ok(other.timer("acknowledged").await);
    assert_eq!(acknowledged.map(|timer| timer.due_us), Some(None));
}

pub async fn notices_are_kept_with_their_alert(harness: &dyn Harness) {
    let store = harness.start().await.store;
    for (tenant, patient) in [("one", "ann"), ("two", "bob")] {
        let entry = PatientEntry {
            id: patient.into(),
            tenant: tenant.into(),
            name: patient.into(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        ok(store.put_patient(&entry).await);
    }
    let resolved = Alert {
        state: AlertState::Resolved.into(),
        revision: 2,
        ..alert("a", "ann")
    };
    let alerts = AlertsBatch {
        transitions: vec![alert("a", "ann"), alert("b", "bob"), resolved],
        states: Vec::new(),
    };
    ok(store.write_alerts(alerts, Vec::new()).await);
    let batch = NoticesBatch {
        notices: vec![
            notice("a/2", &alert("a", "ann"), "webhook", 2),
            notice("a/1", &alert("a", "ann"), "webhook", 1),
            notice("b/1", &alert("b", "bob"), "webhook", 3),
        ],
        outcomes: vec![outcome("a/1", NoticeResult::Delivered)],
        timers: Vec::new(),
    };
    ok(store.write_notices(batch).await);
    let told = async |scope: &Scope, alert: &str| -> Vec<(String, bool)> {
        let records = ok(store.notices(scope, alert).await);
        records
            .into_iter()
            .filter_map(|record| Some((record.notice?.id, record.outcome.is_some())))
            .collect()
    };
    let of_a = [("a/1".to_owned(), true), ("a/2".to_owned(), false)];
    assert_eq!(told(&ALL, "a").await, of_a);
    assert_eq!(told(&Scope::tenant("one"), "a").await, of_a);
    assert_eq!(told(&Scope::tenant("two"), "a").await, []);
    assert_eq!(told(&Scope::tenant("one"), "b").await, []);
    ok(store.expire(Expire::Alerts, START_US + SECOND_US).await);
    assert_eq!(told(&ALL, "a").await, [], "they go with the alert");
    assert_eq!(told(&ALL, "b").await.len(), 1);
}

pub async fn documents_are_versioned_and_scoped(harness: &dyn Harness) {
    let (store, other) = (harness.start().await.store, harness.start().await.store);
    let document = |tenant: &str, subject: &str, version| Document {
        kind: "rules".into(),
        tenant: tenant.into(),
        subject: subject.into(),
        version,
        author: "Ada".into(),
        reason: "because".into(),
        at_us: START_US,
        until_us: 0,
        body: format!("{tenant} {subject} {version}"),
    };
    assert_eq!(ok(other.newest_document().await), 0);
    let first = document("one", "default", 1);
    ok(store.put_document(&first).await);
    let seen = ok(other.newest_document().await);
    assert!(seen > 0);
    for wrong in [
        document("one", "default", 1),
        document("one", "default", 3),
        document("one", "patient:ann", 0),
        document("one", "patient:ann", 2),
    ] {
        let refused = store.put_document(&wrong).await;
        assert!(
            matches!(refused, Err(WriteError::Conflict(_))),
            "{refused:?}"
        );
    }
    assert_eq!(ok(other.newest_document().await), seen);
    let second = document("one", "default", 2);
    let short = Document {
        until_us: START_US + SECOND_US,
        ..document("one", "patient:ann", 1)
    };
    let theirs = document("two", "default", 1);
    for next in [&second, &short, &theirs] {
        ok(store.put_document(next).await);
    }
    assert!(ok(other.newest_document().await) > seen);

    let (one, two) = (Scope::tenant("one"), Scope::tenant("two"));
    let now = async |scope: &Scope, at_us| ok(other.documents(scope, "rules", at_us).await);
    assert_eq!(now(&one, START_US).await, [second.clone(), short.clone()]);
    assert_eq!(
        now(&one, short.until_us).await,
        std::slice::from_ref(&second)
    );
    assert_eq!(now(&two, START_US).await, std::slice::from_ref(&theirs));
    assert_eq!(now(&ALL, START_US).await, [second.clone(), short, theirs]);
    assert_eq!(ok(other.documents(&ALL, "team", START_US).await), []);
    let history = async |scope: &Scope| ok(other.document_history(scope, "rules", "default").await);
    assert_eq!(history(&one).await, [second, first]);
    assert_eq!(history(&two).await.len(), 1);

    // A version that ends at once takes the one before it out of force.
    let ended = Document {
        until_us: START_US,
        ..document("one", "default", 3)
    };
    ok(store.put_document(&ended).await);
    assert!(
        now(&one, START_US + 1)
            .await
            .iter()
            .all(|d| d.subject != "default")
    );
}

pub async fn a_tenants_documents_have_a_bound_in_bytes(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let document = |tenant: &str, subject: &str, version, bytes: usize| Document {
        kind: RULES.into(),
        tenant: tenant.into(),
        subject: subject.into(),
        version,
        at_us: START_US,
        body: "x".repeat(bytes),
        ..Document::default()
    };
    const LARGE: usize = 4 << 20;
    let fit = DOCUMENTS_BYTES_MAX as usize / LARGE - 1;
    for n in 0..fit {
        ok(store
            .put_document(&document("one", &format!("group:{n}"), 1, LARGE))
            .await);
    }
    let put = async |document: Document| store.put_document(&document).await;
    let refused = |put: Result<(), WriteError>| match put {
        Err(WriteError::Invalid(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let reason = refused(put(document("one", "default", 1, LARGE)).await);
    assert!(reason.contains("33554432"), "{reason}");
    // The bound is for one tenant. A write that needs no more room is accepted.
    ok(put(document("two", "default", 1, LARGE)).await);
    ok(put(document("one", "default", 1, LARGE / 2)).await);
    refused(put(document("one", "default", 2, LARGE)).await);
    ok(put(document("one", "group:0", 2, LARGE)).await);
    ok(put(document("one", "group:0", 3, 0)).await);
    ok(put(document("one", "default", 2, LARGE)).await);
    // Services bound their own documents, such as revocations.
    let revocation = Document {
        kind: REVOCATION.into(),
        ..document("one", "gw", 1, LARGE)
    };
    ok(put(revocation).await);
}
