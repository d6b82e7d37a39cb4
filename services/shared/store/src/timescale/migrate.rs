//! Brings the schema up to date, once, however many processes start together. An advisory lock lets
//! one work; the others wait for it and find nothing to do. Applied migrations are recorded with a
//! checksum and never change; a change is a new file.

use contracts::vitals::Metric;
use tokio_postgres::Client;

use super::{edition::Edition, fault::explain, open_error::OpenError};

/// Version n is after the n-th.
const MIGRATIONS: &[(&str, &str)] = &[
    ("tables", include_str!("migrations/0001_tables.sql")),
    ("notices", include_str!("migrations/0002_notices.sql")),
    (
        "alert_priority",
        include_str!("migrations/0003_alert_priority.sql"),
    ),
    (
        "assignments",
        include_str!("migrations/0004_assignments.sql"),
    ),
    (
        "notice_shares",
        include_str!("migrations/0005_notice_shares.sql"),
    ),
    (
        "path_steering",
        include_str!("migrations/0006_path_steering.sql"),
    ),
    (
        "logs_and_restores",
        include_str!("migrations/0007_logs_and_restores.sql"),
    ),
    ("silent", include_str!("migrations/0008_silent.sql")),
    (
        "priority_and_proofs",
        include_str!("migrations/0009_priority_and_proofs.sql"),
    ),
    ("sessions", include_str!("migrations/0010_sessions.sql")),
    ("patients", include_str!("migrations/0011_patients.sql")),
    ("ledgers", include_str!("migrations/0012_ledgers.sql")),
];
/// Roll-ups depend on the edition: made by TimescaleDB where it can, else by the store.
const ROLLUPS_OWN: &str = include_str!("rollups_own.sql");
const ROLLUPS_CONTINUOUS: &str = include_str!("rollups_continuous.sql");
const VIEWS: &str = include_str!("views.sql");
/// Key of the advisory lock: the letters "braid".
const LOCK: i64 = 0x62_7261_6964;

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    pub from: i32,
    pub to: i32,
    /// Roll-ups are kept by TimescaleDB, not by the store.
    pub continuous: bool,
}

pub const fn newest() -> i32 {
    MIGRATIONS.len() as i32
}

pub async fn run(
    client: &Client,
    address: &str,
    edition: Edition,
    migrate: bool,
) -> Result<Applied, OpenError> {
    let failed = |e: tokio_postgres::Error| OpenError::from_server(address, &e);
    if !migrate {
        let from = if has_table(client).await.map_err(failed)? {
            check(client, address).await?
        } else {
            0
        };
        return if from < newest() {
            Err(OpenError::Older {
                found: from,
                known: newest(),
            })
        } else {
            Ok(Applied {
                from,
                to: from,
                continuous: continuous(client).await.map_err(failed)?,
            })
        };
    }
    // Held by the session: it ends with the connection, also when this process is killed.
    client
        .execute("SELECT pg_advisory_lock($1)", &[&LOCK])
        .await
        .map_err(failed)?;
    let outcome = locked(client, address, edition).await;
    client
        .execute("SELECT pg_advisory_unlock($1)", &[&LOCK])
        .await
        .map_err(failed)?;
    outcome
}

async fn has_table(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let row = client
        .query_one("SELECT to_regclass('schema_migrations') IS NOT NULL", &[])
        .await?;
    Ok(row.get(0))
}

async fn locked(client: &Client, address: &str, edition: Edition) -> Result<Applied, OpenError> {
    let failed = |e: tokio_postgres::Error| OpenError::from_server(address, &e);
    if !has_table(client).await.map_err(failed)? {
        client
            .batch_execute(
                "CREATE TABLE schema_migrations (version int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
                     applied timestamptz NOT NULL DEFAULT now(), program text NOT NULL)",
            )
            .await
            .map_err(|e| migration_failed(0, &e))?;
    }
    let from = check(client, address).await?;
    for (version, (name, sql)) in (1..).zip(MIGRATIONS).skip(from as usize) {
        apply(client, version, name, sql)
            .await
            .map_err(|e| migration_failed(version, &e))?;
        tracing::info!(version, name, "schema migrated");
    }
    follow(client, edition)
        .await
        .map_err(|e| migration_failed(newest(), &e))?;
    Ok(Applied {
        from,
        to: newest(),
        continuous: continuous(client).await.map_err(failed)?,
    })
}

/// Existing tables count, not those that the edition would make today.
async fn continuous(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let row = client
        .query_one(
            "SELECT relkind = 'v' FROM pg_class WHERE oid = 'vitals_1m'::regclass",
            &[],
        )
        .await?;
    Ok(row.get(0))
}

fn migration_failed(version: i32, error: &tokio_postgres::Error) -> OpenError {
    OpenError::Migration {
        version,
        reason: explain(error),
    }
}

/// The version that is there, when this program may work with it.
async fn check(client: &Client, address: &str) -> Result<i32, OpenError> {
    let failed = |e: tokio_postgres::Error| OpenError::from_server(address, &e);
    let rows = client
        .query(
            "SELECT version, checksum FROM schema_migrations ORDER BY version",
            &[],
        )
        .await
        .map_err(failed)?;
    let found = rows.last().map_or(0, |row| row.get(0));
    if found > newest() {
        return Err(OpenError::Newer {
            found,
            known: newest(),
        });
    }
    for row in &rows {
        let version: i32 = row.get(0);
        let known = usize::try_from(version - 1)
            .ok()
            .and_then(|n| MIGRATIONS.get(n));
        let same = match known {
            Some((_, sql)) => {
                checksum(client, sql).await.map_err(failed)? == row.get::<_, String>(1)
            }
            None => false,
        };
        if !same {
            return Err(OpenError::Changed { version });
        }
    }
    Ok(found)
}

async fn checksum(client: &Client, sql: &str) -> Result<String, tokio_postgres::Error> {
    let row = client
        .query_one("SELECT encode(sha256($1), 'hex')", &[&sql.as_bytes()])
        .await?;
    Ok(row.get(0))
}

async fn apply(
    client: &Client,
    version: i32,
    name: &str,
    sql: &str,
) -> Result<(), tokio_postgres::Error> {
    let checksum = checksum(client, sql).await?;
    client.batch_execute("BEGIN").await?;
    let outcome = async {
        client.batch_execute(sql).await?;
        client
            .execute(
                "INSERT INTO schema_migrations (version, name, checksum, program) VALUES ($1, $2, $3, $4)",
                &[&version, &name, &checksum, &env!("CARGO_PKG_VERSION")],
            )
            .await?;
        client.batch_execute("COMMIT").await
    }
    .await;
    if outcome.is_err() {
        // A connection that is gone has rolled back by itself.
        let _ = client.batch_execute("ROLLBACK").await;
    }
    outcome
}

/// Objects that follow the program and the edition instead of a version: roll-ups, names of
/// metrics, views.
async fn follow(client: &Client, edition: Edition) -> Result<(), tokio_postgres::Error> {
    let there = client
        .query_one("SELECT to_regclass('vitals_1h') IS NOT NULL", &[])
        .await?;
    // Existing roll-ups stay: an edition that changes later does not discard them.
    if !there.get::<_, bool>(0) {
        client
            .batch_execute(if edition.community {
                ROLLUPS_CONTINUOUS
            } else {
                ROLLUPS_OWN
            })
            .await?;
    }
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS metrics (metric int PRIMARY KEY, name text NOT NULL)",
        )
        .await?;
    let (mut keys, mut names) = (Vec::new(), Vec::new());
    for key in 0..i32::from(u8::MAX) {
        if let Ok(metric) = Metric::try_from(key) {
            keys.push(key);
            names.push(
                metric
                    .as_str_name()
                    .trim_start_matches("METRIC_")
                    .to_lowercase(),
            );
        }
    }
    client
        .execute(
            "INSERT INTO metrics SELECT * FROM unnest($1::int[], $2::text[])
             ON CONFLICT (metric) DO UPDATE SET name = excluded.name WHERE metrics.name <> excluded.name",
            &[&keys, &names],
        )
        .await?;
    // Replacing a view waits for its readers, so it happens only when the view differs. The last
    // view's comment has the checksum.
    let sum = checksum(client, VIEWS).await?;
    let row = client
        .query_one(
            "SELECT obj_description(to_regclass('paths_view'), 'pg_class')",
            &[],
        )
        .await?;
    if row.get::<_, Option<String>>(0).as_deref() == Some(sum.as_str()) {
        return Ok(());
    }
    client.batch_execute(VIEWS).await?;
    client
        .batch_execute(&format!("COMMENT ON VIEW paths_view IS '{sum}'"))
        .await
}
