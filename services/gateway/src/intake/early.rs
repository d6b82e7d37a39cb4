//! Alerts that leave before they are on disk.
//!
//! A worn disk takes seconds for some writes, and a broken one may never answer. An alert does not
//! wait for that. The journal keeps it all the same, and the core merges both. After a crash in
//! between, the sensor sends its reading again, and the rules raise the same alert once more.

use std::{pin::pin, time::Duration};

use contracts::vitals::EdgeAlert;
use tokio::{sync::mpsc, time::timeout};

use super::Intake;
use crate::journal::{AppendError, Disk, Outcome};

/// An alert that is not on disk by then leaves. Most writes to flash are faster.
const EARLY_AFTER: Duration = Duration::from_millis(10);
/// Requests whose alerts wait for the courier. Beyond it they wait for the disk, or go from memory.
pub const EARLY_WAITING_MAX: usize = 64;

impl<D: Disk> Intake<D> {
    /// Sends alerts by this channel that the disk does not take soon.
    #[must_use]
    pub fn sending_early(self, early: mpsc::Sender<Vec<EdgeAlert>>) -> Self {
        Self { early, ..self }
    }

    /// Returns once the journal has answered.
    pub(super) async fn append_alerts(
        &self,
        alerts: &[EdgeAlert],
    ) -> Result<Vec<Outcome>, AppendError> {
        let mut appended = pin!(self.journal_alerts(alerts.to_vec()));
        let soon = timeout(EARLY_AFTER, &mut appended).await;
        let is_stored = |outcomes: &Vec<Outcome>| outcomes.iter().all(Result::is_ok);
        if !matches!(&soon, Ok(Ok(outcomes)) if is_stored(outcomes)) {
            // Without a courier that takes them they wait for the disk.
            let _ = self.early.try_send(alerts.to_vec());
        }
        match soon {
            Ok(appended) => appended,
            Err(_) => appended.await,
        }
    }
}
