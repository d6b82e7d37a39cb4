//! The steering document that was put last.

use contracts::alerts::Document;
use dashboard::explain::SUBJECT;
use store::{STEERING, Scope};

use crate::audit::Asker;
use crate::process::Failure;
use crate::tenancy::Tenancy;

/// The newest version, if one was ever put.
pub(super) async fn newest(asker: &Asker, tenancy: &Tenancy) -> Result<Option<Document>, Failure> {
    let store = tenancy.store.open().await?;
    asker.reads_steering(&*store, &tenancy.tenant).await?;
    let scope = Scope::Tenant(tenancy.tenant.clone());
    let history = store.stored_history(&scope, STEERING, SUBJECT, 1).await;
    let newest = history.map_err(Failure::other)?.into_iter().next();
    let newest = newest.map(|stored| stored.document.map_err(Failure::other));
    newest.transpose()
}
