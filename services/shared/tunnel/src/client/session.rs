//! One connection of the client to the proxy, until its end. `over_quic` and `over_tcp` make it.

pub(crate) mod over_quic;
pub(crate) mod over_tcp;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use h3::client::SendRequest;
use http::{HeaderMap, StatusCode, uri::Authority};
use multipath::{Keepalive, KeepaliveTerms};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    carried::{
        datagram_tunnel::{Arrivals, kind::Kind},
        ip_tunnel::IpTunnel,
        udp_tunnel::UdpTunnel,
    },
    http::{
        carrier::Carrier,
        h2_over_tcp,
        h3_over_noq::{self, Opener, SendHandles},
        http_datagrams::HttpDatagrams,
        request::{self, ExtendedRequestError, Urgency},
        stream::{ConnectStream, H2Wire, H3Wire, OpenStream, OpenStreams, wire_error::WireError},
        transport::Transport,
    },
    paths::{Paths, agreement_headers, names, orders::Order},
    resume::header::{Attached, Offer},
};

/// Interval at which a session that is being finished looks for open tunnels.
const FINISH_INTERVAL: Duration = Duration::from_millis(250);

/// A session that was replaced because of its silence is closed if it is still silent after this
/// time. Over a network that returned it answers sooner. A proxy that was killed never answers, and
/// the streams that cannot move must end.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// Longest finish of a session; then it is closed with its open tunnels.
const FINISH_MAX: Duration = Duration::from_secs(300);

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

pub(crate) struct Session {
    pub(crate) number: u64,
    since: Instant,
    pub(crate) remote: SocketAddr,
    /// Over TCP: the access network that it connected over.
    pub(crate) access: Option<Arc<str>>,
    carrier: Carrier,
    requests: Requests,
    open: OpenStreams,
    pub(crate) paths: Arc<Paths>,
    /// The schedules of the client; `None` over TCP, where the kernel steers.
    orders: Option<watch::Receiver<Order>>,
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
    /// The flow of this request begins once both ends obey the schedule in force.
    async fn order(&self, request: &mut http::Request<()>) {
        let number = self.orders.as_ref().map_or(0, |it| it.borrow().number);
        if number > 0 {
            self.paths.orders.obeyed(number).await;
            agreement_headers::say_ordered(request.headers_mut(), number);
        }
    }

    /// Returns once this end obeys the schedule in force and has told the proxy.
    pub(crate) async fn obeyed(&self) {
        let number = self.orders.as_ref().map_or(0, |it| it.borrow().number);
        self.paths.orders.obeyed_and_told(number).await;
    }

    /// Requests a tunnel, with resumption if `offer` says so; returns the proxy's answer to the
    /// offer, if there is one. `steered`: the tunnel waits for the schedule in force.
    pub(crate) async fn connect(
        &self,
        authority: &Authority,
        (urgency, steered): (Urgency, bool),
        offer: Option<Offer>,
    ) -> Result<(ConnectStream, Option<Attached>), ConnectError> {
        let mut request = request::connect(authority, urgency);
        if steered {
            self.order(&mut request).await;
        }
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
        self.order(&mut request).await;
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
        let agreed = request::Agreed::of(&answer);
        let by_frames = match &self.requests {
            Requests::H3 { datagrams, .. } => Some(datagrams).zip(stream.h3_id()),
            Requests::H2(_) => None,
        };
        Ok((Arrivals::new(kind, by_frames, agreed, &self.paths), stream))
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
        (keepalive, schedule): (watch::Receiver<Keepalive>, watch::Receiver<Order>),
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
                    self.paths.orders.tell_no_more();
                    return;
                }
            };
            let carrier = self.carrier.clone();
            drop(self);
            let telling = names::Telling {
                paths: paths.clone(),
                keepalive,
                terms,
                proxy_answers: agreement_headers::answers(&headers),
                schedule,
                takes_schedules: agreement_headers::takes_schedules(&headers),
                takes_numbers: agreement_headers::takes_numbers(&headers),
                rest: agreement_headers::rest(&headers),
            };
            tokio::select! {
                sent = telling.run(stream) => if let Err(error) = sent {
                    tracing::debug!(%error, "path names are no longer sent");
                },
                () = carrier.ending() => {}
            }
            paths.orders.tell_no_more();
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

    /// Over TCP: the access networks over which it has a connection.
    pub(crate) fn held(&self) -> Vec<Arc<str>> {
        let held = self.paths.held_by_tcp();
        match held.is_empty() {
            true => self.access.iter().cloned().collect(),
            false => held,
        }
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
        let begin = Instant::now();
        let deadline = begin + FINISH_MAX;
        while self.open.count() > 0 && !self.is_closed() && Instant::now() < deadline {
            tokio::time::sleep(FINISH_INTERVAL).await;
            let now = Instant::now();
            let waited = now.saturating_duration_since(begin);
            let is_silent = self.paths.silence(now) > waited;
            if self.is_given_up() && is_silent && waited >= ANSWERS_WITHIN {
                return self.close("silent, and replaced by another");
            }
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
