//! The steering document that was put last.

use contracts::alerts::Document;
use dashboard::explain::SUBJECT;
use store::{STEERING, Scope};

use crate::audit::Asker;
use crate::place::Place;
use crate::process::Failure;

/// The newest version, if one was ever put.
pub(super) async fn newest(asker: &Asker, place: &Place) -> Result<Option<Document>, Failure> {
    let store = place.store.open().await?;
    asker.reads_steering(&*store, &place.tenant).await?;
    let scope = Scope::Tenant(place.tenant.clone());
    let history = store.stored_history(&scope, STEERING, SUBJECT, 1).await;
    let newest = history.map_err(Failure::other)?.into_iter().next();
    let newest = newest.map(|stored| stored.document.map_err(Failure::other));
    newest.transpose()
}
