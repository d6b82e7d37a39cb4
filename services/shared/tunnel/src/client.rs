//! The client's end: what applications see of a tunnel. The session beneath is the keeper's.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{StatusCode, uri::Authority};
use multipath::Keepalive;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    interfaces::{FanOut, Interface},
    keeper::Keeper,
    names::{NAME_BYTES_MAX, is_name},
    paths::PathSnapshot,
    request::Urgency,
    routes::{Race, Routes},
    session::{ConnectError, Dialler, Session},
    steer::{Control, Way, interface_id},
    stream::TunnelStream,
};

/// Events that a slow subscriber may fall behind; it then misses the oldest ones.
const EVENTS_MAX: usize = 256;

/// How long `close` waits for the last packets to leave.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Settings of a tunnel.
#[derive(Clone)]
pub struct TunnelConfig {
    pub proxy: SocketAddr,
    /// `host:port` looked up anew before every connection; `proxy` is used while the name does not resolve.
    pub proxy_host: Option<String>,
    /// Name that the proxy's certificate must bear.
    pub server_name: String,
    /// Must allow TLS 1.3 and carry the device's certificate; the protocol list is replaced by HTTP/3's.
    pub tls: Arc<rustls::ClientConfig>,
    /// A handshake that takes longer has failed.
    pub handshake_timeout: Duration,
    /// An `open_tcp` that takes longer has failed, including the wait for a session.
    pub open_timeout: Duration,
    pub keepalive: Keepalive,
}

impl TunnelConfig {
    pub fn new(
        proxy: SocketAddr,
        server_name: impl Into<String>,
        tls: Arc<rustls::ClientConfig>,
    ) -> Self {
        Self {
            proxy,
            proxy_host: None,
            server_name: server_name.into(),
            tls,
            handshake_timeout: Duration::from_secs(5),
            open_timeout: Duration::from_secs(15),
            keepalive: Keepalive::default(),
        }
    }
}

/// What happens to the tunnel as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelEvent {
    SessionUp {
        session: u64,
    },
    SessionDown {
        session: u64,
    },
    PathUp {
        name: String,
    },
    /// Tunnels that were using the path stall until the library has repaired them: a fresh stream is faster.
    PathDown {
        name: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("a tunnel needs at least one interface")]
    NoInterface,
    #[error(
        "{name:?} is no name for an interface: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'"
    )]
    Name { name: String },
    #[error("the TLS configuration has no cipher suite that QUIC can use")]
    Tls,
    #[error("cannot make a QUIC endpoint: {0}")]
    Endpoint(#[from] io::Error),
}

/// Why a tunnel to a destination could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The proxy's answer: 403 not allowed, 502 unreachable, 504 too slow, 429 too many.
    #[error("the proxy refused: {0}")]
    Refused(StatusCode),
    #[error("no session with the proxy within {0:?}")]
    NoSession(Duration),
    #[error("the destination did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the tunnel is closed")]
    Closed,
}

impl OpenError {
    /// Whether the same request may succeed later.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Refused(status) => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::NoSession(_) | Self::TimedOut(_) => true,
            Self::Closed => false,
        }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::Refused(StatusCode::FORBIDDEN) => io::ErrorKind::PermissionDenied,
            OpenError::Refused(_) => io::ErrorKind::ConnectionRefused,
            OpenError::NoSession(_) | OpenError::TimedOut(_) => io::ErrorKind::TimedOut,
            OpenError::Closed => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// A tunnel to a proxy. Clones share it; it ends with `close` or with the last clone.
#[derive(Clone)]
pub struct Tunnel {
    shared: Arc<Shared>,
    _end: Arc<DropGuard>,
}

pub(crate) struct Shared {
    pub(crate) config: TunnelConfig,
    pub(crate) endpoint: noq::Endpoint,
    pub(crate) race: Race,
    pub(crate) routes: Routes,
    ways: parking_lot::Mutex<Vec<Way>>,
    pub(crate) session: watch::Sender<Option<Arc<Session>>>,
    keepalive: watch::Sender<Keepalive>,
    pub(crate) events: broadcast::Sender<TunnelEvent>,
    pub(crate) end: CancellationToken,
    sessions: AtomicU64,
}

impl Tunnel {
    /// Starts to connect and returns at once. Must be called inside a Tokio runtime.
    pub fn start(config: TunnelConfig, interfaces: Vec<Interface>) -> Result<Tunnel, StartError> {
        if interfaces.is_empty() {
            return Err(StartError::NoInterface);
        }
        if let Some(bad) = interfaces.iter().find(|way| !is_name(&way.name)) {
            return Err(StartError::Name {
                name: bad.name.clone(),
            });
        }
        let ways: Vec<Way> = interfaces
            .iter()
            .map(|interface| Way {
                name: interface.name.as_str().into(),
                local_ip: interface.local_ip,
                up: true,
            })
            .collect();
        let dialler = Dialler::new(&config.tls).map_err(|_| StartError::Tls)?;
        let fan_out = FanOut::new(interfaces);
        let (race, routes) = (fan_out.race(), fan_out.routes());
        let endpoint = noq::Endpoint::new_with_abstract_socket(
            noq::EndpointConfig::default(),
            None,
            Box::new(fan_out),
            Arc::new(noq::TokioRuntime),
        )?;
        let end = CancellationToken::new();
        let keepalive = watch::Sender::new(config.keepalive);
        let shared = Arc::new(Shared {
            config,
            endpoint,
            race,
            routes,
            ways: parking_lot::Mutex::new(ways),
            session: watch::Sender::new(None),
            keepalive,
            events: broadcast::Sender::new(EVENTS_MAX),
            end: end.clone(),
            sessions: AtomicU64::new(crate::session::first_number()),
        });
        tokio::spawn(Keeper::new(shared.clone(), dialler).run());
        Ok(Tunnel {
            shared,
            _end: Arc::new(end.drop_guard()),
        })
    }

    /// Opens a TCP connection from the proxy to `authority` (`host:port`), waiting for a session if there is none.
    pub async fn open_tcp(
        &self,
        authority: &Authority,
        urgency: Urgency,
    ) -> Result<TunnelStream, OpenError> {
        let timeout = self.shared.config.open_timeout;
        let mut sessions = self.shared.session.subscribe();
        let mut asked = false;
        let opening = async {
            loop {
                let session = tokio::select! {
                    found = sessions.wait_for(|session| session.is_some()) => {
                        found.map_err(|_| OpenError::Closed)?.clone()
                    }
                    () = self.shared.end.cancelled() => return Err(OpenError::Closed),
                };
                let Some(session) = session else {
                    continue;
                };
                asked = true;
                let number = session.number;
                let mut next = sessions.clone();
                let replaced = next.wait_for(|session| {
                    session
                        .as_ref()
                        .is_none_or(|session| session.number != number)
                });
                let connected = tokio::select! {
                    connected = session.connect(authority, urgency) => Some(connected),
                    // A mute session may never answer; its successor is there now.
                    _ = replaced => None,
                    () = self.shared.end.cancelled() => return Err(OpenError::Closed),
                };
                match connected {
                    Some(Ok(stream)) => return Ok(stream),
                    Some(Err(ConnectError::Refused(status))) => {
                        return Err(OpenError::Refused(status));
                    }
                    Some(Err(error)) => {
                        tracing::debug!(%error, %authority, "the session ended while a tunnel was opening");
                        session.retire();
                        asked = false;
                        // The keeper publishes the next one.
                        let next = sessions.wait_for(|session| {
                            session
                                .as_ref()
                                .is_none_or(|session| session.number != number)
                        });
                        tokio::select! {
                            next = next => { next.map_err(|_| OpenError::Closed)?; }
                            () = self.shared.end.cancelled() => return Err(OpenError::Closed),
                        }
                    }
                    None => asked = false,
                }
            }
        };
        match tokio::time::timeout(timeout, opening).await {
            Ok(result) => result,
            Err(_) if asked => Err(OpenError::TimedOut(timeout)),
            Err(_) => Err(OpenError::NoSession(timeout)),
        }
    }

    /// Events from here on; a subscriber that falls behind loses the oldest.
    pub fn events(&self) -> broadcast::Receiver<TunnelEvent> {
        self.shared.events.subscribe()
    }

    /// The paths of the current session, recently closed ones included; empty without a session.
    pub fn paths(&self) -> Vec<PathSnapshot> {
        self.shared
            .session
            .borrow()
            .as_ref()
            .map_or_else(Vec::new, |session| session.paths.snapshot())
    }

    pub fn is_up(&self) -> bool {
        self.shared.session.borrow().is_some()
    }

    /// Waits until there is a session; returns whether there is one (none once the tunnel is closed).
    pub async fn up(&self) -> bool {
        let mut sessions = self.shared.session.subscribe();
        tokio::select! {
            found = sessions.wait_for(|session| session.is_some()) => found.is_ok(),
            () = self.shared.end.cancelled() => false,
        }
    }

    /// Changes how often paths are probed, at once and for later sessions.
    pub fn set_keepalive(&self, keepalive: Keepalive) {
        self.shared.keepalive.send_replace(keepalive);
        self.control(Control::Keepalive(keepalive));
    }

    /// Tells that an access network lost its address or carrier, or has it back. Silence is detected without it, only later.
    pub fn set_link(&self, name: &str, up: bool) {
        let index = {
            let mut ways = self.shared.ways.lock();
            let Some(index) = ways.iter().position(|way| &*way.name == name) else {
                return;
            };
            ways[index].up = up;
            index
        };
        if let Some(interface) = interface_id(index) {
            self.control(Control::Link { interface, up });
        }
    }

    fn control(&self, control: Control) {
        if let Some(session) = self.shared.session.borrow().as_ref() {
            session.control(control);
        }
    }

    /// Names and addresses of the access networks.
    pub fn interfaces(&self) -> Vec<(String, IpAddr)> {
        let ways = self.shared.ways.lock();
        ways.iter()
            .map(|way| (way.name.to_string(), way.local_ip))
            .collect()
    }

    /// Ends the session and all tunnels, and tells the proxy.
    pub async fn close(&self) {
        self.shared.end.cancel();
        self.shared.endpoint.close(
            noq::VarInt::from_u32(crate::session::NO_ERROR),
            b"closed by the client",
        );
        let _ = tokio::time::timeout(CLOSE_MAX, self.shared.endpoint.wait_all_draining()).await;
    }
}

impl Shared {
    pub(crate) fn ways(&self) -> Vec<Way> {
        self.ways.lock().clone()
    }

    pub(crate) fn keepalive(&self) -> Keepalive {
        *self.keepalive.borrow()
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn tell(&self, event: TunnelEvent) {
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }

    /// Where the proxy is at the moment.
    pub(crate) async fn proxy_address(&self) -> SocketAddr {
        let configured = self.config.proxy;
        let Some(host) = &self.config.proxy_host else {
            return configured;
        };
        let of_our_family = |address: &SocketAddr| {
            self.ways
                .lock()
                .first()
                .is_none_or(|way| way.local_ip.is_ipv4() == address.is_ipv4())
        };
        match tokio::net::lookup_host(host).await {
            Ok(mut found) => found.find(of_our_family).unwrap_or(configured),
            Err(error) => {
                tracing::warn!(%host, %error, "the proxy's name does not resolve");
                configured
            }
        }
    }
}
