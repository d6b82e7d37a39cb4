//! Sessions over TCP: the same clients with the same certificates, and the same requests in HTTP/2.
//!
//! The bounds are those of QUIC: ten seconds for a handshake, `handshakes_max` concurrent
//! handshakes, and `TUNNELS_MAX` streams of one connection with their windows. TCP's own handshake
//! proves the address.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use rustls::pki_types::CertificateDer;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    http::{
        carrier::{Carrier, TcpCarrier},
        exchange::Exchange,
        h2_over_tcp::{self, PingTask, ServerConnection},
        stream::OpenStreams,
    },
    paths::Paths,
    resume::server::{Kept, Peer},
    server::{
        handshake::{Handshakes, Reason},
        places::Places,
        requests::{Dispatcher, REQUESTS_WAITING_MAX, Resuming},
        session::ServerSession,
        session_handle::SessionHandle,
    },
    sockets::{
        counted::{Counted, Counts},
        tcp,
    },
};

/// Interval of the server's pings; the client pings more often.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Pause after a failed `accept`: file descriptors have most likely run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for the last frames to leave.
const FAREWELL_MAX: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) struct Accepting {
    tls: TlsAcceptor,
    kept: Kept,
    numbers: Arc<AtomicU64>,
    tasks: TaskTracker,
    closing: CancellationToken,
    said: Handshakes,
}

#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("{0}")]
    Tls(#[from] io::Error),
    #[error("{0}")]
    Http(#[from] h2::Error),
}

impl Reason for HandshakeError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Tls(error) => match error.kind() {
                // Refused by rustls, or by the protocol negotiation.
                io::ErrorKind::InvalidData => "tls",
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => "closed",
                _ => "other",
            },
            Self::Http(_) => "protocol",
        }
    }
}

impl Accepting {
    pub(super) fn new(
        tls: &rustls::ServerConfig,
        kept: Kept,
        numbers: Arc<AtomicU64>,
        tasks: TaskTracker,
        closing: CancellationToken,
        said: Handshakes,
    ) -> Self {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![h2_over_tcp::ALPN.to_vec()];
        Self {
            tls: TlsAcceptor::from(Arc::new(tls)),
            kept,
            numbers,
            tasks,
            closing,
            said,
        }
    }

    /// Accepts connections until the server drains; then the port is closed.
    pub(super) async fn accept_all(
        self,
        listener: TcpListener,
        mut handshakes: Places,
        ready: mpsc::Sender<ServerSession>,
        draining: CancellationToken,
    ) {
        while let Some(accepted) = draining.run_until_cancelled(listener.accept()).await {
            let (stream, remote) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(place) = handshakes.take().await else {
                return;
            };
            let (accepting, ready, said) = (self.clone(), ready.clone(), self.said.clone());
            self.tasks.spawn(async move {
                let shaking = accepting.handshake(stream, remote);
                if let Some(session) = said.shake(&place, remote, "tcp", shaking).await {
                    // During the drop of the server the session has no receiver.
                    let _ = ready.send(session).await;
                }
            });
        }
    }

    async fn handshake(
        self,
        stream: TcpStream,
        remote: SocketAddr,
    ) -> Result<ServerSession, HandshakeError> {
        let transport = tcp::accepted(&stream);
        let counts = Counts::of(&stream);
        let counted = Counted {
            stream,
            counts: counts.clone(),
        };
        let tls = self.tls.accept(counted).await?;
        let (_, state) = tls.get_ref();
        h2_over_tcp::check_protocol(state.alpn_protocol())?;
        let certificates: Vec<CertificateDer<'static>> = state
            .peer_certificates()
            .map_or_else(Vec::new, <[_]>::to_vec);
        let mut http = h2_over_tcp::server(tls).await?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let paths = Paths::new(number, None, Instant::now());
        paths.add_tcp(counts.clone(), None);
        let carrier = TcpCarrier::new(transport);
        let handle = SessionHandle {
            number,
            carrier: Carrier::Tcp(carrier.clone()),
            paths: paths.clone(),
            terms: watch::Sender::default(),
            open: OpenStreams::default(),
            goodbye: CancellationToken::new(),
        };
        if let Some(ping) = http.ping_pong() {
            let ping_task = PingTask {
                ping,
                carrier: carrier.clone(),
                paths,
                counts,
                interval: PING_INTERVAL,
            };
            tokio::spawn(ping_task.run());
        }
        let (ready, requests) = mpsc::channel(REQUESTS_WAITING_MAX);
        let dispatcher = Dispatcher {
            ready,
            session: handle.clone(),
            datagrams: None,
            resuming: certificates.first().map(|certificate| Resuming {
                kept: self.kept,
                peer: Arc::new(Peer::of(certificate)),
            }),
        };
        self.tasks
            .spawn(drive(http, carrier, dispatcher, self.closing));
        Ok(ServerSession {
            certificates,
            remote: multipath::unmapped(remote),
            requests,
            handle,
        })
    }
}

/// Relays the bytes of one connection and passes its requests on, until it ends or is asked to.
async fn drive(
    mut http: ServerConnection,
    carrier: TcpCarrier,
    dispatcher: Dispatcher,
    closing: CancellationToken,
) {
    let mut said_goodbye = false;
    let reason = loop {
        tokio::select! {
            () = dispatcher.session.goodbye(), if !said_goodbye => {
                said_goodbye = true;
                http.graceful_shutdown();
            }
            () = carrier.ending() => break "closed".to_owned(),
            () = closing.cancelled() => break "the proxy is stopping".to_owned(),
            accepted = http.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    let (mut head, receive) = request.into_parts();
                    let protocol = head.extensions.remove::<h2::ext::Protocol>();
                    let request = http::Request::from_parts(head, ());
                    let exchange = Exchange::H2 { respond, receive };
                    let dispatcher = dispatcher.clone();
                    // Bounded by the streams that the settings permit to the client.
                    tokio::spawn(async move {
                        let protocol = protocol.as_ref().map(h2::ext::Protocol::as_str);
                        dispatcher.serve(&request, protocol, exchange).await;
                    });
                }
                Some(Err(error)) => break error.to_string(),
                None => break "ended by the client".to_owned(),
            },
        }
    };
    tracing::debug!(
        session = dispatcher.session.number(),
        reason,
        "session ended"
    );
    // Tunnels that have ended regularly may have bytes under way; open ones are cut on purpose.
    if dispatcher.session.open_tunnels() == 0 {
        let _ = tokio::time::timeout(FAREWELL_MAX, flush(&mut http)).await;
    }
    http.abrupt_shutdown(h2::Reason::NO_ERROR);
    let farewell = poll_fn(|cx| http.poll_closed(cx));
    let _ = tokio::time::timeout(FAREWELL_MAX, farewell).await;
    drop(http);
    carrier.has_closed(reason);
}

/// Runs until no stream is left.
async fn flush(http: &mut ServerConnection) {
    poll_fn(|cx| {
        loop {
            match http.poll_accept(cx) {
                Poll::Ready(Some(Ok((_, mut respond)))) => {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
                Poll::Pending if http.has_streams() => return Poll::Pending,
                _ => return Poll::Ready(()),
            }
        }
    })
    .await;
}
