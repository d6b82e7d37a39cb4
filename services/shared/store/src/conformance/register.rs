use contracts::vitals::{EdgeAlert, Gap, Metric, Quarantined, quarantined::Entry};

use super::{Harness, SECOND_US, START_US, ok, sample};
use crate::{
    Assigned, Assignment, AuditEntry, AuditQuery, Change, Of, QuarantineQuery, QuarantineTotals,
    Scope, Store, VitalsBatch, WriteError, Written, each_assignment_at,
};

fn assignment(device: &str, patient: &str, from_us: i64) -> Assignment {
    Assignment {
        device: device.into(),
        tenant: "one".into(),
        gateway: "gw-1".into(),
        patient: patient.into(),
        from_us,
        until_us: i64::MAX,
        entered: change(START_US),
    }
}

fn change(at_us: i64) -> Change {
    Change {
        author: "eve".into(),
        reason: "a test".into(),
        at_us,
    }
}

/// Patient, beginning and end of each.
async fn worn(store: &dyn Store, of: Of<'_>) -> Vec<(String, i64, i64)> {
    let found = ok(store.assignments(&Scope::tenant("one"), of).await);
    let found = found.into_iter();
    found
        .map(|it| (it.patient, it.from_us, it.until_us))
        .collect()
}

pub async fn assignments_of_a_device_do_not_overlap(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = store.as_ref();
    let at = |hours: i64| START_US + hours * 3600 * SECOND_US;
    let first = assignment("belt", "ada", i64::MIN);
    assert_eq!(ok(store.assign(&first).await), Assigned::New(None));
    assert_eq!(ok(store.assign(&first).await), Assigned::Unchanged);
    let moved = Assignment {
        gateway: "gw-2".into(),
        ..assignment("belt", "ben", at(2))
    };
    assert_eq!(
        ok(store.assign(&moved).await),
        Assigned::New(Some(first.clone()))
    );
    // No assignment that has ended is cut.
    let between = Assignment {
        until_us: at(3),
        ..assignment("belt", "cleo", at(1))
    };
    let refused = store.assign(&between).await;
    assert!(
        matches!(refused, Err(WriteError::Invalid(reason)) if reason.contains("end or remove"))
    );
    assert_eq!(
        worn(store, Of::Device("belt")).await,
        [
            ("ada".to_owned(), i64::MIN, at(2)),
            ("ben".to_owned(), at(2), i64::MAX)
        ]
    );
    let scope = Scope::tenant("one");
    let devices = ok(store.devices(&scope, None).await);
    assert_eq!(devices.len(), 1, "as it is at present");
    assert_eq!(
        (&*devices[0].patient, devices[0].registered_us),
        ("ben", at(2))
    );
    assert_eq!(ok(store.devices(&scope, Some("gw-1")).await), []);
    assert_eq!(worn(store, Of::Gateway("gw-1")).await.len(), 1);
    assert_eq!(worn(store, Of::Patient("ben")).await.len(), 1);
    assert_eq!(worn(store, Of::Patient("cleo")).await, []);

    // The end is behind the beginning, of one's own tenant, and there once.
    let ended = |scope: Scope, until_us| async move {
        let change = change(START_US + 1);
        store
            .end_assignment(&scope, "belt", until_us, &change)
            .await
    };
    assert!(ended(scope.clone(), at(2)).await.is_err());
    assert_eq!(ok(ended(Scope::tenant("two"), at(4)).await), None);
    let open = ok(ended(scope.clone(), at(4)).await);
    assert_eq!(open.map(|it| it.until_us), Some(at(4)));
    assert_eq!(ok(ended(scope.clone(), at(5)).await), None);
    assert_eq!(ok(store.device(&scope, "belt").await), None);
    ok(store.assign(&assignment("belt", "ada", at(6))).await);

    // Each change is seen, also one by a clock that is behind.
    let changed = async || {
        let changed = ok(store.assignments_changed_since(START_US - 1).await);
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert_eq!(changed[0].0, "belt");
        changed[0].1
    };
    let before_us = changed().await;
    let later = store.assignments_changed_since(before_us);
    assert_eq!(ok(later.await), []);
    let removed = store
        .remove_assignments(&scope, "belt", Some(at(2)), &change(START_US + 1))
        .await;
    assert_eq!(ok(removed), 1);
    assert!(changed().await > before_us, "what is gone is a change, too");
    assert_eq!(worn(store, Of::Device("belt")).await.len(), 2);

    each_change_is_signed_and_audited(store).await;
    of_two_callers_one_follows_the_other(store).await;
}

/// Without an author or a reason nothing changes. Every change so far has an audit row.
async fn each_change_is_signed_and_audited(store: &dyn Store) {
    let mut unsigned = assignment("clip", "ada", START_US);
    unsigned.entered.author.clear();
    assert!(store.assign(&unsigned).await.is_err());
    let query = AuditQuery {
        patient: None,
        from_us: START_US,
        to_us: START_US + SECOND_US,
        limit: 0,
    };
    let audit = ok(store.audit(&Scope::tenant("one"), &query).await);
    let actions: Vec<&str> = audit.iter().rev().map(|it| it.action.as_str()).collect();
    assert_eq!(
        actions,
        [
            "assign device",
            "assign device",
            "assign device",
            "end assignment",
            "remove assignment"
        ]
    );
    assert!(
        audit
            .iter()
            .all(|it| it.who == "eve" && it.detail.contains("a test"))
    );
}

/// One assignment follows the other.
async fn of_two_callers_one_follows_the_other(store: &dyn Store) {
    let (one, two) = (
        assignment("clip", "ada", START_US),
        assignment("clip", "ben", START_US + 3600 * SECOND_US),
    );
    let (one, two) = tokio::join!(store.assign(&one), store.assign(&two));
    assert!(two.is_ok() && (one.is_ok() || matches!(one, Err(WriteError::Invalid(_)))));
    let worn = worn(store, Of::Device("clip")).await;
    assert!(
        worn.windows(2).all(|pair| pair[0].2 <= pair[1].1),
        "{worn:?}"
    );
}

pub async fn the_register_is_read_in_pages(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = store.as_ref();
    let at = |hours: i64| START_US + hours * 3600 * SECOND_US;
    for (n, device) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let patient = format!("p{n}");
        ok(store.assign(&assignment(device, &patient, at(0))).await);
    }
    // The clip was handed over, and the ring was lent until a known time.
    ok(store.assign(&assignment("b", "ben", at(2))).await);
    let lent = Assignment {
        until_us: at(3),
        ..assignment("ring", "eve", at(1))
    };
    ok(store.assign(&lent).await);
    let scope = Scope::tenant("one");
    let mut found: Vec<(String, String)> = Vec::new();
    for (after, expected) in [("", 3), ("c", 3), ("ring", 0)] {
        let page = ok(store.assignments_at(&scope, at(2), after, 3).await);
        assert_eq!(page.len(), expected, "{after}");
        found.extend(page.into_iter().map(|it| (it.device, it.patient)));
    }
    let wearers: Vec<&str> = found.iter().map(|(_, patient)| &**patient).collect();
    assert_eq!(wearers, ["p0", "ben", "p2", "p3", "p4", "eve"]);
    let of = async |at_us, scope: &Scope| {
        let mut devices = Vec::new();
        ok(each_assignment_at(store, scope, at_us, |it| devices.push(it.device)).await);
        devices.len()
    };
    assert_eq!(of(at(0) - 1, &scope).await, 0, "before all");
    assert_eq!(of(at(3), &scope).await, 5, "the ring is back");
    assert_eq!(of(at(2), &Scope::tenant("two")).await, 0);

    let page = ok(store.patients_page(&scope, "p0", 2).await);
    let ids: Vec<&str> = page.iter().map(|it| &*it.id).collect();
    assert_eq!(ids, ["p1", "p2"]);
    assert_eq!(ok(store.patients(&scope).await).len(), 7);
    let page = ok(store.devices_page(&scope, Some("gw-1"), "c", 9).await);
    assert_eq!(page.len(), 2);
    let page = ok(store.gateways_page(&scope, "", 9).await);
    assert_eq!(page.len(), 1);
    assert_eq!(ok(store.gateways_page(&scope, "gw-1", 9).await), []);
    assert!(ok(store.gateway(&scope, "gw-1").await).is_some());
    let other = Scope::tenant("two");
    assert!(ok(store.gateway(&other, "gw-1").await).is_none());
    // Several devices may have been changed at the same time.
    let mut changed = ok(store.assignments_changed_page((START_US - 1, ""), 4).await);
    assert_eq!(changed.len(), 4);
    let (id, us) = changed[3].clone();
    changed.extend(ok(store.assignments_changed_page((us, &id), 4).await));
    changed.sort();
    changed.dedup();
    assert_eq!(changed.len(), 6, "{changed:?}");
}

/// Three entries of one device and an alert of another.
fn kept_apart() -> Vec<Quarantined> {
    let kept = |kind: &str, entry| Quarantined {
        tenant: "one".into(),
        gateway: "gw-1".into(),
        kind: kind.into(),
        reason: "the register does not know the device".into(),
        arrived_us: START_US + 9,
        entry: Some(entry),
    };
    let reading = |sequence| sample("belt", "", Metric::HeartRate, sequence);
    let gap = Gap {
        device: "belt".into(),
        stream: "heart-rate".into(),
        first_sequence: 7,
        last_sequence: 9,
        from_time_us: START_US + 7 * SECOND_US,
        to_time_us: START_US + 9 * SECOND_US,
        ..Gap::default()
    };
    let alert = EdgeAlert {
        device: "clip".into(),
        rule: "fall".into(),
        sequence: 1,
        time_us: START_US,
        ..EdgeAlert::default()
    };
    vec![
        kept("unknown-device", Entry::Sample(reading(1))),
        kept("unknown-device", Entry::Sample(reading(2))),
        kept("unknown-device", Entry::Gap(gap)),
        kept("not-assigned", Entry::Alert(alert)),
    ]
}

pub async fn what_is_kept_apart_stays_until_it_is_settled(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let entries = kept_apart();
    let batch = VitalsBatch {
        quarantined: entries.clone(),
        ..VitalsBatch::default()
    };
    let write =
        async |batch: &VitalsBatch| ok(store.write_vitals(batch.clone().into(), Vec::new()).await);
    let written = |new, duplicate| Written { new, duplicate };
    assert_eq!(write(&batch).await, written(4, 0));
    assert_eq!(
        write(&batch).await,
        written(0, 4),
        "an upload that came again"
    );

    let (mine, other) = (Scope::tenant("one"), Scope::tenant("two"));
    let cases = ok(store.quarantine_cases(&mine).await);
    assert_eq!(cases.len(), 2);
    let belt = cases.iter().find(|case| case.device == "belt");
    let belt = belt.unwrap_or_else(|| panic!("{cases:?}"));
    assert_eq!((belt.entries, &*belt.kind), (3, "unknown-device"));
    assert_eq!(
        (belt.first_us, belt.last_us),
        (START_US + SECOND_US, START_US + 7 * SECOND_US)
    );
    assert_eq!(ok(store.quarantine_cases(&other).await), []);
    let totals = ok(store.quarantine_totals(&mine).await);
    assert_eq!((totals.cases, totals.entries), (2, 4));
    let totals = ok(store.quarantine_totals(&other).await);
    assert_eq!(totals, QuarantineTotals::default());
    let fill = ok(store.quarantine_fill().await);
    assert_eq!((fill.len(), fill[0].entries), (1, 4));
    assert!(fill[0].bytes > 0);

    let query = QuarantineQuery {
        device: "belt".into(),
        gateway: None,
        from_us: i64::MIN,
        until_us: i64::MAX,
        after: 0,
        limit: 2,
    };
    let page = ok(store.quarantined(&mine, &query).await);
    assert_eq!(page.len(), 2);
    assert!(page.iter().all(|it| entries.contains(&it.quarantined)));
    assert!(page[0].key < page[1].key);
    let next = QuarantineQuery {
        after: page[1].key,
        ..query.clone()
    };
    assert_eq!(ok(store.quarantined(&mine, &next).await).len(), 1);
    for nothing in [
        QuarantineQuery {
            gateway: Some("gw-2".into()),
            ..query.clone()
        },
        QuarantineQuery {
            until_us: START_US,
            ..query.clone()
        },
    ] {
        assert_eq!(ok(store.quarantined(&mine, &nothing).await), []);
    }
    assert_eq!(ok(store.quarantined(&other, &query).await), []);

    let audit = AuditEntry {
        time_us: START_US,
        tenant: "one".into(),
        who: "eve".into(),
        action: "discard quarantined".into(),
        patient: String::new(),
        detail: "2 of belt".into(),
    };
    let keys: Vec<i64> = page.iter().map(|entry| entry.key).collect();
    let settle = async |scope: &Scope| {
        ok(store
            .settle_quarantined(scope, keys.clone(), audit.clone())
            .await)
    };
    assert_eq!(settle(&other).await, 0, "another tenant's");
    assert_eq!(settle(&mine).await, 2);
    assert_eq!(settle(&mine).await, 0);
    assert_eq!(ok(store.quarantined(&mine, &query).await).len(), 1);
    let nothing = VitalsBatch {
        quarantined: vec![Quarantined::default()],
        ..VitalsBatch::default()
    };
    let refused = store.write_vitals(nothing.into(), Vec::new()).await;
    assert!(matches!(refused, Err(WriteError::Invalid(_))));
}
