//! Guessed passwords and tokens, and requests from pages of other sites.

use crate::browser::{ANYWHERE, administration, ask, cookie_of, post, sign_in};
use crate::ward::{PASSWORD, Ward};
use contracts::identity::{
    ChangePasswordRequest, ListAccountsRequest, PutAccountRequest, RemoveAccountRequest,
};
use service_kit::{guesses::FREE, tls::authority::LocalAuthority};
use store::{Proof, Role};
use tokio::task::JoinSet;
use tonic::Code;

const AT_ONCE: usize = 40;
/// Five attempts are free. Attempts that are computed at the same time may exceed them.
const LOOKED_AT_MAX: usize = 7;

/// The statuses of concurrent sign-ins of `name` with these passwords.
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
    // A person with the right password is admitted, however many attempts run.
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
    /// Attempts that one address has for free, under any names.
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

/// An administrator cannot lose the last administrator, and a changed account its old sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrators_manage_people_and_each_person_the_own_password() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Administrator).await;
    ward.account("carl", Role::Clinician).await;
    let mut ada = administration(&ward, &cookie_of(&ward, "ada").await);
    let mut carl = administration(&ward, &cookie_of(&ward, "carl").await);
    let put = |name: &str, role: &str, password: &str, create: bool| PutAccountRequest {
        name: name.to_owned(),
        role: role.to_owned(),
        password: password.to_owned(),
        reason: "new in the team".to_owned(),
        create,
    };
    let removed = |name: &str| RemoveAccountRequest {
        name: name.to_owned(),
        reason: "left".to_owned(),
    };
    let new = put("vera", "viewer", "a long password", true);
    for refused in [
        carl.put_account(new.clone()).await.map(drop),
        carl.remove_account(removed("ada")).await.map(drop),
        carl.list_accounts(ListAccountsRequest {}).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    }
    ada.put_account(new.clone()).await.unwrap();
    let unreasoned = PutAccountRequest {
        reason: " ".to_owned(),
        ..new.clone()
    };
    for (request, code) in [
        (new, Code::AlreadyExists),
        (unreasoned, Code::InvalidArgument),
        (put("zoe", "viewer", "", false), Code::NotFound),
        (
            put("zoe", "nurse", "a long password", true),
            Code::InvalidArgument,
        ),
        (put("zoe", "viewer", "short", true), Code::InvalidArgument),
        (put("ada", "viewer", "", false), Code::FailedPrecondition),
    ] {
        let refused = ada.put_account(request.clone()).await.unwrap_err();
        assert_eq!(refused.code(), code, "{request:?}");
    }
    let refused = ada.remove_account(removed("ada")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    ada.put_account(put("vera", "clinician", "", false))
        .await
        .unwrap();
    let kept = sign_in(ward.address, "vera", "a long password").await;
    assert_eq!(kept.status(), 200, "another role keeps the password");
    ada.remove_account(removed("vera")).await.unwrap();
    let listed = ada.list_accounts(ListAccountsRequest {}).await.unwrap();
    let listed: Vec<String> = listed
        .into_inner()
        .accounts
        .into_iter()
        .map(|it| it.name)
        .collect();
    assert_eq!(listed, ["ada", "carl"]);

    let change = |present: &str| ChangePasswordRequest {
        present: present.to_owned(),
        password: "another long one".to_owned(),
    };
    carl.change_password(change(PASSWORD)).await.unwrap();
    let status = async |password| sign_in(ward.address, "carl", password).await.status();
    assert_eq!(status(PASSWORD).await, 401);
    assert_eq!(status("another long one").await, 200);
    // As many as signing in has for free.
    for n in 0..5 {
        let wrong = ada.change_password(change("wrong")).await.unwrap_err();
        assert_eq!(wrong.code(), Code::InvalidArgument, "{n}");
    }
    let slowed = ada.change_password(change(PASSWORD)).await.unwrap_err();
    assert_eq!(slowed.code(), Code::ResourceExhausted);
    ward.end().await;
}

const LIST: &str = "/braid.query.v1.QueryService/ListPatients";

/// The answer to a call with this token from that address.
async fn with_token(ward: &Ward, path: &str, token: &str, from: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", &*bearer), ("x-forwarded-for", from)];
    let is_page = path.starts_with("/api/");
    let method = if is_page {
        http::Method::GET
    } else {
        http::Method::POST
    };
    let answer = ask(ward.address, method, path, "", &headers).await;
    answer.status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_tokens_are_slowed_and_right_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    LocalAuthority::open_or_create(dir.path()).unwrap();
    let authority = dir.path().to_str().unwrap();
    let flags = ["--trust-forwarded-for", "true", "--authority", authority];
    let ward = Ward::start(dir.path(), ANYWHERE, &flags).await;
    ward.account("ada", Role::Clinician).await;
    let body = format!(r#"{{"name":"ada","password":"{PASSWORD}"}}"#);
    let from = |address| [("x-forwarded-for", address)];
    let signed_in = post(ward.address, "/api/token", &body, &from("192.0.2.1")).await;
    let given: serde_json::Value = serde_json::from_slice(signed_in.body()).unwrap();
    let token = given["token"].as_str().unwrap();

    for path in [LIST, "/api/session"] {
        let guesser = if path == LIST {
            "192.0.2.2"
        } else {
            "192.0.2.3"
        };
        let wrong = if path == LIST { 401 } else { 204 };
        for n in 0..=FREE {
            let answered = with_token(&ward, path, &format!("guess-{n}"), guesser).await;
            assert_eq!(answered, wrong, "{path} {n}");
        }
        assert_eq!(with_token(&ward, path, "a guess", guesser).await, 429);
        assert_eq!(with_token(&ward, path, token, guesser).await, 429);
        // A person who signed in from an address is not slowed there by other attempts.
        for n in 0..=FREE + 1 {
            let answered = with_token(&ward, path, &format!("guess-{n}"), "192.0.2.1").await;
            assert_eq!(answered, wrong, "{path} {n}");
        }
        // The service sees the request, which is not gRPC.
        let looked_at = if path == LIST { 400 } else { 200 };
        let answered = with_token(&ward, path, token, "192.0.2.1").await;
        assert_eq!(answered, looked_at);
    }

    let enrol = async || {
        let body = r#"{"token":"a guess","request":""}"#;
        let answer = post(
            ward.address,
            "/api/gateways/enrol",
            body,
            &from("192.0.2.4"),
        )
        .await;
        answer.status().as_u16()
    };
    for n in 0..=FREE {
        assert_eq!(enrol().await, 403, "{n}");
    }
    assert_eq!(enrol().await, 429);
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_another_site_is_refused_where_the_browser_says_only_its_origin() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Clinician).await;
    let body = format!(r#"{{"name":"ada","password":"{PASSWORD}"}}"#);
    // The requested host is braid.test.
    for (origin, status) in [
        ("http://braid.test", 200),
        ("http://evil.test", 403),
        ("null", 403),
    ] {
        let answer = post(ward.address, "/api/sign-in", &body, &[("origin", origin)]).await;
        assert_eq!(answer.status(), status, "{origin}");
    }
    ward.end().await;
}

/// A mail system opens links by itself; the button of the page is a person's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_link_of_a_heartbeat_confirms_by_its_button_alone_and_wrong_ones_are_slowed() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &["--trust-forwarded-for", "true"]).await;
    let sent = Proof {
        channel: "email".into(),
        recipient: "ann@example.org".into(),
        token: Proof::token_of("s1"),
        sent_us: 1,
        ..Proof::default()
    };
    assert!(ward.store.begin_proof(&sent, None).await.unwrap());
    let confirmed = async || ward.store.proofs().await.unwrap()[0].confirmed_us;
    // The letter is read on another site.
    let headers = [
        ("sec-fetch-site", "cross-site"),
        ("x-forwarded-for", "192.0.2.1"),
    ];
    let opened = ask(ward.address, http::Method::GET, "/confirm/s1", "", &headers).await;
    assert_eq!(opened.status(), 200);
    let text = String::from_utf8_lossy(opened.body()).into_owned();
    assert!(text.contains("<form method=\"post\"><button>"), "{text}");
    let head = ask(
        ward.address,
        http::Method::HEAD,
        "/confirm/s1",
        "",
        &headers,
    )
    .await;
    assert_eq!((head.status().as_u16(), confirmed().await), (200, None));
    assert_eq!(
        post(ward.address, "/confirm/s2", "", &headers)
            .await
            .status(),
        404
    );
    assert_eq!(confirmed().await, None);
    assert_eq!(
        post(ward.address, "/confirm/s1", "", &headers)
            .await
            .status(),
        200
    );
    assert!(confirmed().await.is_some());

    let guess = async |n: u32| {
        let from = [("x-forwarded-for", "192.0.2.2")];
        let answer = post(ward.address, &format!("/confirm/guess-{n}"), "", &from).await;
        answer.status().as_u16()
    };
    for n in 0..=FREE {
        assert_eq!(guess(n).await, 404, "{n}");
    }
    assert_eq!(guess(FREE + 1).await, 429);
    ward.end().await;
}
