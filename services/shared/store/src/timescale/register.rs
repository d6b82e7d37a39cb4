use async_trait::async_trait;
use deadpool_postgres::Transaction;
use tokio_postgres::{Row, types::ToSql};

use super::{TimescaleStore, accounts::insert_audit, fault::Fault, transaction};
use crate::{
    ASSIGNMENTS_LISTED_MAX, Assigned, Assignment, Change, DeviceEntry, GatewayEntry, Of,
    PatientEntry, PatientStatus, QueryError, Register, Scope, Spo2Scale, WriteError,
    patients::{check_wearer, erased},
    register::{Plan, check_texts, plan, reserved},
};

/// Creates the row or takes over one without a tenant; refuses a row of another tenant.
async fn put(
    transaction: &Transaction<'_>,
    what: &str,
    id: &str,
    tenant: &str,
    insert: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<(), Fault> {
    if let Some(reason) = reserved(what, id) {
        return Err(Fault::Invalid(reason));
    }
    if id.is_empty() || tenant.is_empty() {
        return Err(Fault::Invalid(format!(
            "a {what} needs an id and a tenant, for example `{what}-1` and `{}`",
            crate::DEFAULT_TENANT
        )));
    }
    if transaction.execute(insert, values).await? == 0 {
        return Err(Fault::Invalid(format!(
            "{what} `{id}` belongs to another tenant"
        )));
    }
    Ok(())
}

async fn put_patient(transaction: &Transaction<'_>, entry: &PatientEntry) -> Result<(), Fault> {
    let scale = i16::from(entry.spo2_scale.number());
    let gone = transaction
        .query_opt(
            "SELECT 1 FROM removals WHERE kind = 'patient' AND subject = $1",
            &[&entry.id],
        )
        .await?;
    if gone.is_some() {
        return Err(Fault::Invalid(erased(&entry.id)));
    }
    put(
        transaction,
        "patient",
        &entry.id,
        &entry.tenant,
        "INSERT INTO patients (id, tenant, name, spo2_scale, status) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, name = excluded.name, spo2_scale = excluded.spo2_scale
             WHERE patients.tenant IN ('', excluded.tenant)",
        &[
            &entry.id,
            &entry.tenant,
            &entry.name,
            &scale,
            &(entry.status as i32),
        ],
    )
    .await
}

async fn put_gateway(transaction: &Transaction<'_>, id: &str, tenant: &str) -> Result<(), Fault> {
    put(
        transaction,
        "gateway",
        id,
        tenant,
        "INSERT INTO gateways (id, tenant) VALUES ($1, $2)
         ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant WHERE gateways.tenant IN ('', excluded.tenant)",
        &[&id, &tenant],
    )
    .await
}

const PATIENT_COLUMNS: &str = "id, tenant, name, spo2_scale, status, merged_into <> ''";

const ASSIGNMENT_COLUMNS: &str = "a.device, d.tenant, a.gateway, a.patient, a.from_us, a.until_us, a.author, a.reason, a.entered_us";

fn assignment(row: &Row) -> Assignment {
    Assignment {
        device: row.get(0),
        tenant: row.get(1),
        gateway: row.get(2),
        patient: row.get(3),
        from_us: row.get(4),
        until_us: row.get(5),
        entered: Change {
            author: row.get(6),
            reason: row.get(7),
            at_us: row.get(8),
        },
    }
}

/// All assignments of one device in scope. Its row is locked if it exists, so that no two changes
/// run at once.
pub(super) async fn of_device(
    transaction: &Transaction<'_>,
    tenant: Option<&str>,
    device: &str,
) -> Result<Vec<Assignment>, Fault> {
    transaction
        .execute("SELECT 1 FROM devices WHERE id = $1 FOR UPDATE", &[&device])
        .await?;
    let rows = transaction
        .query(
            &format!(
                "SELECT {ASSIGNMENT_COLUMNS} FROM assignments a JOIN devices d ON d.id = a.device
                 WHERE a.device = $2 AND ($1::text IS NULL OR d.tenant = $1) ORDER BY a.from_us"
            ),
            &[&tenant, &device],
        )
        .await?;
    Ok(rows.iter().map(assignment).collect())
}

/// The time of a change always rises, whatever the writer's clock shows, because readers look for
/// later times.
pub(super) async fn changed(
    transaction: &Transaction<'_>,
    device: &str,
    at_us: i64,
) -> Result<(), Fault> {
    transaction
        .execute(
            "UPDATE devices SET changed_us = greatest(least(changed_us, 9223372036854775806) + 1, $2) WHERE id = $1",
            &[&device, &at_us],
        )
        .await?;
    Ok(())
}

pub(super) async fn cut(
    transaction: &Transaction<'_>,
    assignment: &Assignment,
    until_us: i64,
) -> Result<(), Fault> {
    transaction
        .execute(
            "UPDATE assignments SET until_us = $3 WHERE device = $1 AND from_us = $2",
            &[&assignment.device, &assignment.from_us, &until_us],
        )
        .await?;
    Ok(())
}

pub(super) async fn delete(
    transaction: &Transaction<'_>,
    assignment: &Assignment,
) -> Result<u64, Fault> {
    Ok(transaction
        .execute(
            "DELETE FROM assignments WHERE device = $1 AND from_us = $2",
            &[&assignment.device, &assignment.from_us],
        )
        .await?)
}

pub(super) async fn assign(
    transaction: &Transaction<'_>,
    new: &Assignment,
) -> Result<Assigned, Fault> {
    // First, so that its row is locked when the assignments are read.
    // A device without assignments may change its tenant.
    put(
        transaction,
        "device",
        &new.device,
        &new.tenant,
        "INSERT INTO devices VALUES ($1, $2, $3)
         ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant,
             changed_us = greatest(least(devices.changed_us, 9223372036854775806) + 1, excluded.changed_us)
             WHERE devices.tenant = excluded.tenant OR NOT EXISTS (SELECT 1 FROM assignments WHERE device = excluded.id)",
        &[&new.device, &new.tenant, &new.entered.at_us],
    )
    .await?;
    let existing = of_device(transaction, Some(&new.tenant), &new.device).await?;
    let Some(Plan {
        cut: shorter,
        replaced,
    }) = plan(&existing, new)?
    else {
        return Ok(Assigned::Unchanged);
    };
    put_gateway(transaction, &new.gateway, &new.tenant).await?;
    let wearer = transaction
        .query_opt(
            &format!(
                "SELECT {PATIENT_COLUMNS} FROM patients WHERE id = $1 AND tenant = $2 AND tenant <> ''"
            ),
            &[&new.patient, &new.tenant],
        )
        .await?;
    if let Some(wearer) = wearer.as_ref().map(patient) {
        check_wearer(&wearer, new)?;
    } else {
        let patient = PatientEntry {
            id: new.patient.clone(),
            tenant: new.tenant.clone(),
            name: new.patient.clone(),
            ..PatientEntry::default()
        };
        put_patient(transaction, &patient).await?;
    }
    if let Some(shorter) = &shorter {
        cut(transaction, shorter, new.from_us).await?;
    }
    if let Some(replaced) = &replaced {
        delete(transaction, replaced).await?;
    }
    transaction
        .execute(
            "INSERT INTO assignments VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &new.device,
                &new.from_us,
                &new.until_us,
                &new.gateway,
                &new.patient,
                &new.entered.author,
                &new.entered.reason,
                &new.entered.at_us,
            ],
        )
        .await?;
    insert_audit(transaction, &new.audit("assign device", &new.entered)).await?;
    Ok(Assigned::New(shorter.or(replaced)))
}

async fn end(
    transaction: &Transaction<'_>,
    tenant: Option<&str>,
    device: &str,
    until_us: i64,
    change: &Change,
) -> Result<Option<Assignment>, Fault> {
    check_texts(change)?;
    let existing = of_device(transaction, tenant, device).await?;
    let Some(mut open) = existing.into_iter().find(Assignment::is_open) else {
        return Ok(None);
    };
    open.end_at(until_us)?;
    cut(transaction, &open, until_us).await?;
    changed(transaction, device, change.at_us).await?;
    insert_audit(transaction, &open.audit("end assignment", change)).await?;
    Ok(Some(open))
}

async fn remove(
    transaction: &Transaction<'_>,
    tenant: Option<&str>,
    device: &str,
    from_us: Option<i64>,
    change: &Change,
) -> Result<u64, Fault> {
    check_texts(change)?;
    let mut removed = 0;
    for existing in of_device(transaction, tenant, device).await? {
        if from_us.is_some_and(|from_us| from_us != existing.from_us) {
            continue;
        }
        removed += delete(transaction, &existing).await?;
        insert_audit(transaction, &existing.audit("remove assignment", change)).await?;
    }
    if removed > 0 {
        changed(transaction, device, change.at_us).await?;
    }
    Ok(removed)
}

fn patient(row: &Row) -> PatientEntry {
    PatientEntry {
        id: row.get(0),
        tenant: row.get(1),
        name: row.get(2),
        spo2_scale: Spo2Scale::of_number(row.get::<_, i16>(3).into()),
        status: PatientStatus::try_from(row.get::<_, i32>(4)).unwrap_or_default(),
        is_merged: row.get(5),
    }
}

fn gateway(row: &Row) -> GatewayEntry {
    GatewayEntry {
        id: row.get(0),
        tenant: row.get(1),
    }
}

pub(super) fn rows(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[async_trait]
impl Register for TimescaleStore {
    async fn put_patient(&self, entry: &PatientEntry) -> Result<(), WriteError> {
        transaction!(self, tx => put_patient(tx, entry))
    }

    async fn put_gateway(&self, entry: &GatewayEntry) -> Result<(), WriteError> {
        transaction!(self, tx => put_gateway(tx, &entry.id, &entry.tenant))
    }

    async fn assign(&self, assignment: &Assignment) -> Result<Assigned, WriteError> {
        transaction!(self, tx => assign(tx, assignment))
    }

    async fn end_assignment(
        &self,
        scope: &Scope,
        device: &str,
        until_us: i64,
        change: &Change,
    ) -> Result<Option<Assignment>, WriteError> {
        transaction!(self, tx => end(tx, scope.as_tenant(), device, until_us, change))
    }

    async fn remove_assignments(
        &self,
        scope: &Scope,
        device: &str,
        from_us: Option<i64>,
        change: &Change,
    ) -> Result<u64, WriteError> {
        transaction!(self, tx => remove(tx, scope.as_tenant(), device, from_us, change))
    }

    async fn assignments(&self, scope: &Scope, of: Of<'_>) -> Result<Vec<Assignment>, QueryError> {
        let (column, id) = match of {
            Of::Everything => ("$2::text IS NULL", None),
            Of::Device(id) => ("a.device = $2", Some(id)),
            Of::Gateway(id) => ("a.gateway = $2", Some(id)),
            Of::Patient(id) => ("a.patient = $2", Some(id)),
        };
        let limit = i64::try_from(ASSIGNMENTS_LISTED_MAX).unwrap_or(i64::MAX);
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT {ASSIGNMENT_COLUMNS} FROM assignments a JOIN devices d ON d.id = a.device
                     WHERE {column} AND ($1::text IS NULL OR d.tenant = $1) ORDER BY a.entered_us DESC LIMIT $3"
                ),
                &[&scope.as_tenant(), &id, &limit],
            )
            .await?;
        let mut found: Vec<Assignment> = rows.iter().map(assignment).collect();
        found.sort_by(|a, b| (&a.device, a.from_us).cmp(&(&b.device, b.from_us)));
        Ok(found)
    }

    async fn assignments_at(
        &self,
        scope: &Scope,
        at_us: i64,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Assignment>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(&format!(
                "SELECT {ASSIGNMENT_COLUMNS} FROM assignments a JOIN devices d ON d.id = a.device
                 WHERE a.device > $3 AND a.from_us <= $2 AND a.until_us > $2
                     AND ($1::text IS NULL OR d.tenant = $1) ORDER BY a.device LIMIT $4"
            ))
            .await?;
        let limit = rows(limit);
        let rows = connection
            .query(&statement, &[&scope.as_tenant(), &at_us, &after, &limit])
            .await?;
        Ok(rows.iter().map(assignment).collect())
    }

    async fn assignments_changed_page(
        &self,
        after: (i64, &str),
        limit: usize,
    ) -> Result<Vec<(String, i64)>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT id, changed_us FROM devices WHERE (changed_us, id) > ($1, $2)
                 ORDER BY changed_us, id LIMIT $3",
                &[&after.0, &after.1, &rows(limit)],
            )
            .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn patient(&self, scope: &Scope, id: &str) -> Result<Option<PatientEntry>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(&format!(
                "SELECT {PATIENT_COLUMNS} FROM patients
                 WHERE id = $2 AND tenant <> '' AND ($1::text IS NULL OR tenant = $1)"
            ))
            .await?;
        let row = connection
            .query_opt(&statement, &[&scope.as_tenant(), &id])
            .await?;
        Ok(row.as_ref().map(patient))
    }

    async fn gateway(&self, scope: &Scope, id: &str) -> Result<Option<GatewayEntry>, QueryError> {
        let row = self
            .reader()
            .await?
            .query_opt(
                "SELECT id, tenant FROM gateways
                 WHERE id = $2 AND tenant <> '' AND ($1::text IS NULL OR tenant = $1)",
                &[&scope.as_tenant(), &id],
            )
            .await?;
        Ok(row.as_ref().map(gateway))
    }

    async fn patients_page(
        &self,
        scope: &Scope,
        after: &str,
        limit: usize,
    ) -> Result<Vec<PatientEntry>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT {PATIENT_COLUMNS} FROM patients
                     WHERE id > $2 AND tenant <> '' AND ($1::text IS NULL OR tenant = $1)
                         AND status < 4 AND merged_into = '' ORDER BY id LIMIT $3"
                ),
                &[&scope.as_tenant(), &after, &rows(limit)],
            )
            .await?;
        Ok(rows.iter().map(patient).collect())
    }

    async fn gateways_page(
        &self,
        scope: &Scope,
        after: &str,
        limit: usize,
    ) -> Result<Vec<GatewayEntry>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT id, tenant FROM gateways
                 WHERE id > $2 AND tenant <> '' AND ($1::text IS NULL OR tenant = $1)
                 ORDER BY id LIMIT $3",
                &[&scope.as_tenant(), &after, &rows(limit)],
            )
            .await?;
        Ok(rows.iter().map(gateway).collect())
    }

    async fn devices_page(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
        after: &str,
        limit: usize,
    ) -> Result<Vec<DeviceEntry>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT {ASSIGNMENT_COLUMNS} FROM assignments a JOIN devices d ON d.id = a.device
                     WHERE a.device > $3 AND a.until_us = 9223372036854775807
                         AND ($1::text IS NULL OR d.tenant = $1)
                         AND ($2::text IS NULL OR a.gateway = $2) ORDER BY a.device LIMIT $4"
                ),
                &[&scope.as_tenant(), &gateway, &after, &rows(limit)],
            )
            .await?;
        Ok(rows.iter().map(|row| assignment(row).entry()).collect())
    }
}
