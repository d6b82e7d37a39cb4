//! Keeps the client's session with the proxy up for ever.
//!
//! The keeper connects, races the handshake over all interfaces, and replaces the session when it is closed, when the proxy
//! says goodbye, or when nothing has been heard on any path for `SILENCE_MAX`. A silent session is not thrown away: the keeper tries a
//! fresh handshake beside it, and when that succeeds while the old one stays mute, new tunnels open in the fresh one. The tunnels
//! of the old one go on when its probes, whose pauses have grown with the outage, get through again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use service_kit::Backoff;

use crate::{
    client::{Shared, TunnelEvent},
    session::{Dialler, Session},
};

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
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>, dialler: Dialler) -> Self {
        Self {
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
                    self.backoff.wait().await;
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
                None => self.backoff.wait().await,
            }
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
            tracing::info!(session = fresh.number, proxy = %fresh.remote, "session up");
            metrics::counter!("braid_tunnel_sessions_total").increment(1);
            self.shared.tell(TunnelEvent::SessionUp {
                session: fresh.number,
            });
        }
        *current = fresh;
    }

    async fn dial(&self) -> Option<Arc<Session>> {
        let proxy = self.shared.proxy_address().await;
        let number = self.shared.next_number();
        match self.dialler.dial(&self.shared, proxy, number).await {
            Ok(session) => Some(session),
            Err(error) => {
                tracing::info!(%proxy, %error, "no session with the proxy");
                None
            }
        }
    }
}
