//! Exchange takes what the hospital's own systems say.
//!
//! ```text
//! hospital --from_hospital: MLLP, HL7 v2, ADT--> changes of patients --to_store--> store
//!                      \--refused, not understood--> dead letters
//! ```

mod ack;
mod adt;
mod config;
mod from_hospital;
mod hl7;
mod mllp;
mod tls;
mod to_store;

use std::sync::Arc;

use bus::Bus;
use service_kit::{Context, ServiceConfig, grpc::bind};
use store::Store;

pub use config::{Config, Feed};
pub use from_hospital::{CONSUMER, ORIGIN, TENANT, Taken, take};
pub use hl7::{Hl7Error, Message};
pub use service_kit::RunError;
pub use to_store::Patients;

/// Runs until shutdown is requested. It returns when every message in progress is answered.
pub async fn run(
    config: Config,
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    context: Context,
) -> Result<(), RunError> {
    config.validate()?;
    let tls = tls::acceptor(&config.feed)?;
    let listener = bind(config.listen, "listen").await?;
    context
        .tasks()
        .spawn(service_kit::own_clock::watch(context.clone()));
    let patients = Patients::new(store, &config.tenant);
    let door = from_hospital::Door::new(patients, &config.tenant, bus, context.clone());
    context.listening("hospital", listener.local_addr().unwrap_or(config.listen));
    Arc::new(door).serve(listener, tls).await;
    if !context.drain_tasks().await {
        tracing::warn!("drained incompletely; the hospital sends unanswered messages again");
    }
    Ok(())
}
