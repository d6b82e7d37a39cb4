//! `braid patients`: records and stays of patients. It works on the store; services follow within
//! seconds.

mod details;
mod request;
pub mod shown;
mod ward_file;

use std::path::PathBuf;

use contracts::patients::{Change as PatientChange, Operation, Patient, Place};
use dashboard::patients as changes;
use store::{Scope, Stays, Store};

use crate::audit::Asker;
use crate::process::{self, Failure, say};
use crate::tenancy::Tenancy;
use details::{Bed, Details};
use request::Request;

#[derive(Debug, clap::Subcommand)]
pub enum PatientsCommand {
    /// List the patients of the ward: id, status, name, date of birth and place.
    #[command(after_help = "Example:\n  braid patients list --all")]
    List {
        /// Also patients who were discharged, died or were merged.
        #[arg(long, default_value_t = false)]
        all: bool,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Print the record of a patient, by id or by an identifier of another system.
    #[command(
        after_help = "Examples:\n  braid patients show ada\n  braid patients show --identifier mrn=4711"
    )]
    Show {
        /// Id of the patient.
        #[arg(value_name = "ID", required_unless_present = "identifier")]
        patient: Option<String>,
        /// Identifier in another system.
        #[arg(long, value_name = "SYSTEM=VALUE", conflicts_with = "patient")]
        identifier: Option<details::Named>,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Enter a patient who will come. Silence of a sensor raises no alert before the admission.
    #[command(
        after_help = "Example:\n  braid patients expect ada --name \"Ada Example\" --ward \"4 West\" \\\n      --by \"Eve Nurse\" --reason \"operation on Monday\""
    )]
    Expect(Enter),
    /// Admit a patient, or a whole ward from a CSV file.
    #[command(
        after_help = "Examples:\n  braid patients admit ada --name \"Ada Example\" --birth-date 1941-07-30 \\\n      --identifier mrn=4711 --ward \"4 West\" --bed 12 \\\n      --by \"Eve Nurse\" --reason \"pneumonia\"\n  braid patients admit --csv ward.csv --dry-run \\\n      --by \"Eve Nurse\" --reason \"move of the ward\"\n\nColumns of the file: id, and any of name, status (expected or admitted), birth_date, sex,\nidentifiers, site, ward, room, bed, language, time_zone, spo2_scale, spo2_scale_by,\nspo2_scale_at, contacts, consents. Several values of a cell are separated by semicolons."
    )]
    Admit {
        /// CSV file with a patient on each line. Every line is checked first. If a line is refused,
        /// nothing is changed.
        #[arg(long, value_name = "FILE", conflicts_with_all = details::FLAGS)]
        csv: Option<PathBuf>,
        /// Check and report, and change nothing.
        #[arg(long, default_value_t = false)]
        dry_run: bool,
        /// Id of the patient.
        #[arg(
            value_name = "ID",
            required_unless_present = "csv",
            conflicts_with = "csv"
        )]
        patient: Option<String>,
        #[command(flatten)]
        details: Details,
        #[command(flatten)]
        request: Request,
    },
    /// Change details of a record. Details that are not named stay.
    #[command(
        after_help = "Example:\n  braid patients correct ada --birth-date 1941-07-03 \\\n      --by \"Eve Nurse\" --reason \"typing error\""
    )]
    Correct(Enter),
    /// Move a patient to another place.
    #[command(
        after_help = "Example:\n  braid patients move ada --ward \"4 West\" --bed 3 \\\n      --by \"Eve Nurse\" --reason \"isolation\""
    )]
    Move {
        /// Id of the patient.
        #[arg(value_name = "ID")]
        patient: String,
        #[command(flatten)]
        place: Bed,
        #[command(flatten)]
        request: Request,
    },
    /// Pause monitoring: silence of a sensor raises no alert. Readings that come are judged.
    #[command(
        after_help = "Example:\n  braid patients pause ada --by \"Eve Nurse\" --reason \"in surgery\""
    )]
    Pause(Act),
    /// Resume monitoring after a pause.
    Resume(Act),
    /// Discharge a patient: alerts, escalations, queued messages and assignments of sensors end.
    #[command(
        after_help = "Example:\n  braid patients discharge ada --by \"Eve Nurse\" --reason \"went home\""
    )]
    Discharge(Act),
    /// Record the death of a patient. It ends the same as a discharge.
    Died(Act),
    /// Take back a discharge or a death that was entered by mistake. Assign the sensors again.
    Reinstate(Act),
    /// Merge a record into another record of the same person. The sensors move there.
    #[command(
        after_help = "Example:\n  braid patients merge unknown-7 --into ada \\\n      --by \"Eve Operator\" --reason \"identified\""
    )]
    Merge {
        /// Id of the record that is replaced.
        #[arg(value_name = "ID")]
        patient: String,
        /// Id of the record that stays.
        #[arg(long, value_name = "ID")]
        into: String,
        #[command(flatten)]
        request: Request,
    },
    /// Take back a merge. Sensors that moved by the merge come back.
    Unmerge(Act),
    /// Erase everything about a patient who is not monitored. The id is never used again.
    #[command(
        after_help = "Example:\n  braid patients erase ada --by \"Eve Operator\" --reason requested\n\nThe reason is requested, retention or mistake, so that the audit log keeps no health data."
    )]
    Erase(Act),
}

/// An operation without further values.
#[derive(Debug, clap::Args)]
pub struct Act {
    /// Id of the patient.
    #[arg(value_name = "ID")]
    patient: String,
    #[command(flatten)]
    request: Request,
}

/// An operation with details.
#[derive(Debug, clap::Args)]
pub struct Enter {
    /// Id of the patient.
    #[arg(value_name = "ID")]
    patient: String,
    #[command(flatten)]
    details: Details,
    #[command(flatten)]
    request: Request,
}

fn change(patient: String, operation: Operation) -> PatientChange {
    PatientChange {
        patient,
        operation: operation.into(),
        ..PatientChange::default()
    }
}

impl PatientsCommand {
    pub fn run(self) -> Result<(), Failure> {
        process::block_on(self.on_store())?
    }

    async fn on_store(self) -> Result<(), Failure> {
        match self {
            Self::List {
                all,
                json,
                asker,
                tenancy,
            } => list(all, json, &asker, tenancy).await,
            Self::Show {
                patient,
                identifier,
                json,
                asker,
                tenancy,
            } => {
                let store = tenancy.store.open().await?;
                let (store, scope) = (&*store, Scope::tenant(&tenancy.tenant));
                let patient = find(store, &scope, patient, identifier).await?;
                asker
                    .reads(
                        store,
                        &tenancy.tenant,
                        "read patient",
                        &patient.id,
                        String::new(),
                    )
                    .await?;
                let merged = store.merged_records(&scope, &patient.id).await;
                shown::record(&patient, &merged.map_err(Failure::other)?, json)
            }
            Self::Admit {
                csv: Some(file),
                dry_run,
                patient: _,
                details: _,
                request,
            } => ward_file::admit(&file, dry_run, &request).await,
            Self::Admit {
                csv: None,
                dry_run,
                patient,
                details,
                request,
            } => {
                let patient = patient.unwrap_or_default();
                enter(patient, &details, &request, Operation::Admit, dry_run).await
            }
            Self::Expect(it) => {
                enter(
                    it.patient,
                    &it.details,
                    &it.request,
                    Operation::Expect,
                    false,
                )
                .await
            }
            Self::Correct(it) => {
                enter(
                    it.patient,
                    &it.details,
                    &it.request,
                    Operation::Correct,
                    false,
                )
                .await
            }
            Self::Move {
                patient,
                place,
                request,
            } => {
                let change = PatientChange {
                    place: Some(Place::from(&place)),
                    ..change(patient, Operation::Move)
                };
                act(change, &request).await
            }
            Self::Merge {
                patient,
                into,
                request,
            } => {
                let change = PatientChange {
                    into,
                    ..change(patient, Operation::Merge)
                };
                act(change, &request).await
            }
            Self::Pause(it) => act(change(it.patient, Operation::Pause), &it.request).await,
            Self::Resume(it) => act(change(it.patient, Operation::Resume), &it.request).await,
            Self::Discharge(it) => act(change(it.patient, Operation::Discharge), &it.request).await,
            Self::Died(it) => act(change(it.patient, Operation::Die), &it.request).await,
            Self::Reinstate(it) => act(change(it.patient, Operation::Reinstate), &it.request).await,
            Self::Unmerge(it) => act(change(it.patient, Operation::Unmerge), &it.request).await,
            Self::Erase(it) => erase(it).await,
        }
    }
}

async fn list(all: bool, json: bool, asker: &Asker, tenancy: Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    asker
        .reads(&*store, &tenancy.tenant, "read patients", "", String::new())
        .await?;
    let stays = match all {
        true => Stays::All,
        false => Stays::Present,
    };
    let scope = Scope::tenant(&tenancy.tenant);
    let listed = store.patient_records(&scope, stays).await;
    shown::list(&listed.map_err(Failure::other)?, json)
}

async fn find(
    store: &dyn Store,
    scope: &Scope,
    patient: Option<String>,
    identifier: Option<details::Named>,
) -> Result<Patient, Failure> {
    let id = patient.unwrap_or_default();
    let found = match &identifier {
        Some(it) => store.patient_of_identifier(scope, &it.into()).await,
        None => store.patient_record(scope, &id).await,
    };
    let found = found.map_err(Failure::other)?;
    found.ok_or_else(|| Failure::other("there is no such patient"))
}

/// Details that are not named stay as they are stored.
async fn enter(
    patient: String,
    details: &Details,
    request: &Request,
    operation: Operation,
    dry_run: bool,
) -> Result<(), Failure> {
    let store = request.tenancy.store.open().await?;
    let store = &*store;
    let scope = Scope::tenant(&request.tenancy.tenant);
    let stored = store.patient_record(&scope, &patient).await;
    let stored = stored.map_err(Failure::other)?;
    let revision = stored.as_ref().map_or(0, |it| it.revision);
    let by = request.by(store).await?;
    let details = details.over(stored.unwrap_or_default(), by.at_us)?;
    let change = PatientChange {
        details: Some(details),
        revision,
        ..change(patient, operation)
    };
    if dry_run {
        let tenant = &request.tenancy.tenant;
        let checked = changes::check(store, tenant, &[change], &by).await;
        return request.show(&checked.map_err(Failure::other)?);
    }
    request.show(&request.make(store, change).await?)
}

async fn act(change: PatientChange, request: &Request) -> Result<(), Failure> {
    let store = request.tenancy.store.open().await?;
    request.show(&request.make(&*store, change).await?)
}

/// Everything but readings goes at once; readings follow in steps.
async fn erase(it: Act) -> Result<(), Failure> {
    let store = it.request.tenancy.store.open().await?;
    let since_us = contracts::now_us();
    let patient = it.patient.clone();
    let erased = change(it.patient, Operation::Erase);
    it.request.make(&*store, erased).await?;
    let mut rows = 0;
    loop {
        match store.erase_step(since_us).await.map_err(Failure::other)? {
            0 => break,
            removed => rows += removed,
        }
    }
    if it.request.json {
        return process::json(&serde_json::json!({ "patient": patient, "erased": true }));
    }
    say(&format!(
        "{patient} is erased, with {rows} rows of readings"
    ))?;
    say(
        "topics keep records until their retention ends; backups erase the patient when they are restored",
    )
}

#[cfg(test)]
mod tests;
