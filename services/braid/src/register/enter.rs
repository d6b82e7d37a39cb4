//! Enters an assignment, and reports what the change leaves as it was.

use dashboard::sensors::{kept_apart, taken_before, waiting};
use store::{
    ASSIGN_LEAD_US, Assigned, Assignment, Change, Of, PatientEntry, Scope, Spo2Scale, Stays, Store,
    record_scale,
};

use crate::moment::shown;
use crate::patients::shown::warning;
use crate::process::Failure;

pub struct Entry {
    pub device: String,
    pub gateway: String,
    pub patient: String,
    pub tenant: String,
    /// Create patient and gateway if they are unknown.
    pub create: bool,
    pub name: Option<String>,
    pub spo2_scale_two: Option<bool>,
    pub from_us: Option<i64>,
    pub until_us: i64,
    pub change: Change,
}

impl Entry {
    /// Returns the remarks for the person.
    pub async fn enter(self, store: &dyn Store) -> Result<Vec<String>, Failure> {
        let scope = Scope::tenant(self.tenant.clone());
        if !self.create {
            self.refuse_unknown(store, &scope).await?;
        }
        let present = store.device(&scope, &self.device).await;
        let present = present.map_err(Failure::other)?;
        let is_handed_over = present.is_some_and(|it| it.patient != self.patient);
        let lead_us = if is_handed_over { ASSIGN_LEAD_US } else { 0 };
        let assignment = Assignment {
            device: self.device,
            tenant: self.tenant,
            gateway: self.gateway,
            patient: self.patient,
            from_us: self.from_us.unwrap_or(self.change.at_us + lead_us),
            until_us: self.until_us,
            entered: self.change,
        };
        let (tenant, patient) = (&assignment.tenant, &assignment.patient);
        let decided = (self.name, self.spo2_scale_two);
        let is_new = store.patient(&scope, patient).await;
        let is_new = is_new.map_err(Failure::other)?.is_none();
        put_patient(store, tenant, patient, decided, &assignment.entered).await?;
        let assigned = store.assign(&assignment).await.map_err(Failure::other)?;
        let mut lines = vec![match &assigned {
            Assigned::Unchanged => format!(
                "{} is with {} at {} already",
                assignment.device, assignment.patient, assignment.gateway
            ),
            Assigned::New(_) => format!(
                "{} is with {} at {} from {} until {}",
                assignment.device,
                assignment.patient,
                assignment.gateway,
                shown(assignment.from_us),
                shown(assignment.until_us)
            ),
        }];
        if let Assigned::New(Some(before)) = assigned {
            let ended = Assignment {
                until_us: assignment.from_us.max(before.from_us),
                ..before
            };
            if ended.patient != assignment.patient {
                let waiting = waiting(store, &scope, &ended).await;
                lines.extend(waiting.map_err(Failure::other)?);
                let taken = taken_before(store, &scope, &ended).await;
                lines.extend(taken.map_err(Failure::other)?);
            }
        }
        let kept = kept_apart(store, &scope, &assignment.device).await;
        lines.extend(kept.map_err(Failure::other)?);
        if is_new {
            lines.extend(alike(store, &scope, &assignment.patient).await?);
        }
        Ok(lines)
    }

    async fn refuse_unknown(&self, store: &dyn Store, scope: &Scope) -> Result<(), Failure> {
        let patient = store.patient(scope, &self.patient).await;
        if patient.map_err(Failure::other)?.is_none() {
            return Err(Failure::other(format!(
                "patient `{}` is unknown: add --create, or `braid register patient {}` first",
                self.patient, self.patient
            )));
        }
        let known = store.gateway(scope, &self.gateway).await;
        if known.map_err(Failure::other)?.is_none() {
            return Err(Failure::other(format!(
                "gateway `{}` is unknown: add --create, or `braid register gateway {}` first",
                self.gateway, self.gateway
            )));
        }
        Ok(())
    }
}

/// Warnings about patients of the ward who have the same or a similar name.
async fn alike(store: &dyn Store, scope: &Scope, patient: &str) -> Result<Vec<String>, Failure> {
    let present = store.patient_records(scope, Stays::Present).await;
    let present = present.map_err(Failure::other)?;
    let own = present.iter().filter(|it| it.id == patient);
    let found = patients::likenesses(own, &present);
    Ok(found.iter().map(warning).collect())
}

/// The assignments of one device, for tests and lists.
pub async fn worn(
    store: &dyn Store,
    scope: &Scope,
    device: &str,
) -> Result<Vec<Assignment>, Failure> {
    let worn = store.assignments(scope, Of::Device(device)).await;
    worn.map_err(Failure::other)
}

/// Earlier decisions about the patient stay unless the command names new ones.
pub async fn put_patient(
    store: &dyn Store,
    tenant: &str,
    patient: &str,
    (name, spo2_scale_two): (Option<String>, Option<bool>),
    change: &Change,
) -> Result<(), Failure> {
    let scope = Scope::tenant(tenant);
    let known = store.patient(&scope, patient).await;
    let known = known.map_err(Failure::other)?;
    let is_new = known.is_none();
    let scale = known.as_ref().map_or(Spo2Scale::One, |it| it.spo2_scale);
    let entry = PatientEntry {
        id: patient.to_owned(),
        tenant: tenant.to_owned(),
        name: name
            .or(known.map(|it| it.name))
            .unwrap_or_else(|| patient.to_owned()),
        spo2_scale: match spo2_scale_two {
            Some(true) => Spo2Scale::Two,
            Some(false) => Spo2Scale::One,
            None => scale,
        },
        ..PatientEntry::default()
    };
    store.put_patient(&entry).await.map_err(Failure::other)?;
    if is_new || entry.spo2_scale != scale {
        let scales = (scale, entry.spo2_scale);
        record_scale(store, tenant, patient, scales, change)
            .await
            .map_err(Failure::other)?;
    }
    Ok(())
}
