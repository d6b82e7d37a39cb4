//! A revoked certificate can do nothing to its former gateway.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::bench::{Proxy, authority_of, fast};
use contracts::policy::{
    GetPolicyRequest, GetPolicyResponse, ListRevocationsRequest, ListRevocationsResponse,
    RevokedGateway,
    policy_service_server::{PolicyService, PolicyServiceServer},
};
use parking_lot::Mutex;
use service_kit::tls::{Identity, PeerId, renewal};
use testkit::{DEADLINE, udp_echo, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tunnel::Urgency;

/// Interval between two questions with the same datagram; the first may be lost.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

#[derive(Clone, Default)]
struct FakePathTelemetry {
    revoked: Arc<Mutex<Vec<RevokedGateway>>>,
    /// The version of the list that the proxy has.
    known: Arc<AtomicU64>,
    /// Leaves questions unanswered, as path-telemetry does before it has read its store.
    closed: Arc<AtomicBool>,
}

impl FakePathTelemetry {
    /// Its address.
    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(PolicyServiceServer::new(self.clone()))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        url
    }

    fn revoke(&self, gateway: &str, excepted: &[String]) {
        self.revoked.lock().push(RevokedGateway {
            tenant: "acme".to_owned(),
            gateway: gateway.to_owned(),
            excepted: excepted.to_vec(),
        });
    }
}

#[tonic::async_trait]
impl PolicyService for FakePathTelemetry {
    async fn get_policy(
        &self,
        _: Request<GetPolicyRequest>,
    ) -> Result<Response<GetPolicyResponse>, Status> {
        Err(Status::not_found("no policy"))
    }

    async fn list_revocations(
        &self,
        request: Request<ListRevocationsRequest>,
    ) -> Result<Response<ListRevocationsResponse>, Status> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Status::unavailable("the store has not been read yet"));
        }
        let known = request.into_inner().version;
        self.known.store(known, Ordering::Relaxed);
        let gateways = self.revoked.lock().clone();
        let version = 1 + gateways.len() as u64;
        Ok(Response::new(ListRevocationsResponse {
            version,
            unchanged: version == known,
            gateways,
        }))
    }
}

#[tokio::test]
async fn a_revoked_certificate_ends_no_session_of_its_successor() {
    let to = udp_echo().await;
    let path_telemetry = FakePathTelemetry::default();
    let url = path_telemetry.serve().await;
    let proxy = Proxy::start(&[
        "--allow",
        &to.to_string(),
        "--path-telemetry",
        &url,
        "--sessions-per-gateway-max",
        "1",
    ])
    .await;
    let old = proxy.gateway();
    let files = proxy.renewed();
    let new = renewal::fingerprint(&std::fs::read_to_string(&files.cert).unwrap()).unwrap();
    path_telemetry.revoke("gw-1", &[new.to_string()]);
    within(async {
        while path_telemetry.known.load(Ordering::Relaxed) < 2 {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    })
    .await;

    let own = proxy.tunnel(&Identity::load(&files).unwrap(), &fast(), DEADLINE);
    // A UDP tunnel is not resumable, so it ends with its session.
    let to = authority_of(to);
    let udp = within(own.open_udp(&to, Urgency::Prompt)).await.unwrap();
    let thief = proxy.tunnel(&old, &fast(), Duration::from_secs(2));
    within(thief.open_udp(&to, Urgency::Prompt))
        .await
        .unwrap_err();
    within(async {
        loop {
            udp.send(b"still here");
            let answer = tokio::time::timeout(AGAIN_AFTER, udp.receive()).await;
            if let Ok(answer) = answer {
                assert_eq!(answer.unwrap(), "still here");
                return;
            }
        }
    })
    .await;
    thief.close().await;
    own.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn a_revocation_resets_a_resumable_tunnel_whose_session_it_ends() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = upstream.local_addr().unwrap();
    let path_telemetry = FakePathTelemetry::default();
    let url = path_telemetry.serve().await;
    let flags = ["--allow", &to.to_string(), "--path-telemetry", &url];
    let proxy = Proxy::start(&flags).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let authority = authority_of(to);
    let opened = tunnel.open_tcp(&authority, Urgency::Bulk);
    let mut stream = within(opened).await.unwrap();
    assert!(stream.is_resumable());
    stream.write_all(b"hello").await.unwrap();
    let (mut served, _) = within(upstream.accept()).await.unwrap();
    let mut hello = [0; 5];
    within(served.read_exact(&mut hello)).await.unwrap();

    path_telemetry.revoke("gw-1", &[]);
    // A detached tunnel would keep the connection for 120 s.
    let ended = within(served.read(&mut hello)).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    tunnel.close().await;
    proxy.stop().await;
}

/// Whether a gateway of this name gets a tunnel within so long.
async fn is_let_in(proxy: &Proxy, gateway: &str, to: SocketAddr, patience: Duration) -> bool {
    let identity = proxy.identity(&PeerId::gateway("acme", gateway));
    let tunnel = proxy.tunnel(&identity, &fast(), patience);
    let opened = tunnel.open_udp(&authority_of(to), Urgency::Prompt).await;
    tunnel.close().await;
    opened.is_ok()
}

/// Long enough for a tunnel that is granted.
const SOON: Duration = Duration::from_secs(2);

struct Scene {
    path_telemetry: FakePathTelemetry,
    to: SocketAddr,
    data: tempfile::TempDir,
}

impl Scene {
    /// Path-telemetry does not answer yet.
    async fn new() -> Self {
        let path_telemetry = FakePathTelemetry::default();
        path_telemetry.closed.store(true, Ordering::Relaxed);
        Self {
            path_telemetry,
            to: udp_echo().await,
            data: tempfile::tempdir().unwrap(),
        }
    }

    async fn proxy(&self, wait_ms: &str, flags: &[&str]) -> Proxy {
        let (to, url) = (self.to.to_string(), self.path_telemetry.serve().await);
        let mut all = vec!["--allow", &to, "--path-telemetry", &url];
        all.extend(["--revocations-wait-ms", wait_ms]);
        all.extend(flags);
        Proxy::start(&all).await
    }

    fn folder(&self) -> String {
        self.data.path().join("proxy").display().to_string()
    }

    async fn is_let_in(&self, proxy: &Proxy, gateway: &str, patience: Duration) -> bool {
        is_let_in(proxy, gateway, self.to, patience).await
    }
}

#[tokio::test]
async fn gateways_wait_for_the_list_of_revoked_gateways() {
    let scene = Scene::new().await;
    scene.path_telemetry.revoke("gw-2", &[]);
    let proxy = scene.proxy("60000", &[]).await;
    assert!(!scene.is_let_in(&proxy, "gw-1", SOON).await);
    // A waiting session is admitted once the list is known, without a second session.
    let waiting = scene.is_let_in(&proxy, "gw-1", DEADLINE);
    let open = async { scene.path_telemetry.closed.store(false, Ordering::Relaxed) };
    let (is_let_in, ()) = tokio::join!(waiting, open);
    assert!(is_let_in);
    assert!(!scene.is_let_in(&proxy, "gw-2", SOON).await);
    proxy.stop().await;
}

#[tokio::test]
async fn a_proxy_without_the_list_of_revoked_gateways_admits_none() {
    let scene = Scene::new().await;
    let proxy = scene.proxy("0", &["--data-dir", &scene.folder()]).await;
    assert!(!scene.is_let_in(&proxy, "gw-1", SOON).await);
    within(async {
        while proxy.context.health().warnings().is_empty() {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    })
    .await;
    scene.path_telemetry.closed.store(false, Ordering::Relaxed);
    assert!(scene.is_let_in(&proxy, "gw-1", DEADLINE).await);
    assert_eq!(proxy.context.health().warnings(), []);
    proxy.stop().await;
}

#[tokio::test]
async fn the_list_on_disk_holds_while_path_telemetry_is_away() {
    let scene = Scene::new().await;
    scene.path_telemetry.revoke("gw-2", &[]);
    scene.path_telemetry.closed.store(false, Ordering::Relaxed);
    let before = scene.proxy("60000", &["--data-dir", &scene.folder()]).await;
    let kept = scene.data.path().join("proxy/revoked.json");
    within(async {
        while !kept.exists() {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    })
    .await;
    before.stop().await;
    scene.path_telemetry.closed.store(true, Ordering::Relaxed);
    let proxy = scene.proxy("0", &["--data-dir", &scene.folder()]).await;
    assert!(scene.is_let_in(&proxy, "gw-1", DEADLINE).await);
    assert!(!scene.is_let_in(&proxy, "gw-2", SOON).await);
    proxy.stop().await;
}

#[tokio::test]
async fn an_operator_may_admit_gateways_without_the_list() {
    let scene = Scene::new().await;
    let proxy = scene.proxy("0", &["--admit-unheard"]).await;
    assert!(scene.is_let_in(&proxy, "gw-1", DEADLINE).await);
    proxy.stop().await;
}
