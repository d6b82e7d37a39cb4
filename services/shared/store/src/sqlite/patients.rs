use std::collections::BTreeSet;

use async_trait::async_trait;
use contracts::{
    alerts::{Alert, AlertState, NoticeOutcome, NoticeResult},
    patients::{Change as PatientChange, Identifier, Patient},
};
use patients::{Planned, Sensors};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, Row};

use super::{
    SqliteStore,
    accounts::insert_audit,
    alerts, erasure,
    notices::settle,
    readable_rows,
    register::{assign, changed, end_of, of_device},
    writer::Writing,
};
use crate::{
    ASSIGN_LEAD_US, AlertsBatch, Assignment, Change, ChangePatientsError, MERGED_MAX,
    PatientsStore, QueryError, Scope, Stays, Watched, WriteError,
    alerts::ALERT,
    error::readable,
    patients::{Columns, Facts, audit, given, named, plan, record},
    register::check_texts,
};

const RESOLVED: i32 = AlertState::Resolved as i32;
const COLUMNS: &str =
    "id, name, spo2_scale, status, status_us, merged_into, revision, record, tenant";
/// A patient who belongs to no ward any more.
const DEPARTED: &str = "(p.status >= 4 OR p.merged_into <> '')";

fn patient(row: &Row<'_>) -> rusqlite::Result<Patient> {
    let columns = Columns {
        id: row.get(0)?,
        name: row.get(1)?,
        spo2_scale: row.get(2)?,
        status: row.get(3)?,
        status_us: row.get(4)?,
        merged_into: row.get(5)?,
        revision: row.get(6)?,
    };
    Ok(record(columns, row.get_ref(7)?.as_blob()?))
}

fn facts(
    connection: &Connection,
    tenant: &str,
    changes: &[PatientChange],
) -> rusqlite::Result<Facts> {
    let mut facts = Facts::default();
    let mut row =
        connection.prepare_cached(&format!("SELECT {COLUMNS} FROM patients WHERE id = ?1"))?;
    for id in named(changes) {
        let found = row.query_row([id], |row| Ok((row.get(8)?, patient(row)?)));
        if let Some(found) = found.optional()? {
            facts.records.insert(id.to_owned(), found);
        }
        if erasure::is_erased(connection, id)? {
            facts.erased.insert(id.to_owned());
        }
    }
    let mut owner = connection.prepare_cached(
        "SELECT patient FROM patient_identifiers WHERE tenant = ?1 AND system = ?2 AND value = ?3",
    )?;
    for it in given(changes) {
        let found = owner.query_row((tenant, &it.system, &it.value), |row| row.get(0));
        if let Some(found) = found.optional()? {
            let key = (it.system.clone(), it.value.clone());
            facts.owners.insert(key, found);
        }
    }
    Ok(facts)
}

fn put(connection: &Connection, tenant: &str, patient: &Patient) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO patients (id, tenant, name, spo2_scale, status, status_us, merged_into, revision, record)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, name = excluded.name,
                 spo2_scale = excluded.spo2_scale, status = excluded.status, status_us = excluded.status_us,
                 merged_into = excluded.merged_into, revision = excluded.revision, record = excluded.record",
        )?
        .execute((
            &patient.id,
            tenant,
            &patient.name,
            patient.spo2_scale.max(1),
            patient.status,
            patient.status_at_us,
            &patient.merged_into,
            patient.revision,
            patient.encode_to_vec(),
        ))?;
    connection
        .prepare_cached("DELETE FROM patient_identifiers WHERE patient = ?1")?
        .execute([&patient.id])?;
    let mut insert =
        connection.prepare_cached("INSERT INTO patient_identifiers VALUES (?1, ?2, ?3, ?4)")?;
    for it in &patient.identifiers {
        insert.execute((tenant, &it.system, &it.value, &patient.id))?;
    }
    Ok(())
}

fn apply(
    writing: &Writing<'_>,
    tenant: &str,
    change: &PatientChange,
    planned: &Planned,
    by: &Change,
) -> Result<(), WriteError> {
    let connection = writing.connection;
    let id = &change.patient;
    let sensors = &planned.effects.sensors;
    if let Some(patient) = &planned.patient {
        put(connection, tenant, patient)?;
        move_sensors(connection, id, sensors, by)?;
    } else {
        move_sensors(connection, id, sensors, by)?;
        erasure::erase(connection, id, by.at_us)?;
    }
    if let Some(because) = planned.effects.ends {
        let open = open_alerts(connection, "a.patient = ?1", id)?;
        end(writing, open, by.at_us, because)?;
    }
    insert_audit(connection, &[audit(tenant, change, planned, by)])
}

/// Open alerts of the patients that `which` selects.
fn open_alerts(connection: &Connection, which: &str, of: &str) -> rusqlite::Result<Vec<Alert>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT a.payload FROM alerts a JOIN patients p ON p.id = a.patient
         WHERE a.state <> {RESOLVED} AND {which}"
    ))?;
    let payloads = statement.query_map([of], |row| row.get::<_, Vec<u8>>(0))?;
    let mut open = Vec::new();
    for payload in payloads {
        open.extend(readable::<Alert>(ALERT, &payload?));
    }
    Ok(open)
}

/// Ends alerts with everything that would still tell people of them.
fn end(
    writing: &Writing<'_>,
    open: Vec<Alert>,
    at_us: i64,
    because: &str,
) -> Result<u64, WriteError> {
    let connection = writing.connection;
    let batch = AlertsBatch {
        transitions: open
            .iter()
            .map(|alert| crate::alerts::ended(alert, at_us, because))
            .collect(),
        states: Vec::new(),
    };
    alerts::write(writing, &batch)?;
    let mut silent = connection.prepare_cached("DELETE FROM silent WHERE alert = ?1")?;
    let mut timer = connection.prepare_cached("DELETE FROM watches WHERE alert = ?1")?;
    let mut queued = connection.prepare_cached(
        "SELECT q.id FROM notices n JOIN notice_queue q ON q.id = n.id WHERE n.alert = ?1",
    )?;
    for alert in &open {
        silent.execute([&alert.id])?;
        timer.execute([&alert.id])?;
        let ids: Vec<String> = queued
            .query_map([&alert.id], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for notice in ids {
            let outcome = NoticeOutcome {
                notice,
                result: NoticeResult::Silenced.into(),
                attempts: 0,
                at_us,
                detail: because.to_owned(),
            };
            settle(connection, &outcome)?;
        }
    }
    Ok(open.len() as u64)
}

fn move_sensors(
    connection: &Connection,
    patient: &str,
    sensors: &Sensors,
    by: &Change,
) -> Result<(), WriteError> {
    match sensors {
        Sensors::Stay => Ok(()),
        Sensors::End => end_assignments(connection, patient, by),
        Sensors::MoveTo(other) => {
            for worn in open_assignments(connection, patient)? {
                hand_over(connection, worn, other, by)?;
            }
            end_assignments(connection, patient, by)
        }
        Sensors::ReturnFrom(other) => {
            for worn in open_assignments(connection, other)? {
                let before = of_device(connection, Some(&worn.tenant), &worn.device)?;
                let came_from =
                    |it: &Assignment| it.patient == patient && it.until_us == worn.from_us;
                if before.iter().any(came_from) {
                    hand_over(connection, worn, patient, by)?;
                }
            }
            Ok(())
        }
    }
}

/// Assignments without an end, of one patient.
fn open_assignments(connection: &Connection, patient: &str) -> rusqlite::Result<Vec<Assignment>> {
    let devices: Vec<String> = connection
        .prepare_cached(
            "SELECT device FROM assignments WHERE patient = ?1 AND until_us = 9223372036854775807",
        )?
        .query_map([patient], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut open = Vec::new();
    for device in devices {
        let all = of_device(connection, None, &device)?;
        open.extend(
            all.into_iter()
                .filter(|it| it.is_open() && it.patient == patient),
        );
    }
    Ok(open)
}

fn hand_over(
    connection: &Connection,
    worn: Assignment,
    to: &str,
    by: &Change,
) -> Result<(), WriteError> {
    let next = Assignment {
        patient: to.to_owned(),
        from_us: (by.at_us + ASSIGN_LEAD_US).max(worn.from_us),
        entered: by.clone(),
        ..worn
    };
    assign(connection, &next).map(drop)
}

/// Ends what the patient wears or would wear later.
fn end_assignments(connection: &Connection, patient: &str, by: &Change) -> Result<(), WriteError> {
    let devices: BTreeSet<String> = connection
        .prepare_cached("SELECT device FROM assignments WHERE patient = ?1 AND until_us > ?2")?
        .query_map((patient, by.at_us), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for device in devices {
        for mut worn in of_device(connection, None, &device)? {
            // A hand-over by a merge ends in a moment.
            let end_us = by.at_us;
            if worn.patient != patient || worn.until_us <= end_us + ASSIGN_LEAD_US {
                continue;
            }
            if worn.from_us < end_us {
                worn.end_at(end_us)?;
                end_of(connection, &worn)?;
            } else {
                connection
                    .prepare_cached("DELETE FROM assignments WHERE device = ?1 AND from_us = ?2")?
                    .execute((&worn.device, worn.from_us))?;
            }
            insert_audit(connection, &worn.audit("end assignment", by))?;
        }
        changed(connection, &device, by.at_us)?;
    }
    Ok(())
}

#[async_trait]
impl PatientsStore for SqliteStore {
    async fn change_patients(
        &self,
        tenant: &str,
        changes: &[PatientChange],
        by: &Change,
    ) -> Result<Vec<Patient>, ChangePatientsError> {
        check_texts(by)?;
        let (tenant, changes, by) = (tenant.to_owned(), changes.to_vec(), by.clone());
        self.write(move |writing| {
            let facts = facts(writing.connection, &tenant, &changes)?;
            // A refusal has written nothing yet.
            let planned = match plan(&tenant, &changes, &facts, by.at_us) {
                Ok(planned) => planned,
                Err(refused) => return Ok(Err(refused)),
            };
            for (change, planned) in changes.iter().zip(&planned) {
                apply(writing, &tenant, change, planned, &by)?;
            }
            Ok(Ok(planned
                .into_iter()
                .filter_map(|it| it.patient)
                .collect()))
        })
        .await?
    }

    async fn check_patients(
        &self,
        tenant: &str,
        changes: &[PatientChange],
        at_us: i64,
    ) -> Result<Vec<Patient>, ChangePatientsError> {
        let (asked, of) = (tenant.to_owned(), changes.to_vec());
        let facts = self.read(move |connection| Ok(facts(connection, &asked, &of)?));
        let facts = facts
            .await
            .map_err(|error| WriteError::Unavailable(error.to_string()))?;
        let planned = plan(tenant, changes, &facts, at_us)?;
        Ok(planned.into_iter().filter_map(|it| it.patient).collect())
    }

    async fn patient_record(&self, scope: &Scope, id: &str) -> Result<Option<Patient>, QueryError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM patients
                     WHERE id = ?2 AND tenant <> '' AND (?1 IS NULL OR tenant = ?1)"
                ))?
                .query_row((tenant, id), patient)
                .optional()?)
        })
        .await
    }

    async fn patient_of_identifier(
        &self,
        scope: &Scope,
        identifier: &Identifier,
    ) -> Result<Option<Patient>, QueryError> {
        let (tenant, it) = (scope.as_tenant().map(str::to_owned), identifier.clone());
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM patients WHERE tenant <> '' AND id IN (
                         SELECT patient FROM patient_identifiers
                         WHERE (?1 IS NULL OR tenant = ?1) AND system = ?2 AND value = ?3)"
                ))?
                .query_row((tenant, it.system, it.value), patient)
                .optional()?)
        })
        .await
    }

    async fn patient_records_page(
        &self,
        scope: &Scope,
        stays: Stays,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Patient>, QueryError> {
        let (tenant, after) = (scope.as_tenant().map(str::to_owned), after.to_owned());
        let all = stays == Stays::All;
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM patients p
                 WHERE id > ?2 AND tenant <> '' AND (?1 IS NULL OR tenant = ?1) AND (?4 OR NOT {DEPARTED})
                 ORDER BY id LIMIT ?3"
            ))?;
            let rows = statement.query_map((tenant, after, limit, all), patient)?;
            readable_rows("patient", rows)
        })
        .await
    }

    async fn merged_records(&self, scope: &Scope, id: &str) -> Result<Vec<Patient>, QueryError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM patients
                 WHERE merged_into = ?2 AND merged_into <> '' AND (?1 IS NULL OR tenant = ?1)
                 ORDER BY id LIMIT ?3"
            ))?;
            let rows = statement.query_map((tenant, id, MERGED_MAX), patient)?;
            readable_rows("patient", rows)
        })
        .await
    }

    async fn watches(&self, since_us: i64) -> Result<Vec<(String, Watched)>, QueryError> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, status, status_us FROM patients WHERE status IN (1, 3)
                 UNION ALL SELECT id, status, status_us FROM patients WHERE status = 2 AND status_us > ?1",
            )?;
            let rows = statement.query_map([since_us], |row| {
                Ok((row.get(0)?, Watched::of(row.get(1)?, row.get(2)?)))
            })?;
            readable_rows("patient", rows)
        })
        .await
    }

    async fn is_erased(&self, id: &str) -> Result<bool, QueryError> {
        let id = id.to_owned();
        self.read(move |connection| Ok(erasure::is_erased(connection, &id)?))
            .await
    }

    async fn end_departed(&self, at_us: i64) -> Result<u64, WriteError> {
        let which = format!("?1 = '' AND {DEPARTED}");
        let look = which.clone();
        let open = self.read(move |connection| Ok(open_alerts(connection, &look, "")?.len()));
        let open = open
            .await
            .map_err(|error| WriteError::Unavailable(error.to_string()))?;
        // The usual look finds nothing, and writes nothing.
        if open == 0 {
            return Ok(0);
        }
        self.write(move |writing| {
            let open = open_alerts(writing.connection, &which, "")?;
            end(writing, open, at_us, "the patient has departed")
        })
        .await
    }

    async fn erase_step(&self, since_us: i64) -> Result<u64, WriteError> {
        let has_any = self.read(move |connection| Ok(erasure::has_any(connection, since_us)?));
        let has_any = has_any
            .await
            .map_err(|error| WriteError::Unavailable(error.to_string()))?;
        if !has_any {
            return Ok(0);
        }
        self.write(move |writing| Ok(erasure::step(writing.connection, since_us)?))
            .await
    }
}
