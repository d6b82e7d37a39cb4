//! How consumers learn that their bus was abandoned.

use tokio::sync::watch;

/// Informs consumers that their bus was abandoned.
pub(crate) struct Ended(pub(super) watch::Receiver<bool>);

impl Ended {
    pub(super) fn is_ended(&self) -> bool {
        *self.0.borrow()
    }

    /// Never returns while the bus lives, and also not after it was dropped in order: its consumers
    /// continue.
    pub(super) async fn ended(&mut self) {
        if self.0.wait_for(|ended| *ended).await.is_err() {
            std::future::pending().await
        }
    }
}
