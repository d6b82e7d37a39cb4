//! The entries that people have added to the catalogue of metrics.

use contracts::alerts::Document;
use vitals::MetricDocument;

use crate::{CATALOGUE, InForce, Otherwise, QueryError, Store, in_force};

/// Reads the entries, and takes them into the catalogue of this process. One that cannot be used is
/// among the damaged ones, and its last usable version holds. Call this before rules are read: a
/// rule may name a metric of the catalogue.
pub async fn take_catalogue(store: &(impl Store + ?Sized)) -> Result<InForce<()>, QueryError> {
    let take = |document: &Document| {
        let entry = MetricDocument::from_json(&document.body).map_err(|it| it.to_string())?;
        if entry.key != document.subject {
            return Err(format!("describes {}", entry.key));
        }
        vitals::take(document.version, entry).map_err(|it| it.to_string())?;
        Ok(())
    };
    let now_us = contracts::now_us();
    in_force(store, CATALOGUE, now_us, Otherwise::Earlier, take).await
}
