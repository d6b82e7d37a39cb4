//! The setup that all sessions of a client share: settings, sockets, access networks and rules.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use multipath::Keepalive;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use crate::{
    client::{placement::Placement, proxy_address::ProxyAddress},
    paths::{
        orders::Order,
        routes::{Race, Routes},
        slots::Slots,
    },
    session_numbers,
};

/// Events that wait for a slow subscriber; at the bound it loses the oldest.
const EVENTS_MAX: usize = 256;

/// Settings of a tunnel.
#[derive(Clone)]
pub struct TunnelConfig {
    /// The proxy's address; unspecified while only the name is known.
    pub proxy: SocketAddr,
    /// The same proxy's address of the other family, for access networks of that family alone.
    pub proxy_other_family: Option<SocketAddr>,
    /// `host:port`, resolved again for every connection; meanwhile the last address is used.
    pub proxy_host: Option<String>,
    /// The name in the proxy's certificate.
    pub server_name: String,
    /// Must permit TLS 1.3 and contain the gateway's certificate; the ALPN list is replaced by
    /// HTTP/3's.
    pub tls: Arc<rustls::ClientConfig>,
    /// Longest handshake; then it has failed.
    pub handshake_timeout: Duration,
    /// Longest `open_tcp` or `open_udp`, including the wait for a session; then it has failed.
    pub open_timeout: Duration,
    /// The keepalive that is proposed to the proxy; every session begins with the default.
    pub keepalive: Keepalive,
    /// Time without a carrying stream after which a resumable tunnel ends. Zero: all tunnels are
    /// plain.
    pub resume_within: Duration,
    /// Whether a TCP session is made where UDP gets no answer. It uses the addresses of the
    /// interfaces, but not their sockets.
    pub fallback: bool,
}

impl TunnelConfig {
    pub fn new(
        proxy: SocketAddr,
        server_name: impl Into<String>,
        tls: Arc<rustls::ClientConfig>,
    ) -> Self {
        Self {
            proxy,
            proxy_other_family: None,
            proxy_host: None,
            server_name: server_name.into(),
            tls,
            handshake_timeout: Duration::from_secs(5),
            open_timeout: Duration::from_secs(15),
            keepalive: Keepalive::default(),
            resume_within: Duration::from_secs(120),
            fallback: false,
        }
    }
}

/// Events of the tunnel as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelEvent {
    SessionUp {
        session: u64,
    },
    /// `reason`: why the session was closed, in the words of the side that closed it.
    SessionDown {
        session: u64,
        reason: String,
    },
    PathUp {
        name: String,
    },
    /// A path that carries data has been silent for longer than usual. Either it answers again, or
    /// `PathDown` follows.
    PathSilent {
        name: String,
    },
    /// A path has died. Tunnels that used it stall until the transport repeats their data; a fresh
    /// stream is faster. `carried` is false for a standby path, whose end stalls no tunnel.
    PathDown {
        name: String,
        carried: bool,
    },
}

/// Shared by the sessions of one client.
pub(crate) struct SessionSetup {
    pub(crate) config: TunnelConfig,
    pub(crate) endpoint: noq::Endpoint,
    pub(crate) race: Race,
    pub(crate) routes: Routes,
    pub(crate) slots: Arc<Slots>,
    pub(crate) proxy: Arc<ProxyAddress>,
    pub(crate) keepalive: watch::Sender<Keepalive>,
    pub(crate) schedule: watch::Sender<Order>,
    /// Only sessions over TCP obey it.
    pub(crate) placement: Mutex<Placement>,
    pub(crate) events: broadcast::Sender<TunnelEvent>,
    sessions: AtomicU64,
}

impl SessionSetup {
    pub(crate) fn new(
        config: TunnelConfig,
        endpoint: noq::Endpoint,
        (race, routes): (Race, Routes),
        slots: Arc<Slots>,
        proxy: Arc<ProxyAddress>,
    ) -> Self {
        Self {
            keepalive: watch::Sender::new(config.keepalive),
            config,
            endpoint,
            race,
            routes,
            slots,
            proxy,
            schedule: watch::Sender::default(),
            placement: Mutex::default(),
            events: broadcast::Sender::new(EVENTS_MAX),
            sessions: AtomicU64::new(session_numbers::first_number()),
        }
    }

    pub(crate) fn watch_keepalive(&self) -> watch::Receiver<Keepalive> {
        self.keepalive.subscribe()
    }

    /// Names of the working access networks that lead to the proxy by their family.
    pub(crate) fn leading(&self) -> Vec<Arc<str>> {
        let proxy = self.proxy.current();
        let ways = self.slots.ways().into_iter();
        ways.filter(|(_, local_ip, _)| proxy.of_family(local_ip.is_ipv6()).is_some())
            .map(|(name, ..)| name)
            .collect()
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn publish_event(&self, event: TunnelEvent) {
        // An event without subscribers is dropped.
        let _ = self.events.send(event);
    }
}
