//! Sends the canary: a synthetic reading every half minute, in the lane of all readings.
//!
//! It enters behind admission, which needs a gateway's certificate. From there it takes every step:
//! lane, bus, rules, store, outbox, topic `alerts`, page. The dashboard waits for the alerts that
//! it raises.

use contracts::{canary::NAME, vitals::VitalsRecord};
use service_kit::Shutdown;
use vitals::canary::{next_us, reading};

use crate::to_bus::{Lane, Lanes, NotPublished, Records};

/// Canaries are sent one after the other, so at most one waits in the lane. Half minutes that pass
/// while the bus is away are left out.
pub(crate) async fn run(lanes: Lanes, shutdown: Shutdown) {
    loop {
        let now_us = contracts::now_us();
        let wait_us = next_us(now_us).saturating_sub(now_us);
        let wait = std::time::Duration::from_micros(u64::try_from(wait_us).unwrap_or_default());
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let record = VitalsRecord {
            samples: vec![reading(contracts::now_us())],
            ..VitalsRecord::default()
        };
        let published = async {
            let receiver = lanes.publish(Lane::Bulk, Records::from([(NAME.to_owned(), record)]));
            receiver.await.await
        };
        tokio::select! {
            () = shutdown.requested() => return,
            published = published => match published {
                Ok(Ok(())) => metrics::counter!("braid_ingest_canaries_total").increment(1),
                // The dashboard reports that the canary did not arrive.
                Ok(Err(NotPublished::Refused(reason))) => {
                    tracing::warn!(reason, "the canary is not published");
                }
                Ok(Err(NotPublished::Ending)) | Err(_) => return,
            },
        }
    }
}
