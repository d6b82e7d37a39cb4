//! The state that a tunnel, its keeper and its resumable streams have in common.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{session::Session, setup::SessionSetup},
    paths::Paths,
    resume::ledger::Ledger,
};

/// Bytes that all resumable tunnels of one client hold beyond 64 KB each; at the bound they read
/// nothing more.
const RESUME_BYTES_MAX: usize = 64 << 20;

/// Former sessions whose bytes are still shown: some of their tunnels may go on, and their last
/// bytes are counted late. At the bound the oldest is dropped.
const FORMER_KEPT_MAX: usize = 8;

pub(crate) struct Shared {
    pub(crate) setup: Arc<SessionSetup>,
    /// The session in use; `None` while there is none.
    pub(crate) session: watch::Sender<Option<Arc<Session>>>,
    /// Paths of former sessions.
    pub(crate) former: Mutex<VecDeque<Arc<Paths>>>,
    pub(crate) ledger: Ledger,
    /// Cancelled when the tunnel is being closed.
    pub(crate) end: CancellationToken,
}

impl Shared {
    pub(crate) fn new(setup: SessionSetup, end: CancellationToken) -> Self {
        Self {
            setup: Arc::new(setup),
            session: watch::Sender::new(None),
            former: Mutex::default(),
            ledger: Ledger::new(RESUME_BYTES_MAX),
            end,
        }
    }

    /// The paths of a session that is no longer the current one.
    pub(crate) fn keep_former(&self, paths: Arc<Paths>) {
        let mut former = self.former.lock();
        former.push_back(paths);
        while former.len() > FORMER_KEPT_MAX {
            former.pop_front();
        }
    }
}
