//! The status of a stay. Sans-IO: a stored record and a change go in, the next record and its
//! effects come out, or a refusal.
//!
//! | status | expect | admit | pause | resume | discharge | die | reinstate |
//! |---|---|---|---|---|---|---|---|
//! | none | expected | admitted | | | | | |
//! | expected | | admitted | | | discharged | died | |
//! | admitted | | | paused | | discharged | died | |
//! | paused | | | | admitted | discharged | died | |
//! | discharged | expected | admitted | | | | died | admitted |
//! | died | | | | | | | admitted |
//!
//! An empty cell is a refusal. `correct` keeps every status. `move` needs a present patient. A
//! merged record takes `unmerge` and `erase` only. `erase` needs that nobody is monitored by the
//! record: it is expected, has departed, or is merged.

use contracts::patients::{Change, Operation, Patient, PatientStatus};
use vitals::{Invalid, validate_identifier};

use crate::record;

/// Why a change is refused. Again it would be refused again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("patient `{0}` is unknown")]
    Unknown(String),
    #[error("patient `{patient}` is {status}: {operation} is not possible; {hint}")]
    Status {
        patient: String,
        status: &'static str,
        operation: &'static str,
        hint: &'static str,
    },
    #[error("record `{patient}` is merged into `{into}`: change that record, or unmerge this one")]
    Merged { patient: String, into: String },
    #[error("record `{0}` is not merged")]
    NotMerged(String),
    #[error("record `{0}` cannot replace itself")]
    Itself(String),
    #[error("patient `{patient}` was changed meanwhile, to revision {revision}; read it again")]
    Outdated { patient: String, revision: u32 },
    #[error("the id `{0}` is not available; choose another")]
    NotAvailable(String),
    #[error("{system} {value} belongs to patient `{owner}`")]
    Taken {
        system: String,
        value: String,
        owner: String,
    },
    #[error("patient `{0}` has two changes at once; make them one after the other")]
    Twice(String),
    #[error("the operation is missing or unknown")]
    Operation,
    #[error("{0}")]
    Invalid(#[from] Invalid),
}

/// The next state of a patient.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// `None`: the record is erased.
    pub patient: Option<Patient>,
    pub effects: Effects,
}

/// Further changes of the same transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Open alerts, escalations, silences and queued notices end, for this reason.
    pub ends: Option<&'static str>,
    pub sensors: Sensors,
}

/// The fate of the sensors that the patient wears.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sensors {
    #[default]
    Stay,
    End,
    MoveTo(String),
    /// Those that the merge moved to this record come back.
    ReturnFrom(String),
}

/// Whether the patient belongs to no ward any more.
pub const fn has_departed(status: PatientStatus) -> bool {
    matches!(status, PatientStatus::Discharged | PatientStatus::Died)
}

/// The word for people.
pub const fn status_name(status: PatientStatus) -> &'static str {
    match status {
        PatientStatus::Unspecified => "unknown",
        PatientStatus::Expected => "expected",
        PatientStatus::Admitted => "admitted",
        PatientStatus::Paused => "paused",
        PatientStatus::Discharged => "discharged",
        PatientStatus::Died => "died",
    }
}

/// The word for people and for the audit log.
pub const fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Unspecified => "change",
        Operation::Expect => "expect",
        Operation::Admit => "admit",
        Operation::Correct => "correct",
        Operation::Move => "move",
        Operation::Pause => "pause",
        Operation::Resume => "resume",
        Operation::Discharge => "discharge",
        Operation::Die => "record the death of",
        Operation::Reinstate => "reinstate",
        Operation::Merge => "merge",
        Operation::Unmerge => "unmerge",
        Operation::Erase => "erase",
    }
}

/// The name of the person, or the id of a record without one.
pub fn name(patient: &Patient) -> &str {
    match patient.name.as_str() {
        "" => &patient.id,
        name => name,
    }
}

/// The status after an operation on a record that is not merged; `None`: there is no record.
fn next(status: Option<PatientStatus>, operation: Operation) -> Option<PatientStatus> {
    use Operation as O;
    use PatientStatus as S;
    Some(match (status, operation) {
        (None | Some(S::Discharged), O::Expect) => S::Expected,
        (None | Some(S::Expected | S::Discharged), O::Admit) => S::Admitted,
        (Some(S::Admitted), O::Pause) => S::Paused,
        (Some(S::Paused), O::Resume) => S::Admitted,
        (Some(S::Expected | S::Admitted | S::Paused), O::Discharge) => S::Discharged,
        (Some(S::Expected | S::Admitted | S::Paused | S::Discharged), O::Die) => S::Died,
        (Some(S::Discharged | S::Died), O::Reinstate) => S::Admitted,
        (Some(status @ (S::Expected | S::Admitted | S::Paused)), O::Move) => status,
        (Some(status), O::Correct | O::Merge | O::Unmerge) => status,
        _ => return None,
    })
}

/// Operations that would be possible instead.
const fn hint(status: PatientStatus) -> &'static str {
    match status {
        PatientStatus::Expected => "admit or discharge the patient",
        PatientStatus::Admitted => "pause or discharge the patient",
        PatientStatus::Paused => "resume or discharge the patient",
        PatientStatus::Discharged => "admit the patient for a new stay, or reinstate the old one",
        PatientStatus::Died => "reinstate the patient if the death was entered by mistake",
        PatientStatus::Unspecified => "correct the record",
    }
}

/// Plans one change. `found` is the stored record. The caller checks that the record named by
/// `into` may take this one: see [`check_target`].
pub fn plan(found: Option<&Patient>, change: &Change, at_us: i64) -> Result<Planned, Refusal> {
    let id = &change.patient;
    validate_identifier("patient", id, "ada")?;
    let operation = change.operation();
    if operation == Operation::Unspecified {
        return Err(Refusal::Operation);
    }
    if let Some(found) = found {
        check_revision(found, change)?;
        if !found.merged_into.is_empty()
            && !matches!(operation, Operation::Unmerge | Operation::Erase)
        {
            return Err(Refusal::Merged {
                patient: id.clone(),
                into: found.merged_into.clone(),
            });
        }
    }
    if operation == Operation::Erase {
        return erase(found, id);
    }
    let status = found.map(Patient::status);
    let after = next(status, operation).ok_or_else(|| refused(status, id, operation))?;
    let mut patient = match (found, &change.details) {
        (found, Some(details))
            if matches!(
                operation,
                Operation::Expect | Operation::Admit | Operation::Correct
            ) =>
        {
            record::check(details)?;
            with_details(found, details)
        }
        (Some(found), _) => found.clone(),
        (None, _) => Patient::default(),
    };
    patient.id.clone_from(id);
    if patient.name.trim().is_empty() {
        patient.name.clone_from(id);
    }
    let effects = match operation {
        Operation::Move => {
            let place = change.place.clone().unwrap_or_default();
            record::check_place(&place)?;
            patient.place = Some(place);
            Effects::default()
        }
        Operation::Discharge => departure("the patient was discharged"),
        Operation::Die => departure("the patient died"),
        Operation::Merge => merge(&mut patient, &change.into, at_us)?,
        Operation::Unmerge => unmerge(&mut patient)?,
        _ => Effects::default(),
    };
    if status != Some(after) {
        patient.status_at_us = at_us;
    }
    patient.status = after.into();
    patient.revision = found.map_or(0, |it| it.revision).saturating_add(1);
    Ok(Planned {
        patient: Some(patient),
        effects,
    })
}

fn check_revision(found: &Patient, change: &Change) -> Result<(), Refusal> {
    if change.revision == 0 || change.revision == found.revision {
        return Ok(());
    }
    Err(Refusal::Outdated {
        patient: found.id.clone(),
        revision: found.revision,
    })
}

fn refused(status: Option<PatientStatus>, id: &str, operation: Operation) -> Refusal {
    match status {
        None => Refusal::Unknown(id.to_owned()),
        Some(status) => Refusal::Status {
            patient: id.to_owned(),
            status: status_name(status),
            operation: operation_name(operation),
            hint: hint(status),
        },
    }
}

/// The details of a change with everything that only operations change.
fn with_details(found: Option<&Patient>, details: &Patient) -> Patient {
    let kept = found.cloned().unwrap_or_default();
    Patient {
        id: kept.id,
        status: kept.status,
        status_at_us: kept.status_at_us,
        merged_into: kept.merged_into,
        merged_at_us: kept.merged_at_us,
        revision: kept.revision,
        spo2_scale: details.spo2_scale.max(1),
        ..details.clone()
    }
}

fn departure(because: &'static str) -> Effects {
    Effects {
        ends: Some(because),
        sensors: Sensors::End,
    }
}

fn merge(patient: &mut Patient, into: &str, at_us: i64) -> Result<Effects, Refusal> {
    validate_identifier("into", into, "ada")?;
    if patient.id == into {
        return Err(Refusal::Itself(into.to_owned()));
    }
    into.clone_into(&mut patient.merged_into);
    patient.merged_at_us = at_us;
    Ok(Effects {
        ends: Some("the patient is in another record after a merge"),
        sensors: Sensors::MoveTo(into.to_owned()),
    })
}

fn unmerge(patient: &mut Patient) -> Result<Effects, Refusal> {
    if patient.merged_into.is_empty() {
        return Err(Refusal::NotMerged(patient.id.clone()));
    }
    let from = std::mem::take(&mut patient.merged_into);
    Ok(Effects {
        ends: None,
        sensors: Sensors::ReturnFrom(from),
    })
}

fn erase(found: Option<&Patient>, id: &str) -> Result<Planned, Refusal> {
    let found = found.ok_or_else(|| Refusal::Unknown(id.to_owned()))?;
    let is_monitored = matches!(
        found.status(),
        PatientStatus::Admitted | PatientStatus::Paused
    );
    if is_monitored && found.merged_into.is_empty() {
        return Err(Refusal::Status {
            patient: id.to_owned(),
            status: status_name(found.status()),
            operation: operation_name(Operation::Erase),
            hint: "discharge the patient first",
        });
    }
    Ok(Planned {
        patient: None,
        effects: Effects {
            ends: None,
            sensors: Sensors::End,
        },
    })
}

/// Whether a record may take another one. A chain of merges would hide who is meant.
pub fn check_target(target: Option<&Patient>, into: &str) -> Result<(), Refusal> {
    let target = target.ok_or_else(|| Refusal::Unknown(into.to_owned()))?;
    if target.merged_into.is_empty() {
        return Ok(());
    }
    Err(Refusal::Merged {
        patient: into.to_owned(),
        into: target.merged_into.clone(),
    })
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
