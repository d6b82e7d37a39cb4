//! `braid register`: who wears which sensor, and which gateway speaks for it.

use service_kit::{ConfigError, tls::PeerId};
use store::{DeviceEntry, PatientEntry, Scope, SpO2Scale, Store};
use vitals::validate_identifier;

use crate::engines::StoreChoice;
use crate::process::{self, Failure};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  braid register --device chest-7 --gateway gw-1 --patient ada \\\n      --name \"Ada Example\""
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
    /// The patient's name for people. Absent: as it was entered before, or the id.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Score SpO2 by NEWS2's second scale: hypercapnic respiratory failure, a clinician's decision. Absent: as it was entered
    /// before, or by the first.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    spo2_scale_two: Option<bool>,
    /// Whose all of it is.
    #[arg(long, value_name = "ID", default_value = store::DEFAULT_TENANT)]
    tenant: String,
    #[command(flatten)]
    store: StoreChoice,
}

impl RegisterCommand {
    pub fn run(self) -> Result<(), Failure> {
        self.check()?;
        process::block_on(async move {
            let store = self.store.open().await?;
            let entry = self.enter(&*store).await?;
            println!(
                "{} of {} is spoken for by {}",
                entry.id, entry.patient, entry.gateway
            );
            Ok(())
        })?
    }

    /// A name that no sample, no certificate and no rule can bear would be in the register for nothing.
    fn check(&self) -> Result<(), ConfigError> {
        let named = |field, id: &str, example| {
            validate_identifier(field, id, example)
                .map_err(|it| ConfigError::new(it.field, it.reason, format!("--{field} {example}")))
        };
        named("device", &self.device, "chest-7")?;
        named("patient", &self.patient, "ada")?;
        let gateway = PeerId::gateway(self.tenant.as_str(), self.gateway.as_str());
        if gateway.to_string().parse::<PeerId>().is_err() {
            return Err(ConfigError::new(
                "gateway",
                format!(
                    "no certificate can be for {:?} of {:?}",
                    self.gateway, self.tenant
                ),
                "--gateway gw-1",
            ));
        }
        if self
            .name
            .as_deref()
            .is_some_and(|name| name.trim().is_empty())
        {
            return Err(ConfigError::new(
                "name",
                "is empty",
                "--name \"Ada Example\"",
            ));
        }
        Ok(())
    }

    async fn enter(self, store: &dyn Store) -> Result<DeviceEntry, Failure> {
        let refused = |error: store::WriteError| Failure::other(error.to_string());
        let scope = Scope::tenant(self.tenant.clone());
        // What was decided about the patient does not change because of another sensor.
        let known = store.patient(&scope, &self.patient).await;
        let known = known.map_err(Failure::other)?;
        let scale = known.as_ref().map_or(SpO2Scale::One, |it| it.spo2_scale);
        let patient = PatientEntry {
            id: self.patient.clone(),
            tenant: self.tenant.clone(),
            name: self
                .name
                .or(known.map(|it| it.name))
                .unwrap_or_else(|| self.patient.clone()),
            spo2_scale: match self.spo2_scale_two {
                Some(true) => SpO2Scale::Two,
                Some(false) => SpO2Scale::One,
                None => scale,
            },
        };
        store.put_patient(&patient).await.map_err(refused)?;
        let entry = DeviceEntry {
            id: self.device,
            tenant: self.tenant,
            gateway: self.gateway,
            patient: self.patient,
            registered_us: contracts::now_us(),
        };
        store.put_device(&entry).await.map_err(refused)?;
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use store::SqliteStore;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        command: RegisterCommand,
    }

    fn command(line: &str) -> RegisterCommand {
        let words = std::iter::once("register").chain(line.split(' '));
        Line::try_parse_from(words).unwrap().command
    }

    #[tokio::test]
    async fn a_second_sensor_changes_nothing_about_its_patient() {
        let directory = tempfile::tempdir().unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        let base = "--gateway gw-1 --patient ada --device";
        for (line, name, scale) in [
            ("chest-1", "ada", SpO2Scale::One),
            ("chest-1 --name Ada --spo2-scale-two", "Ada", SpO2Scale::Two),
            ("wrist-1", "Ada", SpO2Scale::Two),
            ("wrist-1 --name Countess", "Countess", SpO2Scale::Two),
            ("wrist-1 --spo2-scale-two false", "Countess", SpO2Scale::One),
        ] {
            let entry = command(&format!("{base} {line}")).enter(store).await;
            assert_eq!(entry.unwrap().patient, "ada");
            let scope = Scope::tenant(store::DEFAULT_TENANT);
            let patient = store.patient(&scope, "ada").await.unwrap().unwrap();
            assert_eq!(
                (patient.name.as_str(), patient.spo2_scale),
                (name, scale),
                "{line}"
            );
        }
    }

    #[test]
    fn what_no_sample_and_no_certificate_can_name_is_refused_by_field() {
        for (line, field) in [
            ("--device ä --gateway gw-1 --patient ada", "device"),
            ("--device d --gateway gw/1 --patient ada", "gateway"),
            ("--device d --gateway gw-1 --patient 患者", "patient"),
            ("--device d --gateway gw-1 --patient ada --name=", "name"),
            (
                "--device d --gateway gw-1 --patient ada --tenant a/b",
                "gateway",
            ),
        ] {
            assert_eq!(command(line).check().unwrap_err().field, field);
        }
        command("--device d --gateway gw-1 --patient ada")
            .check()
            .unwrap();
    }
}
