//! The records of patients, and what a change of a stay ends.
//!
//! A discharge, a death and a merge end everything that is open about the patient in the same
//! transaction. These are alerts, escalations, silences, queued notices and assignments of sensors.
//! Rules may still judge a reading that was under way, so [`PatientsStore::end_departed`] repeats
//! it.
//!
//! An erasure makes the patient unreadable in one transaction, and leaves the rows of readings to
//! [`PatientsStore::erase_step`], because there may be millions. It is among the
//! [`Removal`](crate::Removal)s, so a restore repeats it, and the id is never used again.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use contracts::patients::{Change as PatientChange, Identifier, Operation, Patient, PatientStatus};
use patients::{Planned, Refusal};
use thiserror::Error;

use crate::{
    Assignment, AuditEntry, Change, PatientEntry, REGISTER_PAGE, Scope, Spo2Scale,
    error::{QueryError, WriteError, readable},
    register::reserved,
};

/// Changes of one transaction: a large ward. More are refused.
pub const PATIENT_CHANGES_MAX: usize = 1_000;
/// Records merged into one record that a reader gets. Further ones are left out.
pub const MERGED_MAX: usize = 100;
/// Rows of readings that one step of an erasure removes, so that no write waits long for it.
pub(crate) const ERASE_STEP: usize = 2_000;

/// Why no change was made.
#[derive(Debug, Clone, Error)]
pub enum ChangePatientsError {
    /// The first change that is refused.
    #[error("{refusal}")]
    Refused { index: usize, refusal: Refusal },
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Whether silence of a patient's sensors is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    No,
    /// Since this time. No reading is missed before it.
    Since(i64),
}

impl Watched {
    pub(crate) fn of(status: i32, status_us: i64) -> Watched {
        match PatientStatus::try_from(status) {
            Ok(PatientStatus::Expected | PatientStatus::Paused) => Watched::No,
            _ => Watched::Since(status_us),
        }
    }
}

/// Which records a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    /// Patients of the ward: neither discharged nor dead, and not merged.
    Present,
    All,
}

#[async_trait]
pub trait PatientsStore: Send + Sync {
    /// Makes every change with its audit row, or none. Returns the records after the changes,
    /// without those that were erased.
    async fn change_patients(
        &self,
        tenant: &str,
        changes: &[PatientChange],
        by: &Change,
    ) -> Result<Vec<Patient>, ChangePatientsError>;

    /// The same answer as that of [`Self::change_patients`], without a change.
    async fn check_patients(
        &self,
        tenant: &str,
        changes: &[PatientChange],
        at_us: i64,
    ) -> Result<Vec<Patient>, ChangePatientsError>;

    async fn patient_record(&self, scope: &Scope, id: &str) -> Result<Option<Patient>, QueryError>;
    async fn patient_of_identifier(
        &self,
        scope: &Scope,
        identifier: &Identifier,
    ) -> Result<Option<Patient>, QueryError>;
    /// The `limit` records that follow the id `after`, in an order that the engine keeps.
    async fn patient_records_page(
        &self,
        scope: &Scope,
        stays: Stays,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Patient>, QueryError>;
    /// Records merged into this one.
    async fn merged_records(&self, scope: &Scope, id: &str) -> Result<Vec<Patient>, QueryError>;

    /// Patients of all tenants whose silence is judged differently: expected and paused ones, and
    /// those who were admitted or resumed after `since_us`.
    async fn watches(&self, since_us: i64) -> Result<Vec<(String, Watched)>, QueryError>;
    /// Whether a patient of this id was erased.
    async fn is_erased(&self, id: &str) -> Result<bool, QueryError>;
    /// Ends what is open about patients who have departed. Returns the number of alerts.
    async fn end_departed(&self, at_us: i64) -> Result<u64, WriteError>;
    /// Removes some rows of patients who were erased since `since_us`, among them rows that came
    /// later. Returns their number; 0 means that none is left.
    async fn erase_step(&self, since_us: i64) -> Result<u64, WriteError>;

    /// All of them by id, read page by page.
    async fn patient_records(
        &self,
        scope: &Scope,
        stays: Stays,
    ) -> Result<Vec<Patient>, QueryError> {
        let mut found: Vec<Patient> = Vec::new();
        loop {
            let last = found.last().map_or("", |it| it.id.as_str());
            let page = self
                .patient_records_page(scope, stays, last, REGISTER_PAGE)
                .await?;
            let is_last = page.len() < REGISTER_PAGE;
            found.extend(page);
            if is_last {
                break;
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }
}

/// Rows that an engine reads for a plan.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// By id: tenant and record of the patients that the changes name. An empty tenant means that
    /// only data name the patient.
    pub records: BTreeMap<String, (String, Patient)>,
    pub erased: BTreeSet<String>,
    /// By system and value: the patient of the tenant that has the identifier.
    pub owners: BTreeMap<(String, String), String>,
}

/// Ids that the changes name.
pub(crate) fn named(changes: &[PatientChange]) -> BTreeSet<&str> {
    let named = changes.iter().flat_map(|it| [&*it.patient, &*it.into]);
    named.filter(|id| !id.is_empty()).collect()
}

/// Identifiers that the changes give.
pub(crate) fn given(changes: &[PatientChange]) -> impl Iterator<Item = &Identifier> {
    let details = changes.iter().filter_map(|it| it.details.as_ref());
    details.flat_map(|it| &it.identifiers)
}

/// Plans all changes before the first is made.
pub(crate) fn plan(
    tenant: &str,
    changes: &[PatientChange],
    facts: &Facts,
    at_us: i64,
) -> Result<Vec<Planned>, ChangePatientsError> {
    if changes.len() > PATIENT_CHANGES_MAX {
        return Err(WriteError::Invalid(format!(
            "{} changes at once are more than {PATIENT_CHANGES_MAX}; make them in parts",
            changes.len()
        ))
        .into());
    }
    let mut owners = facts.owners.clone();
    let mut seen = BTreeSet::new();
    let mut all = Vec::with_capacity(changes.len());
    for (index, change) in changes.iter().enumerate() {
        let refused = |refusal| ChangePatientsError::Refused { index, refusal };
        if !seen.insert(&change.patient) {
            return Err(refused(Refusal::Twice(change.patient.clone())));
        }
        let planned = plan_one(tenant, change, facts, at_us).map_err(refused)?;
        if let Some(patient) = &planned.patient {
            own(&mut owners, patient).map_err(refused)?;
        }
        all.push(planned);
    }
    Ok(all)
}

fn plan_one(
    tenant: &str,
    change: &PatientChange,
    facts: &Facts,
    at_us: i64,
) -> Result<Planned, Refusal> {
    let id = &change.patient;
    let found = facts.records.get(id).filter(|(owner, _)| !owner.is_empty());
    let is_of_another = found.is_some_and(|(owner, _)| owner != tenant);
    if is_of_another || facts.erased.contains(id) || reserved("patient", id).is_some() {
        return Err(Refusal::NotAvailable(id.clone()));
    }
    let planned = patients::plan(found.map(|(_, record)| record), change, at_us)?;
    if change.operation() == Operation::Merge {
        let target = facts.records.get(&change.into);
        let target = target.filter(|(owner, _)| owner == tenant);
        patients::check_target(target.map(|(_, record)| record), &change.into)?;
    }
    Ok(planned)
}

/// An identifier has one owner, also among the changes of one call.
fn own(owners: &mut BTreeMap<(String, String), String>, patient: &Patient) -> Result<(), Refusal> {
    for it in &patient.identifiers {
        let key = (it.system.clone(), it.value.clone());
        let owner = owners.entry(key).or_insert_with(|| patient.id.clone());
        if *owner != patient.id {
            return Err(Refusal::Taken {
                system: it.system.clone(),
                value: it.value.clone(),
                owner: owner.clone(),
            });
        }
    }
    Ok(())
}

/// The reason why an id of an erased patient cannot be registered.
pub(crate) fn erased(id: &str) -> String {
    format!("patient `{id}`: the id is not available; choose another")
}

/// Refuses a sensor that goes on for a patient who has departed: nobody would watch it. An interval
/// with an end may correct the past.
pub(crate) fn check_wearer(wearer: &PatientEntry, new: &Assignment) -> Result<(), WriteError> {
    if wearer.is_present() || !new.is_open() {
        return Ok(());
    }
    let status = match wearer.is_merged {
        true => "merged into another record",
        false => patients::status_name(wearer.status),
    };
    Err(WriteError::Invalid(format!(
        "patient `{}` is {status}: admit the patient before a sensor is assigned",
        wearer.id
    )))
}

/// The audit row of a change. An erasure's row names no details.
pub(crate) fn audit(
    tenant: &str,
    change: &PatientChange,
    planned: &Planned,
    by: &Change,
) -> AuditEntry {
    let detail = match (&planned.patient, change.operation()) {
        (None, _) => String::new(),
        (Some(_), Operation::Merge) => format!("into {}", change.into),
        (Some(patient), Operation::Move) => patients::place_text(patient.place.as_ref()),
        (Some(patient), _) => {
            let status = patients::status_name(patient.status());
            format!("revision {}, {status}", patient.revision)
        }
    };
    let entry = AuditEntry {
        time_us: by.at_us,
        tenant: tenant.to_owned(),
        who: by.author.clone(),
        action: format!("{} patient", patients::operation_name(change.operation())),
        patient: change.patient.clone(),
        detail,
    };
    entry.because(&by.reason)
}

/// Columns of a row beside its encoded record.
pub(crate) struct Columns {
    pub id: String,
    pub name: String,
    pub spo2_scale: i64,
    pub status: i32,
    pub status_us: i64,
    pub merged_into: String,
    pub revision: u32,
}

/// The record of a row. `braid register` changes columns alone, so they count. A record that cannot
/// be read leaves the columns.
pub(crate) fn record(columns: Columns, payload: &[u8]) -> Patient {
    let stored: Patient = readable("patient", payload).unwrap_or_default();
    let scale = Spo2Scale::of_number(columns.spo2_scale);
    Patient {
        id: columns.id,
        name: columns.name,
        spo2_scale: scale.number().into(),
        status: columns.status,
        status_at_us: columns.status_us,
        merged_into: columns.merged_into,
        revision: columns.revision,
        ..stored
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn admit(id: &str, value: &str) -> PatientChange {
        let identifier = Identifier {
            system: "mrn".into(),
            value: value.into(),
        };
        PatientChange {
            patient: id.into(),
            operation: Operation::Admit.into(),
            details: Some(Patient {
                identifiers: vec![identifier],
                ..Patient::default()
            }),
            ..PatientChange::default()
        }
    }

    fn refused(changes: &[PatientChange], facts: &Facts) -> Option<(usize, Refusal)> {
        match plan("one", changes, facts, 1) {
            Err(ChangePatientsError::Refused { index, refusal }) => Some((index, refusal)),
            _ => None,
        }
    }

    #[test]
    fn one_refused_change_refuses_all_and_is_named() {
        let mut facts = Facts::default();
        let two = [admit("ada", "1"), admit("ben", "2")];
        assert_eq!(plan("one", &two, &facts, 1).unwrap().len(), 2);
        let taken = |owner: &str| Refusal::Taken {
            system: "mrn".into(),
            value: "1".into(),
            owner: owner.into(),
        };
        let same = [admit("ada", "1"), admit("ben", "1")];
        assert_eq!(refused(&same, &facts), Some((1, taken("ada"))));
        let twice = [admit("ada", "1"), admit("ada", "2")];
        assert_eq!(
            refused(&twice, &facts),
            Some((1, Refusal::Twice("ada".into())))
        );
        facts
            .owners
            .insert(("mrn".into(), "1".into()), "eve".into());
        assert_eq!(refused(&two, &facts), Some((0, taken("eve"))));
        let not_available = |id: &str| Some((0, Refusal::NotAvailable(id.into())));
        facts.erased.insert("gone".into());
        assert_eq!(
            refused(&[admit("gone", "9")], &facts),
            not_available("gone")
        );
        let other = ("two".to_owned(), Patient::default());
        facts.records.insert("theirs".into(), other);
        assert_eq!(
            refused(&[admit("theirs", "9")], &facts),
            not_available("theirs")
        );
    }
}
