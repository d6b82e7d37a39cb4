use async_trait::async_trait;
use tokio_postgres::Row;

use super::{TimescaleStore, fault::Fault, transaction};
use crate::{Proof, ProofsStore, QueryError, WriteError};

const COLUMNS: &str =
    "channel, tenant, recipient, settings, token, sent_us, confirmed_us, confirmed_by";

fn proof(row: &Row) -> Proof {
    Proof {
        channel: row.get(0),
        tenant: row.get(1),
        recipient: row.get(2),
        settings: row.get(3),
        token: row.get(4),
        sent_us: row.get(5),
        confirmed_us: row.get(6),
        confirmed_by: row.get(7),
    }
}

#[async_trait]
impl ProofsStore for TimescaleStore {
    async fn begin_proof(&self, proof: &Proof, before_us: Option<i64>) -> Result<bool, WriteError> {
        transaction!(self, tx => async {
            let (channel, tenant, recipient) = (&proof.channel, &proof.tenant, &proof.recipient);
            let (settings, token, sent_us) = (&proof.settings, &proof.token, proof.sent_us);
            let written = match before_us {
                None => {
                    tx.execute(
                        "INSERT INTO proofs VALUES ($1, $2, $3, $4, $5, $6, NULL, '')
                         ON CONFLICT (channel, tenant, recipient) DO NOTHING",
                        &[channel, tenant, recipient, settings, token, &sent_us],
                    )
                    .await?
                }
                Some(before_us) => {
                    tx.execute(
                        "UPDATE proofs SET token = $5, sent_us = $6, settings = $4,
                             confirmed_us = CASE WHEN settings = $4 THEN confirmed_us END,
                             confirmed_by = CASE WHEN settings = $4 THEN confirmed_by ELSE '' END
                         WHERE channel = $1 AND tenant = $2 AND recipient = $3 AND sent_us = $7",
                        &[channel, tenant, recipient, settings, token, &sent_us, &before_us],
                    )
                    .await?
                }
            };
            Ok::<_, Fault>(written > 0)
        })
    }

    async fn confirm_proof(
        &self,
        token: &str,
        by: &str,
        now_us: i64,
    ) -> Result<Option<Proof>, WriteError> {
        transaction!(self, tx => async {
            let row = tx
                .query_opt(
                    &format!(
                        "UPDATE proofs SET confirmed_us = $2, confirmed_by = $3 WHERE token = $1
                         RETURNING {COLUMNS}"
                    ),
                    &[&token, &now_us, &by],
                )
                .await?;
            Ok::<_, Fault>(row.as_ref().map(proof))
        })
    }

    async fn proofs(&self) -> Result<Vec<Proof>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT {COLUMNS} FROM proofs ORDER BY channel COLLATE \"C\",
                         tenant COLLATE \"C\", recipient COLLATE \"C\""
                ),
                &[],
            )
            .await?;
        Ok(rows.iter().map(proof).collect())
    }

    async fn end_proof(
        &self,
        channel: &str,
        tenant: &str,
        recipient: &str,
    ) -> Result<(), WriteError> {
        transaction!(self, tx => async {
            tx.execute(
                "DELETE FROM proofs WHERE channel = $1 AND tenant = $2 AND recipient = $3",
                &[&channel, &tenant, &recipient],
            )
            .await?;
            Ok::<_, Fault>(())
        })
    }
}
