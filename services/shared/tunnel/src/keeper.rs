//! Keeps the client's session with the proxy up for ever.
//!
//! The keeper connects, races the handshake over all interfaces, and replaces the session when it is closed, when the proxy
//! says goodbye, or when nothing has been heard on any path for `SILENCE_MAX`. The keeper tries a fresh handshake beside a silent session,
//! and when that succeeds, all tunnels move to the fresh one, although the old one may speak again by then: what it sent into the
//! silence waits for clocks that have slowed down for as long as nothing answered. Tunnels that cannot move stay.
//!
//! While nothing answers, handshakes are begun one after another and overlap, so that the network's return is met by a fresh packet soon,
//! however far the earlier ones have backed off. A network that arrives is tried at once. Without any network nothing is sent. Only
//! a refusal is answered with a growing pause.
//!
//! Where UDP is blocked the session is one by TCP (`fallback` says when), beside which QUIC is probed. QUIC that answers replaces it.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use service_kit::Backoff;
use tokio::sync::watch;

use crate::{
    client::{Shared, TunnelEvent},
    fallback::Fallback,
    proxy_address::Addresses,
    session::{DialError, Dialler, Session, TcpDialler},
    transport::Transport,
};

/// Handshakes under way at once; the next one begins when one has failed.
const ATTEMPTS_MAX: usize = 5;

/// Pause between the beginnings of two handshakes that nothing answers: at first, and at most; in `ATTEMPT_GROWTH` it doubles.
const ATTEMPT_PAUSE_MIN: Duration = Duration::from_secs(1);
const ATTEMPT_PAUSE_MAX: Duration = Duration::from_secs(5);
const ATTEMPT_GROWTH: Duration = Duration::from_secs(60);

/// A network has just arrived and may lose the first packets, as those of address resolution: for so long handshakes are begun at shorter
/// pauses.
const EAGER_FOR: Duration = Duration::from_secs(1);
const EAGER_PAUSE: Duration = Duration::from_millis(250);

/// Silence on all paths after which a fresh session is tried.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// A session heard so lately needs no other by TCP in its place.
const SPEAKS: Duration = Duration::from_millis(500);

/// A session that ended sooner was refused: the next attempt waits as after a failure.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// How often the keeper looks for silence.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

type Dialling<'a> = Pin<Box<dyn Future<Output = Result<Arc<Session>, DialError>> + Send + 'a>>;

/// Keeps a session up.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    dialler: Dialler,
    tcp_dialler: TcpDialler,
    fallback: Fallback,
    backoff: Backoff,
    /// The last session that lasted; each one resets the back-off once.
    settled: u64,
    networks: watch::Receiver<u64>,
    /// Arrivals of networks that have been acted on.
    arrivals: u64,
    address: watch::Receiver<Addresses>,
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>, dialler: Dialler) -> Self {
        Self {
            networks: shared.slots.watch(),
            arrivals: shared.slots.arrivals(),
            address: shared.proxy.watch(),
            tcp_dialler: TcpDialler::new(&shared.config.tls),
            fallback: Fallback::new(shared.config.fallback),
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
                session.close("closed by the client");
                self.shared.tell(TunnelEvent::SessionDown {
                    session: session.number,
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
            // Whatever ended the watch, a fresh session is wanted now; the old one may still serve meanwhile.
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
                        by_quic && !old.is_retired() && old.paths.silence(Instant::now()) < SPEAKS
                    });
                    if revived {
                        fresh.close("the old session lives");
                    } else {
                        if let Some(old) = current.as_ref().filter(|old| !old.is_retired()) {
                            // Before the fresh one is made known.
                            old.give_up();
                        }
                        self.replace(&mut current, Some(fresh));
                    }
                }
                None => self.pause().await,
            }
        }
    }

    /// The pause after a refusal; a network that arrives ends it.
    async fn pause(&mut self) {
        let delay = self.backoff.next_delay();
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = arrival(&self.shared, &mut self.networks, &mut self.arrivals) => {}
        }
    }

    /// Returns when the session ended, was retired, or has gone mute; or, beside one by TCP, when QUIC has answered.
    async fn watch(&mut self, session: &Session) -> Option<Arc<Session>> {
        let mut ticks = tokio::time::interval(WATCH_INTERVAL);
        let (shared, dialler) = (&self.shared, &self.dialler);
        let mut probing: Option<Dialling<'_>> = None;
        loop {
            let probed = async {
                match &mut probing {
                    Some(probing) => probing.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = session.closed() => return None,
                () = session.retired() => return None,
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
                () = arrival(shared, &mut self.networks, &mut self.arrivals), if session.is_fallback() => {
                    self.fallback.on_network(Instant::now());
                }
                _ = ticks.tick() => {
                    let now = Instant::now();
                    if session.paths.silence(now) > SILENCE_MAX {
                        return None;
                    }
                    let due = self.fallback.probe_at().is_some_and(|at| at <= now);
                    if due && session.is_fallback() && probing.is_none()
                        && let Some(proxy) = shared.proxy.current().canonical()
                    {
                        probing = Some(Box::pin(dialler.dial(shared, proxy, shared.next_number())));
                        shared.proxy.refresh();
                    }
                }
            }
        }
    }

    fn replace(&self, current: &mut Option<Arc<Session>>, fresh: Option<Arc<Session>>) {
        // Who is told of a change finds it done.
        self.shared.session.send_replace(fresh.clone());
        if let Some(old) = current.take() {
            let reason = old.close_reason();
            let reason = reason.as_deref().unwrap_or("replaced by another");
            tracing::info!(session = old.number, reason, "session down");
            self.shared.tell(TunnelEvent::SessionDown {
                session: old.number,
            });
            // Its open tunnels go on until they end, if it still lives or comes back to life.
            old.retire();
            tokio::spawn(async move { old.finish().await });
        }
        if let Some(fresh) = &fresh {
            // Not before: a fresh session may be given up again for the old one.
            self.shared.routes.belong_to(fresh.number);
            let transport = fresh.transport();
            tracing::info!(session = fresh.number, proxy = %fresh.remote, %transport, "session up");
            metrics::counter!("braid_tunnel_sessions_total", "transport" => transport.as_str())
                .increment(1);
            self.shared.tell(TunnelEvent::SessionUp {
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

    /// Goes on until there is a session or the proxy has refused one.
    async fn dial(&mut self) -> Option<Arc<Session>> {
        let shared = self.shared.clone();
        let began = Instant::now();
        let mut attempts = FuturesUnordered::new();
        let mut by_tcp: Option<Dialling<'_>> = None;
        let mut begin_at = began;
        let mut arrived_at = began;
        loop {
            let now = Instant::now();
            if by_tcp.is_none() && self.fallback.is_due(now) && shared.slots.any_up() {
                let dialling = self.tcp_dialler.dial(&shared, shared.next_number());
                by_tcp = Some(Box::pin(dialling));
            }
            let tcp = async {
                match &mut by_tcp {
                    Some(by_tcp) => by_tcp.await,
                    None => std::future::pending().await,
                }
            };
            let proxy = shared.proxy.current().canonical();
            if let Some(proxy) = proxy
                && now >= begin_at
                && attempts.len() < ATTEMPTS_MAX
                && shared.slots.any_up()
            {
                let growth = began.elapsed().as_secs_f64() / ATTEMPT_GROWTH.as_secs_f64();
                let pause = if now < arrived_at + EAGER_FOR {
                    EAGER_PAUSE
                } else {
                    ATTEMPT_PAUSE_MIN.mul_f64(1.0 + growth)
                };
                begin_at = now + pause.min(ATTEMPT_PAUSE_MAX);
                // Once something has answered, the handshake in which it did needs no other beside it.
                if attempts.is_empty() || shared.race.winner().is_none() {
                    attempts.push(self.dialler.dial(&shared, proxy, shared.next_number()));
                    shared.proxy.refresh();
                }
            } else if proxy.is_none() {
                shared.proxy.refresh();
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
                        tracing::warn!(transport = %session.transport(), "QUIC does not answer: going on by HTTP/2");
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
                    if shared.race.winner().is_none() {
                        attempts.clear();
                    }
                }
                Ok(()) = self.address.changed() => begin_at = Instant::now(),
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }
}

/// Waits until a network has arrived that was not yet acted on.
async fn arrival(shared: &Shared, networks: &mut watch::Receiver<u64>, known: &mut u64) {
    loop {
        let arrivals = shared.slots.arrivals();
        if arrivals != *known {
            *known = arrivals;
            return;
        }
        if networks.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
