//! HTTP/2 over TLS over TCP: the settings of both ends, and pings that detect a dead connection.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::{Ping, PingPong};
use multipath::PathState;
use noq::PathId;

use crate::{
    http::carrier::TcpCarrier,
    paths::Paths,
    sockets::counted::{Counted, Counts},
};

/// The protocol spoken inside.
pub(crate) const ALPN: &[u8] = b"h2";

/// Unread bytes of all streams of one connection; one stream may have as many as over QUIC.
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// Unsent bytes of one stream; at the bound its writer waits.
const STREAM_SEND_BYTES_MAX: usize = 64 * 1024;

/// Open tunnels of one connection; further ones wait at the client.
const TUNNELS_MAX: u32 = 512;

/// Bytes of a request's headers; larger headers are refused.
const HEADER_BYTES_MAX: u32 = 16 * 1024;

/// Interval at which a ping is checked for its answer.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Time without an answer to a ping after which a path is suspect.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);

/// Time without an answer after which a connection is closed, as over QUIC.
const SILENCE_MAX: Duration = Duration::from_secs(120);

pub(crate) type ClientTls = tokio_rustls::client::TlsStream<Counted>;
pub(crate) type ServerTls = tokio_rustls::server::TlsStream<Counted>;
pub(crate) type ClientConnection = h2::client::Connection<ClientTls, Bytes>;
pub(crate) type ServerConnection = h2::server::Connection<ServerTls, Bytes>;
pub(crate) type Requests = h2::client::SendRequest<Bytes>;

pub(crate) async fn client(tls: ClientTls) -> Result<(Requests, ClientConnection), h2::Error> {
    h2::client::Builder::new()
        .enable_push(false)
        .initial_window_size(multipath::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(STREAM_SEND_BYTES_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .handshake(tls)
        .await
}

pub(crate) async fn server(tls: ServerTls) -> Result<ServerConnection, h2::Error> {
    h2::server::Builder::new()
        .initial_window_size(multipath::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(STREAM_SEND_BYTES_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(TUNNELS_MAX)
        .enable_connect_protocol()
        .handshake(tls)
        .await
}

/// Refuses a peer that negotiated another protocol.
pub(crate) fn check_protocol(agreed: Option<&[u8]>) -> io::Result<()> {
    match agreed {
        Some(ALPN) => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer does not speak HTTP/2",
        )),
    }
}

/// Sends pings, which give the round trip, the state of the path, and the end of a dead connection.
pub(crate) struct PingTask {
    pub(crate) ping: PingPong,
    pub(crate) carrier: TcpCarrier,
    pub(crate) paths: Arc<Paths>,
    pub(crate) counts: Arc<Counts>,
    /// Pause between an answer and the next ping.
    pub(crate) interval: Duration,
}

impl PingTask {
    /// Runs until the connection is gone.
    pub(crate) async fn run(mut self) {
        let carrier = self.carrier.clone();
        tokio::select! {
            () = self.ask_for_ever() => carrier.closed().await,
            () = carrier.closed() => {}
        }
        self.paths.set_state(PathId::ZERO, PathState::Closed);
    }

    async fn ask_for_ever(&mut self) {
        loop {
            let asked_at = Instant::now();
            if self.ping.send_ping(Ping::opaque()).is_err() {
                return;
            }
            let mut answered = pin!(poll_fn(|cx| self.ping.poll_pong(cx)));
            loop {
                match tokio::time::timeout(LOOK_INTERVAL, &mut answered).await {
                    Ok(Ok(_)) => break,
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
                let silence = self.paths.silence(Instant::now());
                if silence > SUSPECT_AFTER {
                    self.paths.set_state(PathId::ZERO, PathState::Suspect);
                }
                if silence > SILENCE_MAX {
                    self.carrier.close("no packet arrived for too long");
                    return;
                }
            }
            let now = Instant::now();
            self.counts.set_rtt(now - asked_at);
            self.paths.refresh(now);
            self.paths.set_state(PathId::ZERO, PathState::Available);
            tokio::time::sleep(self.interval).await;
        }
    }
}
