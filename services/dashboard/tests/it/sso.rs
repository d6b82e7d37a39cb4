//! Sign-in at a provider that really signs its tokens: the admitted people, and the claims that
//! must be refused.

use crate::browser::{ANYWHERE, ask, client};
use crate::ward::Ward;
use bytes::Bytes;
use contracts::query::ListPatientsRequest;
use contracts::query::query_service_client::QueryServiceClient;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use service_kit::tls::authority::LocalAuthority;
use service_kit::tls::{Identity, PeerId};
use store::{AuditQuery, Scope};
use testkit::oidc::{CLIENT, Provider, SECRET};

async fn get(ward: &Ward, path: &str, cookie: &str) -> Response<Bytes> {
    // The header of a browser that another site sends here.
    let headers = [("cookie", cookie), ("sec-fetch-site", "cross-site")];
    ask(ward.address, Method::GET, path, "", &headers).await
}

fn cookies(response: &Response<Bytes>) -> Vec<String> {
    let all = response.headers().get_all("set-cookie").iter();
    all.map(|it| it.to_str().unwrap().to_owned()).collect()
}

fn bare(cookie: &str) -> String {
    cookie.split(';').next().unwrap().to_owned()
}

/// The provider's way back to this host, and the cookie of the waiting sign-in.
async fn begin(ward: &Ward, provider: &Provider) -> (String, String) {
    let begun = ask(ward.address, Method::GET, "/api/sso/begin", "", &[]).await;
    assert_eq!(begun.status(), StatusCode::SEE_OTHER);
    let set = cookies(&begun).remove(0);
    assert!(
        set.contains("HttpOnly") && set.contains("SameSite=Lax"),
        "{set}"
    );
    let back = provider.visit(begun.headers()["location"].to_str().unwrap());
    let back = back.expect("the provider understands the question");
    let path = back.strip_prefix("https://ward.example.org").unwrap();
    (path.to_owned(), bare(&set))
}

async fn sign_in(ward: &Ward, provider: &Provider) -> Response<Bytes> {
    let (path, cookie) = begin(ward, provider).await;
    get(ward, &path, &cookie).await
}

fn session(response: &Response<Bytes>) -> Option<String> {
    let is_session = |cookie: &String| cookie.starts_with("braid_session=");
    cookies(response)
        .iter()
        .find(|it| is_session(it))
        .map(|it| bare(it))
}

/// The people in the audit log, once for each time.
async fn who_did(ward: &Ward, action: &str) -> Vec<String> {
    let query = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let log = ward.store.audit(&Scope::tenant("default"), &query).await;
    let rows = log.unwrap().into_iter().filter(|row| row.action == action);
    rows.map(|row| row.who).collect()
}

/// Tries to sign in with each kind of wrong claim.
async fn wrong_claims_sign_nobody_in(ward: &Ward, provider: &Provider, good: &Value) {
    let say = |claims: Value| provider.saying.lock().claims = claims;
    let past: i64 = 1_000_000_000;
    for change in [
        json!({"iss": "https://another.example.org"}),
        json!({"aud": "another"}),
        json!({"aud": [CLIENT, "another"]}),
        json!({"nonce": "another"}),
        json!({"nonce": null}),
        json!({"exp": past}),
        json!({"iat": 3 * past}),
        json!({"roles": ["guest"]}),
        json!({"roles": null}),
        json!({"tenant": null}),
        json!({"sub": ""}),
    ] {
        let mut claims = good.clone();
        claims
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        say(claims);
        let answer = sign_in(ward, provider).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{change}");
        assert_eq!(session(&answer), None, "{change}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_provider_says_who_it_is_and_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
    let files = authority.issue(&PeerId::service("provider"), &[]).unwrap();
    let tls = Identity::load(&files).unwrap().server_config(false, &[]);
    let provider = Provider::start(tls).await.unwrap();
    let flags = [
        ("--oidc-issuer", provider.issuer.as_str()),
        ("--oidc-client", CLIENT),
        ("--oidc-secret", SECRET),
        ("--oidc-redirect", "https://ward.example.org/api/sso/return"),
        ("--oidc-tenant-claim", "tenant"),
        ("--oidc-ca", files.ca.to_str().unwrap()),
    ];
    let flags: Vec<&str> = flags
        .iter()
        .flat_map(|(flag, value)| [*flag, *value])
        .collect();
    let ward = Ward::start(dir.path(), ANYWHERE, &flags).await;
    ward.patient("p1", "Ada Berg", "default", "g1").await;
    let say = |claims: Value| provider.saying.lock().claims = claims;
    let good = json!({"roles": ["guest", "clinician"], "tenant": "default"});

    say(good.clone());
    let answer = sign_in(&ward, &provider).await;
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    assert_eq!(answer.headers()["location"], "/");
    let cookie = session(&answer).unwrap();
    let who = ask(
        ward.address,
        Method::GET,
        "/api/session",
        "",
        &[("cookie", &cookie)],
    )
    .await;
    let expected = br#"{"name":"sso:ada (17)","role":"clinician"}"#;
    assert_eq!(who.body().as_ref(), expected);
    let mut signed_in = client(&ward, &cookie);
    signed_in
        .list_patients(ListPatientsRequest {})
        .await
        .unwrap();

    // The sign-in is bound to the browser that began it, and works once.
    let (path, own) = begin(&ward, &provider).await;
    for cookie in ["", "braid_sso=", "braid_sso=another"] {
        assert_eq!(get(&ward, &path, cookie).await.status(), 403, "{cookie}");
    }
    assert!(session(&get(&ward, &path, &own).await).is_some());
    assert_eq!(
        get(&ward, &path, &own).await.status(),
        403,
        "the second time"
    );
    let (path, own) = begin(&ward, &provider).await;
    let another = path.replace("code=", "code=x");
    assert!(
        session(&get(&ward, &another, &own).await).is_none(),
        "not the provider's code"
    );
    let (path, own) = begin(&ward, &provider).await;
    let refused = path.replace("code=", "error=access_denied&not=");
    assert_eq!(get(&ward, &refused, &own).await.status(), 403);

    // The provider changes its key, and the dashboard reads it again.
    provider.change_key().unwrap();
    assert!(session(&sign_in(&ward, &provider).await).is_some());

    wrong_claims_sign_nobody_in(&ward, &provider, &good).await;
    say(good.clone());
    provider.saying.lock().by_unpublished_key = true;
    assert_eq!(
        session(&sign_in(&ward, &provider).await),
        None,
        "not its key"
    );
    provider.saying.lock().by_unpublished_key = false;

    // A person of another tenant sees no patient of this one.
    say(json!({"roles": "administrator", "tenant": "elsewhere"}));
    let cookie = session(&sign_in(&ward, &provider).await).unwrap();
    let ward_seen = client(&ward, &cookie)
        .list_patients(ListPatientsRequest {})
        .await;
    assert_eq!(ward_seen.unwrap().into_inner().patients, []);

    let entered = who_did(&ward, "sign in by provider").await;
    assert_eq!(entered, ["sso:ada (17)"; 3]);
    ward.end().await;
}

const AUDIENCE: &str = "https://ward.example.org";

/// The ids of the patients that a caller with this token sees.
async fn patients(ward: &Ward, token: &str) -> Result<Vec<String>, tonic::Status> {
    let channel = service_kit::grpc::channel(&format!("http://{}", ward.address), None);
    let bearer: tonic::metadata::AsciiMetadataValue = format!("Bearer {token}").parse().unwrap();
    let with_token = move |mut request: tonic::Request<()>| {
        request
            .metadata_mut()
            .insert("authorization", bearer.clone());
        Ok(request)
    };
    let mut client = QueryServiceClient::with_interceptor(channel.unwrap(), with_token);
    let answer = client.list_patients(ListPatientsRequest {}).await;
    answer.map(|ward| {
        let ids = ward.into_inner().patients.into_iter().map(|it| it.id);
        ids.collect()
    })
}

async fn session_of(ward: &Ward, token: &str) -> http::Response<bytes::Bytes> {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    ask(ward.address, Method::GET, "/api/session", "", &headers).await
}

/// The id of the only key that a proxy in front gets.
async fn provider_key(ward: &Ward) -> String {
    let keys = ask(ward.address, Method::GET, "/api/keys/provider", "", &[]).await;
    let keys: Value = serde_json::from_slice(keys.body()).unwrap();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1, "{keys}");
    keys["keys"][0]["kid"].as_str().unwrap().to_owned()
}

/// Calls with a token for each kind of wrong claim.
async fn tokens_with_wrong_claims_are_refused(ward: &Ward, provider: &Provider, good: &Value) {
    let say = |claims: Value| provider.saying.lock().claims = claims;
    let past: i64 = 1_000_000_000;
    for (change, status) in [
        (json!({"aud": CLIENT}), 401),
        (json!({"aud": null}), 401),
        (json!({"aud": [CLIENT, "another"]}), 401),
        (json!({"exp": past}), 401),
        (json!({"exp": null}), 401),
        (json!({"nbf": 3 * past}), 401),
        (json!({"iss": "https://another.example.org"}), 204),
        (json!({"roles": ["guest"]}), 403),
        (json!({"roles": null}), 403),
        (json!({"tenant": null}), 403),
        (json!({"sub": ""}), 403),
    ] {
        let mut claims = good.clone();
        claims
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        say(claims);
        let token = provider.access_token(AUDIENCE).unwrap();
        assert_eq!(session_of(ward, &token).await.status(), status, "{change}");
        let refused = patients(ward, &token).await.unwrap_err();
        let code = match status {
            403 => tonic::Code::PermissionDenied,
            _ => tonic::Code::Unauthenticated,
        };
        assert_eq!(refused.code(), code, "{change}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_calls_with_a_token_of_the_provider() {
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
    let files = authority.issue(&PeerId::service("provider"), &[]).unwrap();
    let tls = || Identity::load(&files).unwrap().server_config(false, &[]);
    let provider = Provider::start(tls()).await.unwrap();
    let another = Provider::start(tls()).await.unwrap();
    let mut flags = vec![
        "--oidc-issuer",
        provider.issuer.as_str(),
        "--oidc-redirect",
        "https://ward.example.org/api/sso/return",
        "--oidc-tenant-claim",
        "tenant",
        "--oidc-ca",
        files.ca.to_str().unwrap(),
    ];
    let without = Ward::start(&dir.path().join("without"), ANYWHERE, &flags).await;
    flags.extend(["--oidc-audience", AUDIENCE]);
    let ward = Ward::start(dir.path(), ANYWHERE, &flags).await;
    ward.patient("p1", "Ada Berg", "default", "g1").await;
    ward.patient("p9", "Zoe Lund", "elsewhere", "g9").await;
    let say = |claims: Value| provider.saying.lock().claims = claims;
    let good = json!({"roles": ["viewer"], "tenant": "default", "sub": "nightly", "preferred_username": null});
    say(good.clone());
    let token = provider.access_token(AUDIENCE).unwrap();
    // The list follows the store after a moment.
    let seen = async |token: &str, patient: &str| {
        let listed = async {
            while patients(&ward, token).await.unwrap() != [patient] {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        crate::browser::within("the ward is read", listed).await;
    };
    seen(&token, "p1").await;
    let who = session_of(&ward, &token).await;
    assert_eq!(
        who.body().as_ref(),
        br#"{"name":"sso:nightly","role":"viewer"}"#
    );
    // A token of another tenant shows that tenant's patients only.
    say(json!({"roles": ["administrator"], "tenant": "elsewhere"}));
    let theirs = provider.access_token(AUDIENCE).unwrap();
    seen(&theirs, "p9").await;
    // The provider has changed to another key meanwhile.
    provider.change_key().unwrap();
    say(good.clone());
    let token = provider.access_token(AUDIENCE).unwrap();
    assert_eq!(patients(&ward, &token).await.unwrap(), ["p1"]);

    tokens_with_wrong_claims_are_refused(&ward, &provider, &good).await;
    say(good.clone());
    provider.saying.lock().by_unpublished_key = true;
    let forged = provider.access_token(AUDIENCE).unwrap();
    provider.saying.lock().by_unpublished_key = false;
    // A token of another provider, and one that claims this issuer with another's key.
    another.saying.lock().claims = good.clone();
    let foreign = another.access_token(AUDIENCE).unwrap();
    another.saying.lock().claims =
        json!({"iss": provider.issuer, "roles": ["viewer"], "tenant": "default"});
    let pretended = another.access_token(AUDIENCE).unwrap();
    let unsigned = token.rsplit_once('.').unwrap().0.to_owned() + ".";
    for token in [&forged, &foreign, &pretended, &unsigned] {
        let refused = patients(&ward, token).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{refused:?}");
    }
    // Without a configured audience no token is accepted.
    let token = provider.access_token(AUDIENCE).unwrap();
    patients(&without, &token).await.unwrap_err();

    // A proxy in front gets the provider's key. Where no token is accepted, it gets a key that fits
    // none.
    assert_eq!(provider_key(&ward).await, provider.kid());
    assert_ne!(provider_key(&without).await, provider.kid());

    let called = who_did(&ward, "call by token of provider").await;
    assert_eq!(
        called, ["sso:nightly"; 2],
        "once for each token, not for each call"
    );
    ward.end().await;
    without.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cookie_that_a_neighbour_could_set_binds_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
    let files = authority.issue(&PeerId::service("provider"), &[]).unwrap();
    let tls = Identity::load(&files).unwrap().server_config(false, &[]);
    let provider = Provider::start(tls).await.unwrap();
    let flags = [
        "--oidc-issuer",
        provider.issuer.as_str(),
        "--oidc-secret",
        SECRET,
        "--oidc-redirect",
        "https://ward.example.org/api/sso/return",
        "--oidc-ca",
        files.ca.to_str().unwrap(),
        "--secure-cookies",
        "true",
    ];
    let ward = Ward::start(dir.path(), ANYWHERE, &flags).await;
    provider.saying.lock().claims = json!({"roles": ["viewer"]});
    // Another person's sign-in. A neighbouring host can set any cookie without this prefix.
    let (path, own) = begin(&ward, &provider).await;
    let state = own.strip_prefix("__Host-braid_sso=").unwrap();
    let set = format!("braid_sso={state}");
    assert_eq!(get(&ward, &path, &set).await.status(), 403);
    let signed_in = get(&ward, &path, &own).await;
    assert_eq!(signed_in.status(), StatusCode::SEE_OTHER);
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_tokens_hold_nobody_up_while_the_provider_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
    let files = authority.issue(&PeerId::service("provider"), &[]).unwrap();
    let tls = Identity::load(&files).unwrap().server_config(false, &[]);
    let provider = Provider::start(tls).await.unwrap();
    let flags = [
        "--oidc-issuer",
        provider.issuer.as_str(),
        "--oidc-redirect",
        "https://ward.example.org/api/sso/return",
        "--oidc-ca",
        files.ca.to_str().unwrap(),
        "--oidc-audience",
        AUDIENCE,
    ];
    let ward = Ward::start(dir.path(), ANYWHERE, &flags).await;
    let address = ward.address;
    let status = move |token: String| async move {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        let answer = ask(address, Method::GET, "/api/session", "", &headers).await;
        answer.status().as_u16()
    };
    provider.saying.lock().claims = json!({"roles": ["viewer"]});
    let first = provider.access_token(AUDIENCE).unwrap();
    let second = provider.access_token(AUDIENCE).unwrap();
    assert_eq!(status(first).await, 200, "the keys are known");

    provider.saying.lock().by_unpublished_key = true;
    let forged = provider.access_token(AUDIENCE).unwrap();
    provider.saying.lock().hangs = true;
    let forged = tokio::spawn(status(forged));
    crate::browser::within("the keys are asked for", provider.unanswered.notified()).await;
    assert_eq!(status(second).await, 200);
    assert!(!forged.is_finished(), "the forged one waits for the keys");
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_begins_ever_new_sign_ins_pushes_out_nobody_elses() {
    /// As many sign-ins as are remembered.
    const PENDING_MAX: usize = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
    let files = authority.issue(&PeerId::service("provider"), &[]).unwrap();
    let tls = Identity::load(&files).unwrap().server_config(false, &[]);
    let provider = Provider::start(tls).await.unwrap();
    let flags = [
        "--oidc-issuer",
        provider.issuer.as_str(),
        "--oidc-secret",
        SECRET,
        "--oidc-redirect",
        "https://ward.example.org/api/sso/return",
        "--oidc-ca",
        files.ca.to_str().unwrap(),
        "--trust-forwarded-for",
        "true",
    ];
    let ward = Ward::start(dir.path(), ANYWHERE, &flags).await;
    provider.saying.lock().claims = json!({"roles": ["viewer"]});
    let (path, own) = begin(&ward, &provider).await;
    let from = [("x-forwarded-for", "198.51.100.7")];
    for _ in 0..PENDING_MAX {
        let begun = ask(ward.address, Method::GET, "/api/sso/begin", "", &from).await;
        assert_eq!(begun.status(), StatusCode::SEE_OTHER);
    }
    let signed_in = get(&ward, &path, &own).await;
    assert_eq!(signed_in.status(), StatusCode::SEE_OTHER);
    ward.end().await;
}
