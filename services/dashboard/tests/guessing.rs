//! Passwords guessed side by side: as many are looked at as one after the other.
#![allow(clippy::unwrap_used)]

#[path = "support/browser.rs"]
#[allow(dead_code)]
mod browser;
#[path = "support/ward.rs"]
#[allow(dead_code)]
mod ward;

use browser::{ANYWHERE, post, sign_in};
use store::Role;
use tokio::task::JoinSet;
use ward::{PASSWORD, Ward};

const AT_ONCE: usize = 40;
/// Five are free; as many as are computed at once may be looked at besides.
const LOOKED_AT_MAX: usize = 7;

/// The statuses of sign-ins of `name` with these passwords, all begun together.
async fn at_once(ward: &Ward, name: &'static str, passwords: Vec<String>) -> Vec<u16> {
    let address = ward.address;
    let mut asked = JoinSet::new();
    for password in passwords {
        asked.spawn(async move { sign_in(address, name, &password).await.status().as_u16() });
    }
    asked.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_at_once_are_slowed_like_guesses_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    for name in ["ada", "bob"] {
        ward.account(name, Role::Clinician).await;
    }
    // Who knows the password is let in, however many at once.
    let known = at_once(&ward, "bob", vec![PASSWORD.to_owned(); AT_ONCE]).await;
    assert_eq!(known, [200; AT_ONCE]);

    let guesses = (0..AT_ONCE).map(|n| format!("guess {n} of many"));
    let guessed = at_once(&ward, "ada", guesses.collect()).await;
    let with = |status: u16| guessed.iter().filter(|given| **given == status).count();
    assert!(with(401) <= LOOKED_AT_MAX, "{} were looked at", with(401));
    assert_eq!(with(401) + with(429), AT_ONCE, "{guessed:?}");
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_of_ipv6_is_slowed_as_one_address() {
    /// Free for one address, whatever the names.
    const FREE: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &["--trust-forwarded-for", "true"]).await;
    let guess = async |n: usize, from: &str| {
        let body = format!(r#"{{"name":"nobody-{n}","password":"wrong"}}"#);
        let headers = [("x-forwarded-for", from)];
        let answer = post(ward.address, "/api/sign-in", &body, &headers).await;
        answer.status().as_u16()
    };
    for n in 0..FREE {
        assert_eq!(guess(n, &format!("2001:db8:0:7::{n:x}")).await, 401, "{n}");
    }
    assert_eq!(guess(FREE, "2001:db8:0:7:8000::1").await, 429);
    assert_eq!(guess(FREE, "2001:db8:0:8::1").await, 401, "a neighbour");
    ward.end().await;
}
