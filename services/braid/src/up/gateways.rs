//! The gateways of `braid up`, one for each bed of the ward, and their simulated patients.

use std::net::SocketAddr;

use service_kit::{ConfigError, Context};
use swarm::Feed;
use tokio::sync::mpsc;

use super::config::UpConfig;
use super::episodes::Triggers;
use super::first_start::Start;
use super::links::Links;
use super::services::{Core, Services, Stage, defaults};
use crate::demonstration_ward::DemonstrationWard;
use crate::process::Failure;

/// Triggered episodes that wait for a patient's next second.
const TRIGGERS_MAX: usize = 8;

/// Starts every bed's gateway and returns their addresses for sensors, in the order of the beds.
pub async fn start(
    services: &mut Services,
    config: &UpConfig,
    start: &Start,
    core: &Core,
    ward: &DemonstrationWard,
    links: &Links,
) -> Result<Vec<SocketAddr>, Failure> {
    let mut contexts: Vec<Context> = Vec::with_capacity(ward.beds.len());
    for (index, bed) in (0_u8..).zip(&ward.beds) {
        let mut it: gateway::Config = defaults()?;
        it.listen = match index {
            0 => config.sensors,
            _ => SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        it.data_dir = config.data.join("gateways").join(&bed.gateway);
        it.proxy = core.proxy.to_string();
        it.ingest = format!("https://{}", core.ingest);
        it.path_telemetry = format!("https://{}", core.path_telemetry);
        it.identity = start.gateway(&bed.gateway)?;
        let interfaces = links.access_networks(config, &bed.gateway, index)?;
        contexts.push(
            services.start("gateway", Stage::Gateway, |context| async move {
                let ended = gateway::run(it, Some(interfaces), context).await;
                ended.map_err(|error| under_our_flag(error.into()))
            }),
        );
    }
    let mut sensors = Vec::with_capacity(contexts.len());
    for context in &contexts {
        sensors.push(services.address(context, gateway::LISTENER).await?);
    }
    Ok(sensors)
}

/// A gateway's `--listen` is called `--sensors` here.
fn under_our_flag(failure: Failure) -> Failure {
    match failure {
        Failure::Config(error) if error.field == "listen" => Failure::Config(ConfigError {
            field: "sensors".to_owned(),
            example: error.example.replace("--listen", "--sensors"),
            ..error
        }),
        other => other,
    }
}

/// Starts the simulated patients, each sending to its own gateway; returns the channels of their
/// episodes.
pub fn start_patients(
    services: &mut Services,
    config: &UpConfig,
    ward: &DemonstrationWard,
    sensors: &[SocketAddr],
) -> Triggers {
    let mut triggers = Triggers::new();
    let patients = ward.patients(config.seed);
    for ((patient, bed), address) in patients.zip(&ward.beds).zip(sensors) {
        let (trigger, triggered) = mpsc::channel(TRIGGERS_MAX);
        triggers.insert(bed.patient.clone(), (bed.device.clone(), trigger));
        let feed = Feed {
            url: format!("http://{address}"),
            token: None,
            patients: vec![patient],
            triggers: triggered,
            health: None,
        };
        services.start("patient", Stage::Outside, |context| async move {
            feed.run(context.shutdown().clone())
                .await
                .map_err(Failure::other)
        });
    }
    triggers
}
