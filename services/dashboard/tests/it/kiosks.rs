//! Wall displays: opened once by a code, only reading, without an end, and revoked.

use std::time::Duration;

use crate::browser::{
    ANYWHERE, administration, ask, client, cookie, cookie_of, post, until, within,
};
use crate::ward::{Ward, alert};
use bytes::Bytes;
use contracts::identity::ListAuditRequest;
use contracts::query::watch_response::Update;
use contracts::query::{
    AcknowledgeAlertRequest, GetSeriesRequest, ListAlertsRequest, ListPatientsRequest,
    PutDocumentRequest, SetLinkRequest, WatchRequest,
};
use contracts::vitals::Priority;
use dashboard::kiosks::{self, CODE_US};
use http::{Method, Response, StatusCode};
use sha2::{Digest, Sha256};
use store::{AuditQuery, Role, Scope, SessionKind, StoredSession};
use tonic::Code;

const TENANT: &str = "default";

async fn code(ward: &Ward, tenant: &str, name: &str, at_us: i64) -> String {
    let added = kiosks::add(ward.store.as_ref(), tenant, name, at_us).await;
    added.unwrap().text
}

async fn redeem(ward: &Ward, code: &str) -> Response<Bytes> {
    let body = format!(r#"{{"code":"{code}"}}"#);
    post(ward.address, "/api/kiosk", &body, &[]).await
}

async fn session(ward: &Ward, cookie: &str) -> Response<Bytes> {
    let headers = [("cookie", cookie)];
    ask(ward.address, Method::GET, "/api/session", "", &headers).await
}

fn said(response: &Response<Bytes>) -> String {
    String::from_utf8(response.body().to_vec()).unwrap()
}

async fn display(ward: &Ward, name: &str) -> String {
    let code = code(ward, TENANT, name, contracts::now_us()).await;
    let opened = redeem(ward, &code).await;
    assert_eq!(opened.status(), 200);
    cookie(&opened)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_code_opens_one_display_once_and_guesses_are_slowed() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    let now_us = contracts::now_us();
    let late = code(&ward, TENANT, "late", now_us - CODE_US).await;
    let hall = code(&ward, TENANT, "hall", now_us).await;
    let refused = redeem(&ward, &late).await;
    assert_eq!(refused.status(), 403);
    assert!(said(&refused).contains("has expired"), "{refused:?}");
    let opened = redeem(&ward, &hall).await;
    assert_eq!(opened.status(), 200);
    assert_eq!(
        said(&opened),
        r#"{"name":"kiosk:hall","role":"viewer","kiosk":"hall"}"#
    );
    let set = opened.headers()["set-cookie"].to_str().unwrap();
    for part in ["Max-Age=34560000", "HttpOnly", "SameSite=Strict"] {
        assert!(set.contains(part), "{set}");
    }
    let again = redeem(&ward, &hall).await;
    assert_eq!(again.status(), 403);
    assert!(said(&again).contains("used already"), "{again:?}");
    let query = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let log = ward.store.audit(&Scope::tenant(TENANT), &query).await;
    let log = log.unwrap();
    let opened = log.iter().find(|row| row.action == "open kiosk").unwrap();
    assert_eq!(opened.who, "kiosk:hall");
    // Further guesses, from the address that has shown a right code.
    let next = code(&ward, TENANT, "next", now_us).await;
    let mut statuses = Vec::new();
    for _ in 0..service_kit::guesses::FREE_KNOWN {
        statuses.push(redeem(&ward, "2222-2222-2222-2222").await.status());
    }
    assert_eq!(statuses.last(), Some(&StatusCode::TOO_MANY_REQUESTS));
    assert_eq!(redeem(&ward, &next).await.status(), 429);
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_display_reads_the_ward_of_its_tenant_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.patient("ada", "Ada", TENANT, "g1").await;
    ward.patient("bob", "Bob", "other", "g2").await;
    ward.alert(alert("ada", "a1", "fast", Priority::High)).await;
    let hall = display(&ward, "hall").await;
    let mut reader = client(&ward, &hall);
    let patients = within("the ward", async {
        loop {
            let ward = reader.list_patients(ListPatientsRequest::default()).await;
            let patients = ward.unwrap().into_inner().patients;
            if !patients.is_empty() {
                return patients;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(patients.iter().all(|bed| bed.id == "ada"), "{patients:?}");
    let alerts = reader.list_alerts(ListAlertsRequest::default()).await;
    assert_eq!(alerts.unwrap().into_inner().alerts.len(), 1);
    let now_us = contracts::now_us();
    let foreign = GetSeriesRequest {
        patient: "bob".to_owned(),
        metrics: vec![contracts::vitals::Metric::HeartRate.into()],
        from_us: now_us - 60_000_000,
        to_us: now_us,
        points: 10,
    };
    let series = reader.get_series(foreign).await.unwrap().into_inner();
    assert!(series.series.iter().all(|it| it.times_us.is_empty()));

    let acknowledge = AcknowledgeAlertRequest {
        id: "a1".to_owned(),
        note: String::new(),
    };
    let silence = PutDocumentRequest {
        kind: "silence".to_owned(),
        ..PutDocumentRequest::default()
    };
    let refusals = [
        reader.acknowledge_alert(acknowledge).await.unwrap_err(),
        reader.put_document(silence).await.unwrap_err(),
        reader
            .set_link(SetLinkRequest::default())
            .await
            .unwrap_err(),
    ];
    for refused in refusals {
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("wall display"), "{refused}");
    }
    let mut administration = administration(&ward, &hall);
    let log = administration.list_audit(ListAuditRequest::default()).await;
    assert_eq!(log.unwrap_err().code(), Code::PermissionDenied);
    let headers = [("cookie", &*hall)];
    let out = post(ward.address, "/api/sign-out", "{}", &headers).await;
    assert_eq!(out.status(), 403);
    assert!(said(&out).contains("kiosk revoke"));
    assert_eq!(session(&ward, &hall).await.status(), 200);
    assert_eq!(*ward.acknowledged.lock(), []);
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_display_outlives_the_dashboard_and_ends_when_it_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Administrator).await;
    let (hall, desk) = (display(&ward, "hall").await, display(&ward, "desk").await);
    let ada = cookie_of(&ward, "ada").await;
    let ward = ward.restarted(&[]).await;
    for cookie in [&hall, &desk] {
        assert_eq!(session(&ward, cookie).await.status(), 200);
    }
    let mut watching = client(&ward, &hall)
        .watch(WatchRequest::default())
        .await
        .unwrap()
        .into_inner();
    until("the ward", &mut watching, |update| {
        matches!(update, Update::Ward(_)).then_some(())
    })
    .await;
    assert!(ward.store.revoke_kiosk(TENANT, "hall").await.unwrap());
    let end = within("the end of the stream", async {
        loop {
            match watching.message().await {
                Ok(message) => assert!(message.is_some(), "the end has a reason"),
                Err(status) => return status,
            }
        }
    })
    .await;
    assert_eq!(end.code(), Code::Unauthenticated);
    assert_eq!(session(&ward, &hall).await.status(), 204);
    assert_eq!(session(&ward, &desk).await.status(), 200);
    assert_eq!(session(&ward, &ada).await.status(), 200);
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_display_gets_a_newer_token_before_its_own_is_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &["--session-hours", "12"]).await;
    let opened = |token: &str, hours_ago: i64| StoredSession {
        key: Sha256::digest(token).into(),
        kind: SessionKind::Kiosk,
        name: token.to_owned(),
        tenant: TENANT.to_owned(),
        // Only a damaged row has this role.
        role: Role::Administrator,
        password_hash: String::new(),
        opened_us: contracts::now_us() - hours_ago * 3_600_000_000,
        expires_us: i64::MAX,
    };
    for session in [opened("young", 5), opened("old", 24 * 365)] {
        ward.store.open_session(&session).await.unwrap();
    }
    let young = session(&ward, "braid_session=young").await;
    assert!(said(&young).contains(r#""role":"viewer""#), "{young:?}");
    assert!(!young.headers().contains_key("set-cookie"));
    let old = session(&ward, "braid_session=old").await;
    assert_eq!(old.status(), 200);
    let newer = cookie(&old);
    for cookie in [&newer, "braid_session=old"] {
        let again = session(&ward, cookie).await;
        assert_eq!(again.status(), 200, "{cookie}");
        assert!(!again.headers().contains_key("set-cookie"), "one at a time");
    }
    ward.store.revoke_kiosk(TENANT, "old").await.unwrap();
    within("the end of both", async {
        for cookie in [&newer, "braid_session=old"] {
            while session(&ward, cookie).await.status() != 204 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    })
    .await;
    ward.end().await;
}
