use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row};

use super::SqliteStore;
use crate::{Proof, ProofsStore, QueryError, WriteError};

const COLUMNS: &str =
    "channel, tenant, recipient, settings, token, sent_us, confirmed_us, confirmed_by";

fn proof(row: &Row<'_>) -> rusqlite::Result<Proof> {
    Ok(Proof {
        channel: row.get(0)?,
        tenant: row.get(1)?,
        recipient: row.get(2)?,
        settings: row.get(3)?,
        token: row.get(4)?,
        sent_us: row.get(5)?,
        confirmed_us: row.get(6)?,
        confirmed_by: row.get(7)?,
    })
}

#[async_trait]
impl ProofsStore for SqliteStore {
    async fn begin_proof(&self, proof: &Proof, before_us: Option<i64>) -> Result<bool, WriteError> {
        let proof = proof.clone();
        self.write(move |writing| {
            let written = match before_us {
                None => writing
                    .connection
                    .prepare_cached(
                        "INSERT OR IGNORE INTO proofs VALUES (?1, ?2, ?3, ?4, ?5, ?6, NULL, '')",
                    )?
                    .execute((
                        &proof.channel,
                        &proof.tenant,
                        &proof.recipient,
                        &proof.settings,
                        &proof.token,
                        proof.sent_us,
                    ))?,
                Some(before_us) => writing
                    .connection
                    .prepare_cached(
                        "UPDATE proofs SET token = ?5, sent_us = ?6, settings = ?4,
                             confirmed_us = CASE WHEN settings = ?4 THEN confirmed_us END,
                             confirmed_by = CASE WHEN settings = ?4 THEN confirmed_by ELSE '' END
                         WHERE channel = ?1 AND tenant = ?2 AND recipient = ?3 AND sent_us = ?7",
                    )?
                    .execute((
                        &proof.channel,
                        &proof.tenant,
                        &proof.recipient,
                        &proof.settings,
                        &proof.token,
                        proof.sent_us,
                        before_us,
                    ))?,
            };
            Ok(written > 0)
        })
        .await
    }

    async fn confirm_proof(
        &self,
        token: &str,
        by: &str,
        now_us: i64,
    ) -> Result<Option<Proof>, WriteError> {
        let (token, by) = (token.to_owned(), by.to_owned());
        self.write(move |writing| {
            Ok(writing
                .connection
                .prepare_cached(&format!(
                    "UPDATE proofs SET confirmed_us = ?2, confirmed_by = ?3 WHERE token = ?1
                     RETURNING {COLUMNS}"
                ))?
                .query_row((token, now_us, by), proof)
                .optional()?)
        })
        .await
    }

    async fn proofs(&self) -> Result<Vec<Proof>, QueryError> {
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM proofs ORDER BY channel, tenant, recipient"
                ))?
                .query_map([], proof)?
                .collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn end_proof(
        &self,
        channel: &str,
        tenant: &str,
        recipient: &str,
    ) -> Result<(), WriteError> {
        let key = [channel, tenant, recipient].map(str::to_owned);
        self.write(move |writing| {
            writing
                .connection
                .prepare_cached(
                    "DELETE FROM proofs WHERE channel = ?1 AND tenant = ?2 AND recipient = ?3",
                )?
                .execute(key)?;
            Ok(())
        })
        .await
    }
}
