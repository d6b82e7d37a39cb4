//! Keeps the client's session with the proxy alive.
//!
//! The keeper connects and races the handshake over all interfaces. It replaces the session when it
//! is closed, when the proxy says goodbye, or when no packet has arrived on any path for
//! `SILENCE_MAX`. Beside a silent session it tries a fresh handshake. When that succeeds all
//! tunnels move to the fresh session, even if the old one has recovered. Its retransmission timers
//! have backed off during the silence. Tunnels that cannot move stay.
//!
//! Without an answer, handshakes are begun one after another and overlap. So a fresh packet meets
//! the network's return soon, however far earlier handshakes have backed off. A network that
//! arrives is tried at once. Without any network no packet is sent. Only a refusal leads to a
//! growing pause.
//!
//! Where UDP is blocked the session uses TCP (`fallback` decides when), and QUIC is probed beside
//! it. QUIC replaces TCP when it answers. A block that answers by ICMP is noticed at once, also
//! under a session. A TCP session moves to an access that the steering rules prefer (`placement`).

use std::{
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use service_kit::Backoff;
use tokio::sync::watch;

use crate::{
    client::{
        fallback::Fallback,
        placement::{Attempt, View},
        proxy_address::Addresses,
        session::{DialError, Session, over_quic::Dialler, over_tcp::TcpDialler},
        setup::TunnelEvent,
        shared::Shared,
    },
    http::transport::Transport,
};

/// Concurrent handshakes; the next one begins when one has failed.
const ATTEMPTS_MAX: usize = 5;

/// First pause between two handshakes without an answer.
const ATTEMPT_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause between two handshakes without an answer.
const ATTEMPT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time after which this pause has doubled.
const ATTEMPT_GROWTH: Duration = Duration::from_secs(60);

/// Time after a network's arrival in which handshakes begin at shorter pauses: the first packets
/// may be lost, for example to address resolution.
const EAGER_FOR: Duration = Duration::from_secs(1);
const EAGER_PAUSE: Duration = Duration::from_millis(250);

/// Silence on all paths after which a fresh session is tried.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// A session with a packet within this time needs no TCP session in its place.
const SPEAKS: Duration = Duration::from_millis(500);

/// Time for which every network must refuse UDP, without a datagram in between, before a QUIC
/// session is given up for it. Answers that were on their way arrive within it.
const REFUSED_FOR: Duration = Duration::from_millis(150);

/// A session that ended sooner counts as refused: the next attempt waits as after a failure.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Time for the kernel to make a subflow of MPTCP over an access that should carry: it gets the
/// access two seconds after it appears.
const SUBFLOW_PATIENCE: Duration = Duration::from_secs(4);

/// Interval of looks for silence.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

type Dialling<'a> = Pin<Box<dyn Future<Output = Result<Arc<Session>, DialError>> + Send + 'a>>;

/// Keeps a session alive.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    dialler: Dialler,
    tcp_dialler: TcpDialler,
    fallback: Fallback,
    backoff: Backoff,
    /// The last session that settled; each one resets the back-off once.
    settled: u64,
    networks: watch::Receiver<u64>,
    /// Arrivals of networks that have been handled.
    arrivals: u64,
    address: watch::Receiver<Addresses>,
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>, dialler: Dialler) -> Self {
        Self {
            networks: shared.setup.slots.watch(),
            arrivals: shared.setup.slots.arrivals(),
            address: shared.setup.proxy.watch(),
            tcp_dialler: TcpDialler::new(&shared.setup.config.tls),
            fallback: Fallback::new(shared.setup.config.fallback),
            shared,
            dialler,
            backoff: Backoff::for_reconnect(),
            settled: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        let end = self.shared.end.clone();
        if end.run_until_cancelled(self.keep()).await.is_none() {
            let session = self.shared.session.send_replace(None);
            if let Some(session) = session {
                const REASON: &str = "closed by the client";
                session.close(REASON);
                self.shared.setup.publish_event(TunnelEvent::SessionDown {
                    session: session.number,
                    reason: REASON.to_owned(),
                });
            }
        }
    }

    async fn keep(&mut self) {
        let mut current: Option<Arc<Session>> = None;
        loop {
            if let Some(session) = current.clone() {
                let better = self.watch(&session).await;
                if session.age() >= SETTLED_AFTER && self.settled != session.number {
                    self.settled = session.number;
                    self.backoff.reset();
                }
                if let Some(fresh) = better {
                    self.replace(&mut current, Some(fresh));
                    continue;
                }
            }
            // A fresh session is needed, whatever ended the watch; the old one may still serve
            // meanwhile.
            let closed = current.as_ref().is_none_or(|old| old.is_closed());
            if closed {
                let refused = current
                    .as_ref()
                    .is_some_and(|old| old.age() < SETTLED_AFTER);
                self.replace(&mut current, None);
                if refused {
                    self.pause().await;
                }
            }
            let heard_at = current
                .as_ref()
                .and_then(|old| Instant::now().checked_sub(old.paths.silence(Instant::now())));
            self.fallback.on_wanted(Instant::now(), heard_at);
            match self.dial().await {
                Some(fresh) => {
                    let revived = current.as_ref().is_some_and(|old| {
                        let by_quic = fresh.is_fallback() && !old.is_fallback();
                        let speaks = old.paths.silence(Instant::now()) < SPEAKS;
                        by_quic && !old.is_retired() && speaks && !refused(&self.shared)
                    });
                    if revived {
                        fresh.close("the old session lives");
                        self.fallback.on_quic();
                    } else {
                        if let Some(old) = current.as_ref().filter(|old| !old.is_retired()) {
                            // Before the fresh session is published.
                            old.give_up();
                        }
                        self.replace(&mut current, Some(fresh));
                    }
                }
                None => self.pause().await,
            }
        }
    }

    /// The pause after a refusal; the arrival of a network ends it.
    async fn pause(&mut self) {
        let delay = self.backoff.next_delay();
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = arrival(&self.shared, &mut self.networks, &mut self.arrivals) => {}
        }
    }

    /// Returns when the session has ended, was retired, or is silent; beside a TCP session, also
    /// when QUIC has answered.
    async fn watch(&mut self, session: &Session) -> Option<Arc<Session>> {
        let mut ticks = tokio::time::interval(WATCH_INTERVAL);
        let (shared, dialler) = (&self.shared, &self.dialler);
        let mut probing: Option<Dialling<'_>> = None;
        let tcp_dialler = &self.tcp_dialler;
        let mut placing: Option<(Attempt, Dialling<'_>)> = None;
        let mut schedule = shared.setup.schedule.subscribe();
        shared.setup.placement.lock().on_session();
        let by_quic = !session.is_fallback() && self.fallback.is_enabled();
        let mut refusing = pin!(refused_for_long(shared));
        loop {
            let probed = async {
                match &mut probing {
                    Some(probing) => probing.await,
                    None => std::future::pending().await,
                }
            };
            let placed = async {
                match &mut placing {
                    Some((_, placing)) => placing.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = session.closed() => return None,
                () = session.retired() => return None,
                () = &mut refusing, if by_quic => {
                    self.fallback.on_refused(Instant::now());
                    return None;
                }
                probed = probed => {
                    probing = None;
                    match probed {
                        Ok(fresh) => {
                            self.fallback.on_quic();
                            return Some(fresh);
                        }
                        Err(error) => {
                            tracing::debug!(%error, "QUIC was probed in vain");
                            self.fallback.on_probe_failed(Instant::now());
                        }
                    }
                }
                placed = placed => {
                    let attempt = placing.take().map(|(attempt, _)| attempt);
                    if let Some(fresh) = attempt.and_then(|attempt| settle(shared, attempt, placed)) {
                        // Its tunnels are better off where the rules want them.
                        session.give_up();
                        return Some(fresh);
                    }
                }
                () = arrival(shared, &mut self.networks, &mut self.arrivals), if session.is_fallback() => {
                    self.fallback.on_network(Instant::now());
                    shared.setup.placement.lock().on_network();
                }
                Ok(()) = schedule.changed(), if session.is_fallback() => ticks.reset_immediately(),
                _ = ticks.tick() => {
                    let now = Instant::now();
                    if session.is_fallback() && placing.is_none()
                        && let Some(attempt) = wanted(shared, session, now)
                    {
                        let only = Some(attempt.names().to_vec());
                        let number = shared.setup.next_number();
                        placing = Some((attempt, Box::pin(tcp_dialler.dial(&shared.setup, number, only))));
                    }
                    if session.paths.silence(now) > SILENCE_MAX {
                        return None;
                    }
                    let due = self.fallback.probe_at().is_some_and(|at| at <= now);
                    if due && session.is_fallback() && probing.is_none()
                        && let Some(proxy) = shared.setup.proxy.current().canonical()
                    {
                        probing = Some(Box::pin(dialler.dial(&shared.setup, proxy, shared.setup.next_number())));
                        shared.setup.proxy.refresh();
                    }
                }
            }
        }
    }

    fn replace(&self, current: &mut Option<Arc<Session>>, fresh: Option<Arc<Session>>) {
        if let Some(old) = current.as_ref() {
            self.shared.keep_former(old.paths.clone());
        }
        // A subscriber that is notified finds the change done.
        self.shared.session.send_replace(fresh.clone());
        if let Some(old) = current.take() {
            let reason = old.close_reason();
            let reason = reason.as_deref().unwrap_or("replaced by another");
            tracing::info!(session = old.number, reason, "session down");
            self.shared.setup.publish_event(TunnelEvent::SessionDown {
                session: old.number,
                reason: reason.to_owned(),
            });
            // Its open tunnels go on until they end, if it still lives or recovers.
            old.retire();
            tokio::spawn(async move { old.finish().await });
        }
        if let Some(fresh) = &fresh {
            // Not earlier: a fresh session may be given up again for the old one.
            self.shared.setup.routes.belong_to(fresh.number);
            let transport = fresh.transport();
            tracing::info!(session = fresh.number, proxy = %fresh.remote, %transport, "session up");
            metrics::counter!("braid_tunnel_sessions_total", "transport" => transport.as_str())
                .increment(1);
            self.shared.setup.publish_event(TunnelEvent::SessionUp {
                session: fresh.number,
            });
        }
        let transport = fresh.as_ref().map(|fresh| fresh.transport());
        for known in Transport::ALL {
            let used = if transport == Some(known) { 1.0 } else { 0.0 };
            metrics::gauge!("braid_tunnel_transport", "transport" => known.as_str()).set(used);
        }
        *current = fresh;
    }

    /// Repeats until there is a session or the proxy has refused one.
    async fn dial(&mut self) -> Option<Arc<Session>> {
        let shared = self.shared.clone();
        let began = Instant::now();
        let mut attempts = FuturesUnordered::new();
        let mut by_tcp: Option<Dialling<'_>> = None;
        let mut begin_at = began;
        let mut arrived_at = began;
        let mut refusals = shared.setup.slots.watch_refusals();
        loop {
            let now = Instant::now();
            if refused(&shared) {
                self.fallback.on_refused(now);
            }
            if by_tcp.is_none() && self.fallback.is_due(now) && shared.setup.slots.any_up() {
                let number = shared.setup.next_number();
                let dialling = self.tcp_dialler.dial(&shared.setup, number, None);
                by_tcp = Some(Box::pin(dialling));
            }
            let tcp = async {
                match &mut by_tcp {
                    Some(by_tcp) => by_tcp.await,
                    None => std::future::pending().await,
                }
            };
            let proxy = shared.setup.proxy.current().canonical();
            if let Some(proxy) = proxy
                && now >= begin_at
                && attempts.len() < ATTEMPTS_MAX
                && shared.setup.slots.any_up()
            {
                let growth = began.elapsed().as_secs_f64() / ATTEMPT_GROWTH.as_secs_f64();
                let pause = if now < arrived_at + EAGER_FOR {
                    EAGER_PAUSE
                } else {
                    ATTEMPT_PAUSE_MIN.mul_f64(1.0 + growth)
                };
                begin_at = now + pause.min(ATTEMPT_PAUSE_MAX);
                // A handshake that got an answer needs no other beside it.
                if attempts.is_empty() || shared.setup.race.winner().is_none() {
                    attempts.push(self.dialler.dial(
                        &shared.setup,
                        proxy,
                        shared.setup.next_number(),
                    ));
                    shared.setup.proxy.refresh();
                }
            } else if proxy.is_none() {
                shared.setup.proxy.refresh();
            }
            let wake = begin_at.max(now + WATCH_INTERVAL);
            tokio::select! {
                Some(attempt) = attempts.next(), if !attempts.is_empty() => match attempt {
                    Ok(session) => {
                        self.fallback.on_quic();
                        return Some(session);
                    }
                    Err(error) => {
                        let proxy = proxy.map_or_else(String::new, |it| it.to_string());
                        tracing::info!(proxy, %error, "no session with the proxy");
                        if !matches!(error, DialError::TimedOut(_)) && attempts.is_empty() {
                            self.fallback.on_quic();
                            return None;
                        }
                    }
                },
                attempt = tcp => match attempt {
                    Ok(session) => {
                        tracing::warn!(transport = %session.transport(), "QUIC does not answer; the session uses HTTP/2");
                        metrics::counter!("braid_tunnel_fallbacks_total").increment(1);
                        self.fallback.on_fallen_back(Instant::now());
                        return Some(session);
                    }
                    Err(error) => {
                        by_tcp = None;
                        tracing::info!(%error, "no session with the proxy by TCP");
                        self.fallback.on_failed(Instant::now());
                    }
                },
                () = arrival(&shared, &mut self.networks, &mut self.arrivals) => {
                    begin_at = Instant::now();
                    arrived_at = begin_at;
                    self.fallback.on_network(begin_at);
                    shared.setup.placement.lock().on_network();
                    if shared.setup.race.winner().is_none() {
                        attempts.clear();
                    }
                }
                Ok(()) = self.address.changed() => begin_at = Instant::now(),
                Ok(()) = refusals.changed() => {}
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }
}

/// The connection that the steering rules want beside a session over TCP.
fn wanted(shared: &Shared, session: &Session, now: Instant) -> Option<Attempt> {
    let schedule = shared.setup.schedule.borrow().schedule.clone();
    let view = View {
        schedule: &schedule,
        up: &shared.setup.leading(),
        held: &session.held(),
        patience: match session.transport() {
            Transport::Mptcp => SUBFLOW_PATIENCE,
            Transport::Quic | Transport::Tcp => Duration::ZERO,
        },
    };
    shared.setup.placement.lock().poll(now, &view)
}

/// Returns the successor of the session, if the attempt was for one and has succeeded.
fn settle(
    shared: &Shared,
    attempt: Attempt,
    dialled: Result<Arc<Session>, DialError>,
) -> Option<Arc<Session>> {
    match (attempt, dialled) {
        (Attempt::Move(_), Ok(fresh)) => {
            tracing::info!(
                access = fresh.access.as_deref(),
                "the session moves as the steering rules say"
            );
            Some(fresh)
        }
        (Attempt::Ask(_), Ok(fresh)) => {
            fresh.close("only asked");
            None
        }
        (attempt, Err(error)) => {
            tracing::debug!(names = ?attempt.names(), %error, "an access does not answer by TCP");
            let mut placement = shared.setup.placement.lock();
            let now = Instant::now();
            (attempt.names().iter()).for_each(|name| placement.on_failed(now, name));
            None
        }
    }
}

/// Whether every network that leads to the proxy refuses UDP.
fn refused(shared: &Shared) -> bool {
    let proxy = shared.setup.proxy.current();
    let leads = |local: &IpAddr| proxy.of_family(local.is_ipv6()).is_some();
    shared.setup.slots.all_refuse(leads)
}

/// Waits until every network has refused UDP for [`REFUSED_FOR`].
async fn refused_for_long(shared: &Shared) {
    let mut refusals = shared.setup.slots.watch_refusals();
    loop {
        refusals.mark_unchanged();
        if refused(shared) {
            tokio::time::sleep(REFUSED_FOR).await;
            // A slot that has spoken meanwhile notifies when it refuses again.
            let again = refusals.has_changed().unwrap_or(true);
            if !again && refused(shared) {
                return;
            }
        }
        if refusals.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Waits for the arrival of a network that was not handled yet.
async fn arrival(shared: &Shared, networks: &mut watch::Receiver<u64>, known: &mut u64) {
    loop {
        let arrivals = shared.setup.slots.arrivals();
        if arrivals != *known {
            *known = arrivals;
            return;
        }
        if networks.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
