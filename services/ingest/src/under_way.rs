//! Alerts on their way to the bus. The copies of such an alert wait until the bus holds it.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::EdgeAlert;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{
    duplicates::Duplicates,
    newest::Newest,
    to_bus::{Published, answer_of},
};

/// A copy waits so long for the copy that paid; then it pays itself.
const UNDER_WAY_MAX: Duration = Duration::from_secs(2);
/// Alerts that are remembered as under way; beyond it the oldest is forgotten.
const UNDER_WAY_COUNT_MAX: usize = 4_096;

pub(crate) struct UnderWay {
    /// The alerts that the bus holds, of all streams.
    duplicates: Arc<Mutex<Duplicates>>,
    /// Times of the payments.
    paid: Mutex<Newest<Instant>>,
    settled: Notify,
}

impl UnderWay {
    pub(crate) fn new(duplicates: Arc<Mutex<Duplicates>>) -> UnderWay {
        UnderWay {
            duplicates,
            paid: Mutex::new(Newest::new(UNDER_WAY_COUNT_MAX)),
            settled: Notify::new(),
        }
    }

    pub(crate) fn has(&self, alert: u64, now: Instant) -> bool {
        let paid = self.paid.lock();
        let paid = paid.get(alert);
        paid.is_some_and(|paid| now.saturating_duration_since(*paid) < UNDER_WAY_MAX)
    }

    pub(crate) fn enter(&self, alert: u64, now: Instant) {
        self.paid.lock().enter(alert, now);
    }

    /// Ready when the bus has answered for alerts of any stream after this call.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> {
        self.settled.notified()
    }

    /// Follows alerts until the bus holds them, also after their stream has ended. Their copies
    /// then count as repetitions, and do not wait for an earlier upload of the stream.
    pub(crate) fn follow(
        self: &Arc<Self>,
        published: Published,
        alerts: Vec<EdgeAlert>,
    ) -> Published {
        let (done, result) = oneshot::channel();
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let published = answer_of(published).await;
            if published.is_ok() {
                let mut duplicates = this.duplicates.lock();
                alerts
                    .iter()
                    .for_each(|alert| duplicates.enter_alert(alert));
            }
            this.settled.notify_waiters();
            let _ = done.send(published);
        });
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::to_bus::NotPublished;

    #[test]
    fn a_copy_waits_for_the_copy_that_paid_and_pays_when_that_takes_long() {
        let (under_way, start) = (UnderWay::new(Arc::default()), Instant::now());
        assert!(!under_way.has(7, start));
        under_way.enter(7, start);
        assert!(under_way.has(7, start + UNDER_WAY_MAX / 2));
        assert!(!under_way.has(8, start));
        assert!(!under_way.has(7, start + UNDER_WAY_MAX));
        under_way.enter(7, start + UNDER_WAY_MAX);
        assert!(under_way.has(7, start + UNDER_WAY_MAX));
        for alert in 0..10_000 {
            under_way.enter(alert, start);
        }
        assert!(under_way.paid.lock().len() <= UNDER_WAY_COUNT_MAX);
        assert!(under_way.has(9_999, start) && !under_way.has(1, start));
    }

    #[tokio::test]
    async fn a_copy_learns_at_once_that_the_bus_holds_the_alert() {
        let under_way = Arc::new(UnderWay::new(Arc::default()));
        let alert = EdgeAlert {
            rule: "hr-high".to_owned(),
            ..EdgeAlert::default()
        };
        for answer in [Err(NotPublished::Ending), Ok(())] {
            let (bus, published) = oneshot::channel();
            let followed = under_way.follow(published, vec![alert.clone()]);
            let settled = under_way.settled();
            let holds = answer.is_ok();
            let _ = bus.send(answer);
            settled.await;
            assert_eq!(under_way.duplicates.lock().has_alert(&alert), holds);
            assert_eq!(followed.await.is_ok_and(|result| result.is_ok()), holds);
        }
    }
}
