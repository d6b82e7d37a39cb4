//! The request for a service to end.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

/// Requests the end of a service; clones act on the same service.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
    /// When the end was requested first.
    since: Arc<OnceLock<Instant>>,
}

impl Shutdown {
    pub fn new() -> Shutdown {
        Shutdown::default()
    }

    /// Ends once shutdown was requested; cancel-safe.
    pub async fn requested(&self) {
        self.token.cancelled().await;
    }

    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Idempotent.
    pub fn request(&self) {
        self.since.get_or_init(Instant::now);
        self.token.cancel();
    }

    /// Rest of a limit that began with the request. Steps that drain one after the other share one
    /// limit by it. Before the request, the whole limit is left.
    pub fn left_of(&self, limit: Duration) -> Duration {
        let passed = self.since.get().map(Instant::elapsed);
        limit.saturating_sub(passed.unwrap_or_default())
    }

    /// A request that was made some time ago.
    #[cfg(test)]
    pub(crate) fn requested_before(&self, passed: Duration) {
        let since = Instant::now().checked_sub(passed);
        self.since
            .get_or_init(|| since.unwrap_or_else(Instant::now));
        self.token.cancel();
    }
}
