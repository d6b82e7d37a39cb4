//! Places for peers that are not identified yet. When all places are taken, the oldest holder gives
//! way to a newcomer. So silent peers cannot keep others out.

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
    /// The oldest holder first.
    taken: VecDeque<Weak<CancellationToken>>,
}

/// Dropping it frees the place.
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

    /// Takes a place. If a holder has to give way, it waits until that holder has gone.
    pub async fn take(&mut self) -> Option<Place> {
        self.taken.retain(|place| place.strong_count() > 0);
        if self.free.available_permits() == 0
            && let Some(first) = self.taken.pop_front().and_then(|first| first.upgrade())
        {
            first.cancel();
        }
        // The semaphore is never closed.
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
    /// `None`: the holder had to give way.
    pub async fn hold<F: Future>(&self, work: F) -> Option<F::Output> {
        self.gives_way.run_until_cancelled(work).await
    }
}
