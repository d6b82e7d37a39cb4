use async_trait::async_trait;
use contracts::paths::PathReport;

use crate::{
    Progress, Scope, Written,
    error::{QueryError, WriteError},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathsQuery {
    /// `None`: all gateways in scope.
    pub gateway: Option<String>,
    /// End of interval, from inclusive, to exclusive.
    pub from_us: i64,
    pub to_us: i64,
    /// At most this many, the newest ones; 0: 10,000.
    pub limit: usize,
}

#[async_trait]
pub trait PathsStore: Send + Sync {
    /// Reports are unique by (gateway, path, end, session, sequence).
    async fn write_paths(
        &self,
        reports: Vec<PathReport>,
        progress: Vec<Progress>,
    ) -> Result<Written, WriteError>;

    /// In order of time.
    async fn paths(&self, scope: &Scope, query: &PathsQuery)
    -> Result<Vec<PathReport>, QueryError>;

    /// The newest report of each (gateway, path, end).
    async fn latest_paths(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<PathReport>, QueryError>;
}
