use contracts::{
    alerts::{Alert, AlertState},
    vitals::{Gap, Metric},
};

use super::{Harness, START_US, ok, sample};
use crate::{
    Account, AlertsBatch, AlertsQuery, AuditEntry, AuditQuery, DeviceEntry, Expire, GatewayEntry,
    PatientEntry, Restore, Role, Scope, SeriesQuery, Spo2Scale, Store, VitalsBatch, WriteError,
};

fn device(id: &str, tenant: &str) -> DeviceEntry {
    DeviceEntry {
        id: id.into(),
        tenant: tenant.into(),
        gateway: format!("gw-{tenant}"),
        patient: format!("patient-{tenant}"),
        registered_us: START_US,
    }
}

pub async fn the_register_refuses_other_tenants(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let one = device("belt", "one");
    ok(store.put_device(&one).await);
    ok(store.put_device(&one).await);
    ok(store.put_device(&device("clip", "two")).await);
    let all = Scope::Service;
    assert_eq!(ok(store.device(&all, "belt").await), Some(one.clone()));
    assert_eq!(ok(store.device(&all, "none").await), None);
    let of_gateway = ok(store.devices(&all, Some("gw-one")).await);
    assert_eq!(of_gateway, std::slice::from_ref(&one));
    assert_eq!(ok(store.devices(&all, None).await).len(), 2);
    let patient = ok(store.patient(&all, "patient-one").await);
    assert_eq!(
        patient.map(|p| (p.name, p.spo2_scale)),
        Some(("patient-one".into(), Spo2Scale::One))
    );
    let named = PatientEntry {
        id: "patient-one".into(),
        tenant: "one".into(),
        name: "Ann Example".into(),
        spo2_scale: Spo2Scale::Two,
        ..PatientEntry::default()
    };
    ok(store.put_patient(&named).await);
    ok(store.put_device(&one).await);
    assert_eq!(
        ok(store.patient(&all, "patient-one").await),
        Some(named.clone()),
        "a device does not rename its patient"
    );

    // An id of another tenant cannot be taken, and the attempt leaves nothing.
    let stolen_device = device("belt", "two");
    let others_patient = DeviceEntry {
        patient: "patient-one".into(),
        ..device("new", "two")
    };
    let others_gateway = DeviceEntry {
        gateway: "gw-one".into(),
        ..device("new", "two")
    };
    for entry in [
        stolen_device,
        others_patient,
        others_gateway,
        device("", "two"),
        device("new", ""),
    ] {
        let refused = store.put_device(&entry).await;
        assert!(
            matches!(refused, Err(WriteError::Invalid(_))),
            "{entry:?} gave {refused:?}"
        );
    }
    let stolen = PatientEntry {
        tenant: "two".into(),
        ..named
    };
    assert!(matches!(
        store.put_patient(&stolen).await,
        Err(WriteError::Invalid(_))
    ));
    let stolen = GatewayEntry {
        id: "gw-one".into(),
        tenant: "two".into(),
    };
    assert!(matches!(
        store.put_gateway(&stolen).await,
        Err(WriteError::Invalid(_))
    ));
    assert_eq!(ok(store.devices(&all, None).await).len(), 2);
    assert_eq!(ok(store.device(&all, "belt").await), Some(one));

    assert!(!ok(store
        .remove_device(&Scope::tenant("two"), "belt")
        .await));
    assert!(ok(store.remove_device(&Scope::tenant("one"), "belt").await));
    assert_eq!(ok(store.device(&all, "belt").await), None);
}

/// Two tenants with one of everything each.
async fn fill(store: &dyn Store) {
    for tenant in ["one", "two"] {
        let entry = device(&format!("belt-{tenant}"), tenant);
        ok(store.put_device(&entry).await);
        let mut sample = sample(&entry.id, &entry.patient, Metric::HeartRate, 1);
        sample.gateway.clone_from(&entry.gateway);
        let gap = Gap {
            device: entry.id,
            stream: "heart-rate".into(),
            first_sequence: 2,
            last_sequence: 3,
            from_time_us: START_US,
            to_time_us: START_US + 1,
            patient: entry.patient.clone(),
            gateway: entry.gateway.clone(),
            ..Gap::default()
        };
        let batch = VitalsBatch {
            samples: vec![sample],
            gaps: vec![gap],
            ..VitalsBatch::default()
        };
        ok(store.write_vitals(batch.into(), Vec::new()).await);
        let alert = |id: String, patient: String| Alert {
            id,
            patient,
            gateway: entry.gateway.clone(),
            state: AlertState::Active as i32,
            revision: 1,
            ..Alert::default()
        };
        let transitions = vec![
            alert(format!("alert-{tenant}"), entry.patient.clone()),
            // An alert of a gateway, not of a patient.
            alert(format!("offline-{tenant}"), String::new()),
        ];
        let batch = AlertsBatch {
            transitions,
            states: Vec::new(),
        };
        ok(store.write_alerts(batch, Vec::new()).await);
    }
}

pub async fn every_question_stays_in_its_tenant(harness: &dyn Harness) {
    let store = harness.start().await.store;
    fill(store.as_ref()).await;
    for (mine, other) in [("one", "two"), ("two", "one")] {
        let scope = Scope::tenant(mine);
        let theirs = format!("patient-{other}");
        let own = format!("patient-{mine}");
        let far = (0, i64::MAX);

        let patients = ok(store.patients(&scope).await);
        assert_eq!(patients.iter().map(|p| &p.id).collect::<Vec<_>>(), [&own]);
        assert_eq!(ok(store.patient(&scope, &theirs).await), None);
        assert_eq!(ok(store.gateways(&scope).await).len(), 1);
        assert_eq!(ok(store.devices(&scope, None).await).len(), 1);
        assert_eq!(
            ok(store.devices(&scope, Some(&format!("gw-{other}"))).await),
            []
        );
        assert_eq!(
            ok(store.device(&scope, &format!("belt-{other}")).await),
            None
        );

        assert_eq!(ok(store.latest_vitals(&scope, None).await).len(), 1);
        assert_eq!(ok(store.latest_vitals(&scope, Some(&theirs)).await), []);
        assert_eq!(
            ok(store.samples(&scope, &own, far.0, far.1, 10).await).len(),
            1
        );
        assert_eq!(
            ok(store.samples(&scope, &theirs, far.0, far.1, 10).await),
            []
        );
        assert_eq!(ok(store.gaps(&scope, &own, far.0, far.1).await).len(), 1);
        assert_eq!(ok(store.gaps(&scope, &theirs, far.0, far.1).await), []);
        for (patient, series) in [(&own, 1), (&theirs, 0)] {
            let query = SeriesQuery {
                patient: patient.clone(),
                metrics: Vec::new(),
                from_us: far.0,
                to_us: far.1,
                points: 10,
            };
            assert_eq!(ok(store.series(&scope, &query).await).len(), series);
        }

        let all = AlertsQuery::default();
        let mut ids: Vec<String> = ok(store.alerts(&scope, &all).await)
            .into_iter()
            .map(|a| a.id)
            .collect();
        ids.sort();
        assert_eq!(ids, [format!("alert-{mine}"), format!("offline-{mine}")]);
        let query = AlertsQuery {
            patient: Some(theirs),
            ..all
        };
        assert_eq!(ok(store.alerts(&scope, &query).await), []);
        for id in [format!("alert-{other}"), format!("offline-{other}")] {
            assert_eq!(ok(store.alert(&scope, &id).await), None);
            assert_eq!(ok(store.alert_history(&scope, &id).await), []);
        }
    }
    assert_eq!(
        ok(store.alerts(&Scope::Service, &AlertsQuery::default()).await).len(),
        4
    );
}

pub async fn accounts_are_created_once(harness: &dyn Harness) {
    let (one, other) = (harness.start().await.store, harness.start().await.store);
    let account = |role, tenant: &str| Account {
        name: "admin".into(),
        tenant: tenant.into(),
        role,
        password_hash: "$argon2id$v=19$...".into(),
        created_us: START_US,
    };
    let admin = account(Role::Administrator, "one");
    let late = account(Role::Viewer, "two");
    let created = tokio::join!(one.create_account(&admin), other.create_account(&admin));
    assert_eq!(
        u8::from(ok(created.0)) + u8::from(ok(created.1)),
        1,
        "one of two wins"
    );
    assert!(!ok(other.create_account(&late).await));
    assert_eq!(ok(one.account("admin").await), Some(admin.clone()));
    assert!(
        !format!("{admin:?}").contains("argon2"),
        "a hash is not for logs"
    );
    let demoted = account(Role::Clinician, "one");
    ok(one.put_account(&demoted).await);
    assert_eq!(ok(other.accounts(&Scope::tenant("one")).await), [demoted]);
    assert_eq!(ok(other.accounts(&Scope::tenant("two")).await), []);
    assert!(ok(one.remove_account("admin").await));
    assert!(!ok(one.remove_account("admin").await));
    assert_eq!(ok(other.account("admin").await), None);
}

pub async fn audit_is_kept_in_order(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let entry = |n: i64, tenant: &str, patient: &str| AuditEntry {
        time_us: START_US + n,
        tenant: tenant.into(),
        who: "eve".into(),
        action: "read series".into(),
        patient: patient.into(),
        detail: n.to_string(),
    };
    let entries = [
        entry(1, "one", "ann"),
        entry(2, "one", "bob"),
        entry(2, "two", "cem"),
        entry(3, "one", "ann"),
    ];
    ok(store.append_audit(entries.to_vec()).await);
    let query = |patient: Option<&str>, limit| AuditQuery {
        patient: patient.map(str::to_owned),
        from_us: START_US,
        to_us: START_US + 4,
        limit,
    };
    let one = Scope::tenant("one");
    let newest_first = [entries[3].clone(), entries[1].clone(), entries[0].clone()];
    assert_eq!(ok(store.audit(&one, &query(None, 0)).await), newest_first);
    assert_eq!(
        ok(store.audit(&one, &query(Some("ann"), 1)).await),
        newest_first[..1]
    );
    assert_eq!(ok(store.audit(&one, &query(Some("cem"), 0)).await), []);
    assert_eq!(
        ok(store.audit(&Scope::Service, &query(None, 0)).await).len(),
        4
    );
    assert_eq!(ok(store.expire(Expire::Audit, START_US + 3).await), 3);
}

pub async fn the_newest_restore_is_known(harness: &dyn Harness) {
    let store = harness.start().await.store;
    assert_eq!(ok(store.last_restore().await), None);
    let of = |restored_us, made_us| Restore {
        restored_us,
        made_us,
    };
    for restore in [of(20, 10), of(40, 5), of(30, 25)] {
        ok(store.note_restore(restore).await);
    }
    assert_eq!(ok(store.last_restore().await), Some(of(40, 5)));
}
