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
    datagrams::DatagramCounts,
    interfaces::{FanOut, Interface},
    ip_tunnel::IpTunnel,
    keeper::Keeper,
    names::{NAME_BYTES_MAX, is_name},
    opening,
    paths::PathSnapshot,
    proxy_address::ProxyAddress,
    request::{self, Urgency},
    resume::{self, Ledger},
    routes::{Race, Routes},
    session::{ConnectError, Dialler, Session},
    slots::{AttachError, Slots},
    transport::Transport,
    tunnel_stream::TunnelStream,
    udp_tunnel::UdpTunnel,
};

/// Events that a slow subscriber may fall behind; it then misses the oldest ones.
const EVENTS_MAX: usize = 256;

/// Bytes that all resumable tunnels of one client hold beyond 64 KB each; beyond it they take nothing more in.
const RESUME_BYTES_MAX: usize = 64 << 20;

/// How long `close` waits for the last packets to leave.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Settings of a tunnel.
#[derive(Clone)]
pub struct TunnelConfig {
    /// The proxy's address; an unspecified one when only the name is known.
    pub proxy: SocketAddr,
    /// The same proxy's address of the other family, for access networks that have only that.
    pub proxy_other_family: Option<SocketAddr>,
    /// `host:port` looked up anew with every connection; the address known last is used meanwhile.
    pub proxy_host: Option<String>,
    /// Name that the proxy's certificate must bear.
    pub server_name: String,
    /// Must allow TLS 1.3 and carry the device's certificate; the protocol list is replaced by HTTP/3's.
    pub tls: Arc<rustls::ClientConfig>,
    /// A handshake that takes longer has failed.
    pub handshake_timeout: Duration,
    /// An `open_tcp` or `open_udp` that takes longer has failed, including the wait for a session.
    pub open_timeout: Duration,
    /// What is proposed to the proxy; every session begins with the default.
    pub keepalive: Keepalive,
    /// A resumable tunnel that nothing carries for so long is over. Zero: all tunnels are plain.
    pub resume_within: Duration,
    /// Whether a session is made by TCP where nothing answers by UDP. Goes over the interfaces' addresses, past their sockets.
    pub fallback: bool,
}

impl TunnelConfig {
    pub fn new(
        proxy: SocketAddr,
        server_name: impl Into<String>,
        tls: Arc<rustls::ClientConfig>,
    ) -> Self {
        Self {
            proxy,
            proxy_other_family: None,
            proxy_host: None,
            server_name: server_name.into(),
            tls,
            handshake_timeout: Duration::from_secs(5),
            open_timeout: Duration::from_secs(15),
            keepalive: Keepalive::default(),
            resume_within: Duration::from_secs(120),
            fallback: false,
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
    /// Nothing was heard for longer than usual on a path that carries data: that may be late. It answers again, or `PathDown` follows.
    PathSilent {
        name: String,
    },
    /// Tunnels that were using the path stall until the library has repaired them: a fresh stream is faster. `carried` is false where the
    /// path only stood by, so that none did.
    PathDown {
        name: String,
        carried: bool,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
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
    /// The proxy's answer: 403 not allowed, 502 unreachable, 504 too slow, 429 too many, 501 no UDP, or no IP.
    #[error("the proxy refused: {0}")]
    Refused(StatusCode),
    #[error("no session with the proxy within {0:?}")]
    NoSession(Duration),
    #[error("the destination did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the tunnel is closed")]
    Closed,
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
    pub(crate) slots: Arc<Slots>,
    pub(crate) proxy: Arc<ProxyAddress>,
    pub(crate) session: watch::Sender<Option<Arc<Session>>>,
    keepalive: watch::Sender<Keepalive>,
    pub(crate) ledger: Ledger,
    pub(crate) events: broadcast::Sender<TunnelEvent>,
    pub(crate) end: CancellationToken,
    sessions: AtomicU64,
}

impl Tunnel {
    /// Starts to connect and returns at once. Interfaces may come and go later. Must be called inside a Tokio runtime.
    pub fn start(config: TunnelConfig, interfaces: Vec<Interface>) -> Result<Tunnel, StartError> {
        if let Some(bad) = interfaces.iter().find(|way| !is_name(&way.name)) {
            return Err(StartError::Name {
                name: bad.name.clone(),
            });
        }
        let dialler = Dialler::new(&config.tls).map_err(|_| StartError::Tls)?;
        let slots = Slots::new(interfaces);
        let addresses = [Some(config.proxy), config.proxy_other_family];
        let proxy = ProxyAddress::new(config.proxy_host.clone(), addresses.into_iter().flatten());
        let fan_out = FanOut::new(slots.clone(), proxy.clone());
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
            slots,
            proxy,
            session: watch::Sender::new(None),
            keepalive,
            ledger: Ledger::new(RESUME_BYTES_MAX),
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

    /// Opens a TCP connection from the proxy to `authority` (`host:port`), waiting for a session if there is none. Where the proxy
    /// agrees, the tunnel is resumable: it survives the loss of paths, of the session and of all networks.
    pub async fn open_tcp(
        &self,
        authority: &Authority,
        urgency: Urgency,
    ) -> Result<TunnelStream, OpenError> {
        let resumable = !self.shared.config.resume_within.is_zero();
        self.open_stream(authority, urgency, resumable).await
    }

    /// The same as a plain CONNECT, which ends with its stream: for those that replay from a journal of their own, and would
    /// rather open a fresh tunnel at once than wait for an old one.
    pub async fn open_plain_tcp(
        &self,
        authority: &Authority,
        urgency: Urgency,
    ) -> Result<TunnelStream, OpenError> {
        self.open_stream(authority, urgency, false).await
    }

    /// Has the proxy exchange UDP datagrams with `authority`, waiting for a session if there is none. Ends with the session.
    pub async fn open_udp(
        &self,
        authority: &Authority,
        urgency: Urgency,
    ) -> Result<UdpTunnel, OpenError> {
        let server_name = &self.shared.config.server_name;
        self.open(authority, |session| async move {
            let ask = || session.connect_udp(server_name, authority, urgency);
            opening::insist(&session, authority, ask).await
        })
        .await
    }

    /// Has the proxy exchange IP packets with whatever it allows, waiting for a session if there is none. Ends with the session.
    pub async fn open_ip(&self, urgency: Urgency) -> Result<IpTunnel, OpenError> {
        let server_name = &self.shared.config.server_name;
        let any = request::any_destination();
        self.open(&any, |session| {
            let any = &any;
            async move {
                let ask = || session.connect_ip(server_name, urgency);
                opening::insist(&session, any, ask).await
            }
        })
        .await
    }

    async fn open_stream(
        &self,
        authority: &Authority,
        urgency: Urgency,
        resumable: bool,
    ) -> Result<TunnelStream, OpenError> {
        let shared = &self.shared;
        self.open(authority, |session| async move {
            let ask = || opening::tcp(&session, authority, urgency, resumable);
            let (stream, agreed) = opening::insist(&session, authority, ask).await?;
            Ok(match agreed {
                Some(token) => {
                    let request = resume::client::Request {
                        authority: authority.clone(),
                        urgency,
                        token,
                    };
                    let stream = resume::client::begin(shared, session, stream, request);
                    TunnelStream::resumable(stream)
                }
                None => TunnelStream::plain(stream),
            })
        })
        .await
    }

    /// Asks the session there is, or the next ones, until one answers.
    async fn open<T, F>(
        &self,
        authority: &Authority,
        ask: impl Fn(Arc<Session>) -> F,
    ) -> Result<T, OpenError>
    where
        F: Future<Output = Result<T, ConnectError>>,
    {
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
                    connected = ask(session.clone()) => Some(connected),
                    // A mute session may never answer; its successor is there now.
                    _ = replaced => None,
                    () = self.shared.end.cancelled() => return Err(OpenError::Closed),
                };
                match connected {
                    Some(Ok(opened)) => return Ok(opened),
                    Some(Err(ConnectError::Refused(status))) => {
                        return Err(OpenError::Refused(status));
                    }
                    Some(Err(ConnectError::Extended(error))) => {
                        tracing::debug!(%error, %authority, "not to be asked for");
                        return Err(OpenError::Refused(StatusCode::BAD_REQUEST));
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

    /// Datagrams and system calls of all access networks since the start.
    pub fn datagrams(&self) -> DatagramCounts {
        self.shared.slots.datagrams()
    }

    /// What carries the current session.
    pub fn transport(&self) -> Option<Transport> {
        let session = self.shared.session.borrow();
        session.as_ref().map(|session| session.transport())
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

    /// Changes how often paths are probed by both ends, in this session once the proxy has agreed, and in later ones.
    pub fn set_keepalive(&self, keepalive: Keepalive) {
        self.shared.keepalive.send_replace(keepalive);
    }

    /// Adds an access network, or gives the one of that name another socket: a path over it is opened at once. A path that the
    /// network still has goes on from its new address.
    pub fn attach(&self, interface: Interface) -> Result<(), AttachError> {
        self.shared.slots.attach(interface).map(|_| ())
    }

    /// Takes an access network away: its address or carrier is lost, or the device. What was under way over it is moved to
    /// the others at once. Returns whether it was there.
    pub fn detach(&self, name: &str) -> bool {
        self.shared.slots.detach(name)
    }

    /// Tells that an access network keeps its socket but does not work, or works again.
    pub fn set_link(&self, name: &str, up: bool) {
        self.shared.slots.set_up(name, up);
    }

    /// Whether a session may be one by TCP.
    pub(crate) fn may_fall_back(&self) -> bool {
        self.shared.config.fallback
    }

    /// Where the proxy is, as far as that is known.
    pub(crate) fn proxy(&self) -> &ProxyAddress {
        &self.shared.proxy
    }

    /// Returns when the tunnel is being closed.
    pub(crate) async fn closed(&self) {
        self.shared.end.cancelled().await;
    }

    /// Names and addresses of the access networks that are there.
    pub fn interfaces(&self) -> Vec<(String, IpAddr)> {
        let states = self.shared.slots.states().into_iter();
        states
            .filter_map(|slot| Some((slot.name.to_string(), slot.local_ip?)))
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
    pub(crate) fn watch_keepalive(&self) -> watch::Receiver<Keepalive> {
        self.keepalive.subscribe()
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn tell(&self, event: TunnelEvent) {
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }
}

#[cfg(test)]
impl Tunnel {
    /// The session at the moment, for tests that ask for what the interface does not offer.
    pub(crate) async fn session(&self) -> Option<Arc<Session>> {
        self.up().await;
        self.shared.session.borrow().clone()
    }
}
