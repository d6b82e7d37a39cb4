//! The session over multipath QUIC: the handshake, and the tasks that drive the connection.

use std::{
    borrow::Cow,
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use bytes::Bytes;
use h3::ConnectionState;
use multipath::{
    ControllerConfig, Controllers, KeepaliveTerms, PathScheduler, PathUpkeep, Rest, Side,
    UpkeepConfig,
};
use noq::crypto::rustls::QuicClientConfig;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{DialError, Requests, Session};
use crate::{
    client::setup::{SessionSetup, TunnelEvent},
    http::{
        carrier::Carrier,
        h3_over_noq,
        http_datagrams::HttpDatagrams,
        stream::OpenStreams,
        transport::{ALPN, transport_config},
    },
    paths::{
        Paths,
        slots::slot_of,
        upkeep::{Change, Scheduled, UpkeepTask, Ways},
    },
};

#[derive(Debug, thiserror::Error)]
#[error("no cipher suite for QUIC")]
pub(crate) struct NoCipherSuite;

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
        setup: &Arc<SessionSetup>,
        proxy: SocketAddr,
        number: u64,
    ) -> Result<Arc<Session>, DialError> {
        let path_scheduler = PathScheduler::new();
        let connection = self.connect(setup, proxy, path_scheduler.clone()).await?;
        let winner = setup.race.winner();
        let over_noq = h3_over_noq::Connection::new(connection.clone(), path_scheduler.clone());
        let handles = over_noq.send_handles();
        let (driver, requests) = h3::client::builder()
            .send_grease(false)
            .enable_datagram(true)
            .build::<_, _, Bytes>(over_noq)
            .await?;
        let (extended_to, extended) = watch::channel(None);
        tokio::spawn(drive(driver, extended_to));
        let paths = Paths::new(number, Some(setup.slots.clone()), Instant::now());
        // Until the proxy has said whether it rests.
        let first_terms = KeepaliveTerms::default().with_rest(Rest {
            tolerates: true,
            rests: false,
            foreign: false,
            copies: false,
        });
        let (terms_to, terms) = watch::channel(first_terms);
        let session = Arc::new(Session {
            number,
            since: Instant::now(),
            remote: proxy,
            access: None,
            carrier: Carrier::Quic(connection.clone()),
            requests: Requests::H3 {
                requests: Mutex::new(requests),
                handles: handles.clone(),
                datagrams: HttpDatagrams::start(
                    connection.clone(),
                    path_scheduler.clone(),
                    handles.clone(),
                ),
                extended,
            },
            open: OpenStreams::default(),
            paths: paths.clone(),
            orders: Some(setup.schedule.subscribe()),
            retired: CancellationToken::new(),
            given_up: AtomicBool::new(false),
        });
        let mut upkeep = UpkeepConfig::new(Side::Client);
        upkeep.reroute = true;
        let upkeep = UpkeepTask {
            connection,
            upkeep: PathUpkeep::new(upkeep, path_scheduler),
            paths,
            handles,
            ways: Some(Ways::new(
                setup.slots.clone(),
                setup.routes.clone(),
                setup.schedule.subscribe(),
            )),
            first: None,
            remote: proxy,
            terms,
            received_datagrams: 0,
            scheduled: Scheduled::default(),
        };
        keep_paths(upkeep, winner, setup, &session.retired);
        let watched = (setup.watch_keepalive(), setup.schedule.subscribe());
        session
            .clone()
            .publish_names(&setup.config.server_name, watched, terms_to);
        Ok(session)
    }

    /// Returns after the handshake of TLS.
    async fn connect(
        &self,
        setup: &SessionSetup,
        proxy: SocketAddr,
        path_scheduler: Arc<PathScheduler>,
    ) -> Result<noq::Connection, DialError> {
        let timeout = setup.config.handshake_timeout;
        let mut config = noq::ClientConfig::new(self.crypto.clone());
        config.transport_config(transport_config(|transport| {
            transport.congestion_controller_factory(Controllers::new(
                path_scheduler,
                ControllerConfig::default(),
            ));
        }));
        setup.race.start();
        let connecting = setup
            .endpoint
            .connect_with(config, proxy, &setup.config.server_name)?;
        // TLS 1.3 completes here one round trip before the server has verified our certificate.
        // Requests leave with the last message of the handshake all the same. The server passes
        // them on only after the verification, and they cannot be replayed. Early data would gain
        // nothing, since the server would have to hold it until then.
        Ok(tokio::time::timeout(timeout, connecting)
            .await
            .map_err(|_| DialError::TimedOut(timeout))??)
    }
}

/// Steers the connection until its end, and publishes its events until the session is retired.
fn keep_paths(
    mut upkeep: UpkeepTask,
    winner: Option<usize>,
    setup: &SessionSetup,
    retired: &CancellationToken,
) {
    let (events, paths) = (setup.events.clone(), upkeep.paths.clone());
    let retired = retired.clone();
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
        let connection = upkeep.connection.clone();
        // Before that there is only the first path, and the server may still refuse the client.
        if connection.handshake_confirmed().await.is_ok() {
            let path = connection.path(noq::PathId::ZERO);
            let local_ip = path.and_then(|path| path.local_ip().ok().flatten());
            upkeep.first = local_ip.and_then(slot_of).or(winner);
            drop(connection);
            upkeep.run(changed).await;
        }
    });
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
