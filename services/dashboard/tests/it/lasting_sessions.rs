//! Sessions are of the store: they outlive the dashboard, hold at each replica, and end at each.

use std::path::Path;
use std::time::Duration;

use crate::browser::{ANYWHERE, ask, client, cookie_of, post, within};
use crate::ward::Ward;
use contracts::query::WatchRequest;
use http::StatusCode;
use store::Role;

async fn session(ward: &Ward, cookie: &str) -> StatusCode {
    let headers = [("cookie", cookie)];
    ask(
        ward.address,
        http::Method::GET,
        "/api/session",
        "",
        &headers,
    )
    .await
    .status()
}

async fn until_ended(ward: &Ward, cookie: &str) {
    within("the end of the session", async {
        while session(ward, cookie).await != StatusCode::NO_CONTENT {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

/// The store does not answer about sessions while the table has another name.
fn rename(dir: &Path, from: &str, to: &str) {
    let connection = rusqlite::Connection::open(dir.join("store.db")).unwrap();
    let rename = format!("ALTER TABLE {from} RENAME TO {to}");
    connection.execute(&rename, []).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_the_dashboard_and_ends_at_every_replica() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Clinician).await;
    ward.account("vera", Role::Viewer).await;
    let (ada, vera) = (
        cookie_of(&ward, "ada").await,
        cookie_of(&ward, "vera").await,
    );
    ward.end().await;

    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    let other = ward.another(ANYWHERE, &[]).await;
    for replica in [&ward, &other] {
        assert_eq!(session(replica, &ada).await, 200);
        assert_eq!(session(replica, &vera).await, 200);
    }
    let mut watching = client(&other, &vera)
        .watch(WatchRequest::default())
        .await
        .unwrap()
        .into_inner();
    let headers = [("cookie", &*ada)];
    let left = post(ward.address, "/api/sign-out", "{}", &headers).await;
    assert_eq!(left.status(), 204);
    assert_eq!(session(&ward, &ada).await, 204);
    until_ended(&other, &ada).await;

    ward.store.remove_account("vera").await.unwrap();
    let end = within("the end of the stream", async {
        loop {
            match watching.message().await {
                Ok(message) => assert!(message.is_some(), "the end has a reason"),
                Err(status) => return status,
            }
        }
    })
    .await;
    assert_eq!(end.code(), tonic::Code::Unauthenticated);
    until_ended(&ward, &vera).await;
    other.end().await;
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_away_known_sessions_go_on_and_no_other_begins() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Clinician).await;
    let known = cookie_of(&ward, "ada").await;
    let other = ward.another(ANYWHERE, &[]).await;
    rename(dir.path(), "sessions", "away");
    // Longer than the copy is left unchecked.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(session(&ward, &known).await, 200);
    assert_eq!(session(&other, &known).await, 503, "not the end of it");
    let body = format!(r#"{{"name":"ada","password":"{}"}}"#, crate::ward::PASSWORD);
    let refused = post(ward.address, "/api/sign-in", &body, &[]).await;
    assert_eq!(refused.status(), 503);
    rename(dir.path(), "away", "sessions");
    assert_eq!(session(&other, &known).await, 200);
    other.end().await;
    ward.end().await;
}
