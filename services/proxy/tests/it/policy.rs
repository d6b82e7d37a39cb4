//! The policy's file: destinations by group of gateways, changed without a restart, and clients
//! with certificates of another make.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::bench::{Proxy, authority_of, echo, fast};
use proxy::RunError;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::{
    crypto::ring::sign::any_supported_type,
    pki_types::PrivateKeyDer,
    sign::{CertifiedKey, SingleCertAndKey},
};
use service_kit::{telemetry::metrics_handle, tls::PeerId};
use testkit::{DEADLINE, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use tunnel::{OpenError, StatusCode, Tunnel, TunnelEvent, TunnelStream, Urgency};

async fn open(tunnel: &Tunnel, to: SocketAddr) -> Result<TunnelStream, OpenError> {
    within(tunnel.open_tcp(&authority_of(to), Urgency::Bulk)).await
}

async fn is_forbidden(tunnel: &Tunnel, to: SocketAddr) -> bool {
    match open(tunnel, to).await {
        Ok(_) => false,
        Err(OpenError::Refused(StatusCode::FORBIDDEN)) => true,
        Err(error) => panic!("{error}"),
    }
}

async fn echoes(stream: &mut TunnelStream) {
    stream.write_all(b"hello").await.unwrap();
    stream.flush().await.unwrap();
    let mut back = [0; 5];
    within(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"hello");
}

fn group(gateways: &str, allow: &[SocketAddr]) -> String {
    let allow: Vec<String> = allow
        .iter()
        .map(|to| format!("{:?}", to.to_string()))
        .collect();
    format!(
        "[[group]]\nname = \"g\"\ngateways = [{gateways}]\nallow = [{}]\n",
        allow.join(",")
    )
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destinations_of_groups_change_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.toml");
    let (common, ours, later) = (echo().await, echo().await, echo().await);
    std::fs::write(&file, group("\"acme/gw-1\"", &[ours])).unwrap();
    let allow = common.to_string();
    let flags = ["--allow", &allow, "--policy", file.to_str().unwrap()];
    let proxy = Proxy::start(&flags).await;
    let gateway = |id: &str| {
        let identity = proxy.identity(&PeerId::gateway("acme", id));
        proxy.tunnel(&identity, &fast(), DEADLINE)
    };
    let (first, second) = (gateway("gw-1"), gateway("gw-2"));
    let mut kept = open(&first, common).await.unwrap();
    let mut lost = open(&first, ours).await.unwrap();
    echoes(&mut lost).await;
    assert!(is_forbidden(&second, ours).await);
    assert!(!is_forbidden(&second, common).await);

    // A file that cannot be obeyed changes nothing, and is warned of.
    std::fs::write(&file, "[[group]]\nname = 1").unwrap();
    let warned = async || {
        let warnings = proxy.context.health().warnings();
        warnings.iter().any(|(name, _)| *name == "policy")
    };
    eventually("a warning", warned).await;
    assert!(!is_forbidden(&first, ours).await);

    std::fs::write(&file, group("\"acme/*\"", &[later])).unwrap();
    eventually("the new policy", async || {
        !is_forbidden(&second, later).await
    })
    .await;
    assert!(!warned().await);
    assert!(is_forbidden(&first, ours).await);
    // The open tunnel to it ends, and the other one goes on in the same session.
    let ended = within(lost.read(&mut [0])).await;
    assert!(ended.is_err(), "{ended:?}");
    echoes(&mut kept).await;
    first.close().await;
    second.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn a_policy_that_cannot_be_obeyed_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.toml");
    std::fs::write(&file, "[[identity]]\nsan = \"nobody\"\ntenant = \"t\"").unwrap();
    for path in [file, dir.path().join("none.toml")] {
        let flags = ["--policy", path.to_str().unwrap()];
        let error = Proxy::start_to_fail(&flags).await;
        let RunError::Config(error) = error else {
            panic!("{error}");
        };
        assert_eq!(error.field, "policy");
    }
}

/// An authority of somebody else, and the certificates that it signed.
struct Elsewhere {
    issuer: Issuer<'static, KeyPair>,
    authority: String,
}

impl Elsewhere {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, authority }
    }

    fn sign(&self, name: &str) -> CertifiedKey {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let key = any_supported_type(&key).unwrap();
        CertifiedKey::new(vec![certificate.der().clone()], key)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_make_is_the_gateway_that_the_policy_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.toml");
    let ours = echo().await;
    let identity = "[[identity]]\nsan = \"dns:*.vpn.example.org\"\ntenant = \"lab\"\n";
    std::fs::write(
        &file,
        identity.to_owned() + &group("\"lab/box-7\"", &[ours]),
    )
    .unwrap();
    let elsewhere = Elsewhere::new();
    let flags = ["--policy", file.to_str().unwrap()];
    let proxy = Proxy::start_believing(&flags, &elsewhere.authority).await;
    let client = |name: &str| {
        let mut tls = (*proxy.gateway().client_config(&[tunnel::ALPN])).clone();
        tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(elsewhere.sign(name)));
        let patience = Duration::from_secs(6);
        proxy.tunnel_as(Arc::new(tls), &fast(), patience).0
    };
    let known = client("box-7.vpn.example.org");
    let mut stream = open(&known, ours).await.unwrap();
    echoes(&mut stream).await;
    // Another host of theirs is a gateway too, but in no group.
    let other = client("box-8.vpn.example.org");
    assert!(is_forbidden(&other, ours).await);
    // A name that the policy does not map gets no session.
    let unknown = client("box-7.example.com");
    let opened = unknown.open_tcp(&authority_of(ours), Urgency::Bulk).await;
    let kept_out = matches!(
        opened,
        Err(OpenError::NoSession(_) | OpenError::TimedOut(_))
    );
    assert!(kept_out, "{opened:?}");
    for tunnel in [known, other, unknown] {
        tunnel.close().await;
    }
    proxy.stop().await;
}

/// Longest time from a change of the file to the end of the sessions that it refuses.
const SESSION_END_MAX: Duration = Duration::from_secs(2);

fn identity(host: &str, tenant: &str) -> String {
    let san = format!("san = \"dns:{host}.example.org\"");
    format!("[[identity]]\n{san}\ntenant = \"{tenant}\"\ngateway = \"{host}\"\n")
}

/// A client with a session and an open tunnel.
struct Client {
    tunnel: Tunnel,
    stream: TunnelStream,
    events: tokio::sync::broadcast::Receiver<TunnelEvent>,
}

impl Client {
    async fn new(tunnel: Tunnel, to: SocketAddr) -> Self {
        let mut stream = open(&tunnel, to).await.unwrap();
        echoes(&mut stream).await;
        let events = tunnel.events();
        Self {
            tunnel,
            stream,
            events,
        }
    }

    async fn session_ends(&mut self, by: Instant) {
        let down = async {
            while !matches!(
                self.events.recv().await.unwrap(),
                TunnelEvent::SessionDown { .. }
            ) {}
        };
        timeout_at(by, down).await.unwrap();
    }
}

/// Sessions that the proxy closed for this reason.
fn closed(reason: &str) -> usize {
    let line = format!("braid_proxy_sessions_refused_total{{reason=\"{reason}\"}} ");
    let rendered = metrics_handle().render();
    let value = rendered.lines().find_map(|it| it.strip_prefix(&line));
    value.map_or(0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_when_the_policy_maps_its_certificate_otherwise() {
    metrics_handle();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.toml");
    let to = echo().await;
    let groups = group("\"lab/*\", \"other/*\"", &[to]);
    let before = ["kept", "gone", "moved"].map(|host| identity(host, "lab"));
    std::fs::write(&file, before.concat() + &groups).unwrap();
    let elsewhere = Elsewhere::new();
    let flags = ["--policy", file.to_str().unwrap(), "--tcp-fallback", "true"];
    let proxy = Proxy::start_believing(&flags, &elsewhere.authority).await;
    let tls = |host: &str| {
        let mut tls = (*proxy.gateway().client_config(&[tunnel::ALPN])).clone();
        let key = elsewhere.sign(&format!("{host}.example.org"));
        tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(key));
        Arc::new(tls)
    };
    let by_udp = |host: &str| Client::new(proxy.tunnel_as(tls(host), &fast(), DEADLINE).0, to);
    let by_tcp = |host: &str| Client::new(proxy.tunnel_without_udp(tls(host), DEADLINE), to);
    let mut kept = [by_udp("kept").await, by_tcp("kept").await];
    let mut gone = [by_udp("gone").await, by_tcp("gone").await];
    let mut moved = [by_udp("moved").await, by_tcp("moved").await];
    let own = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    assert!(is_forbidden(&own, to).await);

    let after = identity("kept", "lab") + &identity("moved", "other");
    std::fs::write(&file, after + &groups).unwrap();
    let by = Instant::now() + SESSION_END_MAX;
    for client in gone.iter_mut().chain(&mut moved) {
        client.session_ends(by).await;
    }
    assert_eq!((closed("unmapped"), closed("remapped")), (2, 2));
    // The next session belongs to another tenant, which must not resume the tunnel of the first.
    for client in &mut moved {
        let mut fresh = open(&client.tunnel, to).await.unwrap();
        echoes(&mut fresh).await;
        let resumed = within(client.stream.read(&mut [0])).await;
        assert!(resumed.is_err(), "{resumed:?}");
    }
    for client in &mut kept {
        echoes(&mut client.stream).await;
        while let Ok(event) = client.events.try_recv() {
            let is_down = matches!(event, TunnelEvent::SessionDown { .. });
            assert!(!is_down, "the session of a mapped certificate");
        }
    }
    assert!(is_forbidden(&own, to).await);
    let clients = kept.into_iter().chain(gone).chain(moved);
    for tunnel in clients.map(|client| client.tunnel).chain([own]) {
        tunnel.close().await;
    }
    proxy.stop().await;
}
