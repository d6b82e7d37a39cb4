use contracts::{
    alerts::{Alert, AlertState, Document, Notice},
    patients::{Change as PatientChange, Identifier, Operation, Patient, PatientStatus},
    vitals::{Metric, Priority},
};
use patients::Refusal;

use super::{Harness, SECOND_US, START_US, batch, ok, sample};
use crate::{
    ASSIGN_LEAD_US, AlertsQuery, AuditQuery, Change, ChangePatientsError, DeviceEntry,
    EscalationTimer, NoticesBatch, Of, RULES, Scope, Silent, SilentBatch, Stays, Store, Take,
    TimerChange, Watched, WriteError,
};

const TENANT: &str = "one";
const NOW_US: i64 = START_US + 3600 * SECOND_US;

fn by(reason: &str) -> Change {
    Change {
        author: "eve".into(),
        reason: reason.into(),
        at_us: NOW_US,
    }
}

fn change(patient: &str, operation: Operation) -> PatientChange {
    PatientChange {
        patient: patient.into(),
        operation: operation.into(),
        ..PatientChange::default()
    }
}

fn admit(patient: &str, value: &str) -> PatientChange {
    let identifier = Identifier {
        system: "mrn".into(),
        value: value.into(),
    };
    PatientChange {
        details: Some(Patient {
            name: format!("{patient} example"),
            birth_date: "1941-07-30".into(),
            identifiers: vec![identifier],
            ..Patient::default()
        }),
        ..change(patient, Operation::Admit)
    }
}

async fn make(
    store: &dyn Store,
    changes: &[PatientChange],
) -> Result<Vec<Patient>, ChangePatientsError> {
    store.change_patients(TENANT, changes, &by("a test")).await
}

async fn make_one(store: &dyn Store, patient: &str, operation: Operation) -> Patient {
    let mut made = ok(make(store, &[change(patient, operation)]).await);
    made.pop().unwrap_or_default()
}

async fn wear(store: &dyn Store, device: &str, patient: &str) -> Result<(), WriteError> {
    let entry = DeviceEntry {
        id: device.into(),
        tenant: TENANT.into(),
        gateway: "gw-1".into(),
        patient: patient.into(),
        registered_us: START_US,
    };
    store.put_device(&entry).await
}

fn alert(id: &str, patient: &str) -> Alert {
    Alert {
        id: id.into(),
        patient: patient.into(),
        device: "belt".into(),
        rule: "device-silent".into(),
        priority: Priority::High.into(),
        state: AlertState::Active.into(),
        since_us: START_US,
        changed_us: START_US,
        revision: 1,
        ..Alert::default()
    }
}

fn take() -> Take<'static> {
    Take {
        channel: "email",
        now_us: NOW_US,
        until_us: NOW_US + SECOND_US,
        limit: 10,
        least: Priority::Unspecified,
    }
}

/// An open alert of the patient with its silence, notice and timer.
async fn raise(store: &dyn Store, id: &str, patient: &str) {
    let silent = Silent {
        alert: alert(id, patient),
        subject: format!("{id} of {patient}"),
        reading_us: START_US,
        report_us: i64::MIN,
    };
    let begun = SilentBatch {
        begun: vec![silent],
        ended: Vec::new(),
    };
    ok(store.write_silent(begun).await);
    let notice = Notice {
        id: format!("{id}/1/email/eve"),
        alert: Some(alert(id, patient)),
        tenant: TENANT.into(),
        channel: "email".into(),
        due_us: START_US,
        ..Notice::default()
    };
    let timer = EscalationTimer {
        alert: id.into(),
        version: 1,
        due_us: Some(START_US),
        state: b"told".as_slice().into(),
    };
    let notices = NoticesBatch {
        notices: vec![notice],
        timers: vec![TimerChange::Set(timer)],
        ..NoticesBatch::default()
    };
    ok(store.write_notices(notices).await);
}

/// Nothing about the alert would tell anybody.
async fn is_quiet(store: &dyn Store, id: &str) {
    let stored = ok(store.alert(&Scope::Service, id).await);
    let stored = stored.unwrap_or_else(|| panic!("no alert {id}"));
    assert_eq!(stored.state(), AlertState::Resolved, "{stored:?}");
    assert!(stored.note.contains("patient"), "{stored:?}");
    assert_eq!(ok(store.timer(id).await), None);
    assert_eq!(ok(store.due_timers(i64::MAX, 10).await), []);
    assert_eq!(ok(store.take_notices(take()).await), []);
    assert_eq!(ok(store.silent_page("", 10).await).0, []);
    let outbox = ok(store.outbox(100).await);
    let mut last = outbox.iter().filter_map(|it| it.alert.as_ref());
    let last = last.rfind(|it| it.id == id);
    assert_eq!(last.map(Alert::state), Some(AlertState::Resolved));
}

fn refusal(made: Result<Vec<Patient>, ChangePatientsError>) -> (usize, Refusal) {
    match made {
        Err(ChangePatientsError::Refused { index, refusal }) => (index, refusal),
        other => panic!("{other:?}"),
    }
}

pub async fn a_stay_ends_with_everything_that_is_open(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = store.as_ref();
    ok(make(store, &[admit("ada", "1"), admit("ben", "2")]).await);
    ok(wear(store, "belt", "ada").await);
    raise(store, "fall", "ada").await;
    assert_eq!(ok(store.patients(&Scope::Service).await).len(), 2);

    let paused = make_one(store, "ada", Operation::Pause).await;
    assert_eq!(paused.status(), PatientStatus::Paused);
    let watches = async |since_us| ok(store.watches(since_us).await);
    assert_eq!(watches(NOW_US).await, [("ada".into(), Watched::No)]);
    let since = watches(NOW_US - 1).await;
    assert!(
        since.contains(&("ben".into(), Watched::Since(NOW_US))),
        "{since:?}"
    );
    let entry = ok(store.patient(&Scope::Service, "ada").await);
    assert!(entry.is_some_and(|it| it.is_present() && it.status == PatientStatus::Paused));

    let gone = make_one(store, "ada", Operation::Discharge).await;
    assert_eq!(
        (gone.status(), gone.status_at_us),
        (PatientStatus::Discharged, NOW_US)
    );
    is_quiet(store, "fall").await;
    assert_eq!(watches(NOW_US).await, []);
    let present = ok(store.patients(&Scope::Service).await);
    assert_eq!(present.len(), 1, "{present:?}");
    let present = ok(store
        .patient_records(&Scope::tenant(TENANT), Stays::Present)
        .await);
    assert_eq!(present.len(), 1);
    let all = ok(store
        .patient_records(&Scope::tenant(TENANT), Stays::All)
        .await);
    assert_eq!(all[0], gone);
    let worn = ok(store.assignments(&Scope::Service, Of::Patient("ada")).await);
    assert_eq!(worn.len(), 1);
    assert_eq!(worn[0].until_us, NOW_US);
    assert!(matches!(
        wear(store, "clip", "ada").await,
        Err(WriteError::Invalid(reason)) if reason.contains("discharged")
    ));
    let audit = AuditQuery {
        patient: Some("ada".into()),
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let audit = ok(store.audit(&Scope::tenant(TENANT), &audit).await);
    let discharge = audit.iter().find(|it| it.action == "discharge patient");
    assert!(
        discharge.is_some_and(|it| it.who == "eve" && it.detail.contains("reason: a test")),
        "{audit:?}"
    );

    // A reading that was under way raised another alert.
    raise(store, "late", "ada").await;
    raise(store, "of-ben", "ben").await;
    assert_eq!(ok(store.end_departed(NOW_US + 1).await), 1);
    assert_eq!(ok(store.end_departed(NOW_US + 1).await), 0);
    let open = ok(store.alerts(&Scope::Service, &AlertsQuery::default()).await);
    let open: Vec<&str> = open.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(open, ["of-ben"]);
    make_one(store, "ben", Operation::Die).await;
    is_quiet(store, "of-ben").await;

    let again = make_one(store, "ada", Operation::Admit).await;
    assert_eq!(again.status(), PatientStatus::Admitted);
    assert_eq!(
        (&*again.name, &*again.birth_date),
        ("ada example", "1941-07-30")
    );
    ok(wear(store, "clip", "ada").await);
}

pub async fn changes_of_patients_are_made_together_or_not_at_all(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = store.as_ref();
    let identifier = |value: &str| Identifier {
        system: "mrn".into(),
        value: value.into(),
    };
    let taken = |owner: &str| Refusal::Taken {
        system: "mrn".into(),
        value: "1".into(),
        owner: owner.into(),
    };
    let wrong = [admit("ada", "1"), admit("ben", "2"), admit("eve", "1")];
    assert_eq!(refusal(make(store, &wrong).await), (2, taken("ada")));
    let checked = ok(store.check_patients(TENANT, &wrong[..2], NOW_US).await);
    assert_eq!(checked.len(), 2);
    assert_eq!(ok(store.patients(&Scope::Service).await), []);
    assert_eq!(ok(make(store, &wrong[..2]).await).len(), 2);
    assert_eq!(refusal(make(store, &wrong[2..]).await), (0, taken("ada")));
    let mine = Scope::tenant(TENANT);
    let ben = ok(store.patient_of_identifier(&mine, &identifier("2")).await);
    assert_eq!(ben.map(|it| it.id), Some("ben".into()));
    let other = Scope::tenant("two");
    let theirs = store.patient_of_identifier(&other, &identifier("2")).await;
    assert_eq!(ok(theirs), None);
    assert_eq!(ok(store.patient_record(&other, "ada").await), None);
    let (theirs, signed) = ([admit("ada", "9")], by("a test"));
    let stolen = store.change_patients("two", &theirs, &signed).await;
    assert_eq!(refusal(stolen), (0, Refusal::NotAvailable("ada".into())));
    // A correction frees the identifier that it takes away.
    let corrected = PatientChange {
        operation: Operation::Correct.into(),
        ..admit("ada", "3")
    };
    ok(make(store, &[corrected]).await);
    ok(make(store, &[admit("eve", "1")]).await);
    let unsigned = store.change_patients(TENANT, &theirs, &by(" ")).await;
    assert!(matches!(
        unsigned,
        Err(ChangePatientsError::Write(WriteError::Invalid(_)))
    ));
}

pub async fn a_merged_record_hands_over_its_sensors_and_takes_them_back(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = store.as_ref();
    ok(make(store, &[admit("ada", "1"), admit("twin", "2")]).await);
    ok(wear(store, "belt", "twin").await);
    ok(wear(store, "clip", "ada").await);
    raise(store, "fall", "twin").await;
    let merge = PatientChange {
        into: "ada".into(),
        ..change("twin", Operation::Merge)
    };
    ok(make(store, std::slice::from_ref(&merge)).await);
    is_quiet(store, "fall").await;
    let mine = Scope::tenant(TENANT);
    assert_eq!(ok(store.patients(&mine).await).len(), 1);
    let merged = ok(store.merged_records(&mine, "ada").await);
    assert_eq!(merged.len(), 1);
    assert_eq!(merged[0].id, "twin");
    let worn_by = async |at_us| {
        let worn = ok(store.assignments_at(&mine, at_us, "", 10).await);
        let worn = worn.into_iter().map(|it| (it.device, it.patient));
        worn.collect::<Vec<_>>()
    };
    let pair = |device: &str, patient: &str| (device.to_owned(), patient.to_owned());
    let after_us = NOW_US + ASSIGN_LEAD_US;
    assert_eq!(
        worn_by(NOW_US).await,
        [pair("belt", "twin"), pair("clip", "ada")]
    );
    assert_eq!(
        worn_by(after_us).await,
        [pair("belt", "ada"), pair("clip", "ada")]
    );
    assert!(matches!(
        refusal(make(store, &[merge]).await).1,
        Refusal::Merged { .. }
    ));
    let back = Change {
        at_us: NOW_US + 60 * SECOND_US,
        ..by("two people")
    };
    let unmerge = change("twin", Operation::Unmerge);
    ok(store.change_patients(TENANT, &[unmerge], &back).await);
    let after_us = back.at_us + ASSIGN_LEAD_US;
    assert_eq!(
        worn_by(after_us).await,
        [pair("belt", "twin"), pair("clip", "ada")]
    );
    assert_eq!(ok(store.patients(&mine).await).len(), 2);
}

pub async fn an_erased_patient_leaves_nothing_and_does_not_return(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = store.as_ref();
    ok(make(store, &[admit("ada", "1"), admit("ben", "2")]).await);
    ok(wear(store, "belt", "ada").await);
    ok(wear(store, "clip", "ben").await);
    let readings = |from: u64| {
        let both = (from..from + 3).flat_map(|n| {
            [
                sample("belt", "ada", Metric::HeartRate, n),
                sample("clip", "ben", Metric::HeartRate, n),
            ]
        });
        batch(both.collect())
    };
    ok(store.write_vitals(readings(1), Vec::new()).await);
    raise(store, "fall", "ada").await;
    let rules = Document {
        kind: RULES.into(),
        tenant: TENANT.into(),
        subject: "patient:ada".into(),
        version: 1,
        ..Document::default()
    };
    ok(store.put_document(&rules).await);
    let erase = change("ada", Operation::Erase);
    assert!(matches!(
        refusal(make(store, std::slice::from_ref(&erase)).await).1,
        Refusal::Status { .. }
    ));
    make_one(store, "ada", Operation::Discharge).await;
    let requested = store
        .change_patients(TENANT, &[erase], &by("requested"))
        .await;
    assert_eq!(ok(requested), []);

    let is_gone = async || {
        while ok(store.erase_step(0).await) > 0 {}
        let all = Scope::Service;
        assert_eq!(ok(store.patient_record(&all, "ada").await), None);
        assert_eq!(ok(store.patient(&all, "ada").await), None);
        let samples = store.samples(&all, "ada", 0, i64::MAX, 100);
        assert_eq!(ok(samples.await), []);
        let latest = ok(store.latest_vitals(&all, None).await);
        assert!(latest.iter().all(|it| it.patient == "ben"), "{latest:?}");
        assert_eq!(ok(store.alert(&all, "fall").await), None);
        assert!(ok(store.is_erased("ada").await) && !ok(store.is_erased("ben").await));
        let history = store.document_history(&all, RULES, "patient:ada").await;
        assert_eq!(ok(history), []);
        assert_eq!(ok(store.outbox(100).await), []);
    };
    is_gone().await;
    let audit = AuditQuery {
        patient: Some("ada".into()),
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let audit = ok(store.audit(&Scope::tenant(TENANT), &audit).await);
    for entry in &audit {
        let expected = match entry.action.as_str() {
            "erase patient" => "reason: requested",
            _ => "",
        };
        assert_eq!(entry.detail, expected, "{entry:?}");
    }
    assert!(audit.len() >= 4, "{audit:?}");
    assert_eq!(
        refusal(make(store, &[admit("ada", "9")]).await),
        (0, Refusal::NotAvailable("ada".into()))
    );
    assert!(matches!(
        wear(store, "belt", "ada").await,
        Err(WriteError::Invalid(_))
    ));
    // Records that the bus still had.
    ok(store.write_vitals(readings(4), Vec::new()).await);
    is_gone().await;
    let kept = store.samples(&Scope::Service, "ben", 0, i64::MAX, 100);
    assert_eq!(ok(kept.await).len(), 6, "another patient's readings stay");
}
