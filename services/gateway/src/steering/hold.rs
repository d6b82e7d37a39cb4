//! A flow that no access may carry at the moment waits. Neither end is read, so its bytes do not
//! use an access that is kept for alerts. Bytes in the windows of its stream still leave.

use std::pin::pin;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Polls `carrying` only while the flow is not held. None: the flow was cut.
pub(super) async fn carried<T>(
    mut held: watch::Receiver<bool>,
    cut: &CancellationToken,
    carrying: impl Future<Output = T>,
) -> Option<T> {
    let mut carrying = pin!(carrying);
    loop {
        let is_held = *held.borrow_and_update();
        tokio::select! {
            ended = &mut carrying, if !is_held => return Some(ended),
            () = cut.cancelled() => return None,
            // Never an error: the table has the sender until the flow ends.
            _ = held.changed() => {}
        }
    }
}
