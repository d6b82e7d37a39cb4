//! Places for peers that are not identified yet. When all places are taken, the oldest holder gives
//! way to a newcomer. So silent peers cannot keep others out. A grace protects holders that have
//! just begun, so that a burst of newcomers does not displace itself.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub struct Places {
    free: Arc<Semaphore>,
    count: usize,
    /// The oldest holder first.
    taken: VecDeque<(Weak<CancellationToken>, Instant)>,
    grace: Duration,
}

/// Dropping it frees the place.
pub struct Place {
    gives_way: Arc<CancellationToken>,
    _free: OwnedSemaphorePermit,
}

impl Places {
    pub fn new(count: usize) -> Self {
        Self::with_grace(count, Duration::ZERO)
    }

    /// A holder gives way only after it has held its place for `grace`.
    pub fn with_grace(count: usize, grace: Duration) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            count,
            taken: VecDeque::new(),
            grace,
        }
    }

    pub fn taken(&self) -> usize {
        self.count - self.free.available_permits()
    }

    /// Takes a place. If a holder has to give way, it waits until that holder has gone.
    pub async fn take(&mut self) -> Option<Place> {
        let free = match self.free.clone().try_acquire_owned() {
            Ok(free) => free,
            Err(_) => self.take_later().await?,
        };
        self.taken.retain(|(place, _)| place.strong_count() > 0);
        let gives_way = Arc::new(CancellationToken::new());
        self.taken
            .push_back((Arc::downgrade(&gives_way), Instant::now()));
        Some(Place {
            gives_way,
            _free: free,
        })
    }

    /// Waits for a place until the oldest holder has had its grace; then that one gives way.
    async fn take_later(&mut self) -> Option<OwnedSemaphorePermit> {
        self.taken.retain(|(place, _)| place.strong_count() > 0);
        let free = self.free.clone().acquire_owned();
        tokio::pin!(free);
        if let Some(since) = self.taken.front().map(|(_, since)| *since) {
            tokio::select! {
                biased;
                // The semaphore is never closed.
                free = &mut free => return free.ok(),
                () = tokio::time::sleep_until(since + self.grace) => {}
            }
            if let Some(first) = self.taken.pop_front().and_then(|it| it.0.upgrade()) {
                first.cancel();
            }
        }
        free.await.ok()
    }
}

impl Place {
    /// `None`: the holder had to give way.
    pub async fn hold<F: Future>(&self, work: F) -> Option<F::Output> {
        self.gives_way.run_until_cancelled(work).await
    }
}
