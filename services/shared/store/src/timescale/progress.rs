use async_trait::async_trait;
use bus::Topic;
use deadpool_postgres::Transaction;

use super::{TimescaleStore, fault::Fault, transaction};
use crate::{Claim, ClaimError, Progress, ProgressStore, QueryError, WriteError};

/// The arguments of both statements, one array per column.
struct Columns<'a> {
    groups: Vec<&'a str>,
    topics: Vec<&'static str>,
    parts: Vec<i32>,
    epochs: Vec<i64>,
    offsets: Vec<i64>,
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
            "UPDATE progress p SET next_offset = greatest(p.next_offset, w.next_offset)
             FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[]) AS w (grp, topic, part, epoch, next_offset)
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
            ],
        )
        .await?;
    Ok(())
}

#[async_trait]
impl ProgressStore for TimescaleStore {
    async fn claim(&self, group: &str, topic: Topic, partition: u32) -> Result<Claim, ClaimError> {
        let part = partition.cast_signed();
        let claimed: Result<(i64, Option<i64>), WriteError> = transaction!(self, tx => async {
            let row = tx
                .query_one(
                    "INSERT INTO progress VALUES ($1, $2, $3, 1, NULL)
                     ON CONFLICT (grp, topic, part) DO UPDATE SET epoch = progress.epoch + 1 RETURNING epoch, next_offset",
                    &[&group, &topic.name(), &part],
                )
                .await?;
            Ok::<_, Fault>((row.get(0), row.get(1)))
        });
        let (epoch, next_offset) = claimed.map_err(|e| ClaimError::Unavailable(e.to_string()))?;
        Ok(Claim {
            group: group.to_owned(),
            topic,
            partition,
            epoch: epoch.cast_unsigned(),
            next_offset: next_offset.map(i64::cast_unsigned),
        })
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
}
