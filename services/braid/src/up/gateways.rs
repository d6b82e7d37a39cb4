//! The ward of `braid up`: who is simulated, which sensors they wear, and a gateway for each.

use std::net::SocketAddr;

use service_kit::{ConfigError, Context};
use store::{DEFAULT_TENANT, DeviceEntry, PatientEntry, SpO2Scale, Store};
use swarm::{Feed, Patient, Profile};
use tokio::sync::mpsc;

use super::UpConfig;
use super::episodes::Triggers;
use super::first_start::Start;
use super::links::Links;
use super::services::{Core, Services, Stage, defaults};
use crate::process::Failure;
use crate::register::now_us;

/// Names for people; further patients are numbered.
const NAMES: [&str; 8] = [
    "Ada Berg",
    "Bruno Conti",
    "Clara Dubois",
    "Daniel Eriksen",
    "Elif Faruk",
    "Frida Gruber",
    "Goran Horvat",
    "Hana Ito",
];
/// Triggered episodes that wait for a patient's next second.
const TRIGGERS_MAX: usize = 8;
/// For whoever sends a sample by hand: a patient, a sensor.
const GUEST: (&str, &str) = ("guest", "guest-sensor");

pub struct Bed {
    pub patient: String,
    pub gateway: String,
    pub device: String,
}

pub struct Ward {
    pub beds: Vec<Bed>,
}

impl Ward {
    fn new(patients: u32) -> Ward {
        let beds = (1..=patients)
            .map(|number| Bed {
                patient: format!("patient-{number}"),
                gateway: format!("gw-{number}"),
                device: format!("wearable-{number}"),
            })
            .collect();
        Ward { beds }
    }

    /// The sensor that the printed `curl` line speaks for.
    pub fn own_device(&self) -> Option<&str> {
        (!self.beds.is_empty()).then_some(GUEST.1)
    }
}

/// Enters the ward into the register; a restart changes nothing.
pub async fn register(store: &dyn Store, config: &UpConfig) -> Result<Ward, Failure> {
    let ward = Ward::new(config.patients);
    for (index, bed) in ward.beds.iter().enumerate() {
        let name = NAMES
            .get(index)
            .map_or_else(|| bed.patient.clone(), |name| (*name).to_owned());
        enter(store, &bed.patient, &name, &bed.gateway, &bed.device).await?;
    }
    if let Some(first) = ward.beds.first() {
        enter(store, GUEST.0, "Guest", &first.gateway, GUEST.1).await?;
    }
    Ok(ward)
}

async fn enter(
    store: &dyn Store,
    patient: &str,
    name: &str,
    gateway: &str,
    device: &str,
) -> Result<(), Failure> {
    let refused = |error: store::WriteError| Failure::other(format!("register: {error}"));
    let known = store
        .patient(&store::Scope::Service, patient)
        .await
        .map_err(|error| Failure::other(format!("register: {error}")))?;
    // What a clinician has changed since stays.
    if known.is_none() {
        let entry = PatientEntry {
            id: patient.to_owned(),
            tenant: DEFAULT_TENANT.to_owned(),
            name: name.to_owned(),
            spo2_scale: SpO2Scale::One,
        };
        store.put_patient(&entry).await.map_err(refused)?;
    }
    let entry = DeviceEntry {
        id: device.to_owned(),
        tenant: DEFAULT_TENANT.to_owned(),
        gateway: gateway.to_owned(),
        patient: patient.to_owned(),
        registered_us: now_us(),
    };
    store.put_device(&entry).await.map_err(refused)
}

/// Starts every bed's gateway and returns where sensors reach them, in the order of the beds.
pub async fn start(
    services: &mut Services,
    config: &UpConfig,
    start: &Start,
    core: &Core,
    ward: &Ward,
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
        sensors.push(
            services
                .address(context, gateway::from_sensors::LISTENER)
                .await?,
        );
    }
    Ok(sensors)
}

/// A gateway's `--listen` is `--sensors` here.
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

/// Starts the simulated patients, each sending to its own gateway; returns where their episodes go.
pub fn start_patients(
    services: &mut Services,
    config: &UpConfig,
    ward: &Ward,
    sensors: &[SocketAddr],
) -> Triggers {
    let mut triggers = Triggers::new();
    for ((number, bed), address) in (0_u64..).zip(&ward.beds).zip(sensors) {
        let seed = config.seed.wrapping_add(number);
        let patient = Patient::new(seed, Profile::varied(seed, &bed.device), now_us());
        let (trigger, triggered) = mpsc::channel(TRIGGERS_MAX);
        triggers.insert(bed.patient.clone(), (bed.device.clone(), trigger));
        let feed = Feed {
            url: format!("http://{address}"),
            token: None,
            patients: vec![patient],
            triggers: triggered,
        };
        services.start("patient", Stage::Outside, |context| async move {
            feed.run(context.shutdown().clone())
                .await
                .map_err(Failure::other)
        });
    }
    triggers
}
