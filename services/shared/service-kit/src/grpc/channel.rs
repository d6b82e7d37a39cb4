//! Clients: a tonic channel over TCP or over any byte stream, with this process's identity.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::tls::Identity;

/// Longest time of one attempt to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Interval of HTTP/2 pings.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Through a tunnel, which reports its own end and may use metered accesses.
const KEEPALIVE_INTERVAL_THROUGH: Duration = Duration::from_secs(900);
/// Time without an answer to an HTTP/2 ping after which the connection is closed.
const KEEPALIVE_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("{0:?} is not an address such as https://ingest:7001")]
    Url(String),
    #[error("{0:?} begins with https, but there is no identity for TLS")]
    NoIdentity(String),
    #[error("{0}")]
    Transport(#[from] tonic::transport::Error),
}

/// A lazy channel: it connects on first use and again after a loss. `https://host:port` uses TLS
/// 1.3 with `identity`; `http://` is plain and for tests.
pub fn channel(url: &str, identity: Option<&Identity>) -> Result<Channel, ChannelError> {
    let connect = |host: String, port| async move {
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    connecting(url, identity, KEEPALIVE_INTERVAL, connect)
}

/// The same over the stream that `connect(host, port)` returns, such as a tunnel's. TLS runs inside
/// it.
pub fn channel_over<C, F, S>(
    url: &str,
    identity: Option<&Identity>,
    connect: C,
) -> Result<Channel, ChannelError>
where
    C: Fn(String, u16) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connecting(url, identity, KEEPALIVE_INTERVAL_THROUGH, connect)
}

fn connecting<C, F, S>(
    url: &str,
    identity: Option<&Identity>,
    keepalive: Duration,
    connect: C,
) -> Result<Channel, ChannelError>
where
    C: Fn(String, u16) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let refused = || ChannelError::Url(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| refused())?;
    let host = uri.host().ok_or_else(refused)?.to_owned();
    let (secure, default_port) = match uri.scheme_str() {
        Some("https") => (true, 443),
        Some("http") => (false, 80),
        _ => return Err(refused()),
    };
    let port = uri.port_u16().unwrap_or(default_port);
    let tls = match (secure, identity) {
        (false, _) => None,
        (true, None) => return Err(ChannelError::NoIdentity(url.to_owned())),
        (true, Some(identity)) => {
            let bare = host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned();
            let name = ServerName::try_from(bare).map_err(|_| refused())?;
            Some((TlsConnector::from(identity.client_config(&[b"h2"])), name))
        }
    };
    // The scheme is http for TLS as well, because otherwise tonic would start its own TLS.
    let endpoint: Endpoint = Endpoint::from_shared(format!("http://{host}:{port}"))?
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(keepalive)
        .keep_alive_timeout(KEEPALIVE_LIMIT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    let target = Arc::new((host, port, tls));
    let connector = tower::service_fn(move |_: Uri| {
        let target = target.clone();
        let connect = connect.clone();
        async move {
            let (host, port, tls) = target.as_ref();
            let stream = connect(host.clone(), *port).await?;
            let stream: Box<dyn Duplex> = match tls {
                None => Box::new(stream),
                Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
            };
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}
