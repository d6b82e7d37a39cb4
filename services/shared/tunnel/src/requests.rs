//! The requests of one session at the server: CONNECT becomes a [`ConnectRequest`], the names of paths are learnt, anything else is
//! refused.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use h3::{error::StreamError, server::RequestResolver};
use http::{Method, Request, Response, StatusCode, uri::Authority};
use tokio::sync::mpsc;

use crate::{
    h3_over_noq::{self, BidiStream, SendHandles},
    names,
    request::{NAMES_PATH, Urgency},
    resume::{
        header::{Attach, Attached, Offer, Token},
        server::{Kept, NotFound, Peer},
    },
    server::SessionHandle,
    stream::{ConnectStream, OpenStreams},
    tunnel_stream::TunnelStream,
};

/// Requests of one session ready to be accepted; further ones wait in the transport.
pub(crate) const REQUESTS_WAITING_MAX: usize = 32;

/// The headers of a request must arrive in this time.
const HEADERS_MAX: Duration = Duration::from_secs(10);

pub(crate) type HttpConnection = h3::server::Connection<h3_over_noq::Connection, Bytes>;

/// Reads the requests of one session.
pub(crate) struct Requests {
    pub(crate) http: HttpConnection,
    pub(crate) handles: SendHandles,
    pub(crate) ready: mpsc::Sender<ConnectRequest>,
    pub(crate) session: SessionHandle,
    /// None for a client without a certificate, whose tunnels nobody could tell from another's.
    pub(crate) resuming: Option<Resuming>,
}

/// The server's resumable tunnels, and who asks.
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
                () = self.session.goodbye(), if !said_goodbye => {
                    said_goodbye = true;
                    // Requests that are on their way are refused; the client asks its next session.
                    if self.http.shutdown(0).await.is_err() {
                        return;
                    }
                }
                accepted = self.http.accept() => match accepted {
                    Ok(Some(resolver)) => {
                        let request = Resolving {
                            handles: self.handles.clone(),
                            session: self.session.clone(),
                            resuming: self.resuming.clone(),
                        };
                        // Bounded by the streams that the transport lets the client open.
                        tokio::spawn(request.run(resolver, self.ready.clone()));
                    }
                    Ok(None) => return,
                    Err(error) => {
                        tracing::debug!(session = self.session.number(), %error, "session ended");
                        return;
                    }
                },
            }
        }
    }
}

type HttpStream = h3::server::RequestStream<BidiStream, Bytes>;

struct Resolving {
    handles: SendHandles,
    session: SessionHandle,
    resuming: Option<Resuming>,
}

impl Resolving {
    async fn run(
        self,
        resolver: RequestResolver<h3_over_noq::Connection, Bytes>,
        ready: mpsc::Sender<ConnectRequest>,
    ) {
        let Ok(resolved) = tokio::time::timeout(HEADERS_MAX, resolver.resolve_request()).await
        else {
            return;
        };
        let (request, mut stream) = match resolved {
            Ok(resolved) => resolved,
            Err(error) => {
                tracing::debug!(session = self.session.number(), %error, "not a request");
                return;
            }
        };
        let refused = match classify(&request) {
            Ok(Wanted::Tunnel(authority)) => {
                let urgency = Urgency::of(request.headers());
                let Some(send) = self.handles.get(stream.id()) else {
                    return;
                };
                send.set_priority(urgency.stream_priority());
                let offer = Offer::read(request.headers());
                let resuming = match (offer, self.resuming) {
                    (Some(offer), Some(resuming)) => match offer.attach {
                        Some(attach) => {
                            go_on(resuming, offer.token, attach, stream, send, &self.session).await;
                            return;
                        }
                        None => Some((offer.token, resuming)),
                    },
                    _ => None,
                };
                let request = ConnectRequest {
                    authority,
                    urgency,
                    send,
                    stream,
                    session: self.session,
                    resuming,
                };
                // Nobody listens any more once the session is being dropped; that drops the stream.
                let _ = ready.send(request).await;
                return;
            }
            Ok(Wanted::Names) => {
                self.learn_names(stream).await;
                return;
            }
            Err(status) => status,
        };
        if let Err(error) = respond(&mut stream, refused, None).await {
            tracing::debug!(%error, "refusal not sent");
        }
    }

    async fn learn_names(self, mut stream: HttpStream) {
        let Some(send) = self.handles.get(stream.id()) else {
            return;
        };
        if let Err(error) = respond(&mut stream, StatusCode::OK, None).await {
            tracing::debug!(%error, "names not welcomed");
            return;
        }
        // Not a tunnel, so not counted among the session's.
        let stream = ConnectStream::of_server(stream, send, OpenStreams::default().enter());
        let session = self.session.clone();
        let obey = move |keepalive| session.set_keepalive(keepalive);
        if let Err(error) = names::learn(stream, self.session.record().clone(), obey).await {
            tracing::debug!(%error, "names no longer learnt");
        }
    }
}

enum Wanted {
    Tunnel(Authority),
    Names,
}

/// What a request is for, or the status to refuse it with.
fn classify(request: &Request<()>) -> Result<Wanted, StatusCode> {
    let extended = request.extensions().get::<h3::ext::Protocol>().is_some();
    match (request.method(), request.uri().path()) {
        (&Method::CONNECT, _) if extended => Err(StatusCode::NOT_IMPLEMENTED),
        (&Method::CONNECT, _) => {
            let authority = request.uri().authority().ok_or(StatusCode::BAD_REQUEST)?;
            // RFC 9110, 9.3.6: a CONNECT without a port is invalid.
            authority.port_u16().ok_or(StatusCode::BAD_REQUEST)?;
            Ok(Wanted::Tunnel(authority.clone()))
        }
        (&Method::POST, NAMES_PATH) => Ok(Wanted::Names),
        (_, NAMES_PATH) => Err(StatusCode::METHOD_NOT_ALLOWED),
        _ => Err(StatusCode::NOT_FOUND),
    }
}

/// A client continues a tunnel on this stream.
async fn go_on(
    resuming: Resuming,
    token: Token,
    attach: Attach,
    mut stream: HttpStream,
    send: Arc<h3_over_noq::SendHandle>,
    session: &SessionHandle,
) {
    let found = match resuming.kept.attach(token, &resuming.peer, attach) {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(session = session.number(), ?token, %error, "a tunnel is not continued");
            let status = match error {
                NotFound::Unknown => StatusCode::NOT_FOUND,
                NotFound::Stale => StatusCode::CONFLICT,
                NotFound::Violation(_) => StatusCode::BAD_REQUEST,
            };
            if let Err(error) = respond(&mut stream, status, None).await {
                tracing::debug!(%error, "refusal not sent");
            }
            return;
        }
    };
    let open = session.open_streams().enter();
    match respond(&mut stream, StatusCode::OK, Some(found.answer)).await {
        Ok(()) => found.go_on(ConnectStream::of_server(stream, send, open)),
        Err(error) => tracing::debug!(%error, "the client was gone before its tunnel went on"),
    }
}

/// `agreed` is the answer to one who offers to resume the tunnel.
async fn respond(
    stream: &mut HttpStream,
    status: StatusCode,
    agreed: Option<Attached>,
) -> Result<(), StreamError> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    if let Some(agreed) = agreed {
        agreed.write(response.headers_mut());
    }
    stream.send_response(response).await?;
    if !status.is_success() {
        stream.finish().await?;
    }
    Ok(())
}

/// A client asks for a TCP connection.
pub struct ConnectRequest {
    authority: Authority,
    urgency: Urgency,
    send: Arc<h3_over_noq::SendHandle>,
    stream: HttpStream,
    session: SessionHandle,
    /// The client offers to resume the tunnel.
    resuming: Option<(Token, Resuming)>,
}

impl ConnectRequest {
    /// `host:port`; the port is there.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Answers 200 and gives the bytes. The tunnel is resumable if the client offered that and there is room for one more.
    pub async fn accept(mut self) -> io::Result<TunnelStream> {
        let open = self.session.open_streams().enter();
        let entered = self.resuming.and_then(|(token, resuming)| {
            resuming
                .kept
                .enter(token, &resuming.peer)
                .inspect_err(|error| tracing::debug!(?token, %error, "the tunnel is plain"))
                .ok()
        });
        respond(
            &mut self.stream,
            StatusCode::OK,
            entered.as_ref().map(|_| Attached::default()),
        )
        .await
        .map_err(io::Error::other)?;
        let stream = ConnectStream::of_server(self.stream, self.send, open);
        Ok(match entered {
            Some(entered) => TunnelStream::resumable(entered.begin(stream)),
            None => TunnelStream::plain(stream),
        })
    }

    /// Answers with an error: 403, 502, 504, 429, ...
    pub async fn refuse(mut self, status: StatusCode) {
        if let Err(error) = respond(&mut self.stream, status, None).await {
            tracing::debug!(%error, "refusal not sent");
        }
    }
}
