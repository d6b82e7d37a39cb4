//! Writes the topic `paths` to the store: rows and progress in one transaction.

use std::sync::Arc;

use async_trait::async_trait;
use bus::{Bus, Delivery};
use consumer::{Answer, Away, Consumer, Decoded, Setup, Sink};
use consumer_health::{Level, duty};
use contracts::paths::{PathReport, PathsRecord};
use prost::Message;
use service_kit::{CheckHandle, Context};
use store::{Progress, Store};

/// Records taken from the bus at once; more wait there.
const BATCH_RECORDS_MAX: usize = 512;

struct Reports {
    store: Arc<dyn Store>,
    check: CheckHandle,
}

pub(crate) async fn run(bus: Arc<dyn Bus>, store: Arc<dyn Store>, context: Context) {
    let sink = Reports {
        store: Arc::clone(&store),
        // Reports go on to the bus, and policies come from there.
        check: context.health().check_at_start(
            "store",
            "find out why the database does not answer; the bus keeps new records",
        ),
    };
    // For the same reason a sink that stands still is a warning.
    let (duty, level) = (duty::STORING_PATHS, Level::Warning);
    let setup = Setup::new(duty, level, "to-store", BATCH_RECORDS_MAX);
    Consumer::new(bus, store, setup, context).run(sink).await;
}

#[async_trait]
impl Sink for Reports {
    type Batch = Vec<PathReport>;

    fn decode(&self, delivery: &Delivery, batch: &mut Vec<PathReport>) -> Decoded {
        match PathsRecord::decode(delivery.value.clone()) {
            Ok(record) => {
                batch.extend(record.reports);
                Decoded::Whole
            }
            Err(error) => Decoded::Refused(format!("no PathsRecord: {error}")),
        }
    }

    async fn write(&self, batch: Arc<Vec<PathReport>>, progress: &[Progress]) -> Answer {
        let reports = batch.to_vec();
        match self.store.write_paths(reports, progress.to_vec()).await {
            Ok(written) => {
                metrics::counter!("braid_path_telemetry_rows_total").increment(written.new);
                metrics::counter!("braid_path_telemetry_duplicate_rows_total")
                    .increment(written.duplicate);
                Answer::Stored
            }
            Err(error) => error.into(),
        }
    }

    fn on_away(&self, away: Away<'_>) {
        let (Away::Bus(reason) | Away::Store(reason)) = away;
        self.check.failing(reason);
    }

    fn on_well(&self) {
        self.check.ok();
    }
}
