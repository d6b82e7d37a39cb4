use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, readable_rows};
use crate::{
    DeviceEntry, GatewayEntry, PatientEntry, QueryError, Register, Scope, SpO2Scale, WriteError,
    register::reserved,
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
    let scale = match entry.spo2_scale {
        SpO2Scale::One => 1,
        SpO2Scale::Two => 2,
    };
    put(
        connection,
        "patient",
        &entry.id,
        &entry.tenant,
        "INSERT INTO patients (id, tenant, name, spo2_scale) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, name = excluded.name, spo2_scale = excluded.spo2_scale
             WHERE tenant IN ('', excluded.tenant)",
        (&entry.id, &entry.tenant, &entry.name, scale),
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
            "SELECT id, tenant, name, spo2_scale FROM patients
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
        spo2_scale: if row.get::<_, i32>(3)? == 2 {
            SpO2Scale::Two
        } else {
            SpO2Scale::One
        },
    })
}

fn device(row: &Row<'_>) -> rusqlite::Result<DeviceEntry> {
    Ok(DeviceEntry {
        id: row.get(0)?,
        tenant: row.get(1)?,
        gateway: row.get(2)?,
        patient: row.get(3)?,
        registered_us: row.get(4)?,
    })
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

    async fn put_device(&self, entry: &DeviceEntry) -> Result<(), WriteError> {
        let entry = entry.clone();
        self.write(move |writing| {
            let connection = writing.connection;
            put_gateway(
                connection,
                &GatewayEntry {
                    id: entry.gateway.clone(),
                    tenant: entry.tenant.clone(),
                },
            )?;
            if find_patient(connection, Some(&entry.tenant), &entry.patient)?.is_none() {
                put_patient(
                    connection,
                    &PatientEntry {
                        id: entry.patient.clone(),
                        tenant: entry.tenant.clone(),
                        name: entry.patient.clone(),
                        spo2_scale: SpO2Scale::One,
                    },
                )?;
            }
            put(
                connection,
                "device",
                &entry.id,
                &entry.tenant,
                "INSERT INTO devices VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (id) DO UPDATE SET gateway = excluded.gateway, patient = excluded.patient,
                     registered_us = excluded.registered_us WHERE tenant = excluded.tenant",
                (
                    &entry.id,
                    &entry.tenant,
                    &entry.gateway,
                    &entry.patient,
                    entry.registered_us,
                ),
            )
        })
        .await
    }

    async fn remove_device(&self, scope: &Scope, id: &str) -> Result<bool, WriteError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.write(move |writing| {
            let removed = writing
                .connection
                .prepare_cached(
                    "DELETE FROM devices WHERE id = ?2 AND (?1 IS NULL OR tenant = ?1)",
                )?
                .execute((tenant, id))?;
            Ok(removed > 0)
        })
        .await
    }

    async fn patient(&self, scope: &Scope, id: &str) -> Result<Option<PatientEntry>, QueryError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.read(move |connection| Ok(find_patient(connection, tenant.as_deref(), &id)?))
            .await
    }

    async fn patients(&self, scope: &Scope) -> Result<Vec<PatientEntry>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, tenant, name, spo2_scale FROM patients
                 WHERE tenant <> '' AND (?1 IS NULL OR tenant = ?1) ORDER BY id",
            )?;
            readable_rows("patient", statement.query_map([tenant], patient)?)
        })
        .await
    }

    async fn gateways(&self, scope: &Scope) -> Result<Vec<GatewayEntry>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, tenant FROM gateways WHERE tenant <> '' AND (?1 IS NULL OR tenant = ?1) ORDER BY id",
            )?;
            let rows = statement.query_map([tenant], |row| {
                Ok(GatewayEntry {
                    id: row.get(0)?,
                    tenant: row.get(1)?,
                })
            })?;
            readable_rows("gateway", rows)
        })
        .await
    }

    async fn device(&self, scope: &Scope, id: &str) -> Result<Option<DeviceEntry>, QueryError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(
                    "SELECT id, tenant, gateway, patient, registered_us FROM devices
                     WHERE id = ?2 AND (?1 IS NULL OR tenant = ?1)",
                )?
                .query_row((tenant, id), device)
                .optional()?)
        })
        .await
    }

    async fn devices(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<DeviceEntry>, QueryError> {
        let (tenant, gateway) = (
            scope.as_tenant().map(str::to_owned),
            gateway.map(str::to_owned),
        );
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, tenant, gateway, patient, registered_us FROM devices
                 WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR gateway = ?2) ORDER BY id",
            )?;
            readable_rows("device", statement.query_map((tenant, gateway), device)?)
        })
        .await
    }

    async fn registered_since(&self, since_us: i64) -> Result<Vec<DeviceEntry>, QueryError> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, tenant, gateway, patient, registered_us FROM devices WHERE registered_us > ?1 ORDER BY id",
            )?;
            readable_rows("device", statement.query_map([since_us], device)?)
        })
        .await
    }
}
