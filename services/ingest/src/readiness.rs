//! Readiness: from time to time, both engines must take a write. A store that goes away later is a
//! warning only: uploads go on to the bus, and taking ingest out of service would stop them.

use std::{sync::Arc, time::Duration};

use bus::Bus;
use service_kit::Context;
use store::Store;

const EVERY_WHEN_READY: Duration = Duration::from_secs(5);
const EVERY_WHEN_NOT: Duration = Duration::from_millis(500);
/// An engine that takes longer counts as not ready.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

pub(crate) async fn watch(bus: Arc<dyn Bus>, store: Arc<dyn Store>, context: Context) {
    let (bus_check, store_check) = (
        context.health().check("bus"),
        context.health().check_at_start(
            "store",
            "find out why the database does not answer; the bus keeps new records",
        ),
    );
    let shutdown = context.shutdown();
    while !shutdown.is_requested() {
        let (bus_ready, store_ready) = tokio::join!(
            tokio::time::timeout(ANSWER_WITHIN, bus.ready()),
            tokio::time::timeout(ANSWER_WITHIN, store.ready())
        );
        let bus_ready = match bus_ready {
            Ok(answer) => answer.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no answer within {ANSWER_WITHIN:?}")),
        };
        let store_ready = match store_ready {
            Ok(answer) => answer.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no answer within {ANSWER_WITHIN:?}")),
        };
        let all = bus_ready.is_ok() && store_ready.is_ok();
        for (check, ready) in [(&bus_check, bus_ready), (&store_check, store_ready)] {
            match ready {
                Ok(()) => check.ok(),
                Err(reason) => check.failing(reason),
            }
        }
        let pause = if all {
            EVERY_WHEN_READY
        } else {
            EVERY_WHEN_NOT
        };
        tokio::select! {
            () = shutdown.requested() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
