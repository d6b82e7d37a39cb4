//! Consumes the topic `vitals` and writes its samples, gaps and quarantined readings to the store,
//! each batch with its progress in one transaction.
//!
//! A large batch is written as two concurrent transactions of different partitions. While one waits
//! for the store's log, the rows of the other are written.
//!
//! A record with fields of a newer version is copied to the dead letters. The known part is stored,
//! and the copy keeps the rest for a newer program.

use std::sync::Arc;

use async_trait::async_trait;
use bus::{Bus, Delivery};
use consumer::{Answer, Away, Consumer, Decoded, Done, Setup, Sink};
use consumer_health::{Level, duty};
use contracts::{canary::is_canary, vitals::VitalsRecord};
use prost::Message;
use service_kit::{Context, telemetry::continue_trace};
use store::{Progress, Store, VitalsBatch};
use tracing::Instrument;

/// Records taken from the bus at once; more wait there. The transaction of an alert waits for at
/// most one batch.
const BATCH_RECORDS_MAX: usize = 500;
/// A batch of fewer records is one transaction: a second commit would cost more than it saves.
const TWO_TRANSACTIONS_FROM: usize = 100;

/// Reason of the copy of a record of a newer version.
const NEWER: &str =
    "has fields of a newer version: the known part is stored, and the whole is kept here only";

struct VitalsSink(Arc<dyn Store>);

pub(crate) async fn run(bus: Arc<dyn Bus>, store: Arc<dyn Store>, context: Context) {
    // A sink that stands still is a warning: uploads are safe on the bus, and alerting reads them
    // there.
    let (duty, level) = (duty::STORING_VITALS, Level::Warning);
    let setup = Setup {
        two_transactions_from: Some(TWO_TRANSACTIONS_FROM),
        ..Setup::new(duty, level, "to-store", BATCH_RECORDS_MAX)
    };
    let sink = VitalsSink(Arc::clone(&store));
    Consumer::new(bus, store, setup, context).run(sink).await;
}

#[async_trait]
impl Sink for VitalsSink {
    type Batch = VitalsBatch;

    fn decode(&self, delivery: &Delivery, batch: &mut VitalsBatch) -> Decoded {
        let record = match VitalsRecord::decode(delivery.value.clone()) {
            Ok(record) => record,
            Err(error) => return Decoded::Refused(format!("no VitalsRecord: {error}")),
        };
        // Every known field is encoded as it was read, so missing bytes are unknown fields.
        let is_known = record.encoded_len() >= delivery.value.len();
        // Readings of the canary belong to no patient and end here.
        let samples = record.samples.into_iter();
        let samples = samples.filter(|sample| !is_canary(&sample.patient));
        batch.samples.extend(samples);
        batch.gaps.extend(record.gaps);
        batch.quarantined.extend(record.quarantined);
        batch.ledgers.extend(record.ledgers);
        if is_known {
            Decoded::Whole
        } else {
            Decoded::InPart(NEWER.to_owned())
        }
    }

    async fn write(&self, batch: Arc<VitalsBatch>, progress: &[Progress]) -> Answer {
        let span = tracing::info_span!("store", samples = batch.samples.len());
        // One span for the batch, in the trace of its first traced sample.
        let mut samples = batch.samples.iter();
        if let Some(traced) = samples.find(|sample| !sample.traceparent.is_empty()) {
            continue_trace(&span, &traced.traceparent);
        }
        let write = self.0.write_vitals(batch, progress.to_vec());
        match write.instrument(span).await {
            Ok(written) => {
                metrics::counter!("braid_ingest_stored_rows_total").increment(written.new);
                metrics::counter!("braid_ingest_stored_duplicates_total")
                    .increment(written.duplicate);
                Answer::Stored
            }
            Err(error) => error.into(),
        }
    }

    fn on_away(&self, away: Away<'_>) {
        match away {
            Away::Bus(reason) => tracing::warn!(reason, "vitals cannot be consumed"),
            Away::Store(reason) => {
                metrics::counter!("braid_ingest_store_retries_total").increment(1);
                tracing::warn!(reason, "the store does not take rows; the bus keeps them");
            }
        }
    }

    async fn on_done(&self, done: Done) {
        metrics::histogram!("braid_ingest_store_seconds").record(done.took);
        let waited_s = (contracts::now_us() - done.first_us).max(0) as f64 / 1e6;
        metrics::histogram!("braid_ingest_published_to_stored_seconds").record(waited_s);
    }
}
