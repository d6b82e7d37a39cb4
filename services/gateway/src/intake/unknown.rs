//! Devices that the core does not know, while it tells which it knows.

use std::{collections::HashSet, time::Duration};

use contracts::vitals::Sample;
use tokio::time::{Instant, timeout_at};

use super::Intake;
use crate::journal::Disk;

/// A device that the core has just registered is known here by then, or else it is refused.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);
/// Devices that were waited for since the core told of a change; others are not waited for.
const WAITED_FOR_MAX: usize = 1024;
impl<D: Disk> Intake<D> {
    pub(super) fn is_unknown(&self, device: &str) -> bool {
        self.following.is_on() && !self.rules.lock().book().knows(device)
    }

    /// Returns when the core has told of every device, or will not. One that was waited for in vain keeps nobody waiting again.
    pub(super) async fn until_known(&self, samples: &[Sample]) {
        let mut books = self.books.subscribe();
        let unknown: HashSet<&str> = samples
            .iter()
            .map(|sample| sample.device.as_str())
            .collect::<HashSet<&str>>()
            .into_iter()
            .filter(|device| self.is_unknown(device))
            .collect();
        if unknown.is_empty() {
            return;
        }
        let deadline = {
            let mut waited_for = self.waited_for.lock();
            if waited_for.len() + unknown.len() > WAITED_FOR_MAX {
                return;
            }
            let within = Instant::now() + KNOWN_WITHIN;
            let until = unknown
                .iter()
                .map(|device| *waited_for.entry((*device).to_owned()).or_insert(within));
            until.max().unwrap_or(within)
        };
        while unknown.iter().any(|device| self.is_unknown(device)) {
            match timeout_at(deadline, books.changed()).await {
                Ok(Ok(())) => {}
                _ => return,
            }
        }
    }
}
