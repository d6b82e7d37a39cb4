//! The real Envoy in front of dashboards: which tokens it admits, and which checks it leaves to
//! them.
#![allow(clippy::unwrap_used)]

#[path = "support/envoy.rs"]
mod envoy;
#[path = "support/frames.rs"]
mod frames;
#[path = "support/program.rs"]
mod program;
#[path = "support/separate.rs"]
mod separate;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use contracts::alerts::Document;
use contracts::query::PutDocumentRequest;
use prost::Message;
use service_kit::tls::authority::LocalAuthority;
use service_kit::tls::{Identity, PeerId};
use store::{DocumentsStore, SqliteStore};
use testkit::oidc;

use envoy::{Envoy, braid, prepare};
use frames::{frame, headers, literal, settings};
use program::{eventually, free_port};
use separate::Separate;

/// The page's request for the ward: a message without fields.
fn list_patients(envoy: &Envoy, dir: &Path, args: &[&str]) -> (u16, String) {
    let empty = dir.join("empty-message");
    std::fs::write(&empty, [0; 5]).unwrap();
    let body = format!("@{}", empty.display());
    let asking = [
        "-H",
        "content-type: application/grpc-web+proto",
        "--data-binary",
        &body,
    ];
    let path = "/braid.query.v1.QueryService/ListPatients";
    envoy.ask(path, &[&asking, args].concat())
}

/// The value of a cookie in a jar of curl.
fn cookie<'a>(jar: &'a str, name: &str) -> &'a str {
    let mut words = jar.lines().map(|line| line.split('\t'));
    let value = words.find_map(|mut words| (words.nth(5)? == name).then(|| words.next())?);
    value.unwrap_or_else(|| panic!("no {name} in {jar}"))
}

/// Requests that Envoy itself refused, by its access log: they reached no dashboard.
fn refused_by(envoy: &Envoy) -> usize {
    let log = envoy.log();
    let entries = log
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let unsent = |entry: &serde_json::Value| {
        (entry["status"] == 401 || entry["status"] == 403) && entry["upstream"].is_null()
    };
    entries.filter(unsent).count()
}

/// Publishes a key for tokens of sessions in the store, as a dashboard does.
async fn publish_key(data: &Path, key: &oidc::KeyPair) {
    let document = Document {
        kind: "session-key".to_owned(),
        tenant: store::DEFAULT_TENANT.to_owned(),
        subject: oidc::kid(key),
        version: 1,
        at_us: contracts::now_us(),
        until_us: contracts::now_us() + 3_600_000_000,
        body: oidc::public(key).to_string(),
        ..Document::default()
    };
    let store = SqliteStore::open(data).unwrap();
    store.put_document(&document).await.unwrap();
}

#[tokio::test]
async fn envoy_asks_people_for_a_token_and_keeps_them_at_their_dashboard() {
    let dir = tempfile::tempdir().unwrap();
    let Some(binary) = envoy::binary() else {
        return;
    };
    let mut separate = prepare(dir.path(), &[]);
    let data = separate.data.clone();
    let other = (free_port(), free_port());
    let envoy = Envoy::start_with(&binary, dir.path(), &separate, &[other]);
    separate.front = Some(envoy.devices);
    separate.start("dashboard");
    let _other = separate.another_at("dashboard", other, &[]);
    let password = "correct horse battery";
    let account = ["accounts", "put", "ada", "--role", "viewer", "--by", "Eve"];
    braid(&[&account[..], &["--password", password]].concat(), &data);
    eventually("Envoy finds both dashboards ready", || {
        envoy.ready("dashboard") == 2
    });
    // The page itself needs no token.
    assert!(envoy.get_page("/").contains("<html"));

    let jar = dir.path().join("cookies");
    let jar = jar.to_str().unwrap();
    let credentials = serde_json::json!({"name": "ada", "password": password}).to_string();
    let json = ["-H", "content-type: application/json", "-d"];
    let sign_in = [&json[..], &[&credentials, "-c", jar]].concat();
    eventually("signed in", || envoy.ask("/api/sign-in", &sign_in).0 == 200);
    // Two dashboards, each with its own table of sessions.
    for n in 0..20 {
        let (status, answer) = list_patients(&envoy, dir.path(), &["-b", jar]);
        assert_eq!(status, 200, "{n}: {answer}");
        assert!(answer.contains("grpc-status:0"), "{n}: {answer}");
    }
    let jar_text = std::fs::read_to_string(jar).unwrap();
    let token = cookie(&jar_text, "__Host-braid_session");
    let replica = cookie(&jar_text, "__Host-braid_replica");
    let replica = format!("cookie: __Host-braid_replica={replica}");
    let bearer = |token: &str| format!("authorization: Bearer {token}");
    let ask = |token: &str| {
        let headers = ["-H", &bearer(token), "-H", &replica];
        list_patients(&envoy, dir.path(), &headers)
    };
    let (status, answer) = ask(token);
    assert_eq!(status, 200, "by a bearer's token: {answer}");

    // Signed like a dashboard's token. Envoy trusts it for the published key; the dashboards, which
    // issued no such token, refuse it.
    let (key, unpublished) = (oidc::new_key().unwrap(), oidc::new_key().unwrap());
    let now_s = contracts::now_us() / 1_000_000;
    publish_key(&data, &key).await;
    let claims = serde_json::json!({
        "iss": "spiffe://braid/service/dashboard", "aud": "braid-people", "sub": "ada",
        "iat": now_s, "exp": now_s + 600,
    });
    let by = |key: &oidc::KeyPair, kid: &oidc::KeyPair, claim: &str, value: serde_json::Value| {
        let mut claims = claims.clone();
        claims[claim] = value;
        oidc::signed(key, &oidc::kid(kid), &claims).unwrap()
    };
    let unheard = by(&key, &key, "sub", "eve".into());
    eventually("Envoy knows the key, and the dashboard refuses", || {
        ask(&unheard) == (401, String::new())
    });
    let (head, signature) = token.rsplit_once('.').unwrap();
    let altered = format!("{}.{signature}", head.replacen('e', "f", 3));
    for (what, token) in [
        ("none", ""),
        ("rubbish", "rubbish"),
        ("altered", &*altered),
        ("unsigned", &*format!("{head}.")),
        (
            "signed with another key",
            &by(&unpublished, &key, "sub", "ada".into()),
        ),
        (
            "an unknown key's",
            &by(&unpublished, &unpublished, "sub", "ada".into()),
        ),
        ("expired", &by(&key, &key, "exp", (now_s - 600).into())),
        ("for others", &by(&key, &key, "aud", "other".into())),
        (
            "by others",
            &by(&key, &key, "iss", "https://other.example".into()),
        ),
    ] {
        let (status, answer) = ask(token);
        assert!(matches!(status, 401 | 403), "{what}: {status} {answer}");
        // The dashboard's own refusal has no text.
        assert!(answer.contains("Jwt"), "{what}: {answer}");
    }
    // Requests that Envoy refused reached no dashboard.
    eventually("the refusals are in the access log", || {
        refused_by(&envoy) >= 9
    });

    // Signed out: the token's signature is still right, and the token is refused.
    let out = [&json[..], &["{}", "-b", jar]].concat();
    assert_eq!(envoy.ask("/api/sign-out", &out).0, 204);
    assert_eq!(ask(token), (401, String::new()));
}

/// A provider that makes everybody a viewer, and the authority of its certificate.
async fn provider_of(separate: &Separate) -> (Arc<oidc::Provider>, PathBuf) {
    let identities = separate.data.join("identities");
    let authority = LocalAuthority::open_or_create(&identities).unwrap();
    let files = authority.issue(&PeerId::service("provider"), &[]).unwrap();
    let tls = Identity::load(&files).unwrap().server_config(false, &[]);
    let provider = oidc::Provider::start(tls).await.unwrap();
    provider.saying.lock().claims = serde_json::json!({"roles": ["viewer"]});
    (provider, files.ca)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_the_provider_passes_envoy_and_is_checked_by_the_dashboard() {
    const AUDIENCE: &str = "https://ward.example.org";
    let dir = tempfile::tempdir().unwrap();
    let Some(binary) = envoy::binary() else {
        return;
    };
    let mut separate = prepare(dir.path(), &[]);
    let (provider, ca) = provider_of(&separate).await;
    let envoy = Envoy::start(&binary, dir.path(), &separate);
    separate.front = Some(envoy.devices);
    let flag = |name: &str, value: &str| format!("--oidc-{name}={value}");
    let flags = [
        flag("issuer", &provider.issuer),
        flag("redirect", &format!("{AUDIENCE}/api/sso/return")),
        flag("ca", ca.to_str().unwrap()),
        flag("audience", AUDIENCE),
    ];
    let flags = flags.each_ref().map(String::as_str);
    separate.start_with("dashboard", &[&["--tls=true"], &flags[..]].concat());
    let ask = |token: &str| {
        let bearer = format!("authorization: Bearer {token}");
        list_patients(&envoy, dir.path(), &["-H", &bearer])
    };
    let token = provider.access_token(AUDIENCE).unwrap();
    eventually("let in by the provider's token", || ask(&token).0 == 200);
    let (_, answer) = ask(&token);
    assert!(answer.contains("grpc-status:0"), "{answer}");
    // The provider changes its key: Envoy fetches it like the dashboard.
    provider.change_key().unwrap();
    let token = provider.access_token(AUDIENCE).unwrap();
    eventually("let in by its next key", || ask(&token).0 == 200);

    // Envoy checks signature and time, the dashboard the other claims.
    let of = |claim: &str, value: serde_json::Value| {
        provider.saying.lock().claims = serde_json::json!({"roles": ["viewer"], claim: value});
        provider.access_token(AUDIENCE).unwrap()
    };
    let expired = of("exp", 1_000_000_000.into());
    let endless = of("exp", serde_json::Value::Null);
    let for_others = of("aud", "another".into());
    let of_others = of("iss", "https://another.example.org".into());
    let nobody = of("roles", "guest".into());
    provider.saying.lock().by_unpublished_key = true;
    let forged = of("sub", "eve".into());
    for (what, token, status, by_envoy) in [
        ("expired", expired, 401, true),
        ("without an end", endless, 401, true),
        ("signed with another key", forged, 401, true),
        ("for others", for_others, 401, false),
        ("of others", of_others, 401, false),
        ("of nobody known here", nobody, 403, false),
    ] {
        let (said, answer) = ask(&token);
        assert_eq!(said, status, "{what}: {answer}");
        assert_eq!(answer.contains("Jwt"), by_envoy, "{what}: {answer}");
    }
}

/// Sign-ins that have to succeed one after the other: by chance both dashboards would be used in
/// the end.
const SIGN_INS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_in_returns_to_the_dashboard_that_began_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(binary) = envoy::binary() else {
        return;
    };
    let mut separate = prepare(dir.path(), &[]);
    let (provider, ca) = provider_of(&separate).await;
    let other = (free_port(), free_port());
    let envoy = Envoy::start_with(&binary, dir.path(), &separate, &[other]);
    separate.front = Some(envoy.devices);
    let home = "https://ward.example.org";
    let flag = |name: &str, value: &str| format!("--oidc-{name}={value}");
    let flags = [
        flag("issuer", &provider.issuer),
        flag("secret", oidc::SECRET),
        flag("redirect", &format!("{home}/api/sso/return")),
        flag("ca", ca.to_str().unwrap()),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let flags = [&["--tls=true"], &flags[..]].concat();
    separate.start_with("dashboard", &flags);
    let _other = separate.another_at("dashboard", other, &flags);
    eventually("Envoy finds both dashboards ready", || {
        envoy.ready("dashboard") == 2
    });

    let heard = dir.path().join("headers");
    let headers = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(&heard).unwrap();
        let of_name = |line: &str| {
            let (found, value) = line.split_once(": ")?;
            (found == name).then(|| value.trim().to_owned())
        };
        text.lines().filter_map(of_name).collect()
    };
    let dump = ["-D", heard.to_str().unwrap()];
    for n in 0..SIGN_INS {
        let (status, answer) = envoy.ask("/api/sso/begin", &dump);
        assert_eq!(status, 303, "{n}: {answer}");
        let back = provider.visit(&headers("location")[0]).unwrap();
        // After a navigation from another site a browser sends no Strict cookie.
        let shown: Vec<String> = headers("set-cookie")
            .iter()
            .filter(|cookie| cookie.contains("SameSite=Lax"))
            .filter_map(|cookie| Some(cookie.split(';').next()?.to_owned()))
            .collect();
        let shown = format!("cookie: {}", shown.join("; "));
        let path = back.strip_prefix(home).unwrap();
        let (status, answer) = envoy.ask(path, &[&dump[..], &["-H", &shown]].concat());
        assert_eq!(status, 303, "{n}: {answer}");
        let strict = |cookie: &String| {
            cookie.starts_with("__Host-braid_session=") && cookie.contains("SameSite=Strict")
        };
        assert!(headers("set-cookie").iter().any(strict), "{n}");
    }
}

/// Two thousand requests whose bodies do not arrive: more than all connections of Envoy to the
/// dashboards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_requests_take_no_connection_to_the_dashboards() {
    const CONNECTIONS: usize = 84;
    const REQUESTS: u32 = 24;
    let dir = tempfile::tempdir().unwrap();
    let Some(binary) = envoy::binary() else {
        return;
    };
    let mut separate = prepare(dir.path(), &[]);
    let envoy = Envoy::start(&binary, dir.path(), &separate);
    separate.front = Some(envoy.devices);
    separate.start("dashboard");
    eventually("Envoy finds the dashboard ready", || {
        envoy.ready("dashboard") == 1
    });
    let authority = LocalAuthority::open_or_create(&separate.data.join("identities")).unwrap();
    let anybody = authority
        .issue(&PeerId::gateway("t", "anybody"), &[])
        .unwrap();
    let tls = Identity::load(&anybody).unwrap().client_config(&[b"h2"]);
    let mut slow = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = envoy.connect_as_person(Arc::clone(&tls)).await.unwrap();
        let mut said = settings(1 << 16);
        let sign_in = [
            headers("POST", "/api/sign-in"),
            literal("content-type", "application/json"),
            literal("content-length", "1000"),
        ]
        .concat();
        for n in 0..REQUESTS {
            said.extend(frame(1, 4, 1 + 2 * n, &sign_in));
            said.extend(frame(0, 0, 1 + 2 * n, b"{"));
        }
        tokio::io::AsyncWriteExt::write_all(&mut stream, &said)
            .await
            .unwrap();
        slow.push(stream);
    }
    let begun = CONNECTIONS as u64 * u64::from(REQUESTS);
    eventually("all are begun", || {
        envoy.stat("http.people.downstream_rq_http2_total") >= begun
    });
    for cluster in ["dashboard", "dashboard-page"] {
        let waiting = format!("cluster.{cluster}.upstream_rq_pending_active");
        assert_eq!(envoy.stat(&waiting), 0, "{cluster}");
        let taken = envoy.stat(&format!("cluster.{cluster}.upstream_rq_active"));
        assert!(taken < 10, "{cluster}: {taken} connections");
    }
    // Complete requests of others do not wait; and a large one passes.
    assert_eq!(envoy.ask("/api/session", &[]).0, 204);
    let large = dir.path().join("large");
    let token = envoy.sign_in(&separate.data);
    let put = "/braid.query.v1.QueryService/PutDocument";
    let mut sizes = vec![
        (3 << 20, put, 200),
        (5 << 20, put, 413),
        (
            100 << 10,
            "/braid.query.v1.QueryService/AcknowledgeAlert",
            413,
        ),
        (12 << 10, "/api/gateways/enrol", 405),
        (20 << 10, "/api/gateways/enrol", 413),
    ];
    // The shared buffer is bounded: large requests are refused in the end, short ones not.
    sizes.extend([(100 << 10, put, 0); 20]);
    sizes.extend([(1 << 10, put, 200); 5]);
    let mut refused = 0;
    for (bytes, path, status) in sizes {
        let message = PutDocumentRequest {
            kind: "rules".into(),
            body: " ".repeat(bytes),
            ..PutDocumentRequest::default()
        };
        let message = message.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        std::fs::write(&large, [&[0], &length[..], &message].concat()).unwrap();
        let body = format!("@{}", large.display());
        let args = [
            "-H",
            &token,
            "-H",
            "content-type: application/grpc-web+proto",
            "--data-binary",
            &body,
        ];
        let (said, _) = envoy.ask(path, &args);
        if status == 0 {
            assert!(matches!(said, 200 | 429), "{said}");
            refused += usize::from(said == 429);
        } else {
            assert_eq!(said, status, "{path} with {bytes} bytes");
        }
    }
    assert!(
        refused > 0,
        "none of 20 large documents at once was refused"
    );
}
