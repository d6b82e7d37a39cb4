//! The built-in rules as a document that people can read beside their own.

use contracts::alerts;
use store::RULES;
use tonic::Status;
use vitals::RuleSet;

/// Subject of the rules that every set may extend. No set has it.
pub(super) const BUILT_IN: &str = "built-in";

/// The rules that a set extends, in the form of a document.
pub(super) fn built_in(tenant: &str) -> Result<alerts::Document, Status> {
    let body = serde_json::to_string(&RuleSet::default_set());
    Ok(alerts::Document {
        kind: RULES.to_owned(),
        tenant: tenant.to_owned(),
        subject: BUILT_IN.to_owned(),
        author: "braid".to_owned(),
        body: body.map_err(|error| Status::internal(error.to_string()))?,
        ..alerts::Document::default()
    })
}
