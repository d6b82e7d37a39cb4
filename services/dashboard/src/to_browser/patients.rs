//! Calls about patients' records and sensors. Every answer and every change is in the audit log.

use std::sync::Arc;

use ::patients::Refusal;
use contracts::patients::patients_service_server::PatientsService;
use contracts::patients::{
    AssignSensorRequest, AssignSensorResponse, ChangePatientsRequest, ChangePatientsResponse,
    EndAssignmentRequest, EndAssignmentResponse, GetRecordRequest, GetRecordResponse,
    ListAssignmentsRequest, ListAssignmentsResponse, ListRecordsRequest, ListRecordsResponse,
};
use store::{Change, ChangePatientsError, Of, Scope, Stays};
use tonic::{Request, Response, Status};

use super::app::App;
use super::calls::{audited, identifier, person, plain, store_status};
use super::kiosk;
use crate::patients::{self, PatientsError, is_of_administrators};
use crate::sensors::{self, SensorsError};
use crate::sessions::Person;

/// Records in one answer.
const RECORDS_MAX: u32 = 1_000;

pub(crate) struct Patients {
    pub app: Arc<App>,
}

/// A wall display shows the ward and no records.
fn reader<T>(request: &Request<T>) -> Result<Person, Status> {
    let person = person(request)?;
    if person.is_kiosk {
        return Err(Status::permission_denied(kiosk::LOOKS_ONLY));
    }
    Ok(person)
}

fn may_act(person: &Person) -> Result<(), Status> {
    if person.may_act() {
        return Ok(());
    }
    Err(Status::permission_denied(
        "viewers look only; this needs a clinician or an administrator",
    ))
}

fn may_change(person: &Person, request: &ChangePatientsRequest) -> Result<(), Status> {
    may_act(person)?;
    let mut operations = request.changes.iter().map(|it| it.operation());
    if operations.any(is_of_administrators) && !person.is_administrator() {
        return Err(Status::permission_denied(
            "merging, unmerging and erasing need an administrator",
        ));
    }
    Ok(())
}

fn status(error: PatientsError) -> Status {
    match error {
        PatientsError::Reason => Status::invalid_argument(error.to_string()),
        PatientsError::Change(ChangePatientsError::Refused { index, refusal }) => {
            let reason = format!("changes[{index}]: {refusal}");
            match refusal {
                Refusal::Invalid(_) | Refusal::Operation => Status::invalid_argument(reason),
                _ => Status::failed_precondition(reason),
            }
        }
        PatientsError::Change(ChangePatientsError::Write(error)) | PatientsError::Write(error) => {
            unwritten(error)
        }
        PatientsError::Query(error) => store_status(&error),
    }
}

fn unwritten(error: store::WriteError) -> Status {
    match error {
        store::WriteError::Invalid(reason) => Status::failed_precondition(reason),
        error => {
            tracing::warn!(%error, "a change of patients failed because of the store");
            Status::unavailable("the store does not answer; try again")
        }
    }
}

fn unassigned(error: SensorsError) -> Status {
    match error {
        SensorsError::Invalid(_) => Status::invalid_argument(error.to_string()),
        SensorsError::NoPatient(_) | SensorsError::NoGateway(_) | SensorsError::NotWorn(_) => {
            Status::failed_precondition(error.to_string())
        }
        SensorsError::Write(error) => unwritten(error),
        SensorsError::Query(error) => store_status(&error),
    }
}

/// At most [`RECORDS_MAX`].
fn limited(limit: u32) -> usize {
    match limit {
        0 => RECORDS_MAX as usize,
        limit => limit.min(RECORDS_MAX) as usize,
    }
}

fn by(person: &Person, reason: &str) -> Result<Change, Status> {
    plain("reason", reason)?;
    Ok(Change {
        author: person.name.clone(),
        reason: reason.trim().to_owned(),
        at_us: contracts::now_us(),
    })
}

#[tonic::async_trait]
impl PatientsService for Patients {
    async fn list_records(
        &self,
        request: Request<ListRecordsRequest>,
    ) -> Result<Response<ListRecordsResponse>, Status> {
        let person = reader(&request)?;
        let request = request.into_inner();
        identifier("after", &request.after)?;
        if let Some(it) = &request.identifier {
            identifier("system", &it.system)?;
            identifier("value", &it.value)?;
        }
        audited(&self.app, &person, "read patients", "", String::new()).await?;
        let scope = Scope::tenant(person.tenant.clone());
        if let Some(it) = &request.identifier {
            let found = self.app.store.patient_of_identifier(&scope, it).await;
            let found = found.map_err(|error| store_status(&error))?;
            return Ok(Response::new(ListRecordsResponse {
                patients: found.into_iter().collect(),
                more: false,
            }));
        }
        let stays = match request.include_departed {
            true => Stays::All,
            false => Stays::Present,
        };
        let limit = limited(request.limit);
        let store = &self.app.store;
        let page = store.patient_records_page(&scope, stays, &request.after, limit);
        let patients = page.await.map_err(|error| store_status(&error))?;
        Ok(Response::new(ListRecordsResponse {
            more: patients.len() >= limit,
            patients,
        }))
    }

    async fn get_record(
        &self,
        request: Request<GetRecordRequest>,
    ) -> Result<Response<GetRecordResponse>, Status> {
        let person = reader(&request)?;
        let id = request.into_inner().patient;
        audited(&self.app, &person, "read patient", &id, String::new()).await?;
        let scope = Scope::tenant(person.tenant.clone());
        let patient = self.app.store.patient_record(&scope, &id).await;
        let patient = patient.map_err(|error| store_status(&error))?;
        let patient = patient.ok_or_else(|| Status::not_found("there is no such patient"))?;
        let merged = self.app.store.merged_records(&scope, &id).await;
        Ok(Response::new(GetRecordResponse {
            patient: Some(patient),
            merged: merged.map_err(|error| store_status(&error))?,
        }))
    }

    async fn change_patients(
        &self,
        request: Request<ChangePatientsRequest>,
    ) -> Result<Response<ChangePatientsResponse>, Status> {
        let person = reader(&request)?;
        let request = request.into_inner();
        may_change(&person, &request)?;
        let by = by(&person, &request.reason)?;
        let (store, tenant) = (self.app.store.as_ref(), &person.tenant);
        let changed = if request.dry_run {
            let detail = format!("{} changes", request.changes.len());
            audited(&self.app, &person, "check patients", "", detail).await?;
            patients::check(store, tenant, &request.changes, &by).await
        } else {
            patients::change(store, tenant, &request.changes, &by).await
        };
        let changed = changed.map_err(status)?;
        // The ward follows at once.
        self.app.live.register_outdated.notify_one();
        Ok(Response::new(ChangePatientsResponse {
            patients: changed.patients,
            likenesses: changed.likenesses,
        }))
    }

    async fn list_assignments(
        &self,
        request: Request<ListAssignmentsRequest>,
    ) -> Result<Response<ListAssignmentsResponse>, Status> {
        let person = reader(&request)?;
        let request = request.into_inner();
        identifier("sensor", &request.sensor)?;
        identifier("after", &request.after)?;
        let (sensor, patient) = (&request.sensor, &request.patient);
        let (of, detail) = match (sensor.as_str(), patient.as_str()) {
            ("", "") => (None, String::new()),
            ("", patient) => (Some(Of::Patient(patient)), String::new()),
            (sensor, _) => (Some(Of::Device(sensor)), format!("sensor {sensor}")),
        };
        audited(&self.app, &person, "read assignments", patient, detail).await?;
        let (store, scope) = (&self.app.store, Scope::tenant(person.tenant.clone()));
        let limit = limited(request.limit);
        let (assignments, more) = match of {
            None => {
                let now_us = contracts::now_us();
                let page = store.assignments_at(&scope, now_us, &request.after, limit);
                let page = page.await.map_err(|error| store_status(&error))?;
                let more = page.len() >= limit;
                (page, more)
            }
            Some(of) => {
                let worn = store.assignments(&scope, of);
                let mut worn = worn.await.map_err(|error| store_status(&error))?;
                worn.sort_by_key(|it| std::cmp::Reverse(it.from_us));
                let more = worn.len() > limit;
                worn.truncate(limit);
                (worn, more)
            }
        };
        Ok(Response::new(ListAssignmentsResponse {
            assignments: assignments.into_iter().map(sensors::as_shown).collect(),
            more,
        }))
    }

    async fn assign_sensor(
        &self,
        request: Request<AssignSensorRequest>,
    ) -> Result<Response<AssignSensorResponse>, Status> {
        let person = reader(&request)?;
        may_act(&person)?;
        let request = request.into_inner();
        identifier("patient", &request.patient)?;
        identifier("gateway", &request.gateway)?;
        let by = by(&person, &request.reason)?;
        if request.dry_run {
            let detail = format!("sensor {}", request.sensor);
            let patient = &request.patient;
            audited(&self.app, &person, "check assignment", patient, detail).await?;
        }
        let store = self.app.store.as_ref();
        let assigned = sensors::assign(store, &person.tenant, request, by).await;
        let assigned = assigned.map_err(unassigned)?;
        self.app.live.register_outdated.notify_one();
        Ok(Response::new(assigned))
    }

    async fn end_assignment(
        &self,
        request: Request<EndAssignmentRequest>,
    ) -> Result<Response<EndAssignmentResponse>, Status> {
        let person = reader(&request)?;
        may_act(&person)?;
        let request = request.into_inner();
        let by = by(&person, &request.reason)?;
        let store = self.app.store.as_ref();
        let ended = sensors::end(store, &person.tenant, &request.sensor, &by).await;
        let ended = ended.map_err(unassigned)?;
        self.app.live.register_outdated.notify_one();
        Ok(Response::new(ended))
    }
}
