//! Headers of a request: the token of a program, signed by a public key and valid as long as its
//! session, and the reason.

use crate::browser::{ANYWHERE, client, cookie_of, post};
use crate::ward::{PASSWORD, Ward};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use contracts::query::{GetSeriesRequest, ListPatientsRequest};
use store::{AuditQuery, Role, Scope};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_programs_token_is_signed_by_a_key_that_is_shown_and_ends_with_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Clinician).await;
    let body = format!(r#"{{"name":"ada","password":"{PASSWORD}"}}"#);
    let given = post(ward.address, "/api/token", &body, &[]).await;
    let given: serde_json::Value = serde_json::from_slice(given.body()).unwrap();
    let token = given["token"].as_str().unwrap();
    let bearer = format!("Bearer {token}");
    let session = async |bearer: &str| {
        let headers = [("authorization", bearer)];
        let answer = crate::browser::ask(
            ward.address,
            http::Method::GET,
            "/api/session",
            "",
            &headers,
        );
        answer.await.status()
    };
    assert_eq!(session(&bearer).await, 200);
    // One character of the signature changed, one of the claims, and no token.
    for at in [token.len() - 10, token.find('.').unwrap() + 10] {
        let mut forged = bearer.clone().into_bytes();
        forged["Bearer ".len() + at] ^= 1;
        assert_eq!(session(&String::from_utf8(forged).unwrap()).await, 204);
    }
    assert_eq!(session("Bearer ").await, 204);

    let header = BASE64.decode(token.split('.').next().unwrap()).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&header).unwrap();
    let keys = crate::browser::ask(ward.address, http::Method::GET, "/api/keys", "", &[]).await;
    let keys: serde_json::Value = serde_json::from_slice(keys.body()).unwrap();
    let keys = keys["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert_eq!(keys[0]["kid"], header["kid"]);
    assert!(keys[0].get("d").is_none(), "the private half");

    let headers = [("authorization", bearer.as_str())];
    let ended = post(ward.address, "/api/sign-out", "{}", &headers).await;
    assert_eq!(ended.status(), 204);
    assert_eq!(session(&bearer).await, 204, "signed out");
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_why_has_it_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Viewer).await;
    ward.patient("p1", "Eve Berg", "default", "g1").await;
    let mut ada = client(&ward, &cookie_of(&ward, "ada").await);
    let because = |reason: &str| {
        let mut request = tonic::Request::new(GetSeriesRequest {
            patient: "p1".to_owned(),
            from_us: 1,
            to_us: 2_000_000,
            points: 10,
            ..GetSeriesRequest::default()
        });
        let metadata = request.metadata_mut();
        metadata.insert("x-braid-reason", reason.parse().unwrap());
        request
    };
    // The answer itself does not matter here. The log has the entry before it.
    let _ = ada.get_series(because("st%C3%BCrzte zu Hause")).await;
    ada.get_series(because("two%0Alines")).await.unwrap_err();
    // The reason belongs to one request only; the next has none.
    ada.list_patients(ListPatientsRequest {}).await.unwrap();
    let query = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 10,
    };
    let log = ward.store.audit(&Scope::tenant("default"), &query).await;
    let log = log.unwrap();
    let of = |action: &str| {
        let of_it = log.iter().filter(|entry| entry.action == action);
        of_it.map(|entry| entry.detail.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(
        of("read series"),
        ["1970-01-01T00:00:00Z to 1970-01-01T00:00:02Z; reason: stürzte zu Hause"]
    );
    assert_eq!(of("read ward"), [""]);
    ward.end().await;
}
