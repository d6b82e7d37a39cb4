//! Ids and names with control characters are refused at every call, and forge no line of the log.

use crate::browser::{ANYWHERE, administration, client, cookie_of, patients};
use crate::ward::Ward;
use contracts::identity::{EnrolGatewayRequest, ListAuditRequest, RevokeGatewayRequest};
use contracts::patients::{
    Change, ChangePatientsRequest, GetRecordRequest, Identifier, ListRecordsRequest, Operation,
    Patient,
};
use contracts::query::{
    AcknowledgeAlertRequest, ExplainSteeringRequest, GetPathsRequest, GetSeriesRequest,
    ListAlertsRequest, ListDocumentsRequest, ListNoticesRequest, PutDocumentRequest,
    SetLinkRequest, WatchRequest,
};
use service_kit::tls::authority::LocalAuthority;
use store::{AuditQuery, GatewayEntry, Role, Scope};
use tonic::{Code, Status};

/// A whole line of what `braid audit` prints, in an administrator's name.
const FORGED: &str = "ada\n2026-01-01T00:00:00Z\tadmin\tread series\tbob";

/// The answers to every call that takes an id or a name, and what each of them is called with.
async fn answers(ward: &Ward, id: &str) -> Vec<(&'static str, Status)> {
    let cookie = cookie_of(ward, "ann").await;
    let (mut query, mut administration) = (client(ward, &cookie), administration(ward, &cookie));
    let text = || id.to_owned();
    let mut found = Vec::new();
    macro_rules! refused {
        ($who:ident.$call:ident, $request:expr) => {
            let answer = $who.$call($request).await;
            found.push((stringify!($call), answer.map(drop).unwrap_err()));
        };
    }
    let series = GetSeriesRequest {
        patient: text(),
        ..Default::default()
    };
    refused!(query.get_series, series);
    refused!(query.watch, WatchRequest { patient: text() });
    refused!(
        query.list_alerts,
        ListAlertsRequest {
            patient: text(),
            ..Default::default()
        }
    );
    for (id, note) in [(text(), String::new()), ("a-1".into(), text())] {
        refused!(
            query.acknowledge_alert,
            AcknowledgeAlertRequest { id, note }
        );
    }
    let document = |kind: &str, subject: &str, reason: &str| PutDocumentRequest {
        kind: kind.into(),
        subject: subject.into(),
        reason: reason.into(),
        ..Default::default()
    };
    refused!(query.put_document, document(id, "s", "r"));
    refused!(query.put_document, document("silence", id, "r"));
    refused!(query.put_document, document("silence", "s", id));
    let listed = ListDocumentsRequest {
        kind: "rules".into(),
        subject: text(),
    };
    refused!(query.list_documents, listed);
    refused!(query.list_notices, ListNoticesRequest { alert: text() });
    refused!(
        query.get_paths,
        GetPathsRequest {
            gateway: text(),
            ..Default::default()
        }
    );
    refused!(
        query.set_link,
        SetLinkRequest {
            gateway: text(),
            ..Default::default()
        }
    );
    let explained = ExplainSteeringRequest {
        gateway: text(),
        ..Default::default()
    };
    refused!(query.explain_steering, explained);
    refused!(
        administration.list_audit,
        ListAuditRequest {
            patient: text(),
            ..Default::default()
        }
    );
    found.extend(answers_about_patients(ward, &cookie, id).await);
    for (gateway, reason) in [(text(), "r".to_owned()), ("g".into(), text())] {
        let enrolled = EnrolGatewayRequest {
            gateway: gateway.clone(),
            reason: reason.clone(),
            valid_hours: 1,
        };
        refused!(administration.enrol_gateway, enrolled);
        refused!(
            administration.revoke_gateway,
            RevokeGatewayRequest { gateway, reason }
        );
    }
    found
}

/// The same of calls about records of patients.
async fn answers_about_patients(
    ward: &Ward,
    cookie: &str,
    id: &str,
) -> Vec<(&'static str, Status)> {
    let text = || id.to_owned();
    let mut found = Vec::new();
    let mut patients = patients(ward, cookie);
    macro_rules! refused {
        ($call:ident, $request:expr) => {
            let answer = patients.$call($request).await;
            found.push((stringify!($call), answer.map(drop).unwrap_err()));
        };
    }
    let after = ListRecordsRequest {
        after: text(),
        ..Default::default()
    };
    refused!(list_records, after);
    let identifier = Identifier {
        system: "mrn".into(),
        value: text(),
    };
    let identified = ListRecordsRequest {
        identifier: Some(identifier),
        ..Default::default()
    };
    refused!(list_records, identified);
    refused!(get_record, GetRecordRequest { patient: text() });
    let named = Patient {
        name: text(),
        ..Default::default()
    };
    for (patient, details, reason) in [
        (text(), None, "r".to_owned()),
        ("p".into(), Some(named), "r".to_owned()),
        ("p".into(), None, text()),
    ] {
        let change = Change {
            patient,
            operation: Operation::Admit.into(),
            details,
            ..Default::default()
        };
        let request = ChangePatientsRequest {
            changes: vec![change],
            reason,
            dry_run: false,
        };
        refused!(change_patients, request);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_takes_an_id_that_forges_a_line_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    LocalAuthority::open_or_create(dir.path()).unwrap();
    let authority = ["--authority", dir.path().to_str().unwrap()];
    let ward = Ward::start(dir.path(), ANYWHERE, &authority).await;
    ward.account("ann", Role::Administrator).await;
    for id in [FORGED, "\u{1b}[2J", "\u{202e}adA", "\u{9b}x"] {
        for (call, status) in answers(&ward, id).await {
            assert_eq!(
                status.code(),
                Code::InvalidArgument,
                "{call} {id:?}: {status}"
            );
        }
    }
    let query = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let log = ward.store.audit(&Scope::Service, &query).await.unwrap();
    assert!(log.len() > 3, "the sign-ins are in the log");
    for entry in log {
        for text in [&entry.who, &entry.action, &entry.patient, &entry.detail] {
            assert!(contracts::text::is_plain(text), "{entry:?}");
        }
    }
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_of_another_tenant_is_refused_like_a_reserved_one() {
    let dir = tempfile::tempdir().unwrap();
    LocalAuthority::open_or_create(dir.path()).unwrap();
    let authority = ["--authority", dir.path().to_str().unwrap()];
    let ward = Ward::start(dir.path(), ANYWHERE, &authority).await;
    ward.account("ann", Role::Administrator).await;
    let theirs = GatewayEntry {
        id: "gw-7".into(),
        tenant: "elsewhere".into(),
    };
    ward.store.put_gateway(&theirs).await.unwrap();
    let cookie = cookie_of(&ward, "ann").await;
    let mut said = Vec::new();
    for gateway in ["gw-7", contracts::canary::NAME] {
        let request = EnrolGatewayRequest {
            gateway: gateway.into(),
            reason: "r".into(),
            valid_hours: 1,
        };
        let status = administration(&ward, &cookie).enrol_gateway(request).await;
        said.push(status.unwrap_err());
    }
    assert_eq!(said[0].message(), said[1].message());
    assert!(!said[0].message().contains("tenant"), "{}", said[0]);
    ward.end().await;
}
