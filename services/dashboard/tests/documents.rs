//! Documents about alerting, requested as a browser does: silences and their end, teams, rules.
#![allow(clippy::unwrap_used)]

#[path = "support/browser.rs"]
#[allow(dead_code)]
mod browser;
#[path = "support/ward.rs"]
#[allow(dead_code)]
mod ward;

use browser::{ANYWHERE, client, cookie_of};
use contracts::query::{ListDocumentsRequest, ListNoticesRequest, PutDocumentRequest};
use contracts::vitals::Priority;
use store::{AuditQuery, Role, Scope};
use tonic::Code;
use ward::{Ward, alert};

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
