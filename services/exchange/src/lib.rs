//! Exchange takes what the hospital's own systems say.
//!
//! ```text
//! hospital --from_hospital: MLLP, HL7 v2, ADT--> changes of patients --to_store--> store
//!                      \--refused, not understood--> dead letters
//! hospital <--to_hospital: MLLP, HL7 v2, ORU-- newest readings of present patients <-- store
//! ```

mod ack;
mod adt;
mod config;
mod from_hospital;
mod hl7;
mod mllp;
mod oru;
mod tls;
mod to_hospital;
mod to_store;

use std::sync::Arc;
use std::time::Duration;

use bus::Bus;
use rustls_pki_types::ServerName;
use service_kit::{ConfigError, Context, ServiceConfig, grpc::bind};
use store::Store;

pub use config::{Config, Feed};
pub use from_hospital::{CONSUMER, ORIGIN, TENANT, Taken, take};
pub use hl7::{Hl7Error, Message};
pub use service_kit::RunError;
pub use to_store::Patients;

use to_hospital::{Destination, Observations};

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
    if let Some(to) = destination(&config.feed)? {
        let (store, context) = (Arc::clone(&store), context.clone());
        let observations = Observations::new(store, &config.tenant, to, context.clone());
        context.tasks().spawn(observations.run());
    }
    let patients = Patients::new(store, &config.tenant);
    let door = from_hospital::Door::new(patients, &config.tenant, bus, context.clone());
    context.listening("hospital", listener.local_addr().unwrap_or(config.listen));
    Arc::new(door).serve(listener, tls).await;
    if !context.drain_tasks().await {
        tracing::warn!("drained incompletely; the hospital sends unanswered messages again");
    }
    Ok(())
}

fn destination(feed: &Feed) -> Result<Option<Destination>, ConfigError> {
    let Some((host, address)) = feed.observations()? else {
        return Ok(None);
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|error| {
        let example = "--observations-to engine.hospital.example:2575";
        ConfigError::new("observations_to", format!("{host}: {error}"), example)
    })?;
    Ok(Some(Destination {
        address: address.to_owned(),
        name,
        tls: tls::connector(feed)?,
        every: Duration::from_secs(feed.observations_every_s.into()),
    }))
}
