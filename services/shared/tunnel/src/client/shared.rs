//! The state that a tunnel, its keeper and its resumable streams have in common.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{session::Session, setup::SessionSetup},
    resume::ledger::Ledger,
};

/// Bytes that all resumable tunnels of one client hold beyond 64 KB each; at the bound they read
/// nothing more.
const RESUME_BYTES_MAX: usize = 64 << 20;

pub(crate) struct Shared {
    pub(crate) setup: Arc<SessionSetup>,
    /// The session in use; `None` while there is none.
    pub(crate) session: watch::Sender<Option<Arc<Session>>>,
    pub(crate) ledger: Ledger,
    /// Cancelled when the tunnel is being closed.
    pub(crate) end: CancellationToken,
}

impl Shared {
    pub(crate) fn new(setup: SessionSetup, end: CancellationToken) -> Self {
        Self {
            setup: Arc::new(setup),
            session: watch::Sender::new(None),
            ledger: Ledger::new(RESUME_BYTES_MAX),
            end,
        }
    }
}
