//! The audit entry of a change of an account or a wall display.

use store::{AuditEntry, Store};

use crate::process::Failure;
use crate::signed::By;

/// Written before the recorded action happens.
pub async fn audit(
    store: &dyn Store,
    tenant: &str,
    by: &By,
    action: &str,
    name: &str,
    role: &str,
) -> Result<(), Failure> {
    let entry = AuditEntry {
        time_us: contracts::now_us(),
        tenant: tenant.to_owned(),
        who: by.who(store, tenant).await?,
        action: action.to_owned(),
        patient: String::new(),
        detail: format!("{name} {role}").trim_end().to_owned(),
    };
    store
        .append_audit(vec![entry])
        .await
        .map_err(Failure::other)
}
