use async_trait::async_trait;
use contracts::{alerts::Document, vitals::Metric};
use prost::Message;
use tokio_postgres::Row;

use super::{TimescaleStore, fault::Fault, migrate::metric_name, transaction};
use crate::{
    CATALOGUE, DOCUMENTS_MAX, DocumentsStore, QueryError, Scope, StoredDocument, WriteError,
    documents::{check_room, is_bounded},
    notices::until,
};

fn stored(row: &Row) -> StoredDocument {
    let version = u32::try_from(row.get::<_, i64>(3)).unwrap_or_default();
    StoredDocument::new(row.get(0), row.get(1), row.get(2), version, row.get(4))
}

#[async_trait]
impl DocumentsStore for TimescaleStore {
    async fn put_document(&self, document: &Document) -> Result<(), WriteError> {
        transaction!(self, tx => async {
            // One at a time: keys rise in the order of committing, so a reader that has the newest
            // has missed none.
            tx.batch_execute("LOCK TABLE documents IN EXCLUSIVE MODE").await?;
            let newest: i64 = tx
                .query_one(
                    "SELECT coalesce(max(version), 0) FROM documents WHERE kind = $1 AND tenant = $2 AND subject = $3",
                    &[&document.kind, &document.tenant, &document.subject],
                )
                .await?
                .get(0);
            if i64::from(document.version) != newest + 1 {
                return Err(Fault::Conflict(vec![document.subject.clone()]));
            }
            if is_bounded(document) {
                let room = tx
                    .query_one(
                        "SELECT coalesce(sum(bytes) FILTER (WHERE subject <> $3), 0)::int8,
                             coalesce(sum(bytes) FILTER (WHERE subject = $3), 0)::int8
                         FROM (SELECT DISTINCT ON (subject) subject, until_us, octet_length(payload) AS bytes FROM documents
                             WHERE kind = $1 AND tenant = $2 ORDER BY subject DESC, version DESC) d WHERE until_us > $4",
                        &[&document.kind, &document.tenant, &document.subject, &document.at_us],
                    )
                    .await?;
                let bytes = |column| room.get::<_, i64>(column).cast_unsigned();
                check_room(document, bytes(0), bytes(1)).map_err(Fault::Invalid)?;
            }
            tx.execute(
                "INSERT INTO documents (kind, tenant, subject, version, until_us, payload) VALUES ($1, $2, $3, $4, $5, $6)",
                &[
                    &document.kind,
                    &document.tenant,
                    &document.subject,
                    &i64::from(document.version),
                    &until(document.until_us),
                    &document.encode_to_vec(),
                ],
            )
            .await?;
            if document.kind == CATALOGUE {
                tx.execute(
                    "INSERT INTO metrics VALUES ($1, $2) ON CONFLICT (metric) DO NOTHING",
                    &[&Metric::of_key(&document.subject).number(), &metric_name(&document.subject)],
                )
                .await?;
            }
            Ok::<_, Fault>(())
        })
    }

    async fn stored_documents(
        &self,
        scope: &Scope,
        kind: &str,
        now_us: i64,
    ) -> Result<Vec<StoredDocument>, QueryError> {
        let limit = scope.as_tenant().map(|_| DOCUMENTS_MAX as i64);
        let rows = self
            .reader()
            .await?
            .query(
                // In one pass over the versions, whatever the server knows of the table: without
                // statistics it compares each with all.
                "SELECT kind, tenant, subject, version, payload
                 FROM (SELECT DISTINCT ON (tenant, subject) kind, tenant, subject, version, until_us, payload FROM documents
                     WHERE kind = $2 AND ($1::text IS NULL OR tenant = $1) ORDER BY tenant DESC, subject DESC, version DESC) d
                 WHERE until_us > $3 ORDER BY tenant COLLATE \"C\", subject COLLATE \"C\" LIMIT $4",
                &[&scope.as_tenant(), &kind, &now_us, &limit],
            )
            .await?;
        Ok(rows.iter().map(stored).collect())
    }

    async fn stored_history(
        &self,
        scope: &Scope,
        kind: &str,
        subject: &str,
        limit: usize,
    ) -> Result<Vec<StoredDocument>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT kind, tenant, subject, version, payload FROM documents WHERE kind = $2 AND subject = $3 AND ($1::text IS NULL OR tenant = $1)
                 ORDER BY tenant COLLATE \"C\", version DESC LIMIT $4",
                &[&scope.as_tenant(), &kind, &subject, &i64::try_from(limit).unwrap_or(i64::MAX)],
            )
            .await?;
        Ok(rows.iter().map(stored).collect())
    }

    async fn newest_document(&self) -> Result<u64, QueryError> {
        let row = self
            .reader()
            .await?
            .query_one("SELECT coalesce(max(key), 0) FROM documents", &[])
            .await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }
}
