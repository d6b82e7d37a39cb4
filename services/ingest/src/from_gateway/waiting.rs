//! Alerts of a stream that wait for the quota of their gateway, or for a copy that is on its way.
//!
//! Invariant: alerts of one class reach the bus in their order, and no class waits for the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::admission::GatewayId;
use crate::alerts::{Admitted, Alerts, Answers, Behind, Class};
use crate::to_bus::{NotPublished, Published};

/// Alerts of one stream that wait. Beyond it the stream is not read, and flow control stops the
/// gateway. One upload may exceed it.
const WAITING_ALERTS_MAX: usize = 4_096;

/// Resolves when the alerts of an upload are published, and whether later ones may follow.
type Publishing = JoinHandle<bool>;

#[derive(Default)]
pub(super) struct Waiting {
    high: Option<Publishing>,
    other: Option<Publishing>,
    alerts: Arc<AtomicUsize>,
}

impl Waiting {
    /// The classes of which alerts wait.
    pub(super) fn behind(&self) -> Behind {
        let waits = |task: &Option<Publishing>| task.as_ref().is_some_and(|it| !it.is_finished());
        Behind {
            high: waits(&self.high),
            other: waits(&self.other),
        }
    }

    /// Ready when the stream may be read further.
    pub(super) async fn room(&mut self) {
        if self.alerts.load(Ordering::Relaxed) < WAITING_ALERTS_MAX {
            return;
        }
        // The alerts of high priority have a quota of their own and are soon published.
        for task in [self.high.take(), self.other.take()].into_iter().flatten() {
            let _ = task.await;
        }
    }

    /// Publishes the alerts behind earlier ones of their class.
    pub(super) fn publish(
        &mut self,
        to_bus: &Arc<Alerts>,
        gateway: &GatewayId,
        alerts: Vec<Admitted>,
        answers: &Answers,
    ) -> Vec<Published> {
        let classes: (Vec<Admitted>, Vec<Admitted>) =
            alerts.into_iter().partition(|it| it.class() == Class::High);
        let mut published = Vec::new();
        for (alerts, task) in [(classes.0, &mut self.high), (classes.1, &mut self.other)] {
            if alerts.is_empty() {
                continue;
            }
            let (done, result) = oneshot::channel();
            published.push(result);
            let (to_bus, gateway, answers) = (Arc::clone(to_bus), gateway.clone(), answers.clone());
            let (count, waiting) = (alerts.len(), Arc::clone(&self.alerts));
            let before = task.take();
            waiting.fetch_add(count, Ordering::Relaxed);
            *task = Some(tokio::spawn(async move {
                let follows = match before {
                    Some(before) => before.await.unwrap_or(false),
                    None => true,
                };
                let result = match follows {
                    true => to_bus.publish_rest(&gateway, alerts, &answers).await,
                    false => Err(NotPublished::Ending),
                };
                waiting.fetch_sub(count, Ordering::Relaxed);
                let follows = !matches!(result, Err(NotPublished::Ending));
                let _ = done.send(result);
                follows
            }));
        }
        published
    }
}
