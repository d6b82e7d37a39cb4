//! A client behind two emulated access links and a server, on real loopback sockets.

// Each test file uses its part.
#![allow(dead_code)]

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use emulated_link::{LinkControl, emulate, link::LinkConfig};
use service_kit::tls::{Identity, PeerId, authority::LocalAuthority};
use tempfile::TempDir;
use testkit::within;
use tokio::sync::broadcast;
use tunnel::{
    Authority, ConnectRequest, Interface, ServerConfig, SessionHandle, Tunnel, TunnelConfig,
    TunnelEvent, TunnelServer,
};

pub const NAMES: [&str; 2] = ["wifi", "lte"];

pub struct Bench {
    pub tunnel: Tunnel,
    pub links: Vec<LinkControl>,
    pub events: broadcast::Receiver<TunnelEvent>,
    pub identities: Identities,
    pub server_addr: SocketAddr,
}

pub struct Identities {
    pub server: Identity,
    pub client: Identity,
    /// The client's identity with another certificate, and another gateway's.
    pub renewed: Identity,
    pub other_gateway: Identity,
    _dir: TempDir,
}

impl Identities {
    /// The first call of each test; `RUST_LOG` shows the log.
    pub fn new() -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        service_kit::tls::install_provider();
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let issue = |id: PeerId| {
            let files = authority.issue(&id, &["localhost".to_owned()]).unwrap();
            Identity::load(&files).unwrap()
        };
        Self {
            server: issue(PeerId::service("proxy")),
            client: issue(PeerId::gateway("acme", "gw-1")),
            renewed: issue(PeerId::gateway("acme", "gw-1")),
            other_gateway: issue(PeerId::gateway("acme", "gw-2")),
            _dir: dir,
        }
    }

    pub fn server_config(&self, listen: SocketAddr) -> ServerConfig {
        ServerConfig::new(listen, self.server.server_config(true, &[tunnel::ALPN]))
    }
}

/// Accepts sessions and gives each request to `serve`.
pub fn serve<F, S>(server: Arc<TunnelServer>, serve: F)
where
    F: Fn(ConnectRequest, SessionHandle) -> S + Clone + Send + Sync + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        while let Some(mut session) = server.accept().await {
            let serve = serve.clone();
            tokio::spawn(async move {
                while let Some(request) = session.accept().await {
                    tokio::spawn(serve(request, session.handle().clone()));
                }
            });
        }
    });
}

pub async fn echo(request: ConnectRequest, _: SessionHandle) {
    let stream = request.accept().await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    if tokio::io::copy(&mut read, &mut write).await.is_ok() {
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
    }
}

pub fn listen_anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl Bench {
    /// Two links of `config`; `down` lists the links that are down from the start.
    pub fn start(
        identities: Identities,
        server_addr: SocketAddr,
        config: &LinkConfig,
        down: &[usize],
    ) -> Self {
        Self::start_with(identities, server_addr, config, down, |_| {})
    }

    /// The same with settings of the tunnel.
    pub fn start_with(
        identities: Identities,
        server_addr: SocketAddr,
        config: &LinkConfig,
        down: &[usize],
        set: impl FnOnce(&mut TunnelConfig),
    ) -> Self {
        let mut links = Vec::new();
        let mut interfaces = Vec::new();
        for (index, name) in NAMES.iter().enumerate() {
            let ip = std::net::IpAddr::from([127, 0, index as u8 + 1, 1]);
            let mut interface = Interface::bind(*name, ip, None).unwrap();
            let (socket, link) = emulate(interface.socket, config, 7 + index as u64);
            interface.socket = socket;
            link.set_up(!down.contains(&index));
            links.push(link);
            interfaces.push(interface);
        }
        let tls = identities.client.client_config(&[tunnel::ALPN]);
        let mut config = TunnelConfig::new(server_addr, "localhost", tls);
        config.handshake_timeout = Duration::from_secs(2);
        set(&mut config);
        let tunnel = Tunnel::start(config, interfaces).unwrap();
        let events = tunnel.events();
        Self {
            tunnel,
            links,
            events,
            identities,
            server_addr,
        }
    }

    pub async fn until(&mut self, wanted: impl Fn(&TunnelEvent) -> bool) -> TunnelEvent {
        within(async {
            loop {
                let event = self.events.recv().await.unwrap();
                if wanted(&event) {
                    return event;
                }
            }
        })
        .await
    }

    /// Waits until both access networks have a path that is up.
    pub async fn both_up(&self) {
        within(async {
            loop {
                let paths = self.tunnel.paths();
                let up = |name: &str| {
                    paths.iter().any(|path| {
                        path.name == name
                            && matches!(
                                path.state,
                                tunnel::PathState::Available | tunnel::PathState::Backup
                            )
                    })
                };
                if NAMES.iter().all(|name| up(name)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    pub fn session(&self) -> u64 {
        self.tunnel.paths().first().unwrap().session
    }
}

pub fn authority() -> Authority {
    "echo.test:7".parse().unwrap()
}
