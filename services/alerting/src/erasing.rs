//! Removes rows of erased patients that came after the erasure: records that the bus still had.

use std::{sync::Arc, time::Duration};

use service_kit::Context;
use store::Store;

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Records of an erased patient come for as long as topics keep them. At the start of a process all
/// erasures are looked at, because the store may have been restored.
const RECENT_US: i64 = 30 * 86_400_000_000;

pub(crate) async fn run(store: Arc<dyn Store>, context: Context) {
    let mut since_us = 0;
    loop {
        match store.erase_step(since_us).await {
            // More may be left.
            Ok(removed) if removed > 0 => {
                metrics::counter!("braid_alerting_erased_rows_total").increment(removed);
                if context.shutdown().is_requested() {
                    return;
                }
                continue;
            }
            Ok(_) => since_us = context.clock().now_us().saturating_sub(RECENT_US),
            Err(error) => tracing::warn!(%error, "rows of erased patients are removed later"),
        }
        tokio::select! {
            () = context.shutdown().requested() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
