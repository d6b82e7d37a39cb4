//! Path-telemetry takes the measurements of both ends of each tunnel and stores them. From them it
//! derives how a gateway should probe and steer its paths.
//!
//! ```text
//! gateways --from_gateway--\                 /--to_store--> rows + progress (one transaction)
//!                           >--to_bus--> paths
//! proxies  --from_proxy----/                 \--from_bus--> estimate --from_gateway/policy--> gateways
//! proxies <--from_proxy-- list of revoked gateways
//! ```

mod bounds;
mod config;
mod estimate;
mod filling;
mod from_bus;
mod from_gateway;
mod from_proxy;
mod owners;
mod report;
mod series;
mod steering;
mod to_bus;
mod to_store;

use std::sync::Arc;

use bus::Bus;
use parking_lot::Mutex;
use service_kit::{
    Context, ServiceConfig,
    grpc::{bind, serve},
    tls::Identity,
};
use store::Store;

pub use service_kit::RunError;

pub use config::Config;

/// Consumer group of the topic `paths` that writes the store.
pub const STORE_GROUP: &str = consumer_health::duty::STORING_PATHS.group;

/// Runs until shutdown is requested. It returns when every acknowledged report is on the bus.
pub async fn run(
    config: Config,
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    context: Context,
) -> Result<(), RunError> {
    config.validate()?;
    let identity = Identity::load(&config.identity)?;
    let listener = bind(config.listen, "listen").await?;

    let publisher = to_bus::Publisher::new(Arc::clone(&bus), &context);
    let estimates = estimate::Estimates::new(estimate::Goals::from(&config));
    let tasks = context.tasks();
    tasks.spawn(service_kit::own_clock::watch(context.clone()));
    tasks.spawn(to_store::run(
        Arc::clone(&bus),
        Arc::clone(&store),
        context.clone(),
    ));
    tasks.spawn(from_bus::follow(
        bus,
        Arc::clone(&store),
        Arc::clone(&estimates),
        context.clone(),
    ));
    let owners = owners::Owners::default();
    tasks.spawn(owners.clone().follow(Arc::clone(&store), context.clone()));

    let steering = steering::Documents::default();
    tasks.spawn(steering.clone().follow(Arc::clone(&store), context.clone()));
    let (to, revocations) = tokio::sync::watch::channel(store::Followed::default());
    let shutdown = context.shutdown().clone();
    tasks.spawn(async move {
        store::follow_revocations(store, to, shutdown.requested()).await;
    });
    let bounds = Arc::new(Mutex::new(bounds::Bounds::new(
        config.gateway_reports_per_s,
    )));
    let reports = from_gateway::Reports::new(
        publisher,
        config.allow.clone(),
        owners.clone(),
        Arc::clone(&bounds),
        revocations.clone(),
        context.clone(),
    );
    let policies = from_gateway::policy::Policies::new(
        estimates,
        config.allow.clone(),
        owners,
        bounds,
        revocations,
        steering,
    );
    let routes = from_gateway::routes(reports, policies);
    let tls = identity.server_config(true, &[b"h2"]);
    serve(
        listener,
        "grpc",
        config.front.router(routes),
        Some(tls),
        &context,
    )
    .await?;
    if !context.drain_tasks().await {
        tracing::warn!("drained incompletely; unwritten records are read again from the bus");
    }
    Ok(())
}
