//! The proxy's end: accepts connections, checks only TLS, and passes the CONNECT requests on.
//!
//! A handshake that does not finish in ten seconds is dropped. During many concurrent handshakes an
//! address must prove itself by a Retry first, so that forged packets cost the sender more than the
//! server. Beyond `handshakes_max` the oldest handshake is dropped. Where UDP is blocked the same
//! requests come as HTTP/2 over TLS over MPTCP (`over_tcp`).

mod handshake;
mod over_tcp;
pub(crate) mod places;
pub(crate) mod requests;
pub(crate) mod reset_key;
pub(crate) mod server_id;
pub(crate) mod session;
pub(crate) mod session_handle;

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use multipath::{
    ControllerConfig, Controllers, KeepaliveTerms, PathScheduler, PathUpkeep, Side, UpkeepConfig,
};
use noq::crypto::rustls::QuicServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::{mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use handshake::{Handshakes, Reason};

use crate::{
    http::{
        carrier::Carrier,
        codes::NO_ERROR,
        h3_over_noq,
        http_datagrams::HttpDatagrams,
        stream::OpenStreams,
        transport::{ALPN, transport_config},
    },
    paths::{
        Paths,
        upkeep::{Scheduled, UpkeepTask},
    },
    resume::{
        ResumeLimits,
        server::{Kept, Peer},
    },
    server::{
        places::Places,
        requests::{Dispatcher, REQUESTS_WAITING_MAX, Requests, Resuming},
        reset_key::{ResetKey, SignedIds},
        server_id::ServerId,
        session::ServerSession,
        session_handle::SessionHandle,
    },
    session_numbers,
    sockets::{
        datagrams::{DatagramCounts, Datagrams},
        interface::enlarge_buffers,
        tcp, udp,
    },
};

/// Concurrent handshakes above which an address must prove itself by a Retry.
const HANDSHAKES_UNPROVED_MAX: usize = 64;

/// Sessions ready to be accepted; further sessions wait, and count as handshakes.
const SESSIONS_WAITING_MAX: usize = 64;

/// Bytes of a request's headers; larger headers are refused.
const HEADER_BYTES_MAX: u64 = 16 * 1024;

/// Least pause between two stateless resets. All gateways of a crashed proxy ask its successor,
/// several times a second each; a reset is smaller than the packet that it answers.
const RESET_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Longest wait of `close` for the last packets to leave.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Settings of a server.
#[derive(Clone)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    /// Decides which clients are admitted; the ALPN list is replaced by HTTP/3's.
    pub tls: Arc<rustls::ServerConfig>,
    pub resume: ResumeLimits,
    /// Whether clients behind a UDP block may use TCP, on the port of the same number.
    pub fallback: bool,
    /// The server id for a load balancer; `None`: connection ids contain no server id.
    pub server_id: Option<ServerId>,
    /// The key of its predecessor, whose connections it resets; `None`: a random one.
    pub reset_key: Option<ResetKey>,
    /// Concurrent handshakes over UDP, and as many over TCP; beyond it the oldest is dropped.
    pub handshakes_max: usize,
}

impl ServerConfig {
    pub fn new(listen: SocketAddr, tls: Arc<rustls::ServerConfig>) -> Self {
        Self {
            listen,
            tls,
            resume: ResumeLimits::default(),
            fallback: false,
            server_id: None,
            reset_key: None,
            handshakes_max: 512,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {address} (UDP): {source}")]
    Socket {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot listen on {address} (UDP and TCP on one port): {source}")]
    Sockets {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("the TLS configuration has no cipher suite that QUIC can use")]
    Tls,
}

/// Accepts sessions.
pub struct TunnelServer {
    endpoint: noq::Endpoint,
    local_addr: SocketAddr,
    datagrams: Datagrams,
    sessions: tokio::sync::Mutex<mpsc::Receiver<ServerSession>>,
    tasks: TaskTracker,
    draining: CancellationToken,
    closing: CancellationToken,
    kept: Kept,
}

impl TunnelServer {
    /// Must be called within a Tokio runtime.
    pub fn bind(config: ServerConfig) -> Result<TunnelServer, BindError> {
        let address = config.listen;
        let at = |source| BindError::Socket { address, source };
        let mut tls = (*config.tls).clone();
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let crypto = QuicServerConfig::try_from(tls).map_err(|_| BindError::Tls)?;
        let kept = Kept::new(config.resume);
        let accepting = Accepting {
            kept: kept.clone(),
            config: noq::ServerConfig::with_crypto(Arc::new(crypto)),
            numbers: Arc::new(AtomicU64::new(session_numbers::first_number())),
        };
        let (socket, listener) = if config.fallback {
            let both = tcp::listen_beside(address, bind_socket);
            let (socket, listener) =
                both.map_err(|source| BindError::Sockets { address, source })?;
            (socket, Some(listener))
        } else {
            (bind_socket(address).map_err(at)?, None)
        };
        let socket = udp::wrap(socket, Side::Server).map_err(at)?;
        let datagrams = Datagrams::new();
        let mut endpoint_config = noq::EndpointConfig::default();
        endpoint_config.min_reset_interval(RESET_INTERVAL_MIN);
        if let Some(reset_key) = config.reset_key {
            endpoint_config.reset_key(Arc::new(reset_key.clone()));
            let ids = SignedIds(reset_key);
            endpoint_config.cid_generator(Arc::new(move || Box::new(ids.clone())));
        }
        if let Some(server_id) = config.server_id {
            endpoint_config.cid_generator(Arc::new(move || Box::new(server_id.clone())));
        }
        let endpoint = noq::Endpoint::new_with_abstract_socket(
            endpoint_config,
            Some(accepting.config.clone()),
            datagrams.of(socket),
            Arc::new(noq::TokioRuntime),
        )
        .map_err(at)?;
        let local_addr = endpoint.local_addr().map_err(at)?;
        let (ready, sessions) = mpsc::channel(SESSIONS_WAITING_MAX);
        let tasks = TaskTracker::new();
        let said = Handshakes::default();
        let draining = CancellationToken::new();
        let closing = CancellationToken::new();
        if let Some(listener) = listener {
            let by_tcp = over_tcp::Accepting::new(
                &config.tls,
                kept.clone(),
                accepting.numbers.clone(),
                tasks.clone(),
                closing.clone(),
                said.clone(),
            );
            let handshakes = Places::new(config.handshakes_max);
            tasks.spawn(by_tcp.accept_all(listener, handshakes, ready.clone(), draining.clone()));
        }
        tasks.spawn(accept_all(
            endpoint.clone(),
            Places::new(config.handshakes_max),
            said,
            accepting,
            ready,
            tasks.clone(),
            draining.clone(),
        ));
        Ok(TunnelServer {
            endpoint,
            local_addr,
            datagrams,
            sessions: tokio::sync::Mutex::new(sessions),
            tasks,
            draining,
            closing,
            kept,
        })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Datagrams and system calls since the start.
    pub fn datagrams(&self) -> DatagramCounts {
        self.datagrams.counts()
    }

    /// The next session; `None` once the server accepts no more.
    pub async fn accept(&self) -> Option<ServerSession> {
        self.sessions.lock().await.recv().await
    }

    /// Accepts no more sessions; open sessions live on. Detached tunnels are reset from now on,
    /// since only a new session could resume them.
    pub fn refuse_new(&self) {
        self.draining.cancel();
        self.kept.drain();
    }

    /// Ends all sessions.
    pub async fn close(&self) {
        self.refuse_new();
        self.closing.cancel();
        self.endpoint
            .close(noq::VarInt::from_u32(NO_ERROR), b"the proxy is stopping");
        self.tasks.close();
        let ended = async {
            self.endpoint.wait_all_draining().await;
            self.tasks.wait().await;
        };
        let _ = tokio::time::timeout(CLOSE_MAX, ended).await;
    }
}

fn bind_socket(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::DGRAM,
        Some(socket2::Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    enlarge_buffers(&socket);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[derive(Clone)]
struct Accepting {
    kept: Kept,
    config: noq::ServerConfig,
    numbers: Arc<AtomicU64>,
}

async fn accept_all(
    endpoint: noq::Endpoint,
    mut handshakes: Places,
    said: Handshakes,
    accepting: Accepting,
    ready: mpsc::Sender<ServerSession>,
    tasks: TaskTracker,
    draining: CancellationToken,
) {
    while let Some(Some(incoming)) = draining.run_until_cancelled(endpoint.accept()).await {
        if handshakes.taken() >= HANDSHAKES_UNPROVED_MAX && incoming.may_retry() {
            // Fails only for a proved address, which `may_retry` excludes.
            let _ = incoming.retry();
            continue;
        }
        let Some(place) = handshakes.take().await else {
            return;
        };
        let (accepting, ready, said) = (accepting.clone(), ready.clone(), said.clone());
        tasks.spawn(async move {
            let remote = multipath::unmapped(incoming.remote_address());
            let shaking = accepting.handshake(incoming);
            if let Some(session) = said.shake(&place, remote, "quic", shaking).await {
                // During the drop of the server the session has no receiver.
                let _ = ready.send(session).await;
            }
        });
    }
    // From now on packets of new connections are answered with a refusal.
    endpoint.set_server_config(None);
}

#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("{0}")]
    Quic(#[from] noq::ConnectionError),
    #[error("{0}")]
    Http(#[from] h3::error::ConnectionError),
}

impl Reason for HandshakeError {
    fn reason(&self) -> &'static str {
        use noq::ConnectionError;
        match self {
            Self::Quic(ConnectionError::TransportError(_)) => "tls",
            Self::Quic(ConnectionError::TimedOut) => "timeout",
            Self::Quic(ConnectionError::VersionMismatch) => "protocol",
            Self::Quic(
                ConnectionError::ConnectionClosed(_)
                | ConnectionError::ApplicationClosed(_)
                | ConnectionError::Reset,
            ) => "closed",
            Self::Quic(_) => "other",
            Self::Http(_) => "protocol",
        }
    }
}

impl Accepting {
    async fn handshake(self, incoming: noq::Incoming) -> Result<ServerSession, HandshakeError> {
        // The path scheduler joins the controllers of one connection, so each connection has its
        // own configuration.
        let path_scheduler = PathScheduler::new();
        let mut config = self.config;
        config.transport_config(transport_config(|transport| {
            transport.congestion_controller_factory(Controllers::new(
                path_scheduler.clone(),
                ControllerConfig::default(),
            ));
        }));
        let connection = incoming.accept_with(Arc::new(config))?.await?;
        let certificates = connection
            .peer_identity()
            .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
            .map_or_else(Vec::new, |certificates| *certificates);
        let remote = connection
            .path(noq::PathId::ZERO)
            .and_then(|path| path.remote_address().ok())
            .map(multipath::unmapped)
            .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        let over_noq = h3_over_noq::Connection::new(connection.clone(), path_scheduler.clone());
        let handles = over_noq.send_handles();
        let http = h3::server::builder()
            .send_grease(false)
            .max_field_section_size(HEADER_BYTES_MAX)
            .enable_extended_connect(true)
            .enable_datagram(true)
            .build(over_noq)
            .await?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let paths = Paths::new(number, None, Instant::now());
        let (terms_to, terms) = watch::channel(KeepaliveTerms::of_unknown_client());
        let upkeep = UpkeepConfig::new(Side::Server);
        let upkeep = UpkeepTask {
            connection: connection.clone(),
            upkeep: PathUpkeep::new(upkeep, path_scheduler.clone()),
            paths: paths.clone(),
            handles: handles.clone(),
            ways: None,
            first: None,
            remote,
            terms,
            received_datagrams: 0,
            scheduled: Scheduled::default(),
        };
        tokio::spawn(upkeep.run(move |change| tracing::debug!(?change, session = number, "path")));
        let (ready, requests) = mpsc::channel(REQUESTS_WAITING_MAX);
        let handle = SessionHandle {
            number,
            carrier: Carrier::Quic(connection.clone()),
            paths,
            terms: terms_to,
            open: OpenStreams::default(),
            goodbye: CancellationToken::new(),
        };
        let resuming = certificates.first().map(|certificate| Resuming {
            kept: self.kept,
            peer: Arc::new(Peer::of(certificate)),
        });
        let dispatcher = Dispatcher {
            ready,
            session: handle.clone(),
            datagrams: Some(HttpDatagrams::start(
                connection,
                path_scheduler,
                handles.clone(),
            )),
            resuming,
        };
        tokio::spawn(
            Requests {
                http,
                handles,
                dispatcher,
            }
            .run(),
        );
        Ok(ServerSession {
            certificates,
            remote,
            requests,
            handle,
        })
    }
}
