//! Tokens of programs: signed by a key that is shown, worth what the session is worth.
#![allow(clippy::unwrap_used)]

#[path = "support/browser.rs"]
#[allow(dead_code)]
mod browser;
#[path = "support/ward.rs"]
#[allow(dead_code)]
mod ward;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use browser::{ANYWHERE, post};
use store::Role;
use ward::{PASSWORD, Ward};

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
        let answer = browser::ask(
            ward.address,
            http::Method::GET,
            "/api/session",
            "",
            &headers,
        );
        answer.await.status()
    };
    assert_eq!(session(&bearer).await, 200);
    // One letter of the signature, of the claims; and no token at all.
    for at in [token.len() - 10, token.find('.').unwrap() + 10] {
        let mut forged = bearer.clone().into_bytes();
        forged["Bearer ".len() + at] ^= 1;
        assert_eq!(session(&String::from_utf8(forged).unwrap()).await, 204);
    }
    assert_eq!(session("Bearer ").await, 204);

    let header = BASE64.decode(token.split('.').next().unwrap()).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&header).unwrap();
    let keys = browser::ask(ward.address, http::Method::GET, "/api/keys", "", &[]).await;
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
