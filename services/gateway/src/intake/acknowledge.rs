//! Acknowledgements of people beside the gateway, on their way to the core.

use super::{Intake, request::RecordError};
use crate::{
    clock::Moment,
    journal::Disk,
    open_alerts::{Acknowledged, AlertsFile},
};

/// The acknowledgement holds here in each case. After an error its report is in memory, and is
/// tried again.
#[derive(Debug, thiserror::Error)]
pub enum AcknowledgeError {
    #[error("id: {0:?} is not an open alert of this gateway")]
    Unknown(String),
    #[error("it holds here; the core is told as soon as the disk takes it: {0}")]
    Stored(#[from] RecordError),
}

impl<D: Disk> Intake<D> {
    /// Returns once the acknowledgement is on disk. A repetition changes nothing, and keeps the
    /// name of the first person.
    pub async fn acknowledge(
        &self,
        (id, by): (&str, &str),
        now: Moment,
        file: &AlertsFile<impl Disk>,
    ) -> Result<Acknowledged, AcknowledgeError> {
        let acknowledged = self.open_alerts.acknowledge(id, by, now);
        let mut acknowledged =
            acknowledged.ok_or_else(|| AcknowledgeError::Unknown(id.chars().take(64).collect()))?;
        if let Some(mut report) = acknowledged.report.take() {
            tracing::info!(
                rule = report.rule,
                device = report.device,
                by,
                "acknowledged here"
            );
            metrics::counter!("braid_gateway_local_acknowledgements_total").increment(1);
            report.gateway.clone_from(&self.gateway);
            // Not lost with the request of a phone that goes away.
            self.keep(vec![report]).await?;
        }
        file.keep(&self.open_alerts).await;
        Ok(acknowledged)
    }
}
