use async_trait::async_trait;
use bus::{Log, Topic};
use deadpool_postgres::Transaction;

use super::{TimescaleStore, fault::Fault, transaction};
use crate::{
    Claim, ClaimError, LOG_GAPS_MAX, LogGap, Progress, ProgressStore, QueryError, WriteError,
    progress::is_of_another_log,
};

/// The arguments of both statements, one array per column.
struct Columns<'a> {
    groups: Vec<&'a str>,
    topics: Vec<&'static str>,
    parts: Vec<i32>,
    epochs: Vec<i64>,
    offsets: Vec<i64>,
    read_us: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn new(progress: &'a [Progress]) -> Columns<'a> {
        Columns {
            groups: progress.iter().map(|p| p.group.as_str()).collect(),
            topics: progress.iter().map(|p| p.topic.name()).collect(),
            parts: progress.iter().map(|p| p.partition.cast_signed()).collect(),
            epochs: progress.iter().map(|p| p.epoch.cast_signed()).collect(),
            offsets: progress
                .iter()
                .map(|p| p.next_offset.cast_signed())
                .collect(),
            read_us: progress.iter().map(|p| p.read_us).collect(),
        }
    }
}

/// First part of every write that has progress. It locks the claims until the transaction ends, so
/// that no member takes a partition over in between, and fails when one has.
pub async fn hold(transaction: &Transaction<'_>, progress: &[Progress]) -> Result<(), Fault> {
    if progress.is_empty() {
        return Ok(());
    }
    let columns = Columns::new(progress);
    // In order of the key, as everybody locks.
    let statement = transaction
        .prepare_cached(
            "SELECT p.grp, p.topic, p.part, p.epoch FROM progress p
                 JOIN unnest($1::text[], $2::text[], $3::int[]) AS w (grp, topic, part) USING (grp, topic, part)
             ORDER BY p.grp, p.topic, p.part FOR UPDATE OF p",
        )
        .await?;
    let rows = transaction
        .query(
            &statement,
            &[&columns.groups, &columns.topics, &columns.parts],
        )
        .await?;
    let fenced: Vec<(Topic, u32)> = progress
        .iter()
        .filter(|p| {
            !rows.iter().any(|row| {
                row.get::<_, &str>(0) == p.group
                    && row.get::<_, &str>(1) == p.topic.name()
                    && row.get::<_, i32>(2) == p.partition.cast_signed()
                    && row.get::<_, i64>(3) == p.epoch.cast_signed()
            })
        })
        .map(|p| (p.topic, p.partition))
        .collect();
    if fenced.is_empty() {
        Ok(())
    } else {
        Err(Fault::Fenced(fenced))
    }
}

/// Last part of the same write; the claims are held.
pub async fn advance(transaction: &Transaction<'_>, progress: &[Progress]) -> Result<(), Fault> {
    if progress.is_empty() {
        return Ok(());
    }
    let columns = Columns::new(progress);
    let statement = transaction
        .prepare_cached(
            "UPDATE progress p SET next_offset = greatest(p.next_offset, w.next_offset), read_us = coalesce(w.read_us, p.read_us)
             FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[])
                 AS w (grp, topic, part, epoch, next_offset, read_us)
             WHERE p.grp = w.grp AND p.topic = w.topic AND p.part = w.part AND p.epoch = w.epoch",
        )
        .await?;
    transaction
        .execute(
            &statement,
            &[
                &columns.groups,
                &columns.topics,
                &columns.parts,
                &columns.epochs,
                &columns.offsets,
                &columns.read_us,
            ],
        )
        .await?;
    Ok(())
}

#[async_trait]
impl ProgressStore for TimescaleStore {
    async fn claim(
        &self,
        group: &str,
        topic: Topic,
        partition: u32,
        log: &Log,
    ) -> Result<Claim, ClaimError> {
        let claimed: Result<Claim, WriteError> = transaction!(self, tx => async {
            claim(tx, group, topic, partition, log).await
        });
        claimed.map_err(|e| ClaimError::Unavailable(e.to_string()))
    }

    async fn progress(&self, group: &str, topic: Topic) -> Result<Vec<(u32, u64)>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT part, next_offset FROM progress WHERE grp = $1 AND topic = $2 AND next_offset IS NOT NULL ORDER BY part",
                &[&group, &topic.name()],
            )
            .await?;
        let read = |row: &tokio_postgres::Row| {
            (
                row.get::<_, i32>(0).cast_unsigned(),
                row.get::<_, i64>(1).cast_unsigned(),
            )
        };
        Ok(rows.iter().map(read).collect())
    }

    async fn log_gaps(&self, since_us: i64) -> Result<Vec<LogGap>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT grp, topic, part, from_us, to_us FROM log_gaps WHERE to_us >= $1 ORDER BY to_us, grp, topic, part",
                &[&since_us],
            )
            .await?;
        // A topic of a newer program is left out.
        let read = |row: &tokio_postgres::Row| {
            Some(LogGap {
                group: row.get(0),
                topic: Topic::from_name(row.get(1))?,
                partition: row.get::<_, i32>(2).cast_unsigned(),
                from_us: row.get(3),
                to_us: row.get(4),
            })
        };
        Ok(rows.iter().filter_map(read).collect())
    }
}

async fn claim(
    tx: &Transaction<'_>,
    group: &str,
    topic: Topic,
    partition: u32,
    log: &Log,
) -> Result<Claim, Fault> {
    let part = partition.cast_signed();
    let kept = tx
        .query_opt(
            "SELECT next_offset, log, read_us FROM progress WHERE grp = $1 AND topic = $2 AND part = $3 FOR UPDATE",
            &[&group, &topic.name(), &part],
        )
        .await?;
    let (next_offset, named, read_us) = kept.map_or((None, String::new(), None), |row| {
        let next_offset = row.get::<_, Option<i64>>(0).map(i64::cast_unsigned);
        (next_offset, row.get(1), row.get(2))
    });
    let is_another = is_of_another_log(&named, next_offset, log);
    let gap = is_another.then(|| LogGap {
        group: group.to_owned(),
        topic,
        partition,
        from_us: read_us,
        to_us: contracts::now_us(),
    });
    if let Some(gap) = &gap {
        keep_gap(tx, gap, &log.identity).await?;
    }
    // Another member may have made the row since it was looked for; its position stays.
    let row = tx
        .query_one(
            "INSERT INTO progress (grp, topic, part, epoch, next_offset, log) VALUES ($1, $2, $3, 1, NULL, $4)
             ON CONFLICT (grp, topic, part) DO UPDATE SET epoch = progress.epoch + 1, log = excluded.log,
                 next_offset = CASE WHEN $5 THEN NULL ELSE progress.next_offset END RETURNING epoch, next_offset",
            &[&group, &topic.name(), &part, &log.identity, &is_another],
        )
        .await?;
    Ok(Claim {
        group: group.to_owned(),
        topic,
        partition,
        epoch: row.get::<_, i64>(0).cast_unsigned(),
        next_offset: row.get::<_, Option<i64>>(1).map(i64::cast_unsigned),
        gap,
    })
}

async fn keep_gap(tx: &Transaction<'_>, gap: &LogGap, log: &str) -> Result<(), Fault> {
    let (topic, part) = (gap.topic.name(), gap.partition.cast_signed());
    tx.execute(
        "INSERT INTO log_gaps VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        &[&gap.group, &topic, &part, &gap.from_us, &gap.to_us, &log],
    )
    .await?;
    tx.execute(
        "DELETE FROM log_gaps WHERE grp = $1 AND topic = $2 AND part = $3 AND to_us <=
             (SELECT to_us FROM log_gaps WHERE grp = $1 AND topic = $2 AND part = $3 ORDER BY to_us DESC LIMIT 1 OFFSET $4)",
        &[&gap.group, &topic, &part, &i64::from(LOG_GAPS_MAX)],
    )
    .await?;
    Ok(())
}
