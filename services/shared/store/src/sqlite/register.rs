use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, accounts::insert_audit, erasure::is_erased, readable_rows};
use crate::{
    ASSIGNMENTS_LISTED_MAX, Assigned, Assignment, Change, DeviceEntry, GatewayEntry, Of,
    PatientEntry, PatientStatus, QueryError, Register, Scope, Spo2Scale, WriteError,
    patients::{check_wearer, erased},
    register::{Plan, check_texts, plan, reserved},
};

/// Creates the row or takes over one without a tenant; refuses a row of another tenant.
fn put(
    connection: &Connection,
    what: &str,
    id: &str,
    tenant: &str,
    insert: &str,
    values: impl rusqlite::Params,
) -> Result<(), WriteError> {
    if let Some(reason) = reserved(what, id) {
        return Err(WriteError::Invalid(reason));
    }
    if id.is_empty() || tenant.is_empty() {
        return Err(WriteError::Invalid(format!(
            "a {what} needs an id and a tenant, for example `{what}-1` and `{}`",
            crate::DEFAULT_TENANT
        )));
    }
    if connection.prepare_cached(insert)?.execute(values)? == 0 {
        return Err(WriteError::Invalid(format!(
            "{what} `{id}` belongs to another tenant"
        )));
    }
    Ok(())
}

fn put_patient(connection: &Connection, entry: &PatientEntry) -> Result<(), WriteError> {
    let scale = entry.spo2_scale.number();
    if is_erased(connection, &entry.id)? {
        return Err(WriteError::Invalid(erased(&entry.id)));
    }
    put(
        connection,
        "patient",
        &entry.id,
        &entry.tenant,
        "INSERT INTO patients (id, tenant, name, spo2_scale, status) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, name = excluded.name, spo2_scale = excluded.spo2_scale
             WHERE tenant IN ('', excluded.tenant)",
        (
            &entry.id,
            &entry.tenant,
            &entry.name,
            scale,
            entry.status as i32,
        ),
    )
}

fn put_gateway(connection: &Connection, entry: &GatewayEntry) -> Result<(), WriteError> {
    put(
        connection,
        "gateway",
        &entry.id,
        &entry.tenant,
        "INSERT INTO gateways (id, tenant) VALUES (?1, ?2)
         ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant WHERE tenant IN ('', excluded.tenant)",
        (&entry.id, &entry.tenant),
    )
}

fn find_patient(
    connection: &Connection,
    tenant: Option<&str>,
    id: &str,
) -> rusqlite::Result<Option<PatientEntry>> {
    connection
        .prepare_cached(
            "SELECT id, tenant, name, spo2_scale, status, merged_into <> '' FROM patients
             WHERE id = ?2 AND tenant <> '' AND (?1 IS NULL OR tenant = ?1)",
        )?
        .query_row((tenant, id), patient)
        .optional()
}

fn patient(row: &Row<'_>) -> rusqlite::Result<PatientEntry> {
    Ok(PatientEntry {
        id: row.get(0)?,
        tenant: row.get(1)?,
        name: row.get(2)?,
        spo2_scale: Spo2Scale::of_number(row.get(3)?),
        status: PatientStatus::try_from(row.get::<_, i32>(4)?).unwrap_or_default(),
        is_merged: row.get(5)?,
    })
}

fn gateway(row: &Row<'_>) -> rusqlite::Result<GatewayEntry> {
    Ok(GatewayEntry {
        id: row.get(0)?,
        tenant: row.get(1)?,
    })
}

const ASSIGNMENT_COLUMNS: &str = "a.device, d.tenant, a.gateway, a.patient, a.from_us, a.until_us, a.author, a.reason, a.entered_us";

fn assignment(row: &Row<'_>) -> rusqlite::Result<Assignment> {
    Ok(Assignment {
        device: row.get(0)?,
        tenant: row.get(1)?,
        gateway: row.get(2)?,
        patient: row.get(3)?,
        from_us: row.get(4)?,
        until_us: row.get(5)?,
        entered: Change {
            author: row.get(6)?,
            reason: row.get(7)?,
            at_us: row.get(8)?,
        },
    })
}

/// All of one device, in scope.
pub(super) fn of_device(
    connection: &Connection,
    tenant: Option<&str>,
    device: &str,
) -> rusqlite::Result<Vec<Assignment>> {
    connection
        .prepare_cached(&format!(
            "SELECT {ASSIGNMENT_COLUMNS} FROM assignments a JOIN devices d ON d.id = a.device
             WHERE a.device = ?2 AND (?1 IS NULL OR d.tenant = ?1) ORDER BY a.from_us"
        ))?
        .query_map((tenant, device), assignment)?
        .collect()
}

/// The time of a change always rises, whatever the writer's clock shows, because readers look for
/// later times.
pub(super) fn changed(connection: &Connection, device: &str, at_us: i64) -> Result<(), WriteError> {
    connection
        .prepare_cached("UPDATE devices SET changed_us = max(min(changed_us, 9223372036854775806) + 1, ?2) WHERE id = ?1")?
        .execute((device, at_us))?;
    Ok(())
}

pub(super) fn assign(connection: &Connection, new: &Assignment) -> Result<Assigned, WriteError> {
    let existing = of_device(connection, Some(&new.tenant), &new.device)?;
    let Some(Plan { cut, replaced }) = plan(&existing, new)? else {
        return Ok(Assigned::Unchanged);
    };
    put_gateway(
        connection,
        &GatewayEntry {
            id: new.gateway.clone(),
            tenant: new.tenant.clone(),
        },
    )?;
    let wearer = find_patient(connection, Some(&new.tenant), &new.patient)?;
    if let Some(wearer) = &wearer {
        check_wearer(wearer, new)?;
    } else {
        put_patient(
            connection,
            &PatientEntry {
                id: new.patient.clone(),
                tenant: new.tenant.clone(),
                name: new.patient.clone(),
                ..PatientEntry::default()
            },
        )?;
    }
    // A device without assignments may change its tenant.
    put(
        connection,
        "device",
        &new.device,
        &new.tenant,
        "INSERT INTO devices VALUES (?1, ?2, ?3)
         ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, changed_us = max(min(changed_us, 9223372036854775806) + 1, excluded.changed_us)
             WHERE tenant = excluded.tenant OR NOT EXISTS (SELECT 1 FROM assignments WHERE device = excluded.id)",
        (&new.device, &new.tenant, new.entered.at_us),
    )?;
    if let Some(cut) = &cut {
        let until_us = new.from_us;
        end_of(
            connection,
            &Assignment {
                until_us,
                ..cut.clone()
            },
        )?;
    }
    if let Some(replaced) = &replaced {
        connection
            .prepare_cached("DELETE FROM assignments WHERE device = ?1 AND from_us = ?2")?
            .execute((&replaced.device, replaced.from_us))?;
    }
    connection
        .prepare_cached("INSERT INTO assignments VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?
        .execute((
            &new.device,
            new.from_us,
            new.until_us,
            &new.gateway,
            &new.patient,
            &new.entered.author,
            &new.entered.reason,
            new.entered.at_us,
        ))?;
    insert_audit(connection, &new.audit("assign device", &new.entered))?;
    Ok(Assigned::New(cut.or(replaced)))
}

/// Stores the end of an assignment.
pub(super) fn end_of(connection: &Connection, ended: &Assignment) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE assignments SET until_us = ?3 WHERE device = ?1 AND from_us = ?2")?
        .execute((&ended.device, ended.from_us, ended.until_us))?;
    Ok(())
}

fn end(
    connection: &Connection,
    tenant: Option<&str>,
    device: &str,
    until_us: i64,
    change: &Change,
) -> Result<Option<Assignment>, WriteError> {
    check_texts(change)?;
    let existing = of_device(connection, tenant, device)?;
    let Some(mut open) = existing.into_iter().find(Assignment::is_open) else {
        return Ok(None);
    };
    open.end_at(until_us)?;
    end_of(connection, &open)?;
    changed(connection, device, change.at_us)?;
    insert_audit(connection, &open.audit("end assignment", change))?;
    Ok(Some(open))
}

fn remove(
    connection: &Connection,
    tenant: Option<&str>,
    device: &str,
    from_us: Option<i64>,
    change: &Change,
) -> Result<u64, WriteError> {
    check_texts(change)?;
    let mut removed = 0;
    for existing in of_device(connection, tenant, device)? {
        if from_us.is_some_and(|from_us| from_us != existing.from_us) {
            continue;
        }
        removed += connection
            .prepare_cached("DELETE FROM assignments WHERE device = ?1 AND from_us = ?2")?
            .execute((device, existing.from_us))? as u64;
        insert_audit(connection, &existing.audit("remove assignment", change))?;
    }
    if removed > 0 {
        changed(connection, device, change.at_us)?;
    }
    Ok(removed)
}

#[async_trait]
impl Register for SqliteStore {
    async fn put_patient(&self, entry: &PatientEntry) -> Result<(), WriteError> {
        let entry = entry.clone();
        self.write(move |writing| put_patient(writing.connection, &entry))
            .await
    }

    async fn put_gateway(&self, entry: &GatewayEntry) -> Result<(), WriteError> {
        let entry = entry.clone();
        self.write(move |writing| put_gateway(writing.connection, &entry))
            .await
    }

    async fn assign(&self, assignment: &Assignment) -> Result<Assigned, WriteError> {
        let new = assignment.clone();
        self.write(move |writing| assign(writing.connection, &new))
            .await
    }

    async fn end_assignment(
        &self,
        scope: &Scope,
        device: &str,
        until_us: i64,
        change: &Change,
    ) -> Result<Option<Assignment>, WriteError> {
        let (tenant, device) = (scope.as_tenant().map(str::to_owned), device.to_owned());
        let change = change.clone();
        self.write(move |writing| {
            end(
                writing.connection,
                tenant.as_deref(),
                &device,
                until_us,
                &change,
            )
        })
        .await
    }

    async fn remove_assignments(
        &self,
        scope: &Scope,
        device: &str,
        from_us: Option<i64>,
        change: &Change,
    ) -> Result<u64, WriteError> {
        let (tenant, device) = (scope.as_tenant().map(str::to_owned), device.to_owned());
        let change = change.clone();
        self.write(move |writing| {
            remove(
                writing.connection,
                tenant.as_deref(),
                &device,
                from_us,
                &change,
            )
        })
        .await
    }

    async fn assignments(&self, scope: &Scope, of: Of<'_>) -> Result<Vec<Assignment>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        let (column, id) = match of {
            Of::Everything => ("?2 IS NULL", None),
            Of::Device(id) => ("a.device = ?2", Some(id.to_owned())),
            Of::Gateway(id) => ("a.gateway = ?2", Some(id.to_owned())),
            Of::Patient(id) => ("a.patient = ?2", Some(id.to_owned())),
        };
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {ASSIGNMENT_COLUMNS} FROM assignments a JOIN devices d ON d.id = a.device
                 WHERE {column} AND (?1 IS NULL OR d.tenant = ?1) ORDER BY a.entered_us DESC LIMIT ?3"
            ))?;
            let rows = statement.query_map((tenant, id, ASSIGNMENTS_LISTED_MAX), assignment)?;
            let mut found = readable_rows("assignment", rows)?;
            found.sort_by(|a, b| (&a.device, a.from_us).cmp(&(&b.device, b.from_us)));
            Ok(found)
        })
        .await
    }

    async fn assignments_at(
        &self,
        scope: &Scope,
        at_us: i64,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Assignment>, QueryError> {
        let (tenant, after) = (scope.as_tenant().map(str::to_owned), after.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {ASSIGNMENT_COLUMNS} FROM assignments a JOIN devices d ON d.id = a.device
                 WHERE a.device > ?3 AND a.from_us <= ?2 AND a.until_us > ?2
                     AND (?1 IS NULL OR d.tenant = ?1) ORDER BY a.device LIMIT ?4"
            ))?;
            let rows = statement.query_map((tenant, at_us, after, limit), assignment)?;
            readable_rows("assignment", rows)
        })
        .await
    }

    async fn assignments_changed_page(
        &self,
        after: (i64, &str),
        limit: usize,
    ) -> Result<Vec<(String, i64)>, QueryError> {
        let (after_us, after_id) = (after.0, after.1.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, changed_us FROM devices WHERE (changed_us, id) > (?1, ?2)
                 ORDER BY changed_us, id LIMIT ?3",
            )?;
            let rows = statement.query_map((after_us, after_id, limit), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
            readable_rows("device", rows)
        })
        .await
    }

    async fn patient(&self, scope: &Scope, id: &str) -> Result<Option<PatientEntry>, QueryError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.read(move |connection| Ok(find_patient(connection, tenant.as_deref(), &id)?))
            .await
    }

    async fn gateway(&self, scope: &Scope, id: &str) -> Result<Option<GatewayEntry>, QueryError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(
                    "SELECT id, tenant FROM gateways
                     WHERE id = ?2 AND tenant <> '' AND (?1 IS NULL OR tenant = ?1)",
                )?
                .query_row((tenant, id), gateway)
                .optional()?)
        })
        .await
    }

    async fn patients_page(
        &self,
        scope: &Scope,
        after: &str,
        limit: usize,
    ) -> Result<Vec<PatientEntry>, QueryError> {
        let (tenant, after) = (scope.as_tenant().map(str::to_owned), after.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, tenant, name, spo2_scale, status, merged_into <> '' FROM patients
                 WHERE id > ?2 AND tenant <> '' AND (?1 IS NULL OR tenant = ?1)
                     AND status < 4 AND merged_into = '' ORDER BY id LIMIT ?3",
            )?;
            let rows = statement.query_map((tenant, after, limit), patient)?;
            readable_rows("patient", rows)
        })
        .await
    }

    async fn gateways_page(
        &self,
        scope: &Scope,
        after: &str,
        limit: usize,
    ) -> Result<Vec<GatewayEntry>, QueryError> {
        let (tenant, after) = (scope.as_tenant().map(str::to_owned), after.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, tenant FROM gateways
                 WHERE id > ?2 AND tenant <> '' AND (?1 IS NULL OR tenant = ?1)
                 ORDER BY id LIMIT ?3",
            )?;
            let rows = statement.query_map((tenant, after, limit), gateway)?;
            readable_rows("gateway", rows)
        })
        .await
    }

    async fn devices_page(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
        after: &str,
        limit: usize,
    ) -> Result<Vec<DeviceEntry>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        let (gateway, after) = (gateway.map(str::to_owned), after.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {ASSIGNMENT_COLUMNS} FROM assignments a JOIN devices d ON d.id = a.device
                 WHERE a.device > ?3 AND a.until_us = 9223372036854775807
                     AND (?1 IS NULL OR d.tenant = ?1) AND (?2 IS NULL OR a.gateway = ?2)
                 ORDER BY a.device LIMIT ?4"
            ))?;
            let rows = statement.query_map((tenant, gateway, after, limit), assignment)?;
            let open = readable_rows("assignment", rows)?;
            Ok(open.into_iter().map(Assignment::entry).collect())
        })
        .await
    }
}
