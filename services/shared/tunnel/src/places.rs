//! Places for those of whom nothing is known yet. When all are taken, who has had one for longest without coming to an end gives way to who
//! comes: so nobody keeps others out by saying nothing.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{Arc, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

pub struct Places {
    free: Arc<Semaphore>,
    count: usize,
    /// The first first.
    taken: VecDeque<Weak<CancellationToken>>,
}

/// Given back on drop.
pub struct Place {
    gives_way: Arc<CancellationToken>,
    _free: OwnedSemaphorePermit,
}

impl Places {
    pub fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            count,
            taken: VecDeque::new(),
        }
    }

    pub fn taken(&self) -> usize {
        self.count - self.free.available_permits()
    }

    /// Waits for who gives way, if somebody has to, to be gone.
    pub async fn take(&mut self) -> Option<Place> {
        self.taken.retain(|place| place.strong_count() > 0);
        if self.free.available_permits() == 0
            && let Some(first) = self.taken.pop_front().and_then(|first| first.upgrade())
        {
            first.cancel();
        }
        // Never closed.
        let free = self.free.clone().acquire_owned().await.ok()?;
        let gives_way = Arc::new(CancellationToken::new());
        self.taken.push_back(Arc::downgrade(&gives_way));
        Some(Place {
            gives_way,
            _free: free,
        })
    }
}

impl Place {
    /// None: it gave way.
    pub async fn hold<F: Future>(&self, work: F) -> Option<F::Output> {
        self.gives_way.run_until_cancelled(work).await
    }
}
