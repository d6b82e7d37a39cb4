//! Devices that the core does not know, while it reports the devices that it knows.

use std::{collections::HashSet, time::Duration};

use contracts::vitals::Sample;
use tokio::time::{Instant, timeout_at};

use super::{Intake, Late, Recorded};
use crate::journal::Disk;

/// Wait for the core to report a device that was just registered; then the device is refused.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);
/// Devices waited for since the core's last report; others are not waited for.
const WAITED_FOR_MAX: usize = 1024;

impl<D: Disk> Intake<D> {
    /// Notes a sample whose device nobody wears any more. The core keeps its readings apart.
    pub(super) fn note_apart(&self, index: usize, sample: &Sample, recorded: &mut Recorded) {
        let (device, at_us) = (&sample.device, sample.device_time_us);
        if self.following.is_on() && self.rules.lock().in_force().has_ended(device, at_us) {
            recorded.apart.push(index);
        }
    }

    pub(super) fn is_unknown(&self, device: &str) -> bool {
        self.following.is_on() && !self.rules.lock().in_force().knows(device)
    }

    /// The devices of the samples that the core does not know, or of which earlier samples are
    /// late.
    pub(super) fn late_of(
        &self,
        samples: &[Sample],
        is_late: impl Fn(&str) -> bool,
    ) -> HashSet<String> {
        let devices = samples.iter().map(|sample| sample.device.as_str());
        let devices = devices.collect::<HashSet<&str>>().into_iter();
        let late = devices.filter(|device| is_late(device) || self.is_unknown(device));
        late.map(str::to_owned).collect()
    }

    /// End of the wait for these devices; `None`: they are not waited for. A device that was waited
    /// for in vain delays no later request.
    pub(super) fn wait_until(&self, late: &HashSet<String>) -> Option<Instant> {
        let unknown = late.iter().filter(|device| self.is_unknown(device));
        let unknown: Vec<&String> = unknown.collect();
        let mut waited_for = self.waited_for.lock();
        if waited_for.len() + unknown.len() > WAITED_FOR_MAX {
            return None;
        }
        let within = Instant::now() + KNOWN_WITHIN;
        let until = unknown
            .iter()
            .map(|device| *waited_for.entry((*device).clone()).or_insert(within));
        until.max()
    }

    /// Returns when the core has reported every device, or the time is over.
    pub async fn until_known(&self, late: &Late) {
        let mut changes = self.changes.subscribe();
        let Some(until) = late.until else {
            return;
        };
        while late.devices.iter().any(|device| self.is_unknown(device)) {
            match timeout_at(until, changes.changed()).await {
                Ok(Ok(())) => {}
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
