//! A ward of simulated patients, with their sensors and gateways.

use store::{DEFAULT_TENANT, DeviceEntry, Of, PatientEntry, Scope, Spo2Scale, Store, WriteError};
use swarm::{Patient, Profile};

use crate::process::Failure;

/// Names of the first patients; further patients are numbered.
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
/// Patient and sensor for samples that are sent by hand.
const GUEST: (&str, &str) = ("guest", "guest-sensor");

pub struct Bed {
    pub patient: String,
    pub gateway: String,
    pub device: String,
}

pub struct DemonstrationWard {
    pub beds: Vec<Bed>,
}

impl DemonstrationWard {
    pub fn with_a_gateway_each(patients: u32) -> DemonstrationWard {
        DemonstrationWard::new("", patients, |number| format!("gw-{number}"))
    }

    /// `label` distinguishes the wards of one installation.
    pub fn behind(gateway: &str, label: &str, patients: u32) -> DemonstrationWard {
        let label = match label {
            "" => String::new(),
            label => format!("{label}-"),
        };
        DemonstrationWard::new(&label, patients, |_| gateway.to_owned())
    }

    fn new(label: &str, patients: u32, gateway: impl Fn(u32) -> String) -> DemonstrationWard {
        let beds = (1..=patients)
            .map(|number| Bed {
                patient: format!("{label}patient-{number}"),
                gateway: gateway(number),
                device: format!("{label}wearable-{number}"),
            })
            .collect();
        DemonstrationWard { beds }
    }

    /// The sensor of the `curl` example.
    pub fn own_device(&self) -> Option<&str> {
        (!self.beds.is_empty()).then_some(GUEST.1)
    }

    /// Enters the ward into the register. Idempotent.
    pub async fn register(&self, store: &dyn Store) -> Result<(), Failure> {
        for (index, bed) in self.beds.iter().enumerate() {
            let name = NAMES
                .get(index)
                .filter(|_| bed.patient.starts_with("patient-"))
                .map_or_else(|| bed.patient.clone(), |name| (*name).to_owned());
            enter(store, &bed.patient, &name, &bed.gateway, &bed.device).await?;
        }
        if let Some(first) = self.beds.first() {
            enter(store, GUEST.0, "Guest", &first.gateway, GUEST.1).await?;
        }
        Ok(())
    }

    /// The patients in the order of the beds; the same seed gives the same patients.
    pub fn patients(&self, seed: u64) -> impl Iterator<Item = Patient> {
        (0..).zip(&self.beds).map(move |(number, bed)| {
            let seed = seed.wrapping_add(number);
            Patient::new(
                seed,
                Profile::varied(seed, &bed.device),
                contracts::now_us(),
            )
        })
    }
}

async fn enter(
    store: &dyn Store,
    patient: &str,
    name: &str,
    gateway: &str,
    device: &str,
) -> Result<(), Failure> {
    let refused = |error: WriteError| Failure::other(format!("register: {error}"));
    let known = store
        .patient(&Scope::Service, patient)
        .await
        .map_err(|error| Failure::other(format!("register: {error}")))?;
    // A clinician's change stays, so nobody who has departed comes back by a restart.
    if known.as_ref().is_some_and(|it| !it.is_present()) {
        return Ok(());
    }
    if known.is_none() {
        let entry = PatientEntry {
            id: patient.to_owned(),
            tenant: DEFAULT_TENANT.to_owned(),
            name: name.to_owned(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        match store.put_patient(&entry).await {
            Ok(()) => {}
            // The patient was erased.
            Err(WriteError::Invalid(reason)) => {
                tracing::warn!(reason, "a simulated patient stays away");
                return Ok(());
            }
            Err(error) => return Err(refused(error)),
        }
    }
    let present = store
        .device(&Scope::Service, device)
        .await
        .map_err(|error| Failure::other(format!("register: {error}")))?;
    if present.is_some_and(|it| it.gateway == gateway && it.patient == patient) {
        return Ok(());
    }
    let scope = Scope::tenant(DEFAULT_TENANT);
    let worn = store
        .assignments(&scope, Of::Device(device))
        .await
        .map_err(|error| Failure::other(format!("register: {error}")))?;
    let entry = DeviceEntry {
        id: device.to_owned(),
        tenant: DEFAULT_TENANT.to_owned(),
        gateway: gateway.to_owned(),
        patient: patient.to_owned(),
        // A sensor of the simulation never had another wearer.
        registered_us: if worn.is_empty() {
            i64::MIN
        } else {
            contracts::now_us()
        },
    };
    store.put_device(&entry).await.map_err(refused)
}
