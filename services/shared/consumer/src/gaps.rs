//! Says that the group's bus was replaced: a warning of the service, a gauge, and the sink.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use consumer_health::{Duty, gap};
use parking_lot::Mutex;
use service_kit::{Context, Warning, WarningHandle};
use store::{LogGap, Store};
use tokio::time::timeout;

/// Records wait for no answer of the store about gaps.
const LOOK_WITHIN: Duration = Duration::from_millis(250);
const METRIC: &str = "braid_store_log_gaps";

pub(crate) struct Gaps {
    duty: Duty,
    store: Arc<dyn Store>,
    warning: WarningHandle,
    /// An assignment may have found another log since the store was read.
    is_due: AtomicBool,
    /// Bounded by the partitions of the topic and [`store::LOG_GAPS_MAX`].
    known: Mutex<Vec<LogGap>>,
}

impl Gaps {
    pub(crate) fn new(duty: Duty, store: Arc<dyn Store>, context: &Context) -> Gaps {
        metrics::gauge!(METRIC, "group" => duty.group).set(0.0);
        Gaps {
            duty,
            store,
            warning: context.health().warning(duty.log_warning),
            is_due: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    pub(crate) fn on_assigned(&self) {
        self.is_due.store(true, Ordering::Release);
    }

    /// True when the store was read and the group has a gap. A store that does not answer is asked
    /// again at the next call.
    pub(crate) async fn look(&self, now_us: i64) -> bool {
        let since_us = gap::shown_since(now_us);
        let mut is_found = false;
        if self.is_due.load(Ordering::Acquire) {
            let asked = timeout(LOOK_WITHIN, self.store.log_gaps(since_us));
            match asked.await {
                Ok(Ok(mut gaps)) => {
                    gaps.retain(|gap| {
                        (gap.group.as_str(), gap.topic) == (self.duty.group, self.duty.topic)
                    });
                    is_found = !gaps.is_empty();
                    *self.known.lock() = gaps;
                    self.is_due.store(false, Ordering::Release);
                }
                Ok(Err(error)) => tracing::debug!(%error, "gaps of the bus could not be read"),
                Err(_) => tracing::debug!("gaps of the bus are not read yet"),
            }
        }
        let mut known = self.known.lock();
        known.retain(|gap| gap.to_us >= since_us);
        metrics::gauge!(METRIC, "group" => self.duty.group).set(known.len() as f64);
        let says = gap::sentences(&known).pop();
        drop(known);
        self.warning.set(says.map(|says| Warning {
            says,
            to_do: gap::TO_DO.to_owned(),
        }));
        is_found
    }
}
