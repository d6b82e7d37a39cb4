//! Changes of who wears which sensor, for the API and for `braid register`, with remarks about what
//! a change leaves as it was.

use contracts::paths::End;
use contracts::patients::{
    AssignSensorRequest, AssignSensorResponse, Assignment as Shown, EndAssignmentResponse,
};
use store::{
    ASSIGN_LEAD_US, Assigned, Assignment, Change, QueryError, REGISTER_TEXT_BYTES_MAX, Scope,
    Store, WriteError,
};
use vitals::{Invalid, validate_identifier, validate_text};

use crate::moment::shown;

/// Stored readings of the former wearer that are checked for later times. If there are more, the
/// newest are skipped.
const LOOKED_AT_MAX: usize = 10_000;
/// A device received this recently has no old readings waiting at the gateway.
const HEARD_LATELY_US: i64 = 60_000_000;

/// Why no assignment was changed.
#[derive(Debug, thiserror::Error)]
pub enum SensorsError {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("patient: {0:?} is no patient of the ward; admit the patient first")]
    NoPatient(String),
    #[error("gateway: {0:?} is not in the register; an administrator enrols it first")]
    NoGateway(String),
    #[error("sensor: no patient wears {0:?}")]
    NotWorn(String),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Records that a patient of the ward wears the sensor from now on. If another patient wears it,
/// the change begins 3 seconds later, so that ingest and gateways know it in time.
pub async fn assign(
    store: &dyn Store,
    tenant: &str,
    asked: AssignSensorRequest,
    by: Change,
) -> Result<AssignSensorResponse, SensorsError> {
    validate_identifier("sensor", &asked.sensor, "chest-7")?;
    validate_text("reason", &by.reason, REGISTER_TEXT_BYTES_MAX, "admitted")?;
    let scope = Scope::tenant(tenant);
    let patient = store.patient(&scope, &asked.patient).await?;
    if !patient.is_some_and(|it| it.is_present()) {
        return Err(SensorsError::NoPatient(asked.patient));
    }
    if store.gateway(&scope, &asked.gateway).await?.is_none() {
        return Err(SensorsError::NoGateway(asked.gateway));
    }
    let present = store.device(&scope, &asked.sensor).await?;
    let is_same = present
        .as_ref()
        .is_some_and(|it| it.patient == asked.patient && it.gateway == asked.gateway);
    let is_handed_over = present
        .as_ref()
        .is_some_and(|it| it.patient != asked.patient);
    let lead_us = if is_handed_over { ASSIGN_LEAD_US } else { 0 };
    let assignment = Assignment {
        from_us: by.at_us + lead_us,
        device: asked.sensor,
        tenant: tenant.to_owned(),
        gateway: asked.gateway,
        patient: asked.patient,
        until_us: i64::MAX,
        entered: by,
    };
    let (unchanged, before) = if asked.dry_run {
        let ended = match &present {
            Some(it) if !is_same => open_of(store, &scope, &it.id).await?,
            _ => None,
        };
        (is_same, ended)
    } else {
        match store.assign(&assignment).await? {
            Assigned::Unchanged => (true, None),
            Assigned::New(before) => (false, before),
        }
    };
    let ended = before.map(|before| Assignment {
        until_us: assignment.from_us.max(before.from_us),
        ..before
    });
    let mut remarks = Vec::new();
    if let Some(ended) = ended.as_ref().filter(|it| it.patient != assignment.patient) {
        remarks.extend(waiting(store, &scope, ended).await?);
        remarks.extend(taken_before(store, &scope, ended).await?);
    }
    remarks.extend(kept_apart(store, &scope, &assignment.device).await?);
    Ok(AssignSensorResponse {
        assignment: Some(as_shown(assignment)),
        ended: ended.map(as_shown),
        unchanged,
        remarks,
    })
}

/// Records that no patient wears the sensor any more.
pub async fn end(
    store: &dyn Store,
    tenant: &str,
    sensor: &str,
    by: &Change,
) -> Result<EndAssignmentResponse, SensorsError> {
    validate_identifier("sensor", sensor, "chest-7")?;
    validate_text("reason", &by.reason, REGISTER_TEXT_BYTES_MAX, "discharged")?;
    let scope = Scope::tenant(tenant);
    let ended = store.end_assignment(&scope, sensor, by.at_us, by).await?;
    let ended = ended.ok_or_else(|| SensorsError::NotWorn(sensor.to_owned()))?;
    let remarks = waiting(store, &scope, &ended).await?;
    Ok(EndAssignmentResponse {
        ended: Some(as_shown(ended)),
        remarks: remarks.into_iter().collect(),
    })
}

/// In the form of the contracts.
pub fn as_shown(it: Assignment) -> Shown {
    Shown {
        from_us: if it.from_us == i64::MIN {
            0
        } else {
            it.from_us
        },
        until_us: if it.is_open() { 0 } else { it.until_us },
        sensor: it.device,
        gateway: it.gateway,
        patient: it.patient,
        by: it.entered.author,
        reason: it.entered.reason,
        at_us: it.entered.at_us,
    }
}

async fn open_of(
    store: &dyn Store,
    scope: &Scope,
    sensor: &str,
) -> Result<Option<Assignment>, QueryError> {
    let worn = store.assignments(scope, store::Of::Device(sensor)).await?;
    Ok(worn.into_iter().find(Assignment::is_open))
}

/// Whether the gateway's journal may still hold readings of an assignment that has ended. The
/// gateway's own report counts if it is later than the end, otherwise the last stored reading.
pub async fn waiting(
    store: &dyn Store,
    scope: &Scope,
    ended: &Assignment,
) -> Result<Option<String>, QueryError> {
    let end_us = ended.until_us.min(contracts::now_us());
    let goes = format!(
        "what waits there of before {} goes to {}",
        shown(ended.until_us),
        ended.patient
    );
    let since_us = end_us.saturating_sub(HEARD_LATELY_US);
    if let Some((entries, at_us)) = reported(store, scope, &ended.gateway).await?
        && at_us >= since_us
    {
        return Ok((entries > 0).then(|| {
            format!(
                "warning: {} reported {entries} entries in its journal at {}: {goes}",
                ended.gateway,
                shown(at_us)
            )
        }));
    }
    let latest = store.latest_vitals(scope, Some(&ended.patient)).await?;
    let of_device = latest.iter().filter(|it| it.device == ended.device);
    let newest_us = of_device.map(|it| it.device_time_us).max();
    Ok(match newest_us {
        Some(newest_us) if newest_us >= since_us => None,
        Some(newest_us) => Some(format!(
            "warning: the last stored reading of {} is of {}; {} may hold later ones: {goes}",
            ended.device,
            shown(newest_us),
            ended.gateway
        )),
        None => Some(format!(
            "warning: no reading of {} with {} is stored; {} may hold some: {goes}",
            ended.device, ended.patient, ended.gateway
        )),
    })
}

/// Entries that waited in the gateway's journals by its newest report, and the time of the report.
async fn reported(
    store: &dyn Store,
    scope: &Scope,
    gateway: &str,
) -> Result<Option<(u64, i64)>, QueryError> {
    let reports = store.latest_paths(scope, Some(gateway)).await?;
    let own = reports.iter().filter(|it| it.end() == End::Gateway);
    let said = own.filter_map(|it| Some((it.journal_waiting?, it.time_us)));
    Ok(said.max_by_key(|(_, at_us)| *at_us))
}

/// Readings stored with the former wearer before the hand-over was entered.
pub async fn taken_before(
    store: &dyn Store,
    scope: &Scope,
    ended: &Assignment,
) -> Result<Option<String>, QueryError> {
    let (patient, from_us) = (&ended.patient, ended.until_us);
    let stored = store
        .samples(scope, patient, from_us, i64::MAX, LOOKED_AT_MAX)
        .await?;
    let count = stored.iter().filter(|it| it.device == ended.device).count();
    Ok((count > 0).then(|| {
        format!(
            "warning: {count} readings since {} are in the record of {patient} already and stay there",
            shown(from_us)
        )
    }))
}

/// Readings that the register attributed to no patient.
pub async fn kept_apart(
    store: &dyn Store,
    scope: &Scope,
    device: &str,
) -> Result<Option<String>, QueryError> {
    let cases = store.quarantine_cases(scope).await?;
    let of_device = cases.iter().filter(|it| it.device == device);
    let entries: u64 = of_device.map(|it| it.entries).sum();
    Ok((entries > 0).then(|| {
        format!(
            "{entries} entries of {device} are kept apart: `braid quarantine assign --device {device}` takes them in"
        )
    }))
}
