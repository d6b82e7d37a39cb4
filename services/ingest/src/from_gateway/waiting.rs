//! Alerts of a stream that wait. They wait for the quota of their gateway, for a copy on its way,
//! or for the partition of their patients.
//!
//! Invariant: alerts of one class and partition reach the bus in their order, and none waits for
//! those of another class or partition. Where a partition without a leader has no room, its alerts
//! are left to the gateway. It repeats them, because their upload is not acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::admission::GatewayId;
use crate::alerts::{Admitted, Alerts, Answers, Behind, Line};
use crate::progress::Progress;
use crate::to_bus::{NotPublished, Published};

/// Alerts of one stream and one line that wait, besides those of one upload. Beyond it the stream
/// is not read while they wait for the quota, and flow control stops the gateway.
pub(crate) const WAITING_ALERTS_MAX: usize = 4_096;
/// A bus without an answer for so long has no leader for the partition. Further alerts of its line
/// are then left to the gateway.
const NO_LEADER_AFTER: Duration = Duration::from_millis(500);

/// Resolves when the alerts of an upload are published, and whether later ones may follow.
type Publishing = JoinHandle<bool>;

/// Waiting alerts of one class and partition.
struct Queue {
    last: Publishing,
    progress: Arc<Progress>,
}

/// Bounded by the classes and partitions.
#[derive(Default)]
pub(super) struct Waiting {
    queues: BTreeMap<Line, Queue>,
    /// Lines of which alerts were left to the gateway. No later one may overtake those.
    left: BTreeSet<Line>,
}

impl Waiting {
    /// The lines of which alerts wait.
    pub(super) fn behind(&self) -> Behind {
        let waiting = self.queues.iter().filter(|(_, it)| !it.last.is_finished());
        let waiting = waiting.map(|(line, _)| *line);
        Behind(waiting.chain(self.left.iter().copied()).collect())
    }

    /// Ready when the stream may be read further.
    pub(super) async fn room(&mut self) {
        for (line, queue) in &self.queues {
            let progress = &queue.progress;
            while progress.waiting() >= WAITING_ALERTS_MAX && !self.left.contains(line) {
                if progress.is_stuck_for(NO_LEADER_AFTER) {
                    tracing::warn!(
                        partition = line.partition,
                        "the bus takes no alerts of this partition; the gateway repeats later ones"
                    );
                    self.left.insert(*line);
                }
                let _ = timeout(NO_LEADER_AFTER / 4, progress.moved()).await;
            }
        }
    }

    /// Publishes the alerts behind earlier ones of their line.
    pub(super) fn publish(
        &mut self,
        to_bus: &Arc<Alerts>,
        gateway: &GatewayId,
        alerts: Vec<Admitted>,
        answers: &Answers,
    ) -> Vec<Published> {
        let mut lines: BTreeMap<Line, Vec<Admitted>> = BTreeMap::new();
        for alert in alerts {
            lines.entry(alert.line()).or_default().push(alert);
        }
        let mut published = Vec::new();
        for (line, alerts) in lines {
            let (done, result) = oneshot::channel();
            published.push(result);
            if self.left.contains(&line) {
                metrics::counter!("braid_ingest_left_alerts_total").increment(alerts.len() as u64);
                // Its turn comes behind the earlier uploads. Then the gateway sends it again.
                let _ = done.send(Err(NotPublished::Ending));
                continue;
            }
            let (to_bus, gateway, answers) = (Arc::clone(to_bus), gateway.clone(), answers.clone());
            let (before, progress) = match self.queues.remove(&line) {
                Some(queue) => (Some(queue.last), queue.progress),
                None => (None, Arc::default()),
            };
            progress.enter(alerts.len());
            let of_task = Arc::clone(&progress);
            let last = tokio::spawn(async move {
                let count = alerts.len();
                let follows = match before {
                    Some(before) => before.await.unwrap_or(false),
                    None => true,
                };
                let publishing = to_bus.publish_rest(&gateway, alerts, &answers, &of_task);
                let result = match follows {
                    true => publishing.await,
                    false => Err(NotPublished::Ending),
                };
                of_task.leave(count);
                let follows = !matches!(result, Err(NotPublished::Ending));
                let _ = done.send(result);
                follows
            });
            self.queues.insert(line, Queue { last, progress });
        }
        published
    }
}
