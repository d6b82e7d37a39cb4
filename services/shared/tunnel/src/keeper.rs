//! Keeps the client's session with the proxy up for ever.
//!
//! The keeper connects, races the handshake over all interfaces, and replaces the session when it is closed, when the proxy
//! says goodbye, or when nothing has been heard on any path for `SILENCE_MAX`. A silent session is not thrown away: the keeper tries a
//! fresh handshake beside it, and when that succeeds while the old one stays mute, new tunnels open in the fresh one. The tunnels
//! of the old one go on when its pings get through again.
//!
//! While nothing answers, handshakes are begun one after another and overlap, so that the network's return is met by a fresh packet soon,
//! however far the earlier ones have backed off. A network that arrives is tried at once. Without any network nothing is sent. Only
//! a refusal is answered with a growing pause.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use service_kit::Backoff;
use tokio::sync::watch;

use crate::{
    client::{Shared, TunnelEvent},
    proxy_address::Addresses,
    session::{DialError, Dialler, Session},
};

/// Handshakes under way at once; the next one begins when one has failed.
const ATTEMPTS_MAX: usize = 5;

/// Pause between the beginnings of two handshakes that nothing answers: at first, and at most; in `ATTEMPT_GROWTH` it doubles.
const ATTEMPT_PAUSE_MIN: Duration = Duration::from_secs(1);
const ATTEMPT_PAUSE_MAX: Duration = Duration::from_secs(5);
const ATTEMPT_GROWTH: Duration = Duration::from_secs(60);

/// Silence on all paths after which a fresh session is tried.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// How long the old session may still prove that it lives once a fresh one stands beside it.
const SECOND_THOUGHT: Duration = Duration::from_millis(500);

/// A session that ended sooner was refused: the next attempt waits as after a failure.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// How often the keeper looks for silence.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Keeps a session up.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    dialler: Dialler,
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
                session.close(b"closed by the client");
                self.shared.tell(TunnelEvent::SessionDown {
                    session: session.number,
                });
            }
        }
    }

    async fn keep(&mut self) {
        let mut current: Option<Arc<Session>> = None;
        loop {
            if let Some(session) = &current {
                self.watch(session).await;
                if session.age() >= SETTLED_AFTER && self.settled != session.number {
                    self.settled = session.number;
                    self.backoff.reset();
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
            match self.dial().await {
                Some(fresh) => {
                    let revived = match &current {
                        Some(old) if !old.is_retired() => old.speaks_within(SECOND_THOUGHT).await,
                        _ => false,
                    };
                    if revived {
                        fresh.close(b"the old session lives");
                    } else {
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

    /// Returns when the session ended, was retired, or has gone mute.
    async fn watch(&self, session: &Session) {
        let mut ticks = tokio::time::interval(WATCH_INTERVAL);
        loop {
            tokio::select! {
                () = session.closed() => return,
                () = session.retired() => return,
                _ = ticks.tick() => {
                    if session.paths.silence(Instant::now()) > SILENCE_MAX {
                        return;
                    }
                }
            }
        }
    }

    fn replace(&self, current: &mut Option<Arc<Session>>, fresh: Option<Arc<Session>>) {
        if let Some(old) = current.take() {
            tracing::info!(session = old.number, reason = ?old.close_reason(), "session down");
            self.shared.tell(TunnelEvent::SessionDown {
                session: old.number,
            });
            // Its open tunnels go on until they end, if it still lives or comes back to life.
            old.retire();
            tokio::spawn(async move { old.finish().await });
        }
        self.shared.session.send_replace(fresh.clone());
        if let Some(fresh) = &fresh {
            // Not before: a fresh session may be given up again for the old one.
            self.shared.routes.belong_to(fresh.number);
            tracing::info!(session = fresh.number, proxy = %fresh.remote, "session up");
            metrics::counter!("braid_tunnel_sessions_total").increment(1);
            self.shared.tell(TunnelEvent::SessionUp {
                session: fresh.number,
            });
        }
        *current = fresh;
    }

    /// Goes on until there is a session or the proxy has refused one.
    async fn dial(&mut self) -> Option<Arc<Session>> {
        let shared = self.shared.clone();
        let began = Instant::now();
        let mut attempts = FuturesUnordered::new();
        let mut begin_at = began;
        loop {
            let now = Instant::now();
            let proxy = shared.proxy.current().canonical();
            if let Some(proxy) = proxy
                && now >= begin_at
                && attempts.len() < ATTEMPTS_MAX
                && shared.slots.any_up()
            {
                let growth = began.elapsed().as_secs_f64() / ATTEMPT_GROWTH.as_secs_f64();
                let pause = ATTEMPT_PAUSE_MIN.mul_f64(1.0 + growth);
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
                    Ok(session) => return Some(session),
                    Err(error) => {
                        tracing::info!(?proxy, %error, "no session with the proxy");
                        if !matches!(error, DialError::TimedOut(_)) && attempts.is_empty() {
                            return None;
                        }
                    }
                },
                () = arrival(&shared, &mut self.networks, &mut self.arrivals) => {
                    begin_at = Instant::now();
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
