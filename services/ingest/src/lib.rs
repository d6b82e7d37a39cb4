//! Ingest: takes vitals from gateways, publishes them on the bus, and writes the store from the
//! bus.
//!
//! ```text
//! gateway --from_gateway--> admission, duplicates --to_bus--> topic vitals --to_store--> rows and progress (one transaction)
//!         <--acknowledgement, once the bus has it--|
//! gateway <--from_gateway-- the rules in force, of the store; open alerts of high priority --from_bus--
//! ```
//!
//! - A sample is acknowledged after the bus holds it, in the order of the gateway's journal.
//! - Samples, gaps and alerts are attributed to a patient once, here, by their time. Entries of no
//!   patient are kept apart in the store until a person assigns or discards them.
//! - An alert has its own lane to the bus, so it never waits behind bulk data.
//! - Replicas share only bus and store. If two replicas admit the same sample, the store keeps one,
//!   by (device, stream, sequence).

mod acknowledging;
mod admission;
mod alerts;
mod caller;
mod canary;
mod config;
mod duplicates;
mod from_bus;
mod from_gateway;
mod gateway_clocks;
mod high_alerts;
mod judging;
pub mod measure;
mod newest;
mod progress;
mod quarantine_room;
mod readiness;
pub mod readmission;
mod register;
pub mod release;
mod rules_in_force;
mod to_bus;
mod to_store;
mod under_way;

use std::{sync::Arc, time::Duration};

use bus::Bus;
use service_kit::{
    Context, ServiceConfig,
    grpc::{bind, serve},
    quota::Quota,
    tls::Identity,
};
use store::Store;

pub use service_kit::RunError;

pub use config::Config;

/// Consumer group of the topic `vitals` that writes the store.
pub const GROUP: &str = consumer_health::duty::STORING_VITALS.group;

/// A gateway may use at once what it did not use of its quota in this time. With the default quota
/// this exceeds the default journal of a gateway, so a gateway catches up as fast as its links
/// allow.
const SAVED: Duration = Duration::from_secs(600);

/// Runs until shutdown is requested. Returns when every admitted upload is acknowledged or refused
/// for a repetition.
pub async fn run(
    config: Config,
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    context: Context,
) -> Result<(), RunError> {
    config.validate()?;
    let identity = Identity::load(&config.identity)?;
    let listener = bind(config.listen, "listen").await?;

    let tasks = context.tasks();
    tasks.spawn(service_kit::own_clock::watch(context.clone()));
    tasks.spawn(readiness::watch(
        Arc::clone(&bus),
        Arc::clone(&store),
        context.clone(),
    ));
    tasks.spawn(to_store::run(
        Arc::clone(&bus),
        Arc::clone(&store),
        context.clone(),
    ));
    let lanes = to_bus::Lanes::start(&bus, &context);
    if config.canary {
        let shutdown = context.shutdown().clone();
        tasks.spawn(canary::run(Arc::clone(&bus), lanes.clone(), shutdown));
    }
    let refresh = Duration::from_secs(config.register_refresh_s);
    let register = Arc::new(register::Register::new(Arc::clone(&store), refresh));
    let (following, shutdown) = (Arc::clone(&register), context.shutdown().clone());
    tasks.spawn(async move { following.follow(shutdown.requested()).await });
    let (to, revocations) = tokio::sync::watch::channel(store::Followed::default());
    let (following, shutdown) = (Arc::clone(&store), context.shutdown().clone());
    tasks.spawn(async move {
        store::follow_revocations(following, to, shutdown.requested()).await;
    });
    let (to, rules) = tokio::sync::watch::channel(None);
    let shutdown = context.shutdown();
    tasks.spawn(from_gateway::follow_documents(
        Arc::clone(&store),
        revocations.clone(),
        to,
        context.health().warning("damaged-documents"),
        shutdown.clone(),
    ));
    let high_alerts = Arc::default();
    tasks.spawn(from_bus::follow(
        Arc::clone(&bus),
        Arc::clone(&store),
        Arc::clone(&high_alerts),
        context.clone(),
    ));
    let apart = Arc::default();
    tasks.spawn(quarantine_room::follow(
        Arc::clone(&store),
        Arc::clone(&apart),
        context.health().warning("quarantine"),
        shutdown.clone(),
    ));
    let followers = from_gateway::Followers {
        store,
        register: Arc::clone(&register),
        rules,
        high_alerts,
        refresh,
        guard: store::CallGuard::new(revocations.clone()),
        shutdown: shutdown.clone(),
    };
    let quota = Quota {
        items_per_s: config.gateway_samples_per_s,
        bytes_per_s: config.gateway_bytes_per_s,
        saved: SAVED,
    };
    let bounds = from_gateway::Bounds {
        quota,
        alerts_per_s: config.gateway_alerts_per_s,
        apart,
    };
    let gateways = from_gateway::Gateways::new(register, bus, lanes, revocations, bounds, &context);
    gateways.watch_clocks(&context);
    let routes =
        tonic::service::Routes::new(from_gateway::server::Server::new(gateways, followers));
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
        tracing::warn!(
            "not all uploads were acknowledged before the end; gateways send the others again"
        );
    }
    Ok(())
}
