//! Roll-ups and retention, by one process at a time: the holder of the advisory lock. The lock
//! belongs to a connection, so it passes on when its holder dies.

use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use tokio_postgres::Client;

use super::{Ages, Edition, fault, open::Server, retention, rollups};

/// How often roll-ups are brought up to date, and how often the others look whether the lock is
/// free.
const EVERY: Duration = Duration::from_secs(10);
const RETENTION_EVERY: Duration = Duration::from_secs(600);
/// Key of the advisory lock: the letters "rolls".
const LOCK: i64 = 0x72_6f6c_6c73;

pub async fn run(
    server: Server,
    pool: deadpool_postgres::Pool,
    ages: Ages,
    edition: Edition,
    continuous: bool,
) {
    loop {
        match server.connect().await {
            Err(error) => tracing::debug!(%error, "roll-ups and retention wait"),
            Ok(client) => {
                let work = work(&client, &pool, &ages, edition, continuous);
                if let Err(reason) = work.await {
                    tracing::warn!(reason, "roll-ups and retention are interrupted");
                    metrics::counter!("braid_store_background_errors_total").increment(1);
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Until something fails.
async fn work(
    client: &Client,
    pool: &deadpool_postgres::Pool,
    ages: &Ages,
    edition: Edition,
    continuous: bool,
) -> Result<(), String> {
    let said = |e: tokio_postgres::Error| fault::explain(&e);
    loop {
        let row = client
            .query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK])
            .await
            .map_err(said)?;
        if row.get(0) {
            break;
        }
        tokio::time::sleep(EVERY).await;
    }
    tracing::debug!("this process makes the roll-ups and removes what is old");
    if edition.community {
        retention::set_policies(client, ages, continuous)
            .await
            .map_err(said)?;
    }
    let mut retained: Option<Instant> = None;
    loop {
        if retained.is_none_or(|at| at.elapsed() >= RETENTION_EVERY) {
            let now_us = contracts::now_us();
            retention::round(client, ages, edition.community, continuous, now_us)
                .await
                .map_err(said)?;
            retained = Some(Instant::now());
        }
        if continuous {
            // Proves that the connection, and with it the lock, is still there.
            client.simple_query("").await.map_err(said)?;
        } else {
            let mut connection = pool.get().await.map_err(fault::explain_pool)?;
            while let Some(took) = roll_up(&mut connection, ages).await? {
                // Writers of the devices of a step wait for it; now they get as long.
                tokio::time::sleep(took).await;
            }
            client.simple_query("").await.map_err(said)?;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// How long a step took; `None`: there was nothing to do.
async fn roll_up(connection: &mut Object, ages: &Ages) -> Result<Option<Duration>, String> {
    let said = |e: tokio_postgres::Error| fault::explain(&e);
    let started = Instant::now();
    let transaction = connection.transaction().await.map_err(said)?;
    let devices = rollups::step(&transaction, contracts::now_us(), ages)
        .await
        .map_err(|fault| fault.into_write().to_string())?;
    transaction.commit().await.map_err(said)?;
    if devices == 0 {
        return Ok(None);
    }
    let took = started.elapsed();
    metrics::histogram!("braid_store_roll_up_seconds").record(took);
    Ok(Some(took))
}
