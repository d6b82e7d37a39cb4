//! Changes of patients' records, for the API and for `braid patients`: the reasons that may be
//! given, and the names that could be mixed up.

use ::patients::{ERASURE_REASONS, likenesses};
use contracts::patients::{Change as PatientChange, Likeness, Operation, Patient};
use store::{
    Change, ChangePatientsError, QueryError, Scope, Spo2Scale, Stays, Store, WriteError,
    record_scale,
};

/// Why no change was made.
#[derive(Debug, thiserror::Error)]
pub enum PatientsError {
    #[error("reason: an erasure takes one of {}", ERASURE_REASONS.join(", "))]
    Reason,
    #[error(transparent)]
    Change(#[from] ChangePatientsError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The records after the changes, and patients of the ward whose names are like theirs.
#[derive(Debug, Default)]
pub struct Changed {
    pub patients: Vec<Patient>,
    pub likenesses: Vec<Likeness>,
}

/// Whether the operation needs an administrator.
pub fn is_of_administrators(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Merge | Operation::Unmerge | Operation::Erase
    )
}

/// Makes all changes or none.
pub async fn change(
    store: &dyn Store,
    tenant: &str,
    changes: &[PatientChange],
    by: &Change,
) -> Result<Changed, PatientsError> {
    check_reason(changes, &by.reason)?;
    let likenesses = alike(store, tenant, changes).await?;
    let scales = scales(store, tenant, changes).await?;
    let patients = store.change_patients(tenant, changes, by).await?;
    for patient in &patients {
        let known = scales.iter().find(|(id, _)| *id == patient.id);
        let before = known.map_or(Spo2Scale::One, |(_, scale)| *scale);
        let scale = Spo2Scale::of_number(patient.spo2_scale.into());
        if scale != before {
            let scales = (before, scale);
            record_scale(store, tenant, &patient.id, scales, by).await?;
        }
    }
    Ok(Changed {
        patients,
        likenesses,
    })
}

/// The same without a change.
pub async fn check(
    store: &dyn Store,
    tenant: &str,
    changes: &[PatientChange],
    by: &Change,
) -> Result<Changed, PatientsError> {
    check_reason(changes, &by.reason)?;
    let likenesses = alike(store, tenant, changes).await?;
    let patients = store.check_patients(tenant, changes, by.at_us).await?;
    Ok(Changed {
        patients,
        likenesses,
    })
}

fn check_reason(changes: &[PatientChange], reason: &str) -> Result<(), PatientsError> {
    let erases = changes.iter().any(|it| it.operation() == Operation::Erase);
    if erases && !ERASURE_REASONS.contains(&reason) {
        return Err(PatientsError::Reason);
    }
    Ok(())
}

/// Names of people who come, beside those who are present and beside each other.
async fn alike(
    store: &dyn Store,
    tenant: &str,
    changes: &[PatientChange],
) -> Result<Vec<Likeness>, QueryError> {
    let comes = |it: &&PatientChange| {
        let operation = it.operation();
        matches!(
            operation,
            Operation::Expect | Operation::Admit | Operation::Correct | Operation::Reinstate
        )
    };
    let scope = Scope::tenant(tenant);
    let mut new = Vec::new();
    for change in changes.iter().filter(comes) {
        let stored = match &change.details {
            Some(details) => Some(details.clone()),
            None => store.patient_record(&scope, &change.patient).await?,
        };
        new.push(Patient {
            id: change.patient.clone(),
            ..stored.unwrap_or_default()
        });
    }
    if new.is_empty() {
        return Ok(Vec::new());
    }
    let mut present = store.patient_records(&scope, Stays::Present).await?;
    present.retain(|it| new.iter().all(|new| new.id != it.id));
    let mut found = likenesses(&new, &present);
    for (index, one) in new.iter().enumerate() {
        found.extend(likenesses([one], &new[index + 1..]));
    }
    Ok(found)
}

/// The scales before a change of details.
async fn scales(
    store: &dyn Store,
    tenant: &str,
    changes: &[PatientChange],
) -> Result<Vec<(String, Spo2Scale)>, QueryError> {
    let scope = Scope::tenant(tenant);
    let mut scales = Vec::new();
    for change in changes.iter().filter(|it| it.details.is_some()) {
        if let Some(entry) = store.patient(&scope, &change.patient).await? {
            scales.push((entry.id, entry.spo2_scale));
        }
    }
    Ok(scales)
}
