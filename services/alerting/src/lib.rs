//! Alerting: raises alerts from vitals, keeps their state and notifies people.
//!
//! ```text
//! vitals --from_bus--> rules of each patient --to_store--> rows, state, outbox, progress
//!                                                          (one transaction)
//! store  --silence_watch--> silence, lost paths --> rows, outbox
//! outbox --to_bus--> alerts --to_people--> notices --> webhook, e-mail, MQTT
//! people --from_dashboard--> rows, outbox
//! ```
//!
//! The member that is assigned a partition of `vitals` runs the rules of its patients. An alert's
//! row is unique by id and revision. The rules and the people who acknowledge both write the next
//! revision. The later writer reads the stored row and decides again.

mod canary;
mod config;
mod dead_letters;
pub mod documents;
mod erasing;
mod express;
mod from_bus;
mod from_dashboard;
mod last_received;
mod lateness;
mod names;
mod present;
mod proof;
mod reach;
mod reach_watch;
mod routing;
mod rule_engines;
mod rules_in_force;
pub mod rules_then;
mod signs_of_life;
pub mod silence;
mod silence_watch;
mod stalled;
pub mod team;
mod to_bus;
mod to_people;
mod to_store;
mod unheard;
mod watermark;
mod withdrawal;

use std::{sync::Arc, time::Duration};

use bus::Bus;
use consumer_health::{Level, Own, Pace, duty};
use service_kit::{
    Context, ServiceConfig, Warning,
    grpc::{bind, serve_routes},
    tls::Identity,
};
use store::Store;
use tokio::sync::Notify;

pub use service_kit::RunError;

pub use config::Config;
pub use from_bus::GROUP;
pub use to_people::config::Options as Channels;

/// Runs until shutdown is requested. Returns when pending work is stored.
pub async fn run(
    config: Config,
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    context: Context,
) -> Result<(), RunError> {
    config.validate()?;
    let document = config.rule_document()?;
    if document.is_unsaid() {
        let warning = context.health().warning("rules-of-the-file");
        warning.set(Some(Warning {
            says: document.says_lost().unwrap_or_default(),
            to_do: vitals::PUT_EXTENDS.to_owned(),
        }));
    }
    let rules = Arc::new(document.resolve());
    let identity = Identity::load(&config.identity)?;
    let people = to_people::People::new(&config.people)?;
    let (channels, pace) = (people.channels().clone(), people.pace().clone());
    let (found, untold) = tokio::sync::watch::channel(Arc::default());
    let listener = bind(config.listen, "listen").await?;

    let outbox = Arc::new(Notify::new());
    let writer = to_store::Writer::new(Arc::clone(&store), Arc::clone(&outbox), &context);
    let backfill_after_us =
        i64::try_from(config.backfill_after_s.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
    let tasks = context.tasks();
    tasks.spawn(service_kit::own_clock::watch(context.clone()));
    tasks.spawn(writer.prove(service_kit::probe::Pace::default()));
    let heard = Arc::new(last_received::LastReceived::new(config.silent_after_us()));
    if let Some(silent_after_us) = config.silent_after_us() {
        let watch = silence_watch::SilenceWatch {
            store: Arc::clone(&store),
            outbox: Arc::clone(&outbox),
            rules: Arc::clone(&rules),
            heard: Arc::clone(&heard),
            silent_after_us,
            context: context.clone(),
        };
        tasks.spawn(silence_watch::run(watch));
    }
    let (offers, express) = express::lane();
    tasks.spawn(to_bus::run(
        Arc::clone(&bus),
        Arc::clone(&store),
        Arc::clone(&outbox),
        offers,
        context.clone(),
    ));
    remove_needless(&store, &context);
    watch_duties(&bus, &store, &context);
    let engines = rule_engines::RuleEngines::new(Arc::clone(&rules), backfill_after_us)
        .with_zone(channels.zone.clone());
    let (own_bus, own_store, own) = (Arc::clone(&bus), Arc::clone(&store), context.clone());
    tasks.spawn(async move {
        // No record is judged and no person is notified before rules and teams are loaded.
        let Some(in_force) = rules_in_force::open(Arc::clone(&own_store), &own).await else {
            return;
        };
        let (bus, store) = (Arc::clone(&own_bus), Arc::clone(&own_store));
        let rules = from_bus::run(
            bus,
            store,
            writer,
            engines,
            in_force.clone(),
            heard,
            own.clone(),
        );
        own.tasks().spawn(rules);
        let looking = reach_watch::run(
            Arc::clone(&own_store),
            channels,
            pace,
            in_force.clone(),
            found,
            own.clone(),
        );
        own.tasks().spawn(looking);
        people.run(own_bus, own_store, in_force, express, own).await;
    });
    let service = from_dashboard::Alerts::new(
        store,
        outbox,
        rules,
        config.allow.clone(),
        untold,
        context.clock().clone(),
    );
    let routes = tonic::service::Routes::new(
        contracts::alerts::alerts_service_server::AlertsServiceServer::new(service),
    );
    let tls = identity.server_config(true, &[b"h2"]);
    serve_routes(listener, "grpc", routes, Some(tls), &context).await?;
    if !context.drain_tasks().await {
        tracing::warn!("drained incompletely; unfinished records are read again from the bus");
    }
    Ok(())
}

/// Removes test alerts of before, and rows of erased patients.
fn remove_needless(store: &Arc<dyn Store>, context: &Context) {
    let shutdown = context.shutdown().clone();
    let (tasks, store) = (context.tasks(), || Arc::clone(store));
    tasks.spawn(canary::remove_old(store(), shutdown));
    tasks.spawn(erasing::run(store(), context.clone()));
}

/// Watches whether each duty behind the rules has a member that makes progress.
fn watch_duties(bus: &Arc<dyn Bus>, store: &Arc<dyn Store>, context: &Context) {
    // A restart does not deliver the notices of a channel that is no longer configured.
    let never = Pace {
        restart_after: Duration::MAX,
        ..Pace::default()
    };
    for (duty, level, pace) in [
        (duty::PUBLISHING, Level::Failing, Pace::default()),
        (duty::TELLING, Level::Failing, Pace::default()),
        (duty::DELIVERING, Level::Warning, never),
    ] {
        context.tasks().spawn(consumer_health::watch(
            Arc::clone(bus),
            Arc::clone(store),
            Own::duty(duty, level, None),
            pace,
            context.clone(),
        ));
    }
}
