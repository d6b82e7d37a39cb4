use bus::Topic;
use bytes::Bytes;
use contracts::alerts::{Alert, AlertState};
use contracts::vitals::Priority;

use super::{Harness, START_US, ok};
use crate::{AlertsBatch, AlertsQuery, Expire, OpenAlerts, RuleState, Scope, WriteError, Written};

const ALL: Scope = Scope::Service;

fn alert(id: &str, patient: &str, revision: u32, state: AlertState) -> Alert {
    Alert {
        id: id.into(),
        patient: patient.into(),
        state: state as i32,
        since_us: START_US + i64::from(id.as_bytes()[0]),
        changed_us: START_US + 1000 + i64::from(revision),
        revision,
        summary: format!("{id} {revision}"),
        ..Alert::default()
    }
}

fn transitions(transitions: Vec<Alert>) -> AlertsBatch {
    AlertsBatch {
        transitions,
        states: Vec::new(),
    }
}

pub async fn alerts_are_listed_by_their_last_revision(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let active = alert("a", "ann", 1, AlertState::Active);
    let resolved = alert("a", "ann", 2, AlertState::Resolved);
    let other = alert("b", "bob", 1, AlertState::Active);
    let late = alert("c", "ann", 2, AlertState::Acknowledged);
    let batch = transitions(vec![
        active.clone(),
        other.clone(),
        resolved.clone(),
        late.clone(),
    ]);
    assert_eq!(
        ok(store.write_alerts(batch.clone(), Vec::new()).await).new,
        4
    );
    let again = ok(store.write_alerts(batch, Vec::new()).await);
    assert_eq!(
        again,
        Written {
            new: 0,
            duplicate: 4
        }
    );
    // An older revision that comes late is history, not the present.
    let early = alert("c", "ann", 1, AlertState::Active);
    ok(store
        .write_alerts(transitions(vec![early.clone()]), Vec::new())
        .await);

    let list = async |patient: Option<&str>, include_resolved, limit| {
        let query = AlertsQuery {
            patient: patient.map(str::to_owned),
            include_resolved,
            limit,
            ..AlertsQuery::default()
        };
        ok(store.alerts(&ALL, &query).await)
    };
    assert_eq!(
        list(None, false, 0).await,
        [other.clone(), late.clone()],
        "unacknowledged first"
    );
    assert_eq!(
        list(None, true, 0).await,
        [other.clone(), late.clone(), resolved.clone()]
    );
    assert_eq!(
        list(Some("ann"), true, 0).await,
        [late.clone(), resolved.clone()]
    );
    assert_eq!(list(None, true, 1).await, std::slice::from_ref(&other));
    assert_eq!(ok(store.alert(&ALL, "a").await), Some(resolved.clone()));
    assert_eq!(ok(store.alert(&ALL, "none").await), None);
    assert_eq!(ok(store.alert_history(&ALL, "a").await), [active, resolved]);
    assert_eq!(ok(store.alert_history(&ALL, "c").await), [early, late]);

    // Only resolved ones grow old, with their history.
    assert_eq!(ok(store.expire(Expire::Alerts, START_US + 10_000).await), 1);
    assert_eq!(ok(store.alert_history(&ALL, "a").await), []);
    assert_eq!(list(None, true, 0).await.len(), 2);
}

pub async fn a_bounded_list_of_alerts_leaves_out_what_matters_least(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let open = |id: String, priority: Priority, state: AlertState, since_us: i64| Alert {
        id,
        patient: "ann".into(),
        priority: priority.into(),
        state: state.into(),
        since_us,
        revision: 1,
        ..Alert::default()
    };
    let (active, known) = (AlertState::Active, AlertState::Acknowledged);
    // The fall is older than all others but the one that is still active.
    let down = open("down".into(), Priority::High, active, START_US - 1);
    let fall = open("fall".into(), Priority::High, AlertState::Latched, START_US);
    let seen = open("seen".into(), Priority::High, known, START_US + 1);
    let medium = open("medium".into(), Priority::Medium, active, START_US + 2);
    let over = open(
        "over".into(),
        Priority::High,
        AlertState::Resolved,
        START_US + 9_000,
    );
    let mut batch = vec![
        fall.clone(),
        down.clone(),
        seen.clone(),
        medium.clone(),
        over.clone(),
    ];
    batch.extend((0..300).map(|n| {
        open(
            format!("low-{n:03}"),
            Priority::Low,
            active,
            START_US + 100 + n,
        )
    }));
    ok(store.write_alerts(transitions(batch), Vec::new()).await);

    let list = async |limit, include_resolved, only_resolved| {
        let query = AlertsQuery {
            limit,
            include_resolved,
            only_resolved,
            ..AlertsQuery::default()
        };
        ok(store.alerts(&ALL, &query).await)
    };
    let first = list(5, false, false).await;
    assert_eq!(
        first[..4],
        [down, fall, seen, medium],
        "active before ended, and both before every newer one of low priority"
    );
    assert_eq!(first[4].id, "low-299", "of equal ones the newest");
    assert_eq!(list(0, true, false).await.len(), 200);
    let all = list(1_000, true, false).await;
    assert_eq!(
        (all.len(), all.last()),
        (305, Some(&over)),
        "what is open first"
    );
    assert_eq!(list(10, true, true).await, [over]);

    let totals = ok(store.open_alerts(&ALL, None).await);
    let counts = OpenAlerts::beside(&totals, &first);
    let counts: Vec<_> = counts
        .iter()
        .map(|it| (it.priority(), it.open, it.unacknowledged, it.omitted))
        .collect();
    let expected = [
        (Priority::High, 3, 2, 0),
        (Priority::Medium, 1, 1, 0),
        (Priority::Low, 300, 300, 299),
    ];
    assert_eq!(counts, expected);
    assert_eq!(ok(store.open_alerts(&ALL, Some("bob")).await), []);
}

pub async fn a_conflicting_transition_undoes_the_whole_write(harness: &dyn Harness) {
    let store = harness.start().await.store;
    ok(store
        .write_alerts(
            transitions(vec![alert("a", "ann", 1, AlertState::Active)]),
            Vec::new(),
        )
        .await);
    let claim = ok(store
        .claim("alerting", Topic::Vitals, 0, &super::log())
        .await);
    let batch = AlertsBatch {
        transitions: vec![
            alert("b", "bob", 1, AlertState::Active),
            alert("a", "ann", 1, AlertState::Acknowledged),
        ],
        states: vec![state(0, "ann", b"x")],
    };
    let conflict = store.write_alerts(batch, vec![claim.progress(7)]).await;
    assert!(
        matches!(&conflict, Err(WriteError::Conflict(ids)) if ids == &["a"]),
        "{conflict:?}"
    );
    assert_eq!(ok(store.alert(&ALL, "b").await), None);
    assert_eq!(ok(store.rule_states(Topic::Vitals, 0).await), []);
    assert_eq!(ok(store.progress("alerting", Topic::Vitals).await), []);
    assert_eq!(ok(store.outbox(10).await).len(), 1);
}

/// Two rows with one key in one batch: the same twice is a duplicate, two different ones are a
/// conflict of the caller with itself.
pub async fn a_batch_that_contradicts_itself_is_refused(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let first = alert("a", "ann", 1, AlertState::Active);
    let other = Alert {
        from_edge: true,
        ..first.clone()
    };
    let bystander = alert("b", "bob", 1, AlertState::Active);
    let batch = transitions(vec![first.clone(), bystander, other]);
    let conflict = store.write_alerts(batch, Vec::new()).await;
    assert!(
        matches!(&conflict, Err(WriteError::Conflict(ids)) if ids == &["a"]),
        "{conflict:?}"
    );
    for id in ["a", "b"] {
        assert_eq!(ok(store.alert(&ALL, id).await), None, "nothing is written");
    }
    let twice = transitions(vec![first.clone(), first.clone()]);
    let written = ok(store.write_alerts(twice, Vec::new()).await);
    assert_eq!((written.new, written.duplicate), (1, 1));
    assert_eq!(ok(store.outbox(10).await).len(), 1);
}

pub async fn outbox_keeps_entries_until_cleared(harness: &dyn Harness) {
    let process = harness.start().await;
    let alerts: Vec<Alert> = (1..=5)
        .map(|n| alert("a", "ann", n, AlertState::Active))
        .collect();
    ok(process
        .store
        .write_alerts(transitions(alerts.clone()), Vec::new())
        .await);
    (process.kill)();
    let store = harness.start().await.store;
    let entries = ok(store.outbox(3).await);
    let alerts_of = entries.iter().filter_map(|e| e.alert.as_ref());
    let revisions: Vec<u32> = alerts_of.map(|alert| alert.revision).collect();
    assert_eq!(revisions, [1, 2, 3], "oldest first");
    assert!(entries.is_sorted_by_key(|e| e.id));
    ok(store.clear_outbox(&[entries[0].id, entries[2].id]).await);
    let left = ok(store.outbox(10).await);
    let left: Vec<&Alert> = left.iter().filter_map(|e| e.alert.as_ref()).collect();
    assert_eq!(left, [&alerts[1], &alerts[3], &alerts[4]]);
    ok(store.write_alerts(transitions(alerts), Vec::new()).await);
    assert_eq!(
        ok(store.outbox(10).await).len(),
        3,
        "a duplicate is not sent again"
    );
}

pub async fn high_alerts_leave_the_outbox_first(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let of = |id: &str, revision, priority: Priority| Alert {
        priority: priority.into(),
        ..alert(id, "ann", revision, AlertState::Active)
    };
    let alerts = vec![
        of("low", 1, Priority::Low),
        of("high", 1, Priority::High),
        of("medium", 1, Priority::Medium),
        of("high", 2, Priority::High),
    ];
    ok(store.write_alerts(transitions(alerts), Vec::new()).await);
    let urgent = ok(store.urgent_outbox(10).await);
    let urgent_alerts = urgent.iter().filter_map(|entry| entry.alert.as_ref());
    let of_alerts: Vec<(&str, u32)> = urgent_alerts
        .map(|alert| (alert.id.as_str(), alert.revision))
        .collect();
    assert_eq!(of_alerts, [("high", 1), ("high", 2)], "in their order");
    assert_eq!(ok(store.urgent_outbox(1).await).len(), 1);
    assert_eq!(
        ok(store.outbox(10).await).len(),
        4,
        "they are there as well"
    );
    ok(store.clear_outbox(&[urgent[0].id, urgent[1].id]).await);
    assert_eq!(ok(store.urgent_outbox(10).await), []);
}

fn state(partition: u32, key: &str, state: &'static [u8]) -> RuleState {
    RuleState {
        topic: Topic::Vitals,
        partition,
        key: key.into(),
        state: Bytes::from_static(state),
    }
}

pub async fn rule_states_follow_their_partition(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let write = async |states: Vec<RuleState>| {
        let batch = AlertsBatch {
            transitions: Vec::new(),
            states,
        };
        ok(store.write_alerts(batch, Vec::new()).await);
    };
    write(vec![
        state(0, "ann", b"1"),
        state(0, "bob", b"\0\xff"),
        state(1, "cem", b"3"),
    ])
    .await;
    write(vec![state(0, "ann", b"2"), state(1, "cem", b"")]).await;
    let states = ok(store.rule_states(Topic::Vitals, 0).await);
    assert_eq!(states, [state(0, "ann", b"2"), state(0, "bob", b"\0\xff")]);
    assert_eq!(
        ok(store.rule_states(Topic::Vitals, 1).await),
        [],
        "an empty state is forgotten"
    );
    assert_eq!(ok(store.rule_states(Topic::Paths, 0).await), []);
}

pub async fn the_canary_is_in_no_list_and_is_nobody(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let name = contracts::canary::NAME;
    let ended = alert("a", name, 1, AlertState::Resolved);
    // The canary of another partition.
    let other = format!("{name}.7");
    let batch = transitions(vec![
        ended.clone(),
        alert("c", &other, 1, AlertState::Resolved),
        alert("b", "bob", 1, AlertState::Resolved),
    ]);
    ok(store.write_alerts(batch, Vec::new()).await);
    let list = async |patient: Option<&str>| {
        let query = AlertsQuery {
            patient: patient.map(str::to_owned),
            include_resolved: true,
            ..AlertsQuery::default()
        };
        let alerts = ok(store.alerts(&ALL, &query).await);
        alerts.into_iter().map(|it| it.id).collect::<Vec<_>>()
    };
    assert_eq!(list(None).await, ["b"], "whoever asks for all");
    assert_eq!(list(Some(name)).await, ["a"], "whoever asks for the canary");
    assert_eq!(list(Some(&other)).await, ["c"], "and for another one");
    let before_us = ended.changed_us + 1;
    assert_eq!(ok(store.expire(Expire::CanaryAlerts, before_us).await), 2);
    assert_eq!(list(Some(name)).await, [""; 0]);
    assert_eq!(list(None).await, ["b"], "nobody else's is removed");

    let tenant = crate::DEFAULT_TENANT.to_owned();
    let patient = crate::PatientEntry {
        id: name.into(),
        tenant: tenant.clone(),
        name: "Ann".into(),
        spo2_scale: crate::Spo2Scale::One,
        ..crate::PatientEntry::default()
    };
    let refused = store.put_patient(&patient).await;
    assert!(
        matches!(refused, Err(WriteError::Invalid(_))),
        "{refused:?}"
    );
    let gateway = crate::GatewayEntry {
        id: name.into(),
        tenant,
    };
    let refused = store.put_gateway(&gateway).await;
    assert!(
        matches!(refused, Err(WriteError::Invalid(_))),
        "{refused:?}"
    );
}
