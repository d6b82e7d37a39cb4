//! The requests of one session at the server. CONNECT, CONNECT-UDP and CONNECT-IP become a
//! [`ConnectRequest`], names of paths are stored, and other requests are refused.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use h3::server::RequestResolver;
use http::{HeaderMap, Method, Request, StatusCode, uri::Authority};
use multipath::Rest;
use tokio::sync::mpsc;

use crate::{
    carried::{
        datagram_tunnel::{Arrivals, kind::Kind as Datagrams},
        ip_target::{self, NotTaken},
        ip_tunnel::IpTunnel,
        tunnel_stream::TunnelStream,
        udp_target,
        udp_tunnel::UdpTunnel,
    },
    http::{
        exchange::Exchange,
        h3_over_noq::{self, SendHandles},
        http_datagrams::HttpDatagrams,
        request::{
            Agreed, CONNECT_IP, CONNECT_UDP, NAMES_PATH, Urgency, any_destination, carries_capsules,
        },
        stream::{ConnectStream, OpenStreams},
    },
    paths::{agreement_headers, names},
    resume::{
        header::{Attach, Attached, Offer, Token},
        server::{Kept, NotFound, Peer},
    },
    server::session_handle::SessionHandle,
};

/// Requests of one session ready to be accepted; further requests wait in the transport.
pub(crate) const REQUESTS_WAITING_MAX: usize = 32;

/// Longest wait for the headers of a request; then it is dropped.
const HEADERS_MAX: Duration = Duration::from_secs(10);

pub(crate) type HttpConnection = h3::server::Connection<h3_over_noq::Connection, Bytes>;

/// Reads the requests of an HTTP/3 session.
pub(crate) struct Requests {
    pub(crate) http: HttpConnection,
    pub(crate) handles: SendHandles,
    pub(crate) dispatcher: Dispatcher,
}

/// Dispatches the requests of one session. Clones are the same.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    pub(crate) ready: mpsc::Sender<ConnectRequest>,
    pub(crate) session: SessionHandle,
    /// `None` over TCP.
    pub(crate) datagrams: Option<HttpDatagrams>,
    /// `None` for a client without a certificate, whose tunnels have no owner.
    pub(crate) resuming: Option<Resuming>,
}

/// The server's resumable tunnels, and the peer of the session.
#[derive(Clone)]
pub(crate) struct Resuming {
    pub(crate) kept: Kept,
    pub(crate) peer: Arc<Peer>,
}

impl Requests {
    pub(crate) async fn run(mut self) {
        let mut said_goodbye = false;
        loop {
            tokio::select! {
                () = self.dispatcher.session.goodbye(), if !said_goodbye => {
                    said_goodbye = true;
                    // Requests on their way are refused; the client asks its next session.
                    if self.http.shutdown(0).await.is_err() {
                        return;
                    }
                }
                accepted = self.http.accept() => match accepted {
                    Ok(Some(resolver)) => {
                        let (handles, dispatcher) = (self.handles.clone(), self.dispatcher.clone());
                        // Bounded by the streams that the transport permits to the client.
                        tokio::spawn(resolve(handles, dispatcher, resolver));
                    }
                    Ok(None) => return,
                    Err(error) => {
                        tracing::debug!(session = self.dispatcher.session.number(), %error, "session ended");
                        return;
                    }
                },
            }
        }
    }
}

async fn resolve(
    handles: SendHandles,
    dispatcher: Dispatcher,
    resolver: RequestResolver<h3_over_noq::Connection, Bytes>,
) {
    let Ok(resolved) = tokio::time::timeout(HEADERS_MAX, resolver.resolve_request()).await else {
        return;
    };
    match resolved {
        Ok((request, stream)) => {
            let Some(send) = handles.get(stream.id()) else {
                return;
            };
            let protocol = request.extensions().get::<h3::ext::Protocol>();
            let protocol = protocol.map(h3_over_noq::protocol::name);
            dispatcher
                .serve(&request, protocol, Exchange::h3(stream, send))
                .await;
        }
        Err(error) => {
            tracing::debug!(session = dispatcher.session.number(), %error, "not a request");
        }
    }
}

impl Dispatcher {
    /// Passes a request on, or answers it. `protocol` is that of an extended CONNECT (RFC 8441, RFC
    /// 9220).
    pub(crate) async fn serve<T>(
        self,
        request: &Request<T>,
        protocol: Option<&str>,
        exchange: Exchange,
    ) {
        let urgency = Urgency::of(request.headers());
        let order = agreement_headers::ordered(request.headers());
        match classify(request, protocol) {
            Ok(Wanted::Tcp(authority)) => {
                exchange.set_urgency(urgency);
                let offer = Offer::read(request.headers());
                let resuming = match (offer, self.resuming) {
                    (Some(offer), Some(resuming)) => match offer.attach {
                        Some(attach) => {
                            self.session.record().orders.obeyed(order).await;
                            go_on(resuming, offer.token, attach, exchange, &self.session).await;
                            return;
                        }
                        None => Some((offer.token, resuming)),
                    },
                    _ => None,
                };
                let request = ConnectRequest {
                    authority,
                    urgency,
                    order,
                    exchange,
                    session: self.session,
                    kind: Kind::Tcp { resuming },
                };
                // During the drop of the session the request has no receiver; that drops the
                // stream.
                let _ = self.ready.send(request).await;
            }
            Ok(Wanted::Datagrams(of, authority)) => {
                exchange.set_urgency(urgency);
                let request = ConnectRequest {
                    authority,
                    urgency,
                    order,
                    exchange,
                    session: self.session,
                    kind: Kind::Datagrams {
                        of,
                        by_frames: self.datagrams,
                        agreed: Agreed::of(request.headers()),
                    },
                };
                let _ = self.ready.send(request).await;
            }
            Ok(Wanted::Names) => {
                let rest = agreement_headers::rest(request.headers());
                self.learn_names(exchange, rest).await;
            }
            Err(status) => exchange.refuse(status).await,
        }
    }

    async fn learn_names(self, exchange: Exchange, rest: Rest) {
        // Before the answer says so.
        let terms = self.session.terms();
        terms.send_modify(|terms| *terms = terms.with_rest(rest));
        // Not a tunnel, so not counted among the session's.
        let entered = OpenStreams::default().enter();
        let stream = match exchange.accept(agreement_headers::welcome(), entered).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "names not welcomed");
                return;
            }
        };
        let session = self.session.clone();
        tokio::select! {
            learnt = names::learn(stream, session.record(), session.terms(), rest) => {
                if let Err(error) = learnt {
                    tracing::debug!(%error, "names are no longer received");
                }
            }
            () = self.session.ending() => {}
        }
    }
}

enum Wanted {
    Tcp(Authority),
    Datagrams(Datagrams, Authority),
    Names,
}

/// The kind of a request, or the status to refuse it with.
fn classify<T>(request: &Request<T>, protocol: Option<&str>) -> Result<Wanted, StatusCode> {
    match (request.method(), request.uri().path()) {
        (&Method::CONNECT, path) if protocol == Some(CONNECT_UDP) => udp_target::parse(path)
            .map(|authority| Wanted::Datagrams(Datagrams::Udp, authority))
            .map_err(|_| StatusCode::BAD_REQUEST),
        (&Method::CONNECT, path) if protocol == Some(CONNECT_IP) => ip_target::check(path)
            .map(|()| Wanted::Datagrams(Datagrams::Ip, any_destination()))
            .map_err(|error| match error {
                NotTaken::Malformed => StatusCode::BAD_REQUEST,
                NotTaken::Scoped => StatusCode::NOT_IMPLEMENTED,
            }),
        (&Method::CONNECT, _) if protocol.is_some() => Err(StatusCode::NOT_IMPLEMENTED),
        (&Method::CONNECT, _) => {
            let authority = request.uri().authority().ok_or(StatusCode::BAD_REQUEST)?;
            // RFC 9110, 9.3.6: a CONNECT without a port is invalid.
            authority.port_u16().ok_or(StatusCode::BAD_REQUEST)?;
            Ok(Wanted::Tcp(authority.clone()))
        }
        (&Method::POST, NAMES_PATH) => Ok(Wanted::Names),
        (_, NAMES_PATH) => Err(StatusCode::METHOD_NOT_ALLOWED),
        _ => Err(StatusCode::NOT_FOUND),
    }
}

/// A client resumes a tunnel on this stream, or copies it.
async fn go_on(
    resuming: Resuming,
    token: Token,
    attach: Attach,
    exchange: Exchange,
    session: &SessionHandle,
) {
    let found = match resuming.kept.attach(token, &resuming.peer, attach) {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(session = session.number(), ?token, %error, "a tunnel is not resumed");
            let status = match error {
                NotFound::Unknown => StatusCode::NOT_FOUND,
                NotFound::Stale => StatusCode::CONFLICT,
                NotFound::Violation(_) => StatusCode::BAD_REQUEST,
            };
            exchange.refuse(status).await;
            return;
        }
    };
    let open = session.open_streams().enter();
    let mut headers = HeaderMap::new();
    found.answer.write(&mut headers);
    match exchange.accept(headers, open).await {
        Ok(stream) => found.go_on(stream),
        Err(error) => tracing::debug!(%error, "the client was gone before its tunnel was resumed"),
    }
}

/// A client's request for a TCP connection, for UDP datagrams, or for IP packets.
pub struct ConnectRequest {
    authority: Authority,
    urgency: Urgency,
    /// Number of the schedule that holds before the answer.
    order: u64,
    exchange: Exchange,
    session: SessionHandle,
    kind: Kind,
}

enum Kind {
    Tcp {
        /// The client offers to resume the tunnel.
        resuming: Option<(Token, Resuming)>,
    },
    Datagrams {
        of: Datagrams,
        /// `None` over TCP.
        by_frames: Option<HttpDatagrams>,
        agreed: Agreed,
    },
}

impl ConnectRequest {
    /// `host:port`, always with a port. `*` for a request for IP packets.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Whether unread bytes stay in the transport's window. A resumable tunnel reads and charges
    /// them instead.
    pub fn is_plain(&self) -> bool {
        matches!(&self.kind, Kind::Tcp { resuming: None })
    }

    /// Whether it must be answered with [`accept_udp`](Self::accept_udp).
    pub fn is_udp(&self) -> bool {
        self.exchanges(Datagrams::Udp)
    }

    /// Whether it must be answered with [`accept_ip`](Self::accept_ip).
    pub fn is_ip(&self) -> bool {
        self.exchanges(Datagrams::Ip)
    }

    fn exchanges(&self, what: Datagrams) -> bool {
        matches!(self.kind, Kind::Datagrams { of, .. } if of == what)
    }

    /// Answers 200 and returns the datagram tunnel. Another kind of request is refused.
    pub async fn accept_udp(self) -> io::Result<UdpTunnel> {
        let (arrivals, stream) = self.accept_datagrams(Datagrams::Udp).await?;
        // The stream ends with its session.
        Ok(UdpTunnel(arrivals.begin(stream, std::future::pending())))
    }

    /// Answers 200 and returns the packet tunnel. Another kind of request is refused.
    pub async fn accept_ip(self) -> io::Result<IpTunnel> {
        let (arrivals, stream) = self.accept_datagrams(Datagrams::Ip).await?;
        let begun = arrivals.begin_speaking(stream, std::future::pending());
        Ok(IpTunnel::new(begun))
    }

    async fn accept_datagrams(self, what: Datagrams) -> io::Result<(Arrivals, ConnectStream)> {
        let (by_frames, agreed) = match &self.kind {
            Kind::Datagrams {
                of,
                by_frames,
                agreed,
            } if *of == what => (by_frames.clone(), *agreed),
            _ => {
                self.refuse(StatusCode::NOT_IMPLEMENTED).await;
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        let by_frames = by_frames.as_ref().zip(self.exchange.h3_stream());
        let paths = self.session.record();
        paths.orders.obeyed(self.order).await;
        let arrivals = Arrivals::new(what, by_frames, agreed, paths).mirroring_copies();
        let open = self.session.open_streams().enter();
        let mut headers = carries_capsules();
        agreed.say(&mut headers);
        let stream = self.exchange.accept(headers, open).await?;
        Ok((arrivals, stream))
    }

    /// Answers 200 and returns the byte stream. The tunnel is resumable if the client offered that
    /// and the table has room. A request for datagrams is refused.
    pub async fn accept(self) -> io::Result<TunnelStream> {
        let Kind::Tcp { resuming } = self.kind else {
            self.refuse(StatusCode::NOT_IMPLEMENTED).await;
            return Err(io::ErrorKind::Unsupported.into());
        };
        self.session.record().orders.obeyed(self.order).await;
        let open = self.session.open_streams().enter();
        let entered = resuming.and_then(|(token, resuming)| {
            resuming
                .kept
                .enter(token, &resuming.peer)
                .inspect_err(|error| tracing::debug!(?token, %error, "the tunnel is plain"))
                .ok()
        });
        let mut headers = HeaderMap::new();
        if entered.is_some() {
            let answer = Attached {
                received: 0,
                takes_copies: true,
            };
            answer.write(&mut headers);
        }
        let stream = self.exchange.accept(headers, open).await?;
        Ok(match entered {
            Some(entered) => TunnelStream::resumable(entered.begin(stream)),
            None => TunnelStream::plain(stream),
        })
    }

    /// Answers with an error status: 403, 502, 504, 429, ...
    pub async fn refuse(self, status: StatusCode) {
        self.exchange.refuse(status).await;
    }
}
