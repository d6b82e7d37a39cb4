//! Documents about alerting and records of patients, requested as a browser does.

use crate::browser::{ANYWHERE, client, cookie_of, patients};
use crate::ward::{Ward, alert};
use contracts::patients::{Change, ChangePatientsRequest, ListRecordsRequest, Operation, Patient};
use contracts::query::{ListDocumentsRequest, ListNoticesRequest, PutDocumentRequest};
use contracts::vitals::Priority;
use store::{AuditQuery, Role, Scope};
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clinicians_silence_and_administrators_decide_who_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("vera", Role::Viewer).await;
    ward.account("carl", Role::Clinician).await;
    ward.account("ada", Role::Administrator).await;
    let document = |kind: &str| PutDocumentRequest {
        kind: kind.to_owned(),
        subject: "default".to_owned(),
        version: 1,
        reason: "why".to_owned(),
        until_us: contracts::now_us() + 3_600_000_000,
        body: "{}".to_owned(),
        dry_run: false,
    };
    let put = async |name: &str, kind: &str| {
        let mut client = client(&ward, &cookie_of(&ward, name).await);
        let put = client.put_document(document(kind)).await;
        put.map(|put| put.into_inner().document.unwrap())
            .map_err(|status| status.code())
    };
    assert_eq!(
        put("vera", "silence").await.unwrap_err(),
        Code::PermissionDenied
    );
    for kind in ["team", "rules"] {
        assert_eq!(put("carl", kind).await.unwrap_err(), Code::PermissionDenied);
        assert_eq!(put("ada", kind).await.unwrap().author, "ada");
    }
    let silence = put("carl", "silence").await.unwrap();
    assert_eq!(
        (silence.author.as_str(), silence.tenant.as_str()),
        ("carl", "default"),
        "in the name and the tenant of who asks"
    );
    assert_eq!(put("carl", "silence").await.unwrap_err(), Code::Aborted);

    let theirs = contracts::alerts::Document {
        tenant: "elsewhere".to_owned(),
        ..silence.clone()
    };
    ward.store.put_document(&theirs).await.unwrap();
    let mut vera = client(&ward, &cookie_of(&ward, "vera").await);
    for subject in ["", "default"] {
        let request = ListDocumentsRequest {
            kind: "silence".to_owned(),
            subject: subject.to_owned(),
        };
        let listed = vera.list_documents(request).await.unwrap().into_inner();
        assert_eq!(listed.documents, std::slice::from_ref(&silence));
    }

    // A second version ends it early, in the name of its author. The first version stays in the
    // history.
    let end = PutDocumentRequest {
        version: 2,
        reason: "the cuff is here".to_owned(),
        until_us: contracts::now_us(),
        body: r#"{"patient":"ann"}"#.to_owned(),
        ..document("silence")
    };
    let refused = vera.put_document(end.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    ward.account("cleo", Role::Clinician).await;
    let mut cleo = client(&ward, &cookie_of(&ward, "cleo").await);
    cleo.put_document(end).await.unwrap();
    for (subject, authors) in [("", vec![]), ("default", vec!["cleo", "carl"])] {
        let request = ListDocumentsRequest {
            kind: "silence".to_owned(),
            subject: subject.to_owned(),
        };
        let listed = vera.list_documents(request).await.unwrap().into_inner();
        let found: Vec<&str> = listed.documents.iter().map(|it| &*it.author).collect();
        assert_eq!(found, authors, "{subject}");
    }
    let query = AuditQuery {
        patient: Some("ann".to_owned()),
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let log = ward.store.audit(&Scope::tenant("default"), &query).await;
    let log: Vec<_> = log
        .unwrap()
        .into_iter()
        .map(|it| (it.who, it.action))
        .collect();
    assert_eq!(log, [("cleo".to_owned(), "end silence".to_owned())]);
    let request = ListNoticesRequest {
        alert: "none".to_owned(),
    };
    let notices = vera.list_notices(request).await.unwrap().into_inner();
    assert_eq!(notices.notices, []);
    ward.end().await;
}

/// Notices of a patient's alert, and the rules for a patient, are patient data. The log records
/// each reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_beside_somebody_is_in_the_log_by_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("vera", Role::Viewer).await;
    ward.patient("ann", "Ann Berg", "default", "g1").await;
    ward.alert(alert("ann", "a1", "tachycardia", Priority::High))
        .await;
    let mut vera = client(&ward, &cookie_of(&ward, "vera").await);
    let alert = "a1".to_owned();
    vera.list_notices(ListNoticesRequest { alert })
        .await
        .unwrap();
    for subject in ["patient:ann", "default"] {
        let request = ListDocumentsRequest {
            kind: "rules".to_owned(),
            subject: subject.to_owned(),
        };
        vera.list_documents(request).await.unwrap();
    }
    let query = AuditQuery {
        patient: Some("ann".to_owned()),
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let log = ward.store.audit(&Scope::tenant("default"), &query).await;
    let log = log.unwrap().into_iter().map(|it| (it.action, it.detail));
    let mut log: Vec<_> = log.collect();
    log.sort();
    let row = |action: &str, detail: &str| (action.to_owned(), detail.to_owned());
    assert_eq!(
        log,
        [
            row(
                "assign device",
                "device ann-device at gateway g1 from 0 us until further notice; reason: entered by a program"
            ),
            row("read documents", "rules patient:ann"),
            row("read notices", "a1")
        ]
    );
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clinicians_change_stays_and_administrators_erase() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    let mut people = Vec::new();
    for (name, role) in [
        ("vera", Role::Viewer),
        ("carl", Role::Clinician),
        ("ann", Role::Administrator),
    ] {
        ward.account(name, role).await;
        people.push(patients(&ward, &cookie_of(&ward, name).await));
    }
    let [vera, carl, ann] = &mut people[..] else {
        panic!("three people")
    };
    let request = |patient: &str, operation: Operation, reason: &str| {
        let details = (operation == Operation::Admit).then(|| Patient {
            name: "Ada Example".into(),
            ..Patient::default()
        });
        ChangePatientsRequest {
            changes: vec![Change {
                patient: patient.into(),
                operation: operation.into(),
                details,
                ..Change::default()
            }],
            reason: reason.into(),
            dry_run: false,
        }
    };
    let admit = |patient: &str| request(patient, Operation::Admit, "pneumonia");
    let denied = vera.change_patients(admit("p1")).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    carl.change_patients(admit("p1")).await.unwrap();
    let second = carl.change_patients(admit("p2")).await.unwrap();
    let likenesses = second.into_inner().likenesses;
    assert_eq!(likenesses.len(), 1);
    assert_eq!(
        (&*likenesses[0].other, &*likenesses[0].because),
        ("p1", "same name")
    );
    let erase = |reason| request("p2", Operation::Erase, reason);
    let denied = carl.change_patients(erase("mistake")).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    let refused = ann.change_patients(erase("mistake")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.message().contains("discharge the patient first"),
        "{refused}"
    );
    let discharge = request("p2", Operation::Discharge, "went home");
    carl.change_patients(discharge).await.unwrap();
    let refused = ann.change_patients(erase("went home")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    ann.change_patients(erase("mistake")).await.unwrap();
    let all = ListRecordsRequest {
        include_departed: true,
        ..ListRecordsRequest::default()
    };
    let listed = vera.list_records(all).await.unwrap().into_inner().patients;
    let ids: Vec<&str> = listed.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["p1"]);
    ward.end().await;
}

/// A form of limits shows each beside the built-in one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_built_in_rules_are_a_document_that_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("carl", Role::Clinician).await;
    let rules = ListDocumentsRequest {
        kind: "rules".to_owned(),
        subject: "built-in".to_owned(),
    };
    let mut carl = client(&ward, &cookie_of(&ward, "carl").await);
    let built_in = carl.list_documents(rules).await.unwrap().into_inner();
    assert!(built_in.documents[0].body.contains(r#""id":"spo2-low""#));
    ward.end().await;
}
