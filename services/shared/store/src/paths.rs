use async_trait::async_trait;
use contracts::paths::PathReport;

use crate::{
    Progress, Scope, Written,
    error::{QueryError, WriteError, readable},
};

/// Paths of one gateway whose newest reports are kept; past it those of the path that was silent
/// for longest are forgotten. The reports themselves stay for their retention.
pub const PATHS_PER_GATEWAY_MAX: usize = 32;
/// Reports of one page of [`PathsStore::latest_paths_page`].
pub(crate) const LATEST_PAGE: usize = 1_000;

/// The key of a newest report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatestPathKey {
    pub gateway: String,
    pub path: String,
    pub end: i32,
}

impl LatestPathKey {
    /// In front of all keys.
    pub fn first() -> LatestPathKey {
        LatestPathKey {
            gateway: String::new(),
            path: String::new(),
            end: i32::MIN,
        }
    }
}

/// One page of newest reports, and where the next one begins; `None`: this was the last.
pub type LatestPathsPage = (Vec<PathReport>, Option<LatestPathKey>);

/// Hands over the newest report of every (gateway, path, end) that is not older than `from_us`,
/// page by page.
pub async fn each_latest_path(
    store: &(impl PathsStore + ?Sized),
    scope: &Scope,
    from_us: i64,
    mut take: impl FnMut(PathReport) + Send,
) -> Result<(), QueryError> {
    let mut after = Some(LatestPathKey::first());
    while let Some(key) = after {
        let (reports, next) = store
            .latest_paths_page(scope, from_us, &key, LATEST_PAGE)
            .await?;
        reports.into_iter().for_each(&mut take);
        after = next;
    }
    Ok(())
}

/// A stored report, unless it is of a namesake: while a name was not registered, any gateway with a
/// certificate for it could report. `owner`: the gateway's tenant in the register.
pub(crate) fn own(payload: &[u8], owner: &str) -> Option<PathReport> {
    readable("path report", payload).filter(|report| !is_namesakes(report, owner))
}

/// Whether the report names another tenant than the gateway's. A report without a tenant belongs to
/// every tenant; older rows have none.
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

    /// The newest report of each (gateway, path, end); of one gateway at most
    /// [`PATHS_PER_GATEWAY_MAX`] paths.
    async fn latest_paths(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<PathReport>, QueryError>;

    /// The same in pages of `limit` rows, in order of their keys, of those not older than
    /// `from_us`.
    async fn latest_paths_page(
        &self,
        scope: &Scope,
        from_us: i64,
        after: &LatestPathKey,
        limit: usize,
    ) -> Result<LatestPathsPage, QueryError>;
}
