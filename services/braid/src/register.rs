//! `braid register`: the wearing intervals of sensors at gateways.
//!
//! A reading belongs to the wearer of its device at its time. So a change never moves earlier
//! readings, even if they are still in the journal of a gateway.

mod enter;
mod list;

use service_kit::ConfigError;
use service_kit::tls::PeerId;
use store::{Change, Scope, Store};
use vitals::{validate_identifier, validate_text};

use crate::audit::Asker;
use crate::engines::StoreChoice;
use crate::moment::{Moment, shown};
use crate::process::{self, Failure};
use crate::signed::{By, Signed};
use crate::tenancy::Tenancy;
use enter::{Entry, put_patient};

/// Bytes of a patient's name.
const NAME_BYTES_MAX: usize = 256;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  braid register --device chest-7 --gateway gw-1 --patient ada --create \\\n      --name \"Ada Example\"\n  braid register end --device chest-7 --by \"Eve Nurse\" --reason \"discharged\"\n  braid register list --patient ada"
)]
pub struct RegisterCommand {
    #[command(subcommand)]
    command: Option<Subcommand>,
    #[command(flatten)]
    assign: Assign,
}

#[derive(Debug, clap::Args)]
struct Assign {
    /// The sensor; unique over all tenants.
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// The gateway that may send readings of the sensor.
    #[arg(long, value_name = "ID")]
    gateway: Option<String>,
    /// The patient who wears the sensor.
    #[arg(long, value_name = "ID")]
    patient: Option<String>,
    /// Create the patient and the gateway if the register does not know them.
    #[arg(long, default_value_t = false)]
    create: bool,
    /// The patient's display name. Absent: as entered before, or the id.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Score SpO2 by scale 2 of NEWS2, for hypercapnic respiratory failure on a clinician's
    /// decision. Absent: as entered before, or scale 1.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    spo2_scale_two: Option<bool>,
    /// Start, in RFC 3339. Absent: now, or in 3 seconds if another patient wears the sensor, so
    /// that all services know in time.
    #[arg(long, value_name = "TIME")]
    from: Option<Moment>,
    /// End, in RFC 3339. Absent: until further notice.
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,
    #[command(flatten)]
    by: By,
    /// Reason for the change; stored in the audit log.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "entered on the command line"
    )]
    reason: String,
    /// Tenant of device, gateway and patient.
    #[arg(long, value_name = "ID", default_value = store::DEFAULT_TENANT)]
    tenant: String,
    #[command(flatten)]
    store: StoreChoice,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// End an assignment: no patient wears the device any more.
    #[command(
        after_help = "Example:\n  braid register end --device chest-7 --by \"Eve Nurse\" --reason \"discharged\""
    )]
    End {
        /// The sensor.
        #[arg(long, value_name = "ID")]
        device: String,
        /// End, in RFC 3339. Absent: now.
        #[arg(long, value_name = "TIME")]
        at: Option<Moment>,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Remove a wrong assignment. Stored readings stay, and later readings from its time go to the
    /// quarantine.
    #[command(
        after_help = "Example:\n  braid register remove --device chest-7 --from 2026-03-01T12:00:00Z \\\n      --by \"Eve Nurse\" --reason \"wrong belt\""
    )]
    Remove {
        /// The sensor.
        #[arg(long, value_name = "ID")]
        device: String,
        /// The beginning of the assignment, as `braid register list` shows it.
        #[arg(long, value_name = "TIME", required_unless_present = "every")]
        from: Option<Moment>,
        /// All assignments of the device.
        #[arg(long, conflicts_with = "from", default_value_t = false)]
        every: bool,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List assignments: patient, device, gateway, start, end and author.
    #[command(after_help = "Example:\n  braid register list --device chest-7")]
    List {
        #[command(flatten)]
        of: list::Filter,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Create a patient or change its name.
    #[command(after_help = "Example:\n  braid register patient ada --name \"Ada Example\"")]
    Patient {
        /// Id of the patient.
        #[arg(value_name = "ID")]
        patient: String,
        /// Display name.
        #[arg(long, value_name = "NAME")]
        name: String,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Create a gateway, before a device is assigned to it.
    #[command(after_help = "Example:\n  braid register gateway gw-1")]
    Gateway {
        /// Id of the gateway.
        #[arg(value_name = "ID")]
        gateway: String,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
}

impl RegisterCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Some(command) => process::block_on(command.run())?,
            None => self.assign.run(),
        }
    }
}

/// Refuses a name that no sample, certificate or rule can carry.
fn check_id(field: &'static str, id: &str, example: &str) -> Result<(), ConfigError> {
    validate_identifier(field, id, example)
        .map_err(|it| ConfigError::new(it.field, it.reason, format!("--{field} {example}")))
}

fn check_gateway(tenant: &str, gateway: &str) -> Result<(), ConfigError> {
    let peer = PeerId::gateway(tenant, gateway);
    if peer.to_string().parse::<PeerId>().is_err() {
        return Err(ConfigError::new(
            "gateway",
            format!("no certificate can be for {gateway:?} of {tenant:?}"),
            "--gateway gw-1",
        ));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), ConfigError> {
    let example = "--name \"Ada Example\"";
    validate_text("name", name, NAME_BYTES_MAX, example)
        .map_err(|it| ConfigError::new(it.field, it.reason, it.example))
}

impl Assign {
    fn run(self) -> Result<(), Failure> {
        let mut entry = self.entry()?;
        process::block_on(async move {
            let store = self.store.open().await?;
            entry.change.author = self.by.who(&*store, &self.tenant).await?;
            for line in entry.enter(&*store).await? {
                process::say(&line)?;
            }
            Ok(())
        })?
    }

    fn entry(&self) -> Result<Entry, ConfigError> {
        let given = |field, id: &Option<String>, example: &str| {
            id.clone().ok_or_else(|| {
                ConfigError::new(field, "is missing", format!("--{field} {example}"))
            })
        };
        let device = given("device", &self.device, "chest-7")?;
        let gateway = given("gateway", &self.gateway, "gw-1")?;
        let patient = given("patient", &self.patient, "ada")?;
        check_id("device", &device, "chest-7")?;
        check_id("patient", &patient, "ada")?;
        check_gateway(&self.tenant, &gateway)?;
        self.name.as_deref().map_or(Ok(()), check_name)?;
        Ok(Entry {
            device,
            gateway,
            patient,
            tenant: self.tenant.clone(),
            create: self.create,
            name: self.name.clone(),
            spo2_scale_two: self.spo2_scale_two,
            from_us: self.from.map(|it| it.0),
            until_us: self.until.map_or(i64::MAX, |it| it.0),
            change: Change {
                // The proven author replaces it once the store is open.
                author: "command line".to_owned(),
                reason: self.reason.clone(),
                at_us: contracts::now_us(),
            },
        })
    }
}

async fn change(signed: &Signed, store: &dyn Store, tenant: &str) -> Result<Change, Failure> {
    Ok(Change {
        author: signed.by.who(store, tenant).await?,
        reason: signed.reason.clone(),
        at_us: contracts::now_us(),
    })
}

impl Subcommand {
    async fn run(self) -> Result<(), Failure> {
        match self {
            Self::End {
                device,
                at,
                signed,
                tenancy,
            } => {
                let store = tenancy.store.open().await?;
                let change = change(&signed, &*store, &tenancy.tenant).await?;
                let scope = Scope::tenant(tenancy.tenant);
                let at_us = at.map_or_else(contracts::now_us, |it| it.0);
                let ended = store
                    .end_assignment(&scope, &device, at_us, &change)
                    .await
                    .map_err(Failure::other)?
                    .ok_or_else(|| Failure::other(format!("no patient wears {device}")))?;
                process::say(&format!(
                    "{device} was with {} at {} until {}",
                    ended.patient,
                    ended.gateway,
                    shown(at_us)
                ))?;
                let waiting = dashboard::sensors::waiting(&*store, &scope, &ended).await;
                match waiting.map_err(Failure::other)? {
                    Some(line) => process::say(&line),
                    None => Ok(()),
                }
            }
            Self::Remove {
                device,
                from,
                every: _,
                signed,
                tenancy,
            } => {
                let store = tenancy.store.open().await?;
                let change = change(&signed, &*store, &tenancy.tenant).await?;
                let scope = Scope::tenant(tenancy.tenant);
                let from_us = match from {
                    Some(from) => Some(list::begun_at(&*store, &scope, &device, from).await?),
                    None => None,
                };
                let removed = store
                    .remove_assignments(&scope, &device, from_us, &change)
                    .await
                    .map_err(Failure::other)?;
                if removed == 0 {
                    return Err(Failure::other(format!("{device} has no such assignment")));
                }
                process::say(&format!("{removed} assignments of {device} are removed"))
            }
            Self::List {
                of,
                json,
                asker,
                tenancy,
            } => {
                let store = tenancy.store.open().await?;
                let (patient, detail) = (of.patient(), String::new());
                asker
                    .reads(&*store, &tenancy.tenant, "read register", patient, detail)
                    .await?;
                list::run(&*store, &Scope::tenant(tenancy.tenant), &of, json).await
            }
            Self::Patient {
                patient,
                name,
                asker,
                tenancy,
            } => {
                check_id("patient", &patient, "ada")?;
                check_name(&name)?;
                let store = tenancy.store.open().await?;
                let tenant = &tenancy.tenant;
                let change = asker
                    .changes(&*store, tenant, "put patient", &patient)
                    .await?;
                put_patient(
                    &*store,
                    &tenancy.tenant,
                    &patient,
                    (Some(name), None),
                    &change,
                )
                .await?;
                process::say(&format!("{patient} is in the register"))
            }
            Self::Gateway {
                gateway,
                asker,
                tenancy,
            } => {
                check_gateway(&tenancy.tenant, &gateway)?;
                put_gateway(gateway, &asker, tenancy).await
            }
        }
    }
}

async fn put_gateway(gateway: String, asker: &Asker, tenancy: Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    let detail = format!(", gateway {gateway}");
    asker
        .reads(&*store, &tenancy.tenant, "put gateway", "", detail)
        .await?;
    let entry = store::GatewayEntry {
        id: gateway.clone(),
        tenant: tenancy.tenant,
    };
    store.put_gateway(&entry).await.map_err(Failure::other)?;
    process::say(&format!("{gateway} is in the register"))
}

#[cfg(test)]
mod tests;
