//! Removes everything about a patient. The row of the id stays without content. So keys in the
//! caches of other processes stay valid, and rows that come later are found.
//!
//! `infra/backup/backup.py` repeats an erasure in a restored database by the same tables.

use contracts::alerts::{Alert, Document};
use deadpool_postgres::Transaction;
use prost::Message;

use super::{fault::Fault, ledger::Head, time::Micros};
use crate::{SILENCE, patient_of, patients::ERASE_STEP, sqlite::erasure::names};

/// Everything of a patient by id but readings, alerts, documents and the row itself.
const SMALL: [&str; 6] = [
    "DELETE FROM assignments WHERE patient = $1",
    "DELETE FROM patient_identifiers WHERE patient = $1",
    "DELETE FROM rule_states WHERE key = $1",
    "DELETE FROM gaps WHERE patient = (SELECT key FROM patients WHERE id = $1)",
    "DELETE FROM documents WHERE (kind = 'rules' AND subject = 'patient:' || $1) OR (kind = 'spo2-scale' AND subject = $1)",
    // The log keeps who did something and when. Details are free text, apart from an erasure's.
    "WITH old AS (DELETE FROM audit WHERE patient = $1 AND detail <> '' AND action <> 'erase patient' RETURNING *)
     INSERT INTO audit (time_us, tenant, who, action, patient, detail)
         SELECT time_us, tenant, who, action, patient, '' FROM old ORDER BY key",
];

/// Erases the patient and the records merged into it, except for the rows of readings.
pub async fn erase(transaction: &Transaction<'_>, patient: &str, at_us: i64) -> Result<(), Fault> {
    let merged = transaction
        .query(
            "SELECT id FROM patients WHERE id = $1 OR merged_into = $1 ORDER BY id FOR NO KEY UPDATE",
            &[&patient],
        )
        .await?;
    for row in &merged {
        let id: &str = row.get(0);
        transaction
            .execute(
                "INSERT INTO removals VALUES ('patient', $1, 0, $2) ON CONFLICT DO NOTHING",
                &[&id, &at_us],
            )
            .await?;
        remove_small(transaction, id).await?;
        transaction
            .execute(
                "UPDATE patients SET tenant = '', name = id, spo2_scale = 1, status = 2, status_us = 0,
                     merged_into = '', revision = 0, record = '' WHERE id = $1",
                &[&id],
            )
            .await?;
    }
    Ok(())
}

async fn remove_small(transaction: &Transaction<'_>, patient: &str) -> Result<(), Fault> {
    remove_alerts(transaction, patient).await?;
    let quarantined = "SELECT key, payload FROM quarantine
        WHERE device IN (SELECT device FROM assignments WHERE patient = $1)";
    let kept = |payload: &[u8]| names(payload, patient);
    remove_rows(transaction, "quarantine", quarantined, &[&patient], kept).await?;
    let silences = "SELECT key, payload FROM documents WHERE kind = $1";
    let is_of = |payload: &[u8]| {
        let silence = Document::decode(payload);
        silence.is_ok_and(|it| patient_of(SILENCE, &it.subject, &it.body) == patient)
    };
    remove_rows(transaction, "documents", silences, &[&SILENCE], is_of).await?;
    for delete in SMALL {
        transaction.execute(delete, &[&patient]).await?;
    }
    forget_latest(transaction, patient).await
}

/// Removes the rows by key whose payload is of the patient.
async fn remove_rows(
    transaction: &Transaction<'_>,
    table: &str,
    select: &str,
    of: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    is_of: impl Fn(&[u8]) -> bool,
) -> Result<(), Fault> {
    let rows = transaction.query(select, of).await?;
    let own = rows.iter().filter(|row| is_of(row.get(1)));
    let keys: Vec<i64> = own.map(|row| row.get(0)).collect();
    if !keys.is_empty() {
        let delete = format!("DELETE FROM {table} WHERE key = ANY($1)");
        transaction.execute(&delete, &[&keys]).await?;
    }
    Ok(())
}

async fn remove_alerts(transaction: &Transaction<'_>, patient: &str) -> Result<(), Fault> {
    let rows = transaction
        .query(
            "SELECT id FROM alerts WHERE patient = $1 ORDER BY id",
            &[&patient],
        )
        .await?;
    let alerts: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    if alerts.is_empty() {
        return Ok(());
    }
    for delete in [
        "DELETE FROM notice_outcomes WHERE id IN (SELECT id FROM notices WHERE alert = ANY($1))",
        "DELETE FROM notice_queue WHERE id IN (SELECT id FROM notices WHERE alert = ANY($1))",
        "DELETE FROM notices WHERE alert = ANY($1)",
        "DELETE FROM watches WHERE alert = ANY($1)",
        "DELETE FROM silent WHERE alert = ANY($1)",
        "DELETE FROM alert_transitions WHERE id = ANY($1)",
        "DELETE FROM alerts WHERE id = ANY($1)",
    ] {
        transaction.execute(delete, &[&alerts]).await?;
    }
    let rows = transaction
        .query("SELECT id, payload FROM outbox", &[])
        .await?;
    let is_own = |payload: &[u8]| Alert::decode(payload).is_ok_and(|it| it.patient == patient);
    let own: Vec<i64> = rows
        .iter()
        .filter(|row| is_own(row.get(1)))
        .map(|row| row.get(0))
        .collect();
    let delete = "DELETE FROM outbox WHERE id = ANY($1)";
    transaction.execute(delete, &[&own]).await?;
    Ok(())
}

/// Removes the newest values from the heads of the devices that the patient wore.
async fn forget_latest(transaction: &Transaction<'_>, patient: &str) -> Result<(), Fault> {
    let rows = transaction
        .query(
            "SELECT e.key, t.device FROM series e JOIN patients p ON p.key = e.patient
                 JOIN streams t ON t.key = e.stream WHERE p.id = $1",
            &[&patient],
        )
        .await?;
    let series: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let devices: Vec<i32> = rows.iter().map(|row| row.get(1)).collect();
    let heads = transaction
        .query(
            "SELECT key, head FROM device_heads WHERE key = ANY($1) ORDER BY key FOR NO KEY UPDATE",
            &[&devices],
        )
        .await?;
    for row in &heads {
        let mut head = Head::decode(row.get::<_, &[u8]>(1))
            .map_err(|e| Fault::Unavailable(format!("a head cannot be read: {e}")))?;
        let before = head.latest.len();
        head.latest.retain(|it| !series.contains(&it.series));
        if head.latest.len() < before {
            let key: i32 = row.get(0);
            transaction
                .execute(
                    "UPDATE device_heads SET head = $2 WHERE key = $1",
                    &[&key, &head.encode_to_vec()],
                )
                .await?;
        }
    }
    Ok(())
}

/// Removes about [`ERASE_STEP`] rows of readings of one patient, and what else came later.
pub async fn step(transaction: &Transaction<'_>, since_us: i64) -> Result<u64, Fault> {
    let erased = transaction
        .query(
            "SELECT p.id, p.key FROM removals r JOIN patients p ON p.id = r.subject
             WHERE r.kind = 'patient' AND r.removed_us >= $1 ORDER BY p.id",
            &[&since_us],
        )
        .await?;
    for row in &erased {
        let (id, key): (&str, i32) = (row.get(0), row.get(1));
        let removed = step_of(transaction, id, key).await?;
        if removed > 0 {
            return Ok(removed);
        }
    }
    Ok(0)
}

async fn step_of(transaction: &Transaction<'_>, id: &str, key: i32) -> Result<u64, Fault> {
    let rows = transaction
        .query("SELECT key FROM series WHERE patient = $1", &[&key])
        .await?;
    let series: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let mut removed = 0;
    for table in ["samples", "waveforms"] {
        removed += remove_readings(transaction, table, "time", &series).await?;
    }
    for rollup in ["vitals_1m", "vitals_1h"] {
        let table = table_of(transaction, rollup).await?;
        removed += remove_readings(transaction, &table, "bucket", &series).await?;
    }
    let others: i64 = transaction
        .query_one(
            "SELECT (SELECT count(*) FROM alerts WHERE patient = $1) + (SELECT count(*) FROM gaps WHERE patient = $2)",
            &[&id, &key],
        )
        .await?
        .get(0);
    if removed > 0 || others > 0 {
        remove_small(transaction, id).await?;
    }
    Ok(removed + others.cast_unsigned())
}

/// Removes the oldest rows, up to a time, because a row of a hypertable has no key of its own.
async fn remove_readings(
    transaction: &Transaction<'_>,
    table: &str,
    time: &str,
    series: &[i32],
) -> Result<u64, Fault> {
    let last = transaction
        .query_one(
            &format!(
                "SELECT max(time) FROM (SELECT {time} AS time FROM {table} WHERE series = ANY($1)
                     ORDER BY {time} LIMIT {ERASE_STEP}) t"
            ),
            &[&series],
        )
        .await?;
    let Some(last) = last.get::<_, Option<Micros>>(0) else {
        return Ok(0);
    };
    let delete = format!("DELETE FROM {table} WHERE series = ANY($1) AND {time} <= $2");
    Ok(transaction.execute(&delete, &[&series, &last]).await?)
}

/// The table of a roll-up. If TimescaleDB keeps the roll-ups, it has a table of its own.
async fn table_of(transaction: &Transaction<'_>, rollup: &str) -> Result<String, Fault> {
    let kept = transaction
        .query_opt(
            "SELECT format('%I.%I', materialization_hypertable_schema, materialization_hypertable_name)
             FROM timescaledb_information.continuous_aggregates WHERE view_name = $1",
            &[&rollup],
        )
        .await?;
    Ok(kept.map_or_else(|| rollup.to_owned(), |row| row.get(0)))
}
