//! Devices that the core does not know, while it reports the devices that it knows.

use std::{collections::HashSet, time::Duration};

use contracts::vitals::Sample;
use tokio::time::{Instant, timeout_at};

use super::Intake;
use crate::journal::Disk;

/// Wait for the core to report a device that was just registered; then the device is refused.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);
/// Devices waited for since the core's last report; others are not waited for.
const WAITED_FOR_MAX: usize = 1024;

impl<D: Disk> Intake<D> {
    pub(super) fn is_unknown(&self, device: &str) -> bool {
        self.following.is_on() && !self.rules.lock().in_force().knows(device)
    }

    /// The devices of the samples that the core does not know.
    pub(super) fn unknown_of(&self, samples: &[Sample]) -> HashSet<String> {
        let devices = samples.iter().map(|sample| sample.device.as_str());
        let devices = devices.collect::<HashSet<&str>>().into_iter();
        let unknown = devices.filter(|device| self.is_unknown(device));
        unknown.map(str::to_owned).collect()
    }

    /// Returns when the core has reported every device, or its time is over. A device that was
    /// waited for in vain delays no later request.
    pub(super) async fn until_known(&self, unknown: &HashSet<String>) {
        let mut changes = self.changes.subscribe();
        let deadline = {
            let mut waited_for = self.waited_for.lock();
            if waited_for.len() + unknown.len() > WAITED_FOR_MAX {
                return;
            }
            let within = Instant::now() + KNOWN_WITHIN;
            let until = unknown
                .iter()
                .map(|device| *waited_for.entry(device.clone()).or_insert(within));
            until.max().unwrap_or(within)
        };
        while unknown.iter().any(|device| self.is_unknown(device)) {
            match timeout_at(deadline, changes.changed()).await {
                Ok(Ok(())) => {}
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
