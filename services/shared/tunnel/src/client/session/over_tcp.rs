//! The session over TCP: connects over all access networks at once, and keeps the connection whose
//! far end answers first. Where steering rules let some stand by, the others have a head start.
//!
//! The answer is that to a first HTTP/2 PING, since TLS 1.3 completes here before the proxy has
//! verified our certificate.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
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
    paths::{Paths, from_kernel::FromKernel},
    sockets::{
        counted::{Counted, Counts},
        tcp,
    },
};

/// Interval of pings to the proxy: silence is noticed within seconds, as over QUIC.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// Head start of the accesses that carry before those that stand by.
const HEAD_START: Duration = Duration::from_millis(500);

/// Longest wait for the last frames to leave.
const FAREWELL_MAX: Duration = Duration::from_millis(500);

/// Makes connections.
pub(crate) struct TcpDialler {
    tls: TlsConnector,
}

/// A connection that has answered.
struct Connected {
    access: Arc<str>,
    from_kernel: Option<FromKernel>,
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

    /// Connects over any access network, or over one of these alone.
    pub(crate) async fn dial(
        &self,
        setup: &SessionSetup,
        number: u64,
        only: Option<Vec<Arc<str>>>,
    ) -> Result<Arc<Session>, DialError> {
        let timeout = setup.config.handshake_timeout;
        let order = match only {
            Some(names) => (names, Vec::new()),
            None => {
                let schedule = setup.schedule.borrow().schedule.clone();
                let placement = setup.placement.lock();
                placement.order(&schedule, &setup.leading())
            }
        };
        let connected = tokio::time::timeout(timeout, self.race(setup, order))
            .await
            .map_err(|_| DialError::TimedOut(timeout))??;
        let paths = Paths::new(number, None, Instant::now());
        paths.add_tcp(connected.counts.clone(), connected.from_kernel);
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
        tokio::spawn(drive(connected.connection, carrier.clone(), paths.clone()));
        let session = Arc::new(Session {
            number,
            since: Instant::now(),
            remote: connected.remote,
            access: Some(connected.access),
            carrier: Carrier::Tcp(carrier),
            requests: Requests::H2(Mutex::new(Some(connected.requests))),
            open: OpenStreams::default(),
            paths,
            orders: None,
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

    /// The second part of the order begins once the first has failed or had its head start. An
    /// access counts as failed where another has answered. Bounded by the slots for networks.
    async fn race(
        &self,
        setup: &SessionSetup,
        (first, mut others): (Vec<Arc<str>>, Vec<Arc<str>>),
    ) -> Result<Connected, DialError> {
        let mut losers = Vec::new();
        let mut attempts = FuturesUnordered::new();
        attempts.extend(first.iter().filter_map(|name| self.attempt(setup, name)));
        let mut head_start = pin!(tokio::time::sleep(HEAD_START));
        let mut failed = DialError::NoWay;
        loop {
            if attempts.is_empty() && others.is_empty() {
                return Err(failed);
            }
            let is_over = attempts.is_empty();
            tokio::select! {
                Some((name, attempt)) = attempts.next(), if !is_over => match attempt {
                    Ok(connected) => {
                        tracing::debug!(first = %name, "connected by TCP");
                        let mut placement = setup.placement.lock();
                        placement.on_answer(&name);
                        if !first.contains(&name) {
                            // They had their head start.
                            let silent = first.iter().filter(|name| !losers.contains(*name));
                            let silent: Vec<Arc<str>> = silent.cloned().collect();
                            losers.extend(silent);
                        }
                        let now = Instant::now();
                        losers.iter().for_each(|name| placement.on_failed(now, name));
                        return Ok(connected);
                    }
                    Err(error) => {
                        tracing::debug!(%name, %error, "no connection over TCP");
                        losers.push(name);
                        failed = error;
                    }
                },
                () = &mut head_start, if !is_over && !others.is_empty() => {
                    let begun = std::mem::take(&mut others);
                    attempts.extend(begun.iter().filter_map(|name| self.attempt(setup, name)));
                }
                () = std::future::ready(()), if is_over => {
                    let begun = std::mem::take(&mut others);
                    attempts.extend(begun.iter().filter_map(|name| self.attempt(setup, name)));
                }
            }
        }
    }

    /// `None` if there is no such access network, or none of the proxy's family.
    fn attempt<'a>(
        &'a self,
        setup: &'a SessionSetup,
        name: &Arc<str>,
    ) -> Option<impl Future<Output = (Arc<str>, Result<Connected, DialError>)> + 'a> {
        let ways = setup.slots.ways().into_iter();
        let (name, local_ip, device) = ways.into_iter().find(|way| way.0 == *name)?;
        let remote = setup.proxy.current().of_family(local_ip.is_ipv6())?;
        Some(async move {
            let connected = self.connect(setup, &name, (local_ip, device), remote).await;
            (name, connected)
        })
    }

    async fn connect(
        &self,
        setup: &SessionSetup,
        name: &Arc<str>,
        (local_ip, device): (IpAddr, Option<String>),
        remote: SocketAddr,
    ) -> Result<Connected, DialError> {
        let server = ServerName::try_from(setup.config.server_name.clone());
        let server = server.map_err(io::Error::other)?;
        let (stream, transport) = tcp::connect(local_ip, device.as_deref(), remote).await?;
        let counts = Counts::of(&stream);
        let from_kernel = FromKernel::open(&stream, transport, setup.slots.clone());
        let counted = Counted {
            stream,
            counts: counts.clone(),
        };
        let asked_at = Instant::now();
        let tls = self.tls.connect(server, counted).await?;
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
            access: name.clone(),
            from_kernel,
            transport,
            remote,
            counts,
            requests,
            connection,
            ping,
        })
    }
}

/// Relays the bytes of one connection until it ends or is asked to.
async fn drive(mut connection: ClientConnection, carrier: TcpCarrier, paths: Arc<Paths>) {
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
    paths.look_last();
    drop(connection);
    carrier.has_closed(reason);
}
