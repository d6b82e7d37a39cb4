//! The client's end: the interface of a tunnel for applications. The keeper owns the session
//! beneath.

pub(crate) mod access;
mod fallback;
mod follow;
mod keeper;
mod opening;
pub(crate) mod placement;
pub(crate) mod proxy_address;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod shared;

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use http::{StatusCode, uri::Authority};
use multipath::{Keepalive, steering_rules::Schedule};
use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    carried::{ip_tunnel::IpTunnel, tunnel_stream::TunnelStream, udp_tunnel::UdpTunnel},
    client::{
        keeper::Keeper,
        opening::Manner,
        proxy_address::ProxyAddress,
        session::{ConnectError, Session, over_quic::Dialler},
        setup::{SessionSetup, TunnelConfig, TunnelEvent},
        shared::Shared,
    },
    http::{
        codes::NO_ERROR,
        copy_number::CopyNumber,
        request::{self, Urgency},
        transport::Transport,
    },
    paths::{
        Paths,
        name::{NAME_BYTES_MAX, is_name},
        slots::{AttachError, Slots},
        snapshot::PathSnapshot,
    },
    resume,
    sockets::{datagrams::DatagramCounts, fan_out::FanOut, interface::Interface},
};

/// Longest wait of `close` for the last packets to leave.
const CLOSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "{name:?} is not a valid name of an interface: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'"
    )]
    Name { name: String },
    #[error("the TLS configuration has no cipher suite that QUIC can use")]
    Tls,
    #[error("cannot make a QUIC endpoint: {0}")]
    Endpoint(#[from] io::Error),
}

/// Why a tunnel to a destination was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The proxy's answer: 403 not allowed, 502 unreachable, 504 too slow, 429 too many, 501 no UDP
    /// or no IP.
    #[error("the proxy refused: {0}")]
    Refused(StatusCode),
    #[error("no session with the proxy within {0:?}")]
    NoSession(Duration),
    #[error("the destination did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the tunnel is closed")]
    Closed,
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::Refused(StatusCode::FORBIDDEN) => io::ErrorKind::PermissionDenied,
            OpenError::Refused(_) => io::ErrorKind::ConnectionRefused,
            OpenError::NoSession(_) | OpenError::TimedOut(_) => io::ErrorKind::TimedOut,
            OpenError::Closed => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// A tunnel to a proxy. Clones share it; `close` or the drop of the last clone ends it.
#[derive(Clone)]
pub struct Tunnel {
    pub(crate) shared: Arc<Shared>,
    _end: Arc<DropGuard>,
}

impl Tunnel {
    /// Starts to connect and returns at once. Interfaces may change later. Must be called within a
    /// Tokio runtime.
    pub fn start(config: TunnelConfig, interfaces: Vec<Interface>) -> Result<Tunnel, StartError> {
        if let Some(bad) = interfaces.iter().find(|way| !is_name(&way.name)) {
            return Err(StartError::Name {
                name: bad.name.clone(),
            });
        }
        let dialler = Dialler::new(&config.tls).map_err(|_| StartError::Tls)?;
        let slots = Slots::new(interfaces);
        let addresses = [Some(config.proxy), config.proxy_other_family];
        let proxy = ProxyAddress::new(config.proxy_host.clone(), addresses.into_iter().flatten());
        let fan_out = FanOut::new(slots.clone(), proxy.clone());
        let (race, routes) = (fan_out.race(), fan_out.routes());
        let endpoint = noq::Endpoint::new_with_abstract_socket(
            noq::EndpointConfig::default(),
            None,
            Box::new(fan_out),
            Arc::new(noq::TokioRuntime),
        )?;
        let end = CancellationToken::new();
        let setup = SessionSetup::new(config, endpoint, (race, routes), slots, proxy);
        let shared = Arc::new(Shared::new(setup, end.clone()));
        tokio::spawn(Keeper::new(shared.clone(), dialler).run());
        Ok(Tunnel {
            shared,
            _end: Arc::new(end.drop_guard()),
        })
    }

    /// Opens a TCP connection from the proxy to `authority` (`host:port`), and waits for a session
    /// if there is none. If the proxy agrees the tunnel is resumable: it survives the loss of
    /// paths, of the session and of all networks.
    pub async fn open_tcp(
        &self,
        authority: &Authority,
        urgency: Urgency,
    ) -> Result<TunnelStream, OpenError> {
        let manner = Manner {
            resumable: !self.shared.setup.config.resume_within.is_zero(),
            steered: true,
        };
        self.open_stream(authority, urgency, manner).await
    }

    /// The same as a plain CONNECT, which ends with its stream and waits for no schedule. For
    /// applications with their own journal, which open a fresh tunnel at once instead of waiting
    /// for the old one.
    pub async fn open_plain_tcp(
        &self,
        authority: &Authority,
        urgency: Urgency,
    ) -> Result<TunnelStream, OpenError> {
        let manner = Manner {
            resumable: false,
            steered: false,
        };
        self.open_stream(authority, urgency, manner).await
    }

    /// The same for copies of the messages of other streams, which keep to different paths.
    pub async fn open_copied_tcp(
        &self,
        authority: &Authority,
        urgency: Urgency,
        copy: &CopyNumber,
    ) -> Result<TunnelStream, OpenError> {
        let stream = self.open_plain_tcp(authority, urgency).await?;
        stream.set_copy(copy);
        Ok(stream)
    }

    /// Exchanges UDP datagrams with `authority` through the proxy, and waits for a session if there
    /// is none. Ends with the session.
    pub async fn open_udp(
        &self,
        authority: &Authority,
        urgency: Urgency,
    ) -> Result<UdpTunnel, OpenError> {
        let server_name = &self.shared.setup.config.server_name;
        self.open(authority, |session| async move {
            let ask = || session.connect_udp(server_name, authority, urgency);
            opening::insist(&session, authority, ask).await
        })
        .await
    }

    /// Exchanges IP packets with the destinations that the proxy permits, and waits for a session
    /// if there is none. Ends with the session.
    pub async fn open_ip(&self, urgency: Urgency) -> Result<IpTunnel, OpenError> {
        let server_name = &self.shared.setup.config.server_name;
        let any = request::any_destination();
        self.open(&any, |session| {
            let any = &any;
            async move {
                let ask = || session.connect_ip(server_name, urgency);
                opening::insist(&session, any, ask).await
            }
        })
        .await
    }

    async fn open_stream(
        &self,
        authority: &Authority,
        urgency: Urgency,
        manner: Manner,
    ) -> Result<TunnelStream, OpenError> {
        let shared = &self.shared;
        self.open(authority, |session| async move {
            let ask = || opening::tcp(&session, authority, urgency, manner);
            let (stream, agreed) = opening::insist(&session, authority, ask).await?;
            Ok(match agreed {
                Some((token, answer)) => {
                    let request = resume::client::Request {
                        authority: authority.clone(),
                        urgency,
                        token,
                    };
                    let carried = (session, stream, answer);
                    let stream = resume::client::begin(shared, carried, request);
                    TunnelStream::resumable(stream)
                }
                None => TunnelStream::plain(stream),
            })
        })
        .await
    }

    /// Asks the current session, and its successors, until one answers.
    async fn open<T, F>(
        &self,
        authority: &Authority,
        ask: impl Fn(Arc<Session>) -> F,
    ) -> Result<T, OpenError>
    where
        F: Future<Output = Result<T, ConnectError>>,
    {
        let timeout = self.shared.setup.config.open_timeout;
        let mut sessions = self.shared.session.subscribe();
        let mut asked = false;
        let opening = async {
            loop {
                let session = tokio::select! {
                    found = sessions.wait_for(|session| session.is_some()) => {
                        found.map_err(|_| OpenError::Closed)?.clone()
                    }
                    () = self.shared.end.cancelled() => return Err(OpenError::Closed),
                };
                let Some(session) = session else {
                    continue;
                };
                asked = true;
                let number = session.number;
                let mut next = sessions.clone();
                let replaced = next.wait_for(|session| {
                    session
                        .as_ref()
                        .is_none_or(|session| session.number != number)
                });
                let connected = tokio::select! {
                    connected = ask(session.clone()) => Some(connected),
                    // A silent session may never answer; its successor exists now.
                    _ = replaced => None,
                    () = self.shared.end.cancelled() => return Err(OpenError::Closed),
                };
                match connected {
                    Some(Ok(opened)) => return Ok(opened),
                    Some(Err(ConnectError::Refused(status))) => {
                        return Err(OpenError::Refused(status));
                    }
                    Some(Err(ConnectError::Extended(error))) => {
                        tracing::debug!(%error, %authority, "not to be asked for");
                        return Err(OpenError::Refused(StatusCode::BAD_REQUEST));
                    }
                    Some(Err(error)) => {
                        tracing::debug!(%error, %authority, "the session ended while a tunnel was opening");
                        session.retire();
                        asked = false;
                        // The keeper publishes the next one.
                        let next = sessions.wait_for(|session| {
                            session
                                .as_ref()
                                .is_none_or(|session| session.number != number)
                        });
                        tokio::select! {
                            next = next => { next.map_err(|_| OpenError::Closed)?; }
                            () = self.shared.end.cancelled() => return Err(OpenError::Closed),
                        }
                    }
                    None => asked = false,
                }
            }
        };
        match tokio::time::timeout(timeout, opening).await {
            Ok(result) => result,
            Err(_) if asked => Err(OpenError::TimedOut(timeout)),
            Err(_) => Err(OpenError::NoSession(timeout)),
        }
    }

    /// Later events; a slow subscriber loses the oldest.
    pub fn events(&self) -> broadcast::Receiver<TunnelEvent> {
        self.shared.setup.events.subscribe()
    }

    /// The paths of the current session, including recently closed ones; empty without a session.
    pub fn paths(&self) -> Vec<PathSnapshot> {
        self.shared
            .session
            .borrow()
            .as_ref()
            .map_or_else(Vec::new, |session| session.paths.snapshot())
    }

    /// The same, their number, and behind them the paths of former sessions, whose counters may
    /// still rise.
    pub fn paths_with_former(&self) -> (Vec<PathSnapshot>, usize) {
        // In this order none is missed: a session is former before its successor is current.
        let current = self.shared.session.borrow().clone();
        let former = self.shared.former.lock().clone();
        let current = current.map(|session| session.paths.clone());
        let others = former.iter().filter(|paths| {
            let is_current = |current: &Arc<Paths>| Arc::ptr_eq(current, paths);
            !current.as_ref().is_some_and(is_current)
        });
        let mut all: Vec<_> = current.iter().flat_map(|it| it.snapshot()).collect();
        let of_current = all.len();
        all.extend(others.flat_map(|paths| paths.snapshot()));
        (all, of_current)
    }

    /// Access networks without a path to which a session over TCP would move if the schedule said
    /// so. Empty over QUIC, which has a path over each.
    pub fn reachable(&self) -> Vec<String> {
        let Some(session) = self.session_over_tcp() else {
            return Vec::new();
        };
        // Where the kernel shows no sockets, no path has the name of its access.
        let shown = session.paths.held_by_tcp();
        let setup = &self.shared.setup;
        let mut names = setup.leading();
        let placement = setup.placement.lock();
        names.retain(|name| !shown.contains(name) && placement.is_reachable(name));
        names.iter().map(|name| name.to_string()).collect()
    }

    pub(crate) fn session_over_tcp(&self) -> Option<Arc<Session>> {
        let session = self.shared.session.borrow().clone();
        session.filter(|session| session.is_fallback())
    }

    /// Reads the counters of a session over TCP before the kernel closes sockets of it.
    pub(crate) fn look_last(&self) {
        let session = self.shared.session.borrow().clone();
        if let Some(session) = session {
            session.paths.look_last();
        }
    }

    /// Datagrams and system calls of all access networks since the start.
    pub fn datagrams(&self) -> DatagramCounts {
        self.shared.setup.slots.datagrams()
    }

    /// The transport of the current session.
    pub fn transport(&self) -> Option<Transport> {
        let session = self.shared.session.borrow();
        session.as_ref().map(|session| session.transport())
    }

    pub fn is_up(&self) -> bool {
        self.shared.session.borrow().is_some()
    }

    /// Waits for a session; returns false if the tunnel is closed.
    pub async fn up(&self) -> bool {
        let mut sessions = self.shared.session.subscribe();
        tokio::select! {
            found = sessions.wait_for(|session| session.is_some()) => found.is_ok(),
            () = self.shared.end.cancelled() => false,
        }
    }

    /// Changes the probing of paths by both ends: in this session once the proxy has agreed, and in
    /// later sessions.
    pub fn set_keepalive(&self, keepalive: Keepalive) {
        self.shared.setup.keepalive.send_replace(keepalive);
    }

    /// Which paths carry data, in which order and parts, of this session and of later ones, at
    /// both ends. Tunnels that are opened later begin under it. A proxy of an older release goes on
    /// without a schedule.
    pub fn set_schedule(&self, schedule: Schedule) {
        self.shared.setup.schedule.send_if_modified(|order| {
            let is_news = *order.schedule != schedule;
            if is_news {
                order.number += 1;
                order.schedule = Arc::new(schedule);
            }
            is_news
        });
    }

    /// Returns once this end obeys the last schedule and has told the proxy, for the next datagrams
    /// of open tunnels. At once without a session over QUIC.
    pub async fn obeyed(&self) {
        let session = self.shared.session.borrow().clone();
        if let Some(session) = session {
            session.obeyed().await;
        }
    }

    /// Adds an access network, or replaces the socket of the network of that name. A path over it
    /// is opened at once. An open path of the network continues from its new address.
    pub fn attach(&self, interface: Interface) -> Result<(), AttachError> {
        self.shared.setup.slots.attach(interface).map(|_| ())
    }

    /// Removes an access network whose address, carrier or device is lost. Data under way over it
    /// moves to the others at once. Returns whether the network existed.
    pub fn detach(&self, name: &str) -> bool {
        self.shared.setup.slots.detach(name)
    }

    /// Marks an access network as failed or working; it keeps its socket.
    pub fn set_link(&self, name: &str, up: bool) {
        self.shared.setup.slots.set_up(name, up);
    }

    /// Whether a session over TCP is permitted.
    pub(crate) fn may_fall_back(&self) -> bool {
        self.shared.setup.config.fallback
    }

    /// The proxy's known addresses.
    pub(crate) fn proxy(&self) -> &ProxyAddress {
        &self.shared.setup.proxy
    }

    /// Returns when the tunnel is being closed.
    pub(crate) async fn closed(&self) {
        self.shared.end.cancelled().await;
    }

    /// Names of all access networks, also of those without an address now.
    pub fn accesses(&self) -> Vec<String> {
        let states = self.shared.setup.slots.states().into_iter();
        states.map(|slot| slot.name.to_string()).collect()
    }

    /// Names and addresses of the current access networks.
    pub fn interfaces(&self) -> Vec<(String, IpAddr)> {
        let states = self.shared.setup.slots.states().into_iter();
        states
            .filter_map(|slot| Some((slot.name.to_string(), slot.local_ip?)))
            .collect()
    }

    /// Ends the session and all tunnels, and informs the proxy.
    pub async fn close(&self) {
        self.shared.end.cancel();
        self.shared
            .setup
            .endpoint
            .close(noq::VarInt::from_u32(NO_ERROR), b"closed by the client");
        let _ =
            tokio::time::timeout(CLOSE_MAX, self.shared.setup.endpoint.wait_all_draining()).await;
    }
}

#[cfg(test)]
impl Tunnel {
    /// The current session, for tests of internals.
    pub(crate) async fn session(&self) -> Option<Arc<Session>> {
        self.up().await;
        self.shared.session.borrow().clone()
    }
}
