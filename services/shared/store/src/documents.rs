use async_trait::async_trait;
use contracts::alerts::Document;

use crate::{
    Scope,
    error::{QueryError, WriteError},
};

/// Kinds of documents that more than one service reads.
pub const RULES: &str = "rules";
pub const TEAM: &str = "team";

/// Documents in one answer to a tenant, and versions of one subject; of more it sees the first by subject, or the newest. A service's
/// own question for what is in force is not cut: rules that it did not read would not hold.
pub const DOCUMENTS_MAX: usize = 10_000;

/// What people decide about alerting, version by version: each row says who, when and why, and is never changed.
#[async_trait]
pub trait DocumentsStore: Send + Sync {
    /// `Conflict` with the subject when the version is not the one after the newest.
    async fn put_document(&self, document: &Document) -> Result<(), WriteError>;

    /// The newest version of each subject of the kind, when it is in force at `now_us`; by tenant and subject.
    async fn documents(
        &self,
        scope: &Scope,
        kind: &str,
        now_us: i64,
    ) -> Result<Vec<Document>, QueryError>;

    /// Every version, newest first.
    async fn document_history(
        &self,
        scope: &Scope,
        kind: &str,
        subject: &str,
    ) -> Result<Vec<Document>, QueryError>;

    /// Rises with every document put, by whomever: asks whether to look again.
    async fn newest_document(&self) -> Result<u64, QueryError>;
}
