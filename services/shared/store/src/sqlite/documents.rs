use async_trait::async_trait;
use contracts::alerts::Document;
use prost::Message;
use rusqlite::{OptionalExtension, Row};

use super::{SqliteStore, readable_rows};
use crate::{
    DOCUMENTS_MAX, DocumentsStore, QueryError, Scope, StoredDocument, WriteError,
    documents::{check_room, is_bounded},
    notices::until,
};

fn stored(row: &Row<'_>) -> rusqlite::Result<StoredDocument> {
    Ok(StoredDocument::new(
        row.get(0)?,
        row.get(1)?,
        row.get(2)?,
        row.get(3)?,
        // A damage may have made another type of it.
        row.get_ref(4)?.as_bytes().unwrap_or_default(),
    ))
}

#[async_trait]
impl DocumentsStore for SqliteStore {
    async fn put_document(&self, document: &Document) -> Result<(), WriteError> {
        let document = document.clone();
        self.write(move |writing| {
            let newest: Option<u32> = writing
                .connection
                .prepare_cached(
                    "SELECT max(version) FROM documents WHERE kind = ?1 AND tenant = ?2 AND subject = ?3",
                )?
                .query_row((&document.kind, &document.tenant, &document.subject), |row| row.get(0))
                .optional()?
                .flatten();
            if document.version != newest.unwrap_or(0) + 1 {
                return Err(WriteError::Conflict(vec![document.subject]));
            }
            if is_bounded(&document) {
                let (others, before) = writing
                    .connection
                    .prepare_cached(
                        "SELECT coalesce(sum(length(payload)) FILTER (WHERE subject <> ?3), 0),
                             coalesce(sum(length(payload)) FILTER (WHERE subject = ?3), 0)
                         FROM documents d WHERE kind = ?1 AND tenant = ?2 AND until_us > ?4
                         AND NOT EXISTS (SELECT 1 FROM documents n WHERE n.kind = d.kind AND n.tenant = d.tenant
                             AND n.subject = d.subject AND n.version > d.version)",
                    )?
                    .query_row(
                        (&document.kind, &document.tenant, &document.subject, document.at_us),
                        |row| Ok((row.get(0)?, row.get(1)?)),
                    )?;
                check_room(&document, others, before).map_err(WriteError::Invalid)?;
            }
            writing
                .connection
                .prepare_cached(
                    "INSERT INTO documents (kind, tenant, subject, version, until_us, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute((
                    &document.kind,
                    &document.tenant,
                    &document.subject,
                    document.version,
                    until(document.until_us),
                    document.encode_to_vec(),
                ))?;
            Ok(())
        })
        .await
    }

    async fn stored_documents(
        &self,
        scope: &Scope,
        kind: &str,
        now_us: i64,
    ) -> Result<Vec<StoredDocument>, QueryError> {
        let (tenant, kind) = (scope.as_tenant().map(str::to_owned), kind.to_owned());
        // Below zero: none.
        let limit = tenant.as_ref().map_or(-1, |_| DOCUMENTS_MAX as i64);
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                    "SELECT kind, tenant, subject, version, payload FROM documents d WHERE kind = ?2 AND until_us > ?3 AND (?1 IS NULL OR tenant = ?1)
                     AND NOT EXISTS (SELECT 1 FROM documents n WHERE n.kind = d.kind AND n.tenant = d.tenant
                         AND n.subject = d.subject AND n.version > d.version)
                     ORDER BY tenant, subject LIMIT ?4",
            )?;
            readable_rows("document", statement.query_map((tenant, kind, now_us, limit), stored)?)
        })
        .await
    }

    async fn stored_history(
        &self,
        scope: &Scope,
        kind: &str,
        subject: &str,
        limit: usize,
    ) -> Result<Vec<StoredDocument>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        let (kind, subject) = (kind.to_owned(), subject.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                    "SELECT kind, tenant, subject, version, payload FROM documents WHERE kind = ?2 AND subject = ?3 AND (?1 IS NULL OR tenant = ?1)
                     ORDER BY tenant, version DESC LIMIT ?4",
            )?;
            readable_rows("document", statement.query_map((tenant, kind, subject, limit), stored)?)
        })
        .await
    }

    async fn newest_document(&self) -> Result<u64, QueryError> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached("SELECT coalesce(max(key), 0) FROM documents")?
                .query_row([], |row| row.get(0))?)
        })
        .await
    }
}
