use std::collections::BTreeSet;

use async_trait::async_trait;
use contracts::{
    alerts::{Alert, AlertState, NoticeOutcome, NoticeResult},
    patients::{Change as PatientChange, Identifier, Patient},
};
use deadpool_postgres::Transaction;
use patients::{Planned, Sensors};
use prost::Message;
use tokio_postgres::{Row, types::ToSql};

use super::{
    TimescaleStore,
    accounts::insert_audit,
    alerts::{present, transitions},
    erasure,
    fault::Fault,
    register::{assign, changed, cut, delete, of_device, rows},
    transaction,
};
use crate::{
    ASSIGN_LEAD_US, Assignment, Change, ChangePatientsError, MERGED_MAX, PatientsStore, QueryError,
    Scope, Stays, Watched, WriteError,
    alerts::ALERT,
    error::readable,
    patients::{Columns, Facts, audit, given, named, plan, record},
    register::check_texts,
};

const RESOLVED: i32 = AlertState::Resolved as i32;
const COLUMNS: &str =
    "id, name, spo2_scale::bigint, status, status_us, merged_into, revision, record, tenant";
/// A patient who belongs to no ward any more.
const DEPARTED: &str = "(p.status >= 4 OR p.merged_into <> '')";

fn patient(row: &Row) -> Patient {
    let columns = Columns {
        id: row.get(0),
        name: row.get(1),
        spo2_scale: row.get(2),
        status: row.get(3),
        status_us: row.get(4),
        merged_into: row.get(5),
        revision: u32::try_from(row.get::<_, i64>(6)).unwrap_or(u32::MAX),
    };
    record(columns, row.get(7))
}

/// Reads the patients under lock, so that of two changes one follows the other.
async fn facts(
    transaction: &Transaction<'_>,
    tenant: &str,
    changes: &[PatientChange],
) -> Result<Facts, Fault> {
    let mut facts = Facts::default();
    let ids: Vec<&str> = named(changes).into_iter().collect();
    let rows = transaction
        .query(
            &format!(
                "SELECT {COLUMNS} FROM patients WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"
            ),
            &[&ids],
        )
        .await?;
    for row in &rows {
        let found = (row.get(8), patient(row));
        facts.records.insert(row.get(0), found);
    }
    let erased = "SELECT subject FROM removals WHERE kind = 'patient' AND subject = ANY($1)";
    let rows = transaction.query(erased, &[&ids]).await?;
    facts.erased.extend(rows.iter().map(|row| row.get(0)));
    let systems: Vec<&str> = given(changes).map(|it| &*it.system).collect();
    let values: Vec<&str> = given(changes).map(|it| &*it.value).collect();
    let rows = transaction
        .query(
            "SELECT i.system, i.value, i.patient FROM patient_identifiers i
             JOIN unnest($2::text[], $3::text[]) AS w (system, value) USING (system, value) WHERE i.tenant = $1",
            &[&tenant, &systems, &values],
        )
        .await?;
    for row in &rows {
        let key = (row.get(0), row.get(1));
        facts.owners.insert(key, row.get(2));
    }
    Ok(facts)
}

async fn put(transaction: &Transaction<'_>, tenant: &str, patient: &Patient) -> Result<(), Fault> {
    let scale = i16::try_from(patient.spo2_scale.max(1)).unwrap_or(1);
    transaction
        .execute(
            "INSERT INTO patients (id, tenant, name, spo2_scale, status, status_us, merged_into, revision, record)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
             ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, name = excluded.name,
                 spo2_scale = excluded.spo2_scale, status = excluded.status, status_us = excluded.status_us,
                 merged_into = excluded.merged_into, revision = excluded.revision, record = excluded.record",
            &[
                &patient.id,
                &tenant,
                &patient.name,
                &scale,
                &patient.status,
                &patient.status_at_us,
                &patient.merged_into,
                &i64::from(patient.revision),
                &patient.encode_to_vec(),
            ],
        )
        .await?;
    let own = "DELETE FROM patient_identifiers WHERE patient = $1";
    transaction.execute(own, &[&patient.id]).await?;
    let systems: Vec<&str> = patient.identifiers.iter().map(|it| &*it.system).collect();
    let values: Vec<&str> = patient.identifiers.iter().map(|it| &*it.value).collect();
    transaction
        .execute(
            "INSERT INTO patient_identifiers SELECT $1, w.system, w.value, $2
                 FROM unnest($3::text[], $4::text[]) AS w (system, value)",
            &[&tenant, &patient.id, &systems, &values],
        )
        .await?;
    Ok(())
}

async fn apply(
    transaction: &Transaction<'_>,
    tenant: &str,
    change: &PatientChange,
    planned: &Planned,
    by: &Change,
) -> Result<(), Fault> {
    let id = &change.patient;
    let sensors = &planned.effects.sensors;
    if let Some(patient) = &planned.patient {
        put(transaction, tenant, patient).await?;
        move_sensors(transaction, id, sensors, by).await?;
    } else {
        move_sensors(transaction, id, sensors, by).await?;
        erasure::erase(transaction, id, by.at_us).await?;
    }
    if let Some(because) = planned.effects.ends {
        let open = open_alerts(transaction, "a.patient = $1", &[id]).await?;
        end(transaction, open, by.at_us, because).await?;
    }
    insert_audit(transaction, &[audit(tenant, change, planned, by)]).await
}

/// Open alerts of the patients that `which` selects.
async fn open_alerts(
    transaction: &Transaction<'_>,
    which: &str,
    of: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Alert>, Fault> {
    let rows = transaction
        .query(
            &format!(
                "SELECT a.payload FROM alerts a JOIN patients p ON p.id = a.patient
                 WHERE a.state <> {RESOLVED} AND {which} ORDER BY a.id"
            ),
            of,
        )
        .await?;
    let open = rows.iter().filter_map(|row| readable(ALERT, row.get(0)));
    Ok(open.collect())
}

/// Ends alerts with everything that would still tell people of them.
async fn end(
    transaction: &Transaction<'_>,
    open: Vec<Alert>,
    at_us: i64,
    because: &str,
) -> Result<u64, Fault> {
    if open.is_empty() {
        return Ok(0);
    }
    let ended = open
        .iter()
        .map(|it| crate::alerts::ended(it, at_us, because));
    let ended: Vec<Alert> = ended.collect();
    // The rules wrote a revision meanwhile: the next attempt continues from it.
    let new = transitions(transaction, &ended)
        .await
        .map_err(|fault| match fault {
            Fault::Conflict(ids) => Fault::Again(format!("alerts {} have changed", ids.join(", "))),
            other => other,
        })?;
    present(transaction, &new).await?;
    let ids: Vec<&str> = open.iter().map(|it| &*it.id).collect();
    for delete in [
        "DELETE FROM silent WHERE alert = ANY($1)",
        "DELETE FROM watches WHERE alert = ANY($1)",
    ] {
        transaction.execute(delete, &[&ids]).await?;
    }
    let queued = "DELETE FROM notice_queue q USING notices n WHERE n.id = q.id AND n.alert = ANY($1) RETURNING q.id";
    let notices: Vec<String> = transaction
        .query(queued, &[&ids])
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect();
    let outcome = |notice: &String| {
        let outcome = NoticeOutcome {
            notice: notice.clone(),
            result: NoticeResult::Silenced.into(),
            attempts: 0,
            at_us,
            detail: because.to_owned(),
        };
        outcome.encode_to_vec()
    };
    let outcomes: Vec<Vec<u8>> = notices.iter().map(outcome).collect();
    transaction
        .execute(
            "INSERT INTO notice_outcomes SELECT * FROM unnest($1::text[], $2::bytea[]) ON CONFLICT DO NOTHING",
            &[&notices, &outcomes],
        )
        .await?;
    Ok(open.len() as u64)
}

async fn move_sensors(
    transaction: &Transaction<'_>,
    patient: &str,
    sensors: &Sensors,
    by: &Change,
) -> Result<(), Fault> {
    match sensors {
        Sensors::Stay => Ok(()),
        Sensors::End => end_assignments(transaction, patient, by).await,
        Sensors::MoveTo(other) => {
            for worn in open_assignments(transaction, patient).await? {
                hand_over(transaction, worn, other, by).await?;
            }
            end_assignments(transaction, patient, by).await
        }
        Sensors::ReturnFrom(other) => {
            for worn in open_assignments(transaction, other).await? {
                let before = of_device(transaction, Some(&worn.tenant), &worn.device).await?;
                let came_from =
                    |it: &Assignment| it.patient == patient && it.until_us == worn.from_us;
                if before.iter().any(came_from) {
                    hand_over(transaction, worn, patient, by).await?;
                }
            }
            Ok(())
        }
    }
}

/// Assignments of one patient that end after this time, or never.
async fn assignments_after(
    transaction: &Transaction<'_>,
    patient: &str,
    after_us: i64,
) -> Result<Vec<Assignment>, Fault> {
    let rows = transaction
        .query(
            "SELECT DISTINCT device FROM assignments WHERE patient = $1 AND until_us > $2 ORDER BY device",
            &[&patient, &after_us],
        )
        .await?;
    let mut found = Vec::new();
    for row in &rows {
        let all = of_device(transaction, None, row.get(0)).await?;
        let own = |it: &Assignment| it.patient == patient && it.until_us > after_us;
        found.extend(all.into_iter().filter(own));
    }
    Ok(found)
}

async fn open_assignments(
    transaction: &Transaction<'_>,
    patient: &str,
) -> Result<Vec<Assignment>, Fault> {
    assignments_after(transaction, patient, i64::MAX - 1).await
}

async fn hand_over(
    transaction: &Transaction<'_>,
    worn: Assignment,
    to: &str,
    by: &Change,
) -> Result<(), Fault> {
    let next = Assignment {
        patient: to.to_owned(),
        from_us: (by.at_us + ASSIGN_LEAD_US).max(worn.from_us),
        entered: by.clone(),
        ..worn
    };
    assign(transaction, &next).await.map(drop)
}

/// Ends what the patient wears or would wear later. A hand-over by a merge ends in a moment.
async fn end_assignments(
    transaction: &Transaction<'_>,
    patient: &str,
    by: &Change,
) -> Result<(), Fault> {
    let end_us = by.at_us;
    let ahead_us = end_us + ASSIGN_LEAD_US;
    let mut devices = BTreeSet::new();
    for mut worn in assignments_after(transaction, patient, ahead_us).await? {
        if worn.from_us < end_us {
            cut(transaction, &worn, end_us).await?;
            worn.end_at(end_us)?;
        } else {
            delete(transaction, &worn).await?;
        }
        insert_audit(transaction, &worn.audit("end assignment", by)).await?;
        devices.insert(worn.device);
    }
    for device in devices {
        changed(transaction, &device, by.at_us).await?;
    }
    Ok(())
}

#[async_trait]
impl PatientsStore for TimescaleStore {
    async fn change_patients(
        &self,
        tenant: &str,
        changes: &[PatientChange],
        by: &Change,
    ) -> Result<Vec<Patient>, ChangePatientsError> {
        check_texts(by)?;
        let changed: Result<Result<Vec<Patient>, ChangePatientsError>, WriteError> = transaction!(self, tx => async {
            let facts = facts(tx, tenant, changes).await?;
            // A refusal has written nothing yet.
            let planned = match plan(tenant, changes, &facts, by.at_us) {
                Ok(planned) => planned,
                Err(refused) => return Ok(Err(refused)),
            };
            for (change, planned) in changes.iter().zip(&planned) {
                apply(tx, tenant, change, planned, by).await?;
            }
            let patients = planned.into_iter().filter_map(|it| it.patient);
            Ok::<_, Fault>(Ok(patients.collect()))
        });
        changed?
    }

    async fn check_patients(
        &self,
        tenant: &str,
        changes: &[PatientChange],
        at_us: i64,
    ) -> Result<Vec<Patient>, ChangePatientsError> {
        let facts = transaction!(self, tx => facts(tx, tenant, changes))?;
        let planned = plan(tenant, changes, &facts, at_us)?;
        Ok(planned.into_iter().filter_map(|it| it.patient).collect())
    }

    async fn patient_record(&self, scope: &Scope, id: &str) -> Result<Option<Patient>, QueryError> {
        let row = self
            .reader()
            .await?
            .query_opt(
                &format!(
                    "SELECT {COLUMNS} FROM patients
                     WHERE id = $2 AND tenant <> '' AND ($1::text IS NULL OR tenant = $1)"
                ),
                &[&scope.as_tenant(), &id],
            )
            .await?;
        Ok(row.as_ref().map(patient))
    }

    async fn patient_of_identifier(
        &self,
        scope: &Scope,
        identifier: &Identifier,
    ) -> Result<Option<Patient>, QueryError> {
        let row = self
            .reader()
            .await?
            .query_opt(
                &format!(
                    "SELECT {COLUMNS} FROM patients WHERE tenant <> '' AND id IN (
                         SELECT patient FROM patient_identifiers
                         WHERE ($1::text IS NULL OR tenant = $1) AND system = $2 AND value = $3) LIMIT 1"
                ),
                &[&scope.as_tenant(), &identifier.system, &identifier.value],
            )
            .await?;
        Ok(row.as_ref().map(patient))
    }

    async fn patient_records_page(
        &self,
        scope: &Scope,
        stays: Stays,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Patient>, QueryError> {
        let all = stays == Stays::All;
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT {COLUMNS} FROM patients p
                     WHERE id > $2 AND tenant <> '' AND ($1::text IS NULL OR tenant = $1)
                         AND ($4 OR NOT {DEPARTED}) ORDER BY id LIMIT $3"
                ),
                &[&scope.as_tenant(), &after, &rows(limit), &all],
            )
            .await?;
        Ok(rows.iter().map(patient).collect())
    }

    async fn merged_records(&self, scope: &Scope, id: &str) -> Result<Vec<Patient>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT {COLUMNS} FROM patients
                     WHERE merged_into = $2 AND merged_into <> '' AND ($1::text IS NULL OR tenant = $1)
                     ORDER BY id LIMIT $3"
                ),
                &[&scope.as_tenant(), &id, &rows(MERGED_MAX)],
            )
            .await?;
        Ok(rows.iter().map(patient).collect())
    }

    async fn watches(&self, since_us: i64) -> Result<Vec<(String, Watched)>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT id, status, status_us FROM patients WHERE status IN (1, 3)
                 UNION ALL SELECT id, status, status_us FROM patients WHERE status = 2 AND status_us > $1",
            )
            .await?;
        let rows = connection.query(&statement, &[&since_us]).await?;
        let watched = |row: &Row| (row.get(0), Watched::of(row.get(1), row.get(2)));
        Ok(rows.iter().map(watched).collect())
    }

    async fn is_erased(&self, id: &str) -> Result<bool, QueryError> {
        let erased = "SELECT 1 FROM removals WHERE kind = 'patient' AND subject = $1";
        let row = self.reader().await?.query_opt(erased, &[&id]).await?;
        Ok(row.is_some())
    }

    async fn end_departed(&self, at_us: i64) -> Result<u64, WriteError> {
        transaction!(self, tx => async {
            let open = open_alerts(tx, DEPARTED, &[]).await?;
            end(tx, open, at_us, "the patient has departed").await
        })
    }

    async fn erase_step(&self, since_us: i64) -> Result<u64, WriteError> {
        transaction!(self, tx => erasure::step(tx, since_us))
    }
}
