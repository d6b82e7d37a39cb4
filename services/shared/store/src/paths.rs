use async_trait::async_trait;
use contracts::paths::PathReport;

use crate::{
    Progress, Scope, Written,
    error::{QueryError, WriteError, readable},
};

/// A stored report, unless it is of a namesake: while nobody had registered the name, whoever had a certificate for it could report.
/// `owner`: the gateway's tenant as the register has it.
pub(crate) fn own(payload: &[u8], owner: &str) -> Option<PathReport> {
    readable("path report", payload).filter(|report| !is_namesakes(report, owner))
}

/// Whether the report says another tenant than that which the gateway belongs to. Nobody's is everybody's, and older rows do not say.
pub fn is_namesakes(report: &PathReport, owner: &str) -> bool {
    !report.tenant.is_empty() && !owner.is_empty() && report.tenant != owner
}

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

    /// In order of time. Neither here nor below those of a namesake in another tenant.
    async fn paths(&self, scope: &Scope, query: &PathsQuery)
    -> Result<Vec<PathReport>, QueryError>;

    /// The newest report of each (gateway, path, end).
    async fn latest_paths(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<PathReport>, QueryError>;
}
