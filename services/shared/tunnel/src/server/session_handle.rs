//! Observes and ends the session of one client.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use multipath::KeepaliveTerms;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    http::{carrier::Carrier, stream::OpenStreams, transport::Transport},
    paths::{Paths, snapshot::PathSnapshot},
};

/// Interval at which a draining session looks for open tunnels.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// Observes and ends a session from other tasks.
#[derive(Clone)]
pub struct SessionHandle {
    pub(super) number: u64,
    pub(super) carrier: Carrier,
    pub(super) paths: Arc<Paths>,
    /// Without effect over TCP, where the kernel steers.
    pub(super) terms: watch::Sender<KeepaliveTerms>,
    pub(super) open: OpenStreams,
    pub(super) goodbye: CancellationToken,
}

impl SessionHandle {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(crate) async fn goodbye(&self) {
        self.goodbye.cancelled().await;
    }

    pub(crate) async fn ending(&self) {
        self.carrier.ending().await;
    }

    pub(crate) fn record(&self) -> &Arc<Paths> {
        &self.paths
    }

    pub(crate) fn open_streams(&self) -> &OpenStreams {
        &self.open
    }

    pub fn paths(&self) -> Vec<PathSnapshot> {
        self.paths.snapshot()
    }

    /// Tunnels that are open.
    pub fn open_tunnels(&self) -> usize {
        self.open.count()
    }

    pub fn is_closed(&self) -> bool {
        self.carrier.is_closed()
    }

    pub async fn closed(&self) {
        self.carrier.closed().await;
    }

    pub fn transport(&self) -> Transport {
        self.carrier.transport()
    }

    pub(crate) fn terms(&self) -> &watch::Sender<KeepaliveTerms> {
        &self.terms
    }

    /// Ends the session and all its tunnels at once.
    pub fn close(&self, reason: &str) {
        self.carrier.close(reason);
    }

    /// Says goodbye (GOAWAY), gives the open tunnels at most `grace` to end, then closes.
    pub async fn drain(&self, grace: Duration) {
        self.goodbye.cancel();
        let deadline = Instant::now() + grace;
        while self.open.count() > 0 && !self.is_closed() && Instant::now() < deadline {
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
        self.close("drained");
    }
}
