//! Alerts and states go on when the disk is full; readings do not.

use std::{io, sync::Arc};

use contracts::vitals::EdgeAlert;

use super::Intake;
use crate::{
    journal::{AppendError, Disk, Outcome, StageError},
    reserve::{Reserve, is_for_want_of_room},
};

impl<D: Disk> Intake<D> {
    /// Keeps space on the disk for alerts and states.
    #[must_use]
    pub fn with_reserve(self, reserve: Reserve<D>) -> Self {
        Self {
            reserve: Some(reserve),
            ..self
        }
    }

    /// Refuses readings that would use up the space for alerts.
    pub(super) fn room_for_readings(&self) -> Result<(), AppendError> {
        if !self.reserve.as_ref().is_some_and(Reserve::is_in_use) {
            return Ok(());
        }
        let full = io::Error::new(
            io::ErrorKind::StorageFull,
            "the disk is full, and its last space is kept for alerts",
        );
        Err(AppendError::Storage(Arc::new(full)))
    }

    /// Whether a write that failed may succeed now.
    pub(super) async fn has_freed_room(&self, error: &io::Error) -> bool {
        let Some(reserve) = self.reserve.clone() else {
            return false;
        };
        if !is_for_want_of_room(error) {
            return false;
        }
        let released = tokio::task::spawn_blocking(move || reserve.release());
        released.await.unwrap_or(false)
    }

    /// Returns once the journal has answered. Alerts that a full disk refuses are tried once more
    /// with the space that is kept for them.
    pub(super) async fn journal_alerts(
        &self,
        alerts: Vec<EdgeAlert>,
    ) -> Result<Vec<Outcome>, AppendError> {
        let first = self.alerts.append_alerts(alerts.clone()).await;
        let error = match &first {
            Err(AppendError::Storage(error)) => Some(error.kind()),
            Err(_) => None,
            Ok(outcomes) => outcomes.iter().find_map(refused_by_disk),
        };
        let Some(error) = error else {
            return first;
        };
        if !self.has_freed_room(&error.into()).await {
            return first;
        }
        let Ok(mut outcomes) = first else {
            return self.alerts.append_alerts(alerts).await;
        };
        let refused = alerts.into_iter().zip(&outcomes);
        let refused = refused.filter(|(_, it)| refused_by_disk(it).is_some());
        let refused = refused.map(|(alert, _)| alert).collect();
        // Without an answer the outcomes of the first attempt count.
        if let Ok(second) = self.alerts.append_alerts(refused).await {
            let places = outcomes.iter_mut();
            let places = places.filter(|it| refused_by_disk(it).is_some());
            for (place, outcome) in places.zip(second) {
                *place = outcome;
            }
        }
        Ok(outcomes)
    }
}

fn refused_by_disk(outcome: &Outcome) -> Option<io::ErrorKind> {
    match outcome {
        Err(StageError::Storage(error)) => Some(error.kind()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
