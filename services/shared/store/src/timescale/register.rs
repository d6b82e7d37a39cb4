use async_trait::async_trait;
use deadpool_postgres::Transaction;
use tokio_postgres::{Row, types::ToSql};

use super::{TimescaleStore, fault::Fault, transaction};
use crate::{
    DeviceEntry, GatewayEntry, PatientEntry, QueryError, Register, Scope, SpO2Scale, WriteError,
    register::reserved,
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
    let scale: i16 = match entry.spo2_scale {
        SpO2Scale::One => 1,
        SpO2Scale::Two => 2,
    };
    put(
        transaction,
        "patient",
        &entry.id,
        &entry.tenant,
        "INSERT INTO patients (id, tenant, name, spo2_scale) VALUES ($1, $2, $3, $4)
         ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, name = excluded.name, spo2_scale = excluded.spo2_scale
             WHERE patients.tenant IN ('', excluded.tenant)",
        &[&entry.id, &entry.tenant, &entry.name, &scale],
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

async fn put_device(transaction: &Transaction<'_>, entry: &DeviceEntry) -> Result<(), Fault> {
    put_gateway(transaction, &entry.gateway, &entry.tenant).await?;
    let known = transaction
        .query_opt(
            "SELECT 1 FROM patients WHERE id = $1 AND tenant = $2 AND tenant <> ''",
            &[&entry.patient, &entry.tenant],
        )
        .await?;
    if known.is_none() {
        let patient = PatientEntry {
            id: entry.patient.clone(),
            tenant: entry.tenant.clone(),
            name: entry.patient.clone(),
            spo2_scale: SpO2Scale::One,
        };
        put_patient(transaction, &patient).await?;
    }
    put(
        transaction,
        "device",
        &entry.id,
        &entry.tenant,
        "INSERT INTO devices VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (id) DO UPDATE SET gateway = excluded.gateway, patient = excluded.patient,
             registered_us = excluded.registered_us WHERE devices.tenant = excluded.tenant",
        &[
            &entry.id,
            &entry.tenant,
            &entry.gateway,
            &entry.patient,
            &entry.registered_us,
        ],
    )
    .await
}

fn patient(row: &Row) -> PatientEntry {
    PatientEntry {
        id: row.get(0),
        tenant: row.get(1),
        name: row.get(2),
        spo2_scale: if row.get::<_, i16>(3) == 2 {
            SpO2Scale::Two
        } else {
            SpO2Scale::One
        },
    }
}

fn device(row: &Row) -> DeviceEntry {
    DeviceEntry {
        id: row.get(0),
        tenant: row.get(1),
        gateway: row.get(2),
        patient: row.get(3),
        registered_us: row.get(4),
    }
}

#[async_trait]
impl Register for TimescaleStore {
    async fn put_patient(&self, entry: &PatientEntry) -> Result<(), WriteError> {
        transaction!(self, tx => put_patient(tx, entry))
    }

    async fn put_gateway(&self, entry: &GatewayEntry) -> Result<(), WriteError> {
        transaction!(self, tx => put_gateway(tx, &entry.id, &entry.tenant))
    }

    async fn put_device(&self, entry: &DeviceEntry) -> Result<(), WriteError> {
        transaction!(self, tx => put_device(tx, entry))
    }

    async fn remove_device(&self, scope: &Scope, id: &str) -> Result<bool, WriteError> {
        transaction!(self, tx => async {
            let removed = tx
                .execute(
                    "DELETE FROM devices WHERE id = $2 AND ($1::text IS NULL OR tenant = $1)",
                    &[&scope.as_tenant(), &id],
                )
                .await?;
            Ok::<_, Fault>(removed > 0)
        })
    }

    async fn patient(&self, scope: &Scope, id: &str) -> Result<Option<PatientEntry>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT id, tenant, name, spo2_scale FROM patients
                 WHERE id = $2 AND tenant <> '' AND ($1::text IS NULL OR tenant = $1)",
            )
            .await?;
        let row = connection
            .query_opt(&statement, &[&scope.as_tenant(), &id])
            .await?;
        Ok(row.as_ref().map(patient))
    }

    async fn patients(&self, scope: &Scope) -> Result<Vec<PatientEntry>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT id, tenant, name, spo2_scale FROM patients
                 WHERE tenant <> '' AND ($1::text IS NULL OR tenant = $1) ORDER BY id COLLATE \"C\"",
                &[&scope.as_tenant()],
            )
            .await?;
        Ok(rows.iter().map(patient).collect())
    }

    async fn gateways(&self, scope: &Scope) -> Result<Vec<GatewayEntry>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT id, tenant FROM gateways WHERE tenant <> '' AND ($1::text IS NULL OR tenant = $1) ORDER BY id COLLATE \"C\"",
                &[&scope.as_tenant()],
            )
            .await?;
        let gateway = |row: &Row| GatewayEntry {
            id: row.get(0),
            tenant: row.get(1),
        };
        Ok(rows.iter().map(gateway).collect())
    }

    async fn device(&self, scope: &Scope, id: &str) -> Result<Option<DeviceEntry>, QueryError> {
        let row = self
            .reader()
            .await?
            .query_opt(
                "SELECT id, tenant, gateway, patient, registered_us FROM devices
                 WHERE id = $2 AND ($1::text IS NULL OR tenant = $1)",
                &[&scope.as_tenant(), &id],
            )
            .await?;
        Ok(row.as_ref().map(device))
    }

    async fn devices(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<DeviceEntry>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT id, tenant, gateway, patient, registered_us FROM devices
                 WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR gateway = $2) ORDER BY id COLLATE \"C\"",
                &[&scope.as_tenant(), &gateway],
            )
            .await?;
        Ok(rows.iter().map(device).collect())
    }

    async fn registered_since(&self, since_us: i64) -> Result<Vec<DeviceEntry>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT id, tenant, gateway, patient, registered_us FROM devices WHERE registered_us > $1
                 ORDER BY id COLLATE \"C\"",
                &[&since_us],
            )
            .await?;
        Ok(rows.iter().map(device).collect())
    }
}
