//! The session over TCP: connects over all access networks at once, and keeps the connection whose
//! far end answers first.
//!
//! The answer is that to a first HTTP/2 PING, since TLS 1.3 completes here before the proxy has
//! verified our certificate.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use h2::{Ping, PingPong};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::{DialError, Requests, Session};
use crate::{
    client::setup::SessionSetup,
    http::{
        carrier::{Carrier, TcpCarrier},
        h2_over_tcp::{self, ClientConnection, PingTask},
        stream::OpenStreams,
        transport::Transport,
    },
    paths::Paths,
    sockets::{
        counted::{Counted, Counts},
        tcp,
    },
};

/// Interval of pings to the proxy: silence is noticed within seconds, as over QUIC.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait for the last frames to leave.
const FAREWELL_MAX: Duration = Duration::from_millis(500);

/// Makes connections.
pub(crate) struct TcpDialler {
    tls: TlsConnector,
}

/// A connection that has answered.
struct Connected {
    transport: Transport,
    remote: SocketAddr,
    counts: Arc<Counts>,
    requests: h2_over_tcp::Requests,
    connection: ClientConnection,
    ping: PingPong,
}

impl TcpDialler {
    pub(crate) fn new(tls: &rustls::ClientConfig) -> Self {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![h2_over_tcp::ALPN.to_vec()];
        Self {
            tls: TlsConnector::from(Arc::new(tls)),
        }
    }

    pub(crate) async fn dial(
        &self,
        setup: &SessionSetup,
        number: u64,
    ) -> Result<Arc<Session>, DialError> {
        let timeout = setup.config.handshake_timeout;
        let connected = tokio::time::timeout(timeout, self.race(setup))
            .await
            .map_err(|_| DialError::TimedOut(timeout))??;
        let paths = Paths::new(number, None, Instant::now());
        paths.add_tcp(connected.counts.clone());
        paths.set_name(0, connected.transport.as_str());
        let carrier = TcpCarrier::new(connected.transport);
        let ping_task = PingTask {
            ping: connected.ping,
            carrier: carrier.clone(),
            paths: paths.clone(),
            counts: connected.counts,
            interval: PING_INTERVAL,
        };
        tokio::spawn(ping_task.run());
        tokio::spawn(drive(connected.connection, carrier.clone()));
        let session = Arc::new(Session {
            number,
            since: Instant::now(),
            remote: connected.remote,
            carrier: Carrier::Tcp(carrier),
            requests: Requests::H2(Mutex::new(Some(connected.requests))),
            open: OpenStreams::default(),
            paths,
            retired: CancellationToken::new(),
            given_up: AtomicBool::new(false),
        });
        let watched = (setup.watch_keepalive(), setup.schedule.subscribe());
        // The kernel steers, so terms have no effect.
        let nobody_obeys = watch::Sender::default();
        session
            .clone()
            .publish_names(&setup.config.server_name, watched, nobody_obeys);
        Ok(session)
    }

    /// Bounded by the slots for access networks.
    async fn race(&self, setup: &SessionSetup) -> Result<Connected, DialError> {
        let proxy = setup.proxy.current();
        let ways = setup.slots.ways().into_iter();
        let mut attempts: FuturesUnordered<_> = ways
            .filter_map(|(name, local_ip, device)| {
                let remote = proxy.of_family(local_ip.is_ipv6())?;
                let server = &setup.config.server_name;
                let attempt = self.connect(local_ip, device, remote, server);
                Some(async move { (name, attempt.await) })
            })
            .collect();
        let mut failed = DialError::NoWay;
        while let Some((name, attempt)) = attempts.next().await {
            match attempt {
                Ok(connected) => {
                    tracing::debug!(first = %name, "connected by TCP");
                    return Ok(connected);
                }
                Err(error) => {
                    tracing::debug!(%name, %error, "no connection over TCP");
                    failed = error;
                }
            }
        }
        Err(failed)
    }

    fn connect(
        &self,
        local_ip: IpAddr,
        device: Option<String>,
        remote: SocketAddr,
        server: &str,
    ) -> impl Future<Output = Result<Connected, DialError>> {
        let server = ServerName::try_from(server.to_owned());
        let connector = self.tls.clone();
        async move {
            let server = server.map_err(io::Error::other)?;
            let (stream, transport) = tcp::connect(local_ip, device.as_deref(), remote).await?;
            let counts = Counts::of(&stream);
            let counted = Counted {
                stream,
                counts: counts.clone(),
            };
            let asked_at = Instant::now();
            let tls = connector.connect(server, counted).await?;
            h2_over_tcp::check_protocol(tls.get_ref().1.alpn_protocol())?;
            let (requests, mut connection) = h2_over_tcp::client(tls).await?;
            let mut ping = connection
                .ping_pong()
                .ok_or_else(|| io::Error::other("no pings"))?;
            tokio::select! {
                ended = &mut connection => {
                    ended?;
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                answered = ping.ping(Ping::opaque()) => {
                    answered?;
                }
            }
            counts.set_rtt(asked_at.elapsed() / 2);
            Ok(Connected {
                transport,
                remote,
                counts,
                requests,
                connection,
                ping,
            })
        }
    }
}

/// Relays the bytes of one connection until it ends or is asked to.
async fn drive(mut connection: ClientConnection, carrier: TcpCarrier) {
    let reason = tokio::select! {
        ended = &mut connection => match ended {
            Ok(()) => "ended by the proxy".to_owned(),
            Err(error) => error.to_string(),
        },
        () = carrier.ending() => {
            // It ends by itself once no sender of requests and no stream is left.
            let _ = tokio::time::timeout(FAREWELL_MAX, &mut connection).await;
            "closed".to_owned()
        }
    };
    drop(connection);
    carrier.has_closed(reason);
}
