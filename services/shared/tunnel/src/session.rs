//! One connection of the client to the proxy, from the handshake to its end: by multipath QUIC
//! here, by TCP in `over_tcp`.

mod over_tcp;

use std::{
    borrow::Cow,
    future::poll_fn,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use h3::{ConnectionState, client::SendRequest};
use http::{HeaderMap, StatusCode, uri::Authority};
use multipath::steering_rules::Schedule;
use multipath::{
    ControllerConfig, Controllers, Keepalive, KeepaliveTerms, PathScheduler, Rest, Side, Steering,
    SteeringConfig,
};
use noq::crypto::rustls::QuicClientConfig;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use over_tcp::TcpDialler;

use crate::{
    carrier::Carrier,
    client::{Shared, TunnelEvent},
    datagram_tunnel::{Arrivals, Kind},
    h2_over_tcp,
    h3_over_noq::{self, Opener, SendHandles},
    http_datagrams::HttpDatagrams,
    ip_tunnel::IpTunnel,
    names,
    paths::Paths,
    request::{self, ExtendedRequestError, Urgency},
    resume::header::{Attached, Offer},
    slots::slot_of,
    steer::{Change, Scheduled, Steered, Ways},
    stream::{ConnectStream, H2Wire, H3Wire, OpenStream, OpenStreams, WireError},
    transport::{ALPN, Transport, transport_config},
    udp_tunnel::UdpTunnel,
};

/// `H3_NO_ERROR`.
pub(crate) const NO_ERROR: u32 = 0x100;
/// `H3_INTERNAL_ERROR`: the transport has lost bytes with a path.
pub(crate) const PATH_NOT_RELEASED: u32 = 0x102;

/// Interval at which a session that is being finished looks for open tunnels.
const FINISH_INTERVAL: Duration = Duration::from_millis(250);

/// Longest finish of a session; then it is closed with its open tunnels.
const FINISH_MAX: Duration = Duration::from_secs(300);

/// The first number of this process. It differs from those of the process before, whose reports may
/// still arrive.
pub(crate) fn first_number() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros().try_into().unwrap_or(1))
}

#[derive(Debug, thiserror::Error)]
#[error("no cipher suite for QUIC")]
pub(crate) struct NoCipherSuite;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("cannot connect: {0}")]
    Connect(#[from] noq::ConnectError),
    #[error("handshake failed: {0}")]
    Handshake(#[from] noq::ConnectionError),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("HTTP/3 failed: {0}")]
    Http(#[from] h3::error::ConnectionError),
    #[error("TCP or TLS failed: {0}")]
    Tcp(#[from] std::io::Error),
    #[error("HTTP/2 failed: {0}")]
    Http2(#[from] h2::Error),
    #[error("no access network has an address of the proxy's family")]
    NoWay,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("refused: {0}")]
    Refused(StatusCode),
    #[error("{0}")]
    Lost(#[from] WireError),
    #[error("the stream's send half is gone")]
    NoSendHalf,
    #[error("the session is being closed")]
    Closed,
    #[error("{0}")]
    Extended(#[from] ExtendedRequestError),
}

/// Makes connections.
pub(crate) struct Dialler {
    crypto: Arc<QuicClientConfig>,
}

impl Dialler {
    pub(crate) fn new(tls: &rustls::ClientConfig) -> Result<Self, NoCipherSuite> {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let crypto = QuicClientConfig::try_from(tls).map_err(|_| NoCipherSuite)?;
        Ok(Self {
            crypto: Arc::new(crypto),
        })
    }

    pub(crate) async fn dial(
        &self,
        shared: &Arc<Shared>,
        proxy: SocketAddr,
        number: u64,
    ) -> Result<Arc<Session>, DialError> {
        let timeout = shared.config.handshake_timeout;
        let path_scheduler = PathScheduler::new();
        let mut config = noq::ClientConfig::new(self.crypto.clone());
        config.transport_config(transport_config(|transport| {
            transport.congestion_controller_factory(Controllers::new(
                path_scheduler.clone(),
                ControllerConfig::default(),
            ));
        }));
        shared.race.start();
        let connecting = shared
            .endpoint
            .connect_with(config, proxy, &shared.config.server_name)?;
        // TLS 1.3 completes here one round trip before the server has verified our certificate.
        // Requests leave with the last message of the handshake all the same. The server passes
        // them on only after the verification, and they cannot be replayed. Early data would gain
        // nothing, since the server would have to hold it until then.
        let connection = tokio::time::timeout(timeout, connecting)
            .await
            .map_err(|_| DialError::TimedOut(timeout))??;
        let winner = shared.race.winner();
        let over_noq = h3_over_noq::Connection::new(connection.clone());
        let handles = over_noq.send_handles();
        let (driver, requests) = h3::client::builder()
            .send_grease(false)
            .enable_datagram(true)
            .build::<_, _, Bytes>(over_noq)
            .await?;
        let (extended_to, extended) = watch::channel(None);
        tokio::spawn(drive(driver, extended_to));
        let paths = Paths::new(number, Some(shared.slots.clone()), Instant::now());
        // Until the proxy has said whether it rests.
        let first_terms = KeepaliveTerms::default().with_rest(Rest {
            tolerates: true,
            rests: false,
            foreign: false,
        });
        let (terms_to, terms) = watch::channel(first_terms);
        let session = Arc::new(Session {
            number,
            since: Instant::now(),
            remote: proxy,
            carrier: Carrier::Quic(connection.clone()),
            requests: Requests::H3 {
                requests: Mutex::new(requests),
                handles: handles.clone(),
                datagrams: HttpDatagrams::start(connection.clone(), handles.datagram_bytes()),
                extended,
            },
            open: OpenStreams::default(),
            paths: paths.clone(),
            retired: CancellationToken::new(),
            given_up: AtomicBool::new(false),
        });
        let mut steering = SteeringConfig::new(Side::Client);
        steering.reroute = true;
        let mut steered = Steered {
            connection: connection.clone(),
            steering: Steering::new(steering, path_scheduler),
            paths: paths.clone(),
            handles,
            ways: Some(Ways::new(
                shared.slots.clone(),
                shared.routes.clone(),
                shared.schedule.subscribe(),
            )),
            first: None,
            remote: proxy,
            terms,
            received_datagrams: 0,
            scheduled: Scheduled::default(),
        };
        let events = shared.events.clone();
        let retired = session.retired.clone();
        let changed = move |change| {
            // From then on the paths belong to the next session.
            if retired.is_cancelled() {
                return;
            }
            let name = |id| {
                paths
                    .name(id)
                    .map_or_else(String::new, |name| name.to_string())
            };
            let event = match change {
                Change::Up(id) => TunnelEvent::PathUp { name: name(id) },
                Change::Silent(id) => TunnelEvent::PathSilent { name: name(id) },
                Change::Down { path, carried } => TunnelEvent::PathDown {
                    name: name(path),
                    carried,
                },
            };
            // An event without subscribers is dropped.
            let _ = events.send(event);
        };
        tokio::spawn(async move {
            // Before that there is only the first path, and the server may still refuse the client.
            if connection.handshake_confirmed().await.is_ok() {
                let path = connection.path(noq::PathId::ZERO);
                let local_ip = path.and_then(|path| path.local_ip().ok().flatten());
                steered.first = local_ip.and_then(slot_of).or(winner);
                drop(connection);
                steered.run(changed).await;
            }
        });
        let watched = (shared.watch_keepalive(), shared.schedule.subscribe());
        session
            .clone()
            .publish_names(&shared.config.server_name, watched, terms_to);
        Ok(session)
    }
}

/// Drives the connection until it ends, and reports whether the proxy supports extended CONNECT
/// (RFC 9220) once its settings have arrived.
async fn drive(
    mut driver: h3::client::Connection<h3_over_noq::Connection, Bytes>,
    extended: watch::Sender<Option<bool>>,
) {
    let error = poll_fn(|cx| {
        let polled = driver.poll_close(cx);
        if let Cow::Borrowed(settings) = driver.settings() {
            let said = Some(settings.enable_extended_connect());
            extended.send_if_modified(|known| std::mem::replace(known, said) != said);
        }
        polled
    })
    .await;
    tracing::debug!(%error, "HTTP/3 connection ended");
}

pub(crate) struct Session {
    pub(crate) number: u64,
    since: Instant,
    pub(crate) remote: SocketAddr,
    carrier: Carrier,
    requests: Requests,
    open: OpenStreams,
    pub(crate) paths: Arc<Paths>,
    retired: CancellationToken,
    given_up: AtomicBool,
}

/// The sender of requests.
enum Requests {
    H3 {
        requests: Mutex<SendRequest<Opener, Bytes>>,
        handles: SendHandles,
        datagrams: HttpDatagrams,
        /// Whether the proxy supports extended CONNECT; `None` before its settings have arrived.
        extended: watch::Receiver<Option<bool>>,
    },
    /// `None` once the session is closing.
    H2(Mutex<Option<h2_over_tcp::Requests>>),
}

impl Session {
    /// Requests a tunnel, with resumption if `offer` says so; returns the proxy's answer to the
    /// offer, if there is one.
    pub(crate) async fn connect(
        &self,
        authority: &Authority,
        urgency: Urgency,
        offer: Option<Offer>,
    ) -> Result<(ConnectStream, Option<Attached>), ConnectError> {
        let mut request = request::connect(authority, urgency);
        if let Some(offer) = offer {
            offer.write(request.headers_mut());
        }
        let (stream, headers) = self.ask(request, urgency, self.open.enter()).await?;
        Ok((stream, Attached::read(&headers)))
    }

    /// Requests a UDP tunnel, which ends when the session is retired.
    pub(crate) async fn connect_udp(
        &self,
        server_name: &str,
        authority: &Authority,
        urgency: Urgency,
    ) -> Result<UdpTunnel, ConnectError> {
        let request = request::connect_udp(server_name, authority, urgency)?;
        let (arrivals, stream) = self.exchange_datagrams(request, Kind::Udp, urgency).await?;
        let tunnel = arrivals.begin(stream, self.until_retired());
        Ok(UdpTunnel(tunnel))
    }

    /// The same for IP packets.
    pub(crate) async fn connect_ip(
        &self,
        server_name: &str,
        urgency: Urgency,
    ) -> Result<IpTunnel, ConnectError> {
        let request = request::connect_ip(server_name, urgency)?;
        let (arrivals, stream) = self.exchange_datagrams(request, Kind::Ip, urgency).await?;
        let begun = arrivals.begin_speaking(stream, self.until_retired());
        Ok(IpTunnel::new(begun))
    }

    fn until_retired(&self) -> impl Future<Output = ()> + Send + use<> {
        let retired = self.retired.clone();
        async move { retired.cancelled().await }
    }

    /// Sends an extended CONNECT. A proxy without support gets no request (RFC 8441, 3).
    async fn exchange_datagrams(
        &self,
        mut request: http::Request<()>,
        kind: Kind,
        urgency: Urgency,
    ) -> Result<(Arrivals, ConnectStream), ConnectError> {
        let extensions = request.extensions_mut();
        let takes = match &self.requests {
            Requests::H3 { extended, .. } => {
                extensions.insert(match kind {
                    Kind::Udp => h3::ext::Protocol::CONNECT_UDP,
                    Kind::Ip => h3_over_noq::protocol::STAND_IN,
                });
                let mut extended = extended.clone();
                let said = extended.wait_for(Option::is_some).await;
                said.map_err(|_| ConnectError::Closed)?.unwrap_or(false)
            }
            Requests::H2(requests) => {
                extensions.insert(h2::ext::Protocol::from_static(match kind {
                    Kind::Udp => request::CONNECT_UDP,
                    Kind::Ip => request::CONNECT_IP,
                }));
                let requests = requests.lock();
                let requests = requests.as_ref().ok_or(ConnectError::Closed)?;
                requests.is_extended_connect_protocol_enabled()
            }
        };
        if !takes {
            return Err(ConnectError::Refused(StatusCode::NOT_IMPLEMENTED));
        }
        let (stream, answer) = self.ask(request, urgency, self.open.enter()).await?;
        let ordered = request::asks_for_order(&answer);
        let by_frames = match &self.requests {
            Requests::H3 { datagrams, .. } => Some(datagrams).zip(stream.h3_id()),
            Requests::H2(_) => None,
        };
        let ordered_by = ordered.then(|| self.paths.clone());
        Ok((Arrivals::new(kind, by_frames, ordered_by), stream))
    }

    pub(crate) async fn ask(
        &self,
        request: http::Request<()>,
        urgency: Urgency,
        open: OpenStream,
    ) -> Result<(ConnectStream, HeaderMap), ConnectError> {
        let (response, stream) = match &self.requests {
            Requests::H3 {
                requests, handles, ..
            } => {
                let mut requests = requests.lock().clone();
                let asked = requests.send_request(request).await;
                let mut stream = asked.map_err(WireError::from)?;
                let handle = handles.get(stream.id()).ok_or(ConnectError::NoSendHalf)?;
                handle.set_urgency(urgency);
                let response = stream.recv_response().await.map_err(WireError::from)?;
                let wire = H3Wire::of_client(stream, handle);
                (response, ConnectStream::of_h3(wire, open))
            }
            Requests::H2(requests) => {
                let requests = requests.lock().clone();
                let ready = requests.ok_or(ConnectError::Closed)?.ready().await;
                let asked = ready.and_then(|mut ready| ready.send_request(request, false));
                let (answer, send) = asked.map_err(WireError::from)?;
                let (response, receive) = answer.await.map_err(WireError::from)?.into_parts();
                let response = http::Response::from_parts(response, ());
                let wire = H2Wire::new(send, receive);
                (response, ConnectStream::of_h2(wire, open))
            }
        };
        if !response.status().is_success() {
            return Err(ConnectError::Refused(response.status()));
        }
        Ok((stream, response.into_parts().0.headers))
    }

    fn publish_names(
        self: Arc<Self>,
        server_name: &str,
        (keepalive, schedule): (watch::Receiver<Keepalive>, watch::Receiver<Arc<Schedule>>),
        terms: watch::Sender<KeepaliveTerms>,
    ) {
        let request = match request::names(server_name) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%error, "path names are not sent");
                return;
            }
        };
        tokio::spawn(async move {
            let paths = self.paths.clone();
            // Not a tunnel, so finishing the session does not wait for it.
            let open = OpenStreams::default().enter();
            let (stream, headers) = match self.ask(request, Urgency::Urgent, open).await {
                Ok(asked) => asked,
                Err(error) => {
                    tracing::debug!(%error, "the proxy refuses path names");
                    terms.send_replace(KeepaliveTerms::default());
                    return;
                }
            };
            let carrier = self.carrier.clone();
            drop(self);
            let telling = names::Telling {
                paths,
                keepalive,
                terms,
                proxy_answers: names::answers(&headers),
                schedule,
                takes_schedules: names::takes_schedules(&headers),
                rest: names::rest(&headers),
            };
            tokio::select! {
                sent = telling.run(stream) => if let Err(error) = sent {
                    tracing::debug!(%error, "path names are no longer sent");
                },
                () = carrier.ending() => {}
            }
        });
    }

    /// Rises with every arrival on any of the session's streams.
    pub(crate) fn arrivals(&self) -> u64 {
        self.open.arrivals()
    }

    /// Opens no more tunnels here; the keeper makes a fresh session.
    pub(crate) fn retire(&self) {
        self.retired.cancel();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.is_cancelled()
    }

    pub(crate) async fn retired(&self) {
        self.retired.cancelled().await;
    }

    /// The session is silent, or does not move data. Even if it recovers, its tunnels are better
    /// off in another session.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
        self.retire();
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self, reason: &str) {
        if let Requests::H2(requests) = &self.requests {
            requests.lock().take();
        }
        self.carrier.close(reason);
    }

    pub(crate) fn transport(&self) -> Transport {
        self.carrier.transport()
    }

    /// Whether it replaces QUIC.
    pub(crate) fn is_fallback(&self) -> bool {
        self.transport() != Transport::Quic
    }

    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.carrier.is_closed()
    }

    pub(crate) fn close_reason(&self) -> Option<String> {
        self.carrier.close_reason()
    }

    pub(crate) async fn closed(&self) {
        self.carrier.closed().await;
    }

    /// Lets the open tunnels end, then closes.
    pub(crate) async fn finish(&self) {
        let deadline = Instant::now() + FINISH_MAX;
        while self.open.count() > 0 && !self.is_closed() && Instant::now() < deadline {
            tokio::time::sleep(FINISH_INTERVAL).await;
        }
        self.close("finished");
    }
}

#[cfg(test)]
impl Session {
    /// For tests of requests that the interface does not offer.
    pub(crate) fn quic(&self) -> Option<&noq::Connection> {
        match &self.carrier {
            Carrier::Quic(connection) => Some(connection),
            Carrier::Tcp(_) => None,
        }
    }
}
