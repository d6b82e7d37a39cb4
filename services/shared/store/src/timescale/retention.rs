//! Removes what is too old: whole chunks of hypertables, which costs nothing per row, and rows of
//! the small tables.

use std::time::Duration;

use contracts::alerts::AlertState;
use deadpool_postgres::Transaction;
use tokio_postgres::{Client, GenericClient};

use super::{Ages, fault::Fault, time::Micros};
use crate::Expire;

/// Rows of a small table removed in one statement; what is left waits for the next round.
const STEP: i64 = 10_000;
/// Runs of sequences outlive their rows by this, so that what is sent again late is still known as
/// stored.
const RUNS_LONGER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Newest reports of paths of which nothing was reported since; not counted, since the reports
/// themselves are.
const LATEST_PATHS: &str = "DELETE FROM latest_paths WHERE time < $1";

/// The time before which something of this age is too old; far in the past when it is kept for
/// ever.
pub fn cutoff(now_us: i64, age: Duration) -> Micros {
    let age_us = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    Micros::clamped(now_us.saturating_sub(age_us))
}

/// Exactly the rows before `before_us`, for operators and tests; the statement limit of a service
/// does not hold for it.
pub async fn expire(
    transaction: &Transaction<'_>,
    what: Expire,
    before_us: i64,
) -> Result<u64, Fault> {
    transaction
        .batch_execute("SET LOCAL statement_timeout = 0")
        .await?;
    match what {
        Expire::Vitals => hypertable(transaction, "samples", before_us).await,
        Expire::Waveforms => hypertable(transaction, "waveforms", before_us).await,
        Expire::Paths => {
            transaction
                .execute(LATEST_PATHS, &[&Micros::clamped(before_us)])
                .await?;
            hypertable(transaction, "paths", before_us).await
        }
        Expire::Alerts => Ok(alerts(&**transaction, None, before_us, i64::MAX).await?),
        Expire::CanaryAlerts => {
            let of = Some(contracts::canary::NAME);
            Ok(alerts(&**transaction, of, before_us, i64::MAX).await?)
        }
        Expire::Audit => Ok(audit(&**transaction, before_us, i64::MAX).await?),
    }
}

/// Chunks that are wholly too old are counted and dropped, the rest is deleted row by row.
async fn hypertable(
    transaction: &Transaction<'_>,
    table: &str,
    before_us: i64,
) -> Result<u64, Fault> {
    let before = Micros::clamped(before_us);
    let whole: Option<Micros> = transaction
        .query_one(
            "SELECT max(range_end) FROM timescaledb_information.chunks WHERE hypertable_name = $1 AND range_end <= $2",
            &[&table, &before],
        )
        .await?
        .get(0);
    let mut removed = 0;
    if let Some(end) = whole {
        let count: i64 = transaction
            .query_one(
                &format!("SELECT count(*) FROM {table} WHERE time < $1"),
                &[&end],
            )
            .await?
            .get(0);
        removed += count.cast_unsigned();
        transaction.query(&drop_chunks(table), &[&end]).await?;
    }
    removed += transaction
        .execute(&format!("DELETE FROM {table} WHERE time < $1"), &[&before])
        .await?;
    Ok(removed)
}

fn drop_chunks(table: &str) -> String {
    format!("SELECT drop_chunks('{table}', older_than => $1::timestamptz)")
}

/// `of`: those of this patient only.
async fn alerts(
    client: &impl GenericClient,
    of: Option<&str>,
    before_us: i64,
    limit: i64,
) -> Result<u64, tokio_postgres::Error> {
    // since <= changed, so the index on since narrows it.
    let rows = client
        .query(
            "WITH old AS (DELETE FROM alerts WHERE id IN (SELECT id FROM alerts WHERE since_us < $1 AND changed_us < $1 AND state = $2
                 AND ($4::text IS NULL OR starts_with(patient, $4)) LIMIT $3) RETURNING id),
             gone AS (DELETE FROM alert_transitions t USING old WHERE t.id = old.id),
             untold AS (DELETE FROM notice_outcomes o USING old, notices n WHERE n.alert = old.id AND o.id = n.id),
             told AS (DELETE FROM notices n USING old WHERE n.alert = old.id)
             SELECT count(*) FROM old",
            &[&before_us, &(AlertState::Resolved as i32), &limit, &of],
        )
        .await?;
    Ok(rows
        .first()
        .map_or(0, |row| row.get::<_, i64>(0).cast_unsigned()))
}

async fn audit(
    client: &impl GenericClient,
    before_us: i64,
    limit: i64,
) -> Result<u64, tokio_postgres::Error> {
    client
        .execute(
            "DELETE FROM audit WHERE key IN (SELECT key FROM audit WHERE time_us < $1 LIMIT $2)",
            &[&before_us, &limit],
        )
        .await
}

const LEDGERS: &str = "DELETE FROM ledgers r USING journals j WHERE j.gateway = r.gateway AND j.journal = r.journal
    AND j.as_of_us < extract(epoch FROM $1::timestamptz) * 1000000";
const JOURNALS: &str =
    "DELETE FROM journals WHERE as_of_us < extract(epoch FROM $1::timestamptz) * 1000000";

/// One round by age. `policies`: TimescaleDB drops the chunks of hypertables itself. `now_us` is
/// our clock's; where the server's is behind it that one counts: what one machine's clock takes for
/// old is gone for all.
pub async fn round(
    client: &Client,
    ages: &Ages,
    policies: bool,
    continuous: bool,
    now_us: i64,
) -> Result<(), tokio_postgres::Error> {
    let both = "SELECT least($1::timestamptz, clock_timestamp())";
    let row = client.query_one(both, &[&Micros::clamped(now_us)]).await?;
    let now = row.get::<_, Micros>(0).0;
    if !policies {
        let mut tables = vec![
            ("samples", ages.vitals),
            ("waveforms", ages.waveforms),
            ("paths", ages.paths),
        ];
        if !continuous {
            tables.extend([("vitals_1m", ages.minutes), ("vitals_1h", ages.hours)]);
        }
        for (table, age) in tables {
            let dropped = client
                .query(&drop_chunks(table), &[&cutoff(now, age)])
                .await?;
            if !dropped.is_empty() {
                tracing::info!(table, chunks = dropped.len(), "old rows removed");
                metrics::counter!("braid_store_expired_chunks_total", "table" => table)
                    .increment(dropped.len() as u64);
            }
        }
    }
    let longest = ages.vitals.max(ages.waveforms);
    alerts(client, None, cutoff(now, ages.alerts).0, STEP).await?;
    audit(client, cutoff(now, ages.audit).0, STEP).await?;
    for (sql, age) in [
        ("DELETE FROM gaps WHERE to_time < $1", longest),
        (LEDGERS, longest),
        (JOURNALS, longest),
        (LATEST_PATHS, ages.paths),
        (
            "DELETE FROM stream_runs WHERE written < $1",
            longest.saturating_add(RUNS_LONGER),
        ),
        (
            "DELETE FROM session_runs WHERE written < $1",
            ages.paths.saturating_add(RUNS_LONGER),
        ),
    ] {
        client.execute(sql, &[&cutoff(now, age)]).await?;
    }
    Ok(())
}

/// Compression and retention by TimescaleDB itself, where its licence allows. Idempotent; an
/// operator's own settings of a policy that is there stay.
pub async fn set_policies(
    client: &Client,
    ages: &Ages,
    continuous: bool,
) -> Result<(), tokio_postgres::Error> {
    for (table, segment) in [
        ("samples", "series"),
        ("waveforms", "series"),
        ("paths", "gateway"),
    ] {
        let compressed: bool = client
            .query_one(
                "SELECT compression_enabled FROM timescaledb_information.hypertables WHERE hypertable_name = $1",
                &[&table],
            )
            .await?
            .get(0);
        if !compressed {
            client
                .batch_execute(&format!(
                    "ALTER TABLE {table} SET (timescaledb.compress, timescaledb.compress_segmentby = '{segment}',
                         timescaledb.compress_orderby = 'time')"
                ))
                .await?;
        }
        client
            .batch_execute(&format!(
                "SELECT add_compression_policy('{table}', INTERVAL '2 days', if_not_exists => true)"
            ))
            .await?;
    }
    let mut tables = vec![
        ("samples", ages.vitals),
        ("waveforms", ages.waveforms),
        ("paths", ages.paths),
        ("vitals_1m", ages.minutes),
        ("vitals_1h", ages.hours),
    ];
    tables.retain(|(_, age)| *age < Duration::from_secs(100 * 365 * 24 * 3600));
    for (table, age) in tables {
        client
            .batch_execute(&format!(
                "SELECT add_retention_policy('{table}', make_interval(secs => {}), if_not_exists => true)",
                age.as_secs()
            ))
            .await?;
    }
    if continuous {
        // From beyond what may come late to a minute ago.
        client
            .batch_execute(
                "SELECT add_continuous_aggregate_policy('vitals_1m', start_offset => INTERVAL '31 days',
                     end_offset => INTERVAL '1 minute', schedule_interval => INTERVAL '1 minute', if_not_exists => true);
                 SELECT add_continuous_aggregate_policy('vitals_1h', start_offset => INTERVAL '32 days',
                     end_offset => INTERVAL '1 hour', schedule_interval => INTERVAL '10 minutes', if_not_exists => true)",
            )
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use contracts::vitals::{Metric, Sample, sample::Reading};
    use testkit::timescale_server::{PASSWORD, TimescaleServer};

    use super::{super::open::Server, *};
    use crate::{
        Accounts, AuditEntry, AuditQuery, Scope, TimescaleOptions, TimescaleStore, VitalsBatch,
        VitalsStore,
    };

    const DAY_US: i64 = 86_400_000_000;

    #[tokio::test]
    async fn a_clock_that_is_ahead_makes_nothing_old() {
        let url = TimescaleServer::shared().database().await;
        let options = TimescaleOptions::new(&url, PASSWORD);
        let store = TimescaleStore::open(&options).await.unwrap();
        let now_us = contracts::now_us();
        // The second is older than vitals are kept.
        let samples = [now_us, now_us - 200 * DAY_US].map(|device_time_us| Sample {
            device: "belt".into(),
            stream: "heart-rate".into(),
            sequence: device_time_us.cast_unsigned(),
            metric: Metric::HeartRate.into(),
            device_time_us,
            patient: "ann".into(),
            gateway: "gw".into(),
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        });
        let batch = VitalsBatch {
            samples: samples.into(),
            ..VitalsBatch::default()
        };
        let written = store.write_vitals(Arc::new(batch), Vec::new()).await;
        assert_eq!(written.unwrap().new, 2);
        let entry = AuditEntry {
            time_us: now_us,
            tenant: "t".into(),
            who: "eve".into(),
            action: "read ward".into(),
            patient: String::new(),
            detail: String::new(),
        };
        store.append_audit(vec![entry]).await.unwrap();

        let client = Server::new(&options).unwrap().connect().await.unwrap();
        let ahead_us = now_us + 20 * 365 * DAY_US;
        round(&client, &options.ages, false, false, ahead_us)
            .await
            .unwrap();
        let (count, _) = store.stream_count("belt", "heart-rate").await.unwrap();
        assert_eq!(count, 1, "what is old by both is gone");
        let query = AuditQuery {
            patient: None,
            from_us: 0,
            to_us: i64::MAX,
            limit: 0,
        };
        let log = store.audit(&Scope::Service, &query).await.unwrap();
        assert_eq!(log.len(), 1);
        // The task that is further behind of the two.
        round(&client, &options.ages, false, false, 0)
            .await
            .unwrap();
        let (count, _) = store.stream_count("belt", "heart-rate").await.unwrap();
        assert_eq!(count, 1);
    }
}
