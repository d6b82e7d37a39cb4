//! Alerts that the journal cannot take are sent from memory, each over a stream of its own. This
//! happens while a disk is full. The couriers cannot send them, because they need positions of a
//! journal.
//!
//! Delivery is at least once. An answered alert is dropped here, and one that the journal takes
//! meanwhile goes that way too. The core merges both.

use std::{sync::Arc, time::Duration};

use contracts::vitals::{EdgeAlert, UploadRequest, ingest_service_client::IngestServiceClient};
use service_kit::{Backoff, Shutdown};
use tunnel::Urgency;

use crate::{
    clock::Clock, intake::Intake, journal::Disk, to_proxy::Uplink, unjournaled::UnjournaledId,
};

/// Alerts in one upload. More follow in the next.
const UPLOAD_ALERTS_MAX: usize = 256;
/// An upload without an answer by then is tried again.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Limit of the last attempt at shutdown.
const FLUSH_LIMIT: Duration = Duration::from_millis(1500);
/// A person may wait for help, so the pauses between attempts stay short.
const RETRY_INITIAL: Duration = Duration::from_millis(250);
/// Longest pause between attempts of an upload from memory.
const RETRY_MAX: Duration = Duration::from_secs(5);

pub struct FromMemory<D: Disk> {
    pub intake: Arc<Intake<D>>,
    pub uplink: Arc<dyn Uplink>,
    /// Address of ingest.
    pub url: String,
    pub clock: Clock,
}

impl<D: Disk> FromMemory<D> {
    /// Runs until shutdown is requested, and then makes a last attempt.
    pub async fn run(self, shutdown: Shutdown) {
        let mut count = self.intake.held();
        let mut backoff = Backoff::new(RETRY_INITIAL, RETRY_MAX);
        while !shutdown.is_requested() {
            tokio::select! {
                biased;
                () = shutdown.requested() => break,
                // The intake is this one's, too: it does not end before.
                _ = count.wait_for(|count| *count > 0) => {}
            }
            let told = tokio::select! {
                () = shutdown.requested() => break,
                told = self.upload_first(ANSWER_WITHIN) => told,
            };
            match told {
                Ok(()) => backoff.reset(),
                Err(reason) => {
                    tracing::debug!(reason, "alerts in memory could not be sent");
                    tokio::select! {
                        () = shutdown.requested() => break,
                        () = backoff.wait() => {}
                    }
                }
            }
        }
        while !self.intake.first_held(1).is_empty() {
            if let Err(reason) = self.upload_first(FLUSH_LIMIT).await {
                let count = *self.intake.held().borrow();
                tracing::error!(
                    count,
                    reason,
                    "alerts are lost: the journal took none, nor did the core"
                );
                return;
            }
        }
    }

    async fn upload_first(&self, within: Duration) -> Result<(), String> {
        let (ids, alerts): (Vec<UnjournaledId>, Vec<EdgeAlert>) = self
            .intake
            .first_held(UPLOAD_ALERTS_MAX)
            .into_iter()
            .unzip();
        if ids.is_empty() {
            return Ok(());
        }
        let sent = tokio::time::timeout(within, self.send(alerts)).await;
        sent.map_err(|_| format!("no answer within {within:?}"))??;
        tracing::warn!(
            count = ids.len(),
            "uploaded alerts that the journal cannot take"
        );
        let count = ids.len() as u64;
        metrics::counter!("braid_gateway_alerts_raised_total").increment(count);
        metrics::counter!("braid_gateway_alerts_from_memory_total").increment(count);
        self.intake.let_go(&ids);
        Ok(())
    }

    async fn send(&self, alerts: Vec<EdgeAlert>) -> Result<(), String> {
        let channel = self.uplink.channel(&self.url, Urgency::Urgent, None);
        let channel = channel.map_err(|error| error.to_string())?;
        let upload = UploadRequest {
            alerts,
            ..UploadRequest::default()
        };
        let upload = tokio_stream::once((self.clock)().stamp(upload));
        let text = |status: tonic::Status| status.to_string();
        let answers = IngestServiceClient::new(channel).upload(upload).await;
        match answers.map_err(text)?.into_inner().message().await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("ingest ended the stream".to_owned()),
            Err(status) => Err(text(status)),
        }
    }
}
