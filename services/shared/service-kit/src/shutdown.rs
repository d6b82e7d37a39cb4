//! The request for a service to end.

use tokio_util::sync::CancellationToken;

/// Requests the end of a service; clones act on the same service.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
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
        self.token.cancel();
    }
}
