//! Readiness: from time to time, both engines must take a write. A store that goes away later is a
//! warning only: uploads go on to the bus, and taking ingest out of service would stop them.

use std::sync::Arc;

use bus::Bus;
use service_kit::{
    Context,
    probe::{Pace, keep_proving},
};
use store::Store;

pub(crate) async fn watch(bus: Arc<dyn Bus>, store: Arc<dyn Store>, context: Context) {
    let health = context.health();
    let bus_check = health.check("bus");
    let store_check = health.check_at_start(
        "store",
        "find out why the database does not answer; the bus keeps new records",
    );
    let (pace, shutdown) = (Pace::default(), context.shutdown());
    tokio::join!(
        keep_proving(bus_check, || bus.ready(), pace, shutdown.clone()),
        keep_proving(store_check, || store.ready(), pace, shutdown.clone())
    );
}
