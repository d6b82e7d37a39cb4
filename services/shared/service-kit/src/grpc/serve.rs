//! A listener: TCP, optionally TLS, HTTP/1.1 and HTTP/2, and a graceful end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::idle::{Connections, Entered};
use super::opening::Opening;
use crate::tls::{Fingerprint, PeerId};
use crate::{ConfigError, Context, DRAIN_LIMIT};

/// Time for the requests of a listener to finish after shutdown was requested; then their
/// connections are cut. The rest of [`DRAIN_LIMIT`] is for the tasks behind them.
pub const CONNECTIONS_DRAIN_LIMIT: Duration = DRAIN_LIMIT.saturating_sub(Duration::from_secs(1));

/// Connections of one listener; at the bound another connection is closed for the newcomer, or the
/// newcomer itself (see `idle`).
const CONNECTIONS_MAX: usize = 4096;
/// Longest handshake; a longer handshake is dropped, so idle sockets cannot hold places.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for the bytes that distinguish HTTP/1 from HTTP/2; then the connection fails. The
/// library itself waits without end.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// Concurrent requests of one HTTP/2 connection; the client queues further requests.
const STREAMS_MAX: u32 = 256;
/// Interval of HTTP/2 pings to a peer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// For connections of gateways, which pay for each packet. The proxy closes the connections of one
/// that is gone.
const KEEPALIVE_INTERVAL_GATEWAY: Duration = Duration::from_secs(900);
/// Time without an answer to an HTTP/2 ping after which the peer counts as gone.
const KEEPALIVE_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`, which means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The peer of a request, an extension of every request: `request.extensions().get::<Peer>()` in
/// tonic and axum.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// From the verified client certificate; `None` if none was asked for.
    pub id: Option<PeerId>,
    /// Fingerprint of that certificate; `None` if the front does not send it.
    pub certificate: Option<Fingerprint>,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Bind(#[from] ConfigError),
    #[error("local address of the listener: {0}")]
    LocalAddress(std::io::Error),
}

/// Binds the address. The error names the address and the flag.
pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ConfigError> {
    TcpListener::bind(address).await.map_err(|error| {
        let reason = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!(
                    "port {} on {} is already in use",
                    address.port(),
                    address.ip()
                )
            }
            std::io::ErrorKind::PermissionDenied => {
                format!(
                    "port {} needs a privilege that this process lacks",
                    address.port()
                )
            }
            std::io::ErrorKind::AddrNotAvailable => {
                format!("{} is not an address of this machine", address.ip())
            }
            _ => format!("{address}: {error}"),
        };
        let other = SocketAddr::new(address.ip(), address.port().wrapping_add(10_000).max(1024));
        ConfigError::new(
            flag,
            reason,
            format!("--{} {other}", flag.replace('_', "-")),
        )
    })
}

/// [`serve`] for tonic services: `serve_routes(listener, "grpc", Routes::new(service), tls,
/// context)`.
pub async fn serve_routes(
    listener: TcpListener,
    what: &'static str,
    routes: tonic::service::Routes,
    tls: Option<Arc<rustls::ServerConfig>>,
    context: &Context,
) -> Result<(), ServeError> {
    let router = routes.prepare().into_axum_router();
    serve(listener, what, router, tls, context).await
}

/// Serves until shutdown is requested. Then it sends GOAWAY, lets requests finish for at most
/// [`CONNECTIONS_DRAIN_LIMIT`], and returns. With `tls` a verified client certificate becomes
/// [`Peer::id`].
/// Handlers of endless streams should end them at shutdown; otherwise they are cut at the limit.
pub async fn serve(
    listener: TcpListener,
    what: &'static str,
    router: Router,
    tls: Option<Arc<rustls::ServerConfig>>,
    context: &Context,
) -> Result<(), ServeError> {
    serve_some(CONNECTIONS_MAX, listener, what, router, tls, context).await
}

async fn serve_some(
    connections_max: usize,
    listener: TcpListener,
    what: &'static str,
    router: Router,
    tls: Option<Arc<rustls::ServerConfig>>,
    context: &Context,
) -> Result<(), ServeError> {
    context.listening(
        what,
        listener.local_addr().map_err(ServeError::LocalAddress)?,
    );
    let acceptor = tls.map(TlsAcceptor::from);
    let places = Arc::new(Semaphore::new(connections_max));
    let open = Connections::default();
    let connections = tokio_util::task::TaskTracker::new();
    let shutdown = context.shutdown().clone();
    let cut = tokio_util::sync::CancellationToken::new();

    loop {
        let accepted = tokio::select! {
            () = shutdown.requested() => break,
            accepted = accept(&listener, &places, &open) => accepted,
        };
        let (stream, address, place) = match accepted {
            Ok(Some(accepted)) => accepted,
            Ok(None) => {
                metrics::counter!("braid_connections_refused_total", "listener" => what)
                    .increment(1);
                continue;
            }
            Err(error) => {
                tracing::warn!(what, %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let router = router.clone();
        let acceptor = acceptor.clone();
        let shutdown = shutdown.clone();
        let cut = cut.clone();
        let entered = open.enter(address.ip());
        connections.spawn(async move {
            let _place = place;
            tokio::select! {
                () = cut.cancelled() => {}
                () = entered.gives_way.cancelled() => {
                    metrics::counter!("braid_connections_given_way_total", "listener" => what).increment(1);
                }
                () = connection(stream, address, router, acceptor, &entered, &shutdown) => {}
            }
        });
    }

    drop(listener);
    connections.close();
    let left = context.shutdown().left_of(CONNECTIONS_DRAIN_LIMIT);
    if tokio::time::timeout(left, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            what,
            left = connections.len(),
            "connections cut at the drain limit"
        );
        cut.cancel();
        connections.wait().await;
    }
    Ok(())
}

type Accepted = (TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit);

/// `None`: there is no place for the connection. Accepting never waits for a place, because later
/// connections would wait as well.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    open: &Connections,
) -> std::io::Result<Option<Accepted>> {
    let (stream, address) = listener.accept().await?;
    stream.set_nodelay(true)?;
    if places.available_permits() == 0 && !open.end_one_for(address.ip()) {
        return Ok(None);
    }
    let place = places
        .clone()
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    Ok(Some((stream, address, place)))
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    router: Router,
    acceptor: Option<TlsAcceptor>,
    entered: &Entered,
    shutdown: &crate::Shutdown,
) {
    let router = router.layer(axum::middleware::from_fn(entered.watch()));
    let Some(acceptor) = acceptor else {
        let peer = Peer {
            address,
            id: None,
            certificate: None,
        };
        return requests(stream, peer, router, shutdown).await;
    };
    let stream = match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake failed");
            metrics::counter!("braid_tls_handshakes_failed_total").increment(1);
            return;
        }
        Err(_) => {
            metrics::counter!("braid_tls_handshakes_failed_total").increment(1);
            return;
        }
    };
    let leaf = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first());
    let id = match leaf.map(PeerId::from_certificate).transpose() {
        Ok(id) => id,
        Err(error) => {
            tracing::warn!(%address, %error, "connection refused: no identity in the certificate");
            return;
        }
    };
    let peer = Peer {
        address,
        certificate: leaf.map(Fingerprint::of),
        id,
    };
    requests(stream, peer, router, shutdown).await;
}

async fn requests<S>(stream: S, peer: Peer, router: Router, shutdown: &crate::Shutdown)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let keepalive = match &peer.id {
        Some(PeerId::Gateway(_)) => KEEPALIVE_INTERVAL_GATEWAY,
        _ => KEEPALIVE_INTERVAL,
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .adaptive_window(false)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .keep_alive_interval(keepalive)
        .keep_alive_timeout(KEEPALIVE_LIMIT);
    builder.http1().timer(TokioTimer::new());
    let service = TowerToHyperService::new(router.layer(axum::Extension(peer.clone())));
    let stream = Opening::within(OPENING_LIMIT, stream);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.requested() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(address = %peer.address, %error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::sync::mpsc;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    async fn ask(stream: &mut TcpStream, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
    }

    /// An answer's head and the body `here`.
    async fn answered(stream: &mut TcpStream) -> bool {
        let mut answer = Vec::new();
        let reading = async {
            while !answer.ends_with(b"here") {
                if stream.read_buf(&mut answer).await.unwrap() == 0 {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(DEADLINE, reading).await.unwrap()
    }

    fn is_open(stream: &TcpStream) -> bool {
        let nothing = stream.try_read(&mut [0]);
        nothing.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    #[tokio::test]
    async fn an_idle_connection_gives_way_to_a_new_one() {
        let context = Context::new("gateway");
        let listener = bind("127.0.0.1:0".parse().unwrap(), "listen").await;
        let serving = context.clone();
        tokio::spawn(async move {
            let router = Router::new()
                .route("/", get(async || "here"))
                .route("/later", get(std::future::pending::<()>));
            serve_some(3, listener.unwrap(), "http", router, None, &serving).await
        });
        let address = context.address("http").await.unwrap();
        let connect = async || TcpStream::connect(address).await.unwrap();
        let (mut busy, mut first, mut second) = (connect().await, connect().await, connect().await);
        ask(&mut busy, "/later").await;
        for idle in [&mut first, &mut second] {
            ask(idle, "/").await;
            assert!(answered(idle).await);
        }
        let mut new = connect().await;
        ask(&mut new, "/").await;
        assert!(answered(&mut new).await);
        let ended = tokio::time::timeout(DEADLINE, first.read(&mut [0])).await;
        assert_eq!(ended.unwrap().unwrap(), 0, "it had no request for longest");
        assert!(is_open(&busy) && is_open(&second));
        context.shutdown().request();
    }

    /// A listener with a number of places. Tests open connections to it from any address, each with
    /// a request that has reached the server.
    struct Crowd {
        context: Context,
        address: SocketAddr,
        arrived: mpsc::Receiver<()>,
    }

    impl Crowd {
        async fn before(places: usize) -> Crowd {
            let context = Context::new("gateway");
            let listener = bind("127.0.0.1:0".parse().unwrap(), "listen").await;
            let (arrives, arrived) = mpsc::channel(1);
            let later = get(async move || {
                arrives.send(()).await.unwrap();
                std::future::pending::<()>().await;
            });
            let router = Router::new()
                .route("/", get(async || "here"))
                .route("/later", later);
            let serving = context.clone();
            tokio::spawn(async move {
                serve_some(places, listener.unwrap(), "http", router, None, &serving).await
            });
            Crowd {
                address: context.address("http").await.unwrap(),
                context,
                arrived,
            }
        }

        async fn connect(&self, from: &str) -> TcpStream {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
            socket.connect(self.address).await.unwrap()
        }

        async fn busy(&mut self, from: &str) -> TcpStream {
            let mut stream = self.connect(from).await;
            ask(&mut stream, "/later").await;
            self.arrived.recv().await.unwrap();
            stream
        }
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        let read = tokio::time::timeout(DEADLINE, stream.read(&mut [0])).await;
        // A connection with an unread request ends with a reset.
        !matches!(read, Ok(Ok(1..)) | Err(_))
    }

    #[tokio::test]
    async fn no_address_keeps_all_others_out() {
        let mut crowd = Crowd::before(3).await;
        let (greedy, quiet) = ("127.0.0.2", "127.0.0.3");
        let mut kept = crowd.connect(quiet).await;
        ask(&mut kept, "/").await;
        assert!(answered(&mut kept).await);
        let (mut first, second) = (crowd.busy(greedy).await, crowd.busy(greedy).await);
        // The idle connection belongs to an address with fewer connections, so the newcomer is
        // closed. The connection after it does not wait.
        let mut one_more = crowd.connect(greedy).await;
        assert!(is_closed(&mut one_more).await);
        assert!(is_open(&kept) && is_open(&first) && is_open(&second));
        ask(&mut kept, "/later").await;
        crowd.arrived.recv().await.unwrap();
        let mut other = crowd.connect("127.0.0.4").await;
        ask(&mut other, "/").await;
        assert!(answered(&mut other).await);
        assert!(is_closed(&mut first).await, "the oldest of who has most");
        assert!(is_open(&kept) && is_open(&second));
        crowd.context.shutdown().request();
    }

    #[tokio::test]
    async fn a_lone_address_has_every_place() {
        let mut crowd = Crowd::before(3).await;
        let mut busy = Vec::new();
        for _ in 0..3 {
            busy.push(crowd.busy("127.0.0.2").await);
        }
        let mut one_more = crowd.connect("127.0.0.2").await;
        assert!(is_closed(&mut one_more).await);
        assert!(busy.iter().all(is_open));
        crowd.context.shutdown().request();
    }

    #[tokio::test]
    async fn a_peer_that_reads_no_answer_keeps_no_place() {
        let context = Context::new("gateway");
        let listener = bind("127.0.0.1:0".parse().unwrap(), "listen").await;
        let serving = context.clone();
        tokio::spawn(async move {
            let router = Router::new().route("/", get(async || "here"));
            serve_some(1, listener.unwrap(), "http", router, None, &serving).await
        });
        let address = context.address("http").await.unwrap();
        let mut taker = TcpStream::connect(address).await.unwrap();
        // HTTP/2: no window for any answer's body (SETTINGS_INITIAL_WINDOW_SIZE 0), and `GET /`.
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
        let request = [0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84, 0x41, 1, b'h'];
        let opening = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            &settings,
            &request,
        ];
        taker.write_all(&opening.concat()).await.unwrap();
        // The answer's head arrives, and pings are answered afterwards.
        let (head, answered_head) = tokio::sync::oneshot::channel();
        let mut head = Some(head);
        tokio::spawn(async move {
            let mut frame = [0; 9];
            while taker.read_exact(&mut frame).await.is_ok() {
                let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
                let mut rest = vec![0; length as usize];
                taker.read_exact(&mut rest).await.unwrap();
                match frame[3..5] {
                    [1, _] => drop(head.take().map(|head| head.send(()))),
                    [6, 0] => {
                        frame[4] = 1;
                        taker
                            .write_all(&[&frame[..], &rest].concat())
                            .await
                            .unwrap();
                    }
                    _ => {}
                }
            }
        });
        answered_head.await.unwrap();
        let mut new = TcpStream::connect(address).await.unwrap();
        ask(&mut new, "/").await;
        assert!(answered(&mut new).await);
        context.shutdown().request();
    }
}
