//! `braid register`: who wears which sensor, and which gateway speaks for it.

use store::{DeviceEntry, PatientEntry, SpO2Scale};

use crate::engines::StoreChoice;
use crate::process::{self, Failure};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  braid register --device chest-7 --gateway gw-1 --patient ada --name \"Ada Example\""
)]
pub struct RegisterCommand {
    /// The sensor; unique over all tenants.
    #[arg(long, value_name = "ID")]
    device: String,
    /// The gateway that may speak for it.
    #[arg(long, value_name = "ID")]
    gateway: String,
    /// Who wears it.
    #[arg(long, value_name = "ID")]
    patient: String,
    /// The patient's name for people; the id when absent.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Score SpO2 by NEWS2's second scale: hypercapnic respiratory failure, a clinician's decision.
    #[arg(long)]
    spo2_scale_two: bool,
    #[arg(long, value_name = "ID", default_value = store::DEFAULT_TENANT)]
    tenant: String,
    #[command(flatten)]
    store: StoreChoice,
}

impl RegisterCommand {
    pub fn run(self) -> Result<(), Failure> {
        process::block_on(async move {
            let store = self.store.open().await?;
            let refused = |error: store::WriteError| Failure::other(error.to_string());
            store
                .put_patient(&PatientEntry {
                    id: self.patient.clone(),
                    tenant: self.tenant.clone(),
                    name: self.name.unwrap_or_else(|| self.patient.clone()),
                    spo2_scale: if self.spo2_scale_two {
                        SpO2Scale::Two
                    } else {
                        SpO2Scale::One
                    },
                })
                .await
                .map_err(refused)?;
            let entry = DeviceEntry {
                id: self.device,
                tenant: self.tenant,
                gateway: self.gateway,
                patient: self.patient,
                registered_us: contracts::now_us(),
            };
            store.put_device(&entry).await.map_err(refused)?;
            println!(
                "{} of {} is spoken for by {}",
                entry.id, entry.patient, entry.gateway
            );
            Ok(())
        })?
    }
}
