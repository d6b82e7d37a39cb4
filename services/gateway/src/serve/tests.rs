//! Gateways without their tunnel, between sensors and an ingest.

mod accounts;
mod acknowledged;
mod addresses;
mod at_rest;
mod beside;
mod clock;
mod core;
mod direct;
mod disk_full;
mod disk_stalls;
mod fake_ingest;
mod line;
mod numbers;
mod rules;
mod silence;
mod under_test;
mod unreadable;
mod unregistered;

use super::*;

pub(crate) use direct::Direct;

/// The gateway without its tunnel.
async fn serve(
    config: Config,
    gateway: String,
    uplink: Arc<dyn Uplink>,
    context: &Context,
) -> Result<(), RunError> {
    let surroundings = Surroundings {
        gateway,
        uplink,
        waiting: JournalsWaiting::default(),
        alarms: Alarms::default(),
        freshness: watch::Sender::default(),
    };
    with_sensors(config, surroundings, context).await
}
