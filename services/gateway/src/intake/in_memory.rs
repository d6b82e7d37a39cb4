//! Raised alerts that are in memory alone, since the disk refused them.

use contracts::vitals::EdgeAlert;
use tokio::sync::watch;

use super::Intake;
use crate::{
    journal::Disk,
    unjournaled::{Unjournaled, UnjournaledId},
};

impl<D: Disk> Intake<D> {
    /// The number of held alerts, as it changes.
    pub fn held(&self) -> watch::Receiver<usize> {
        self.held_count.subscribe()
    }

    /// The oldest held alerts.
    pub fn first_held(&self, count: usize) -> Vec<(UnjournaledId, EdgeAlert)> {
        self.held.lock().first(count)
    }

    /// These alerts are stored, or the core has them.
    pub fn let_go(&self, ids: &[UnjournaledId]) {
        self.change_held(|held| held.remove(ids));
    }

    pub(super) fn hold(&self, alerts: Vec<EdgeAlert>) {
        self.change_held(|held| held.add(alerts));
    }

    pub(super) fn change_held(&self, change: impl FnOnce(&mut Unjournaled)) {
        let mut held = self.held.lock();
        change(&mut held);
        self.held_count.send_if_modified(|count| {
            let is_new = *count != held.len();
            *count = held.len();
            is_new
        });
    }
}
