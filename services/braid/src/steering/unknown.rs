//! Names of accesses in a document that no gateway has reported: a cap on a misspelt name would
//! hold nowhere, and nobody would notice.

use std::collections::BTreeSet;

use store::{Scope, Store};
use tunnel::steering_rules::{Document, Kind};

use crate::process::Failure;

/// Lines for the person who puts the document. None before the first gateway has reported.
pub(super) async fn notes(
    store: &dyn Store,
    tenant: &str,
    document: &Document,
) -> Result<Vec<String>, Failure> {
    let mut reported = BTreeSet::new();
    let scope = Scope::tenant(tenant);
    store::each_latest_path(store, &scope, 0, |report| {
        if report.end() == contracts::paths::End::Gateway {
            reported.insert(report.path);
        }
    })
    .await
    .map_err(Failure::other)?;
    if reported.is_empty() {
        return Ok(Vec::new());
    }
    let note = |name| {
        format!(
            "note: no gateway has reported an access {name:?}; what names it holds nowhere so far"
        )
    };
    Ok(unknown(document, &reported).into_iter().map(note).collect())
}

fn unknown<'a>(document: &'a Document, reported: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let terms = document.accesses.iter().filter_map(|it| it.name.as_deref());
    let rules = document.rules.iter();
    let listed = rules.flat_map(|rule| rule.accesses.iter().chain(rule.weights.keys()));
    let is_kind = |word: &str| Kind::ALL.iter().any(|kind| kind.name() == word);
    terms
        .chain(listed.map(String::as_str))
        .filter(|word| !is_kind(word) && !reported.contains(*word))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_that_no_gateway_has_are_found() {
        let text = "format = 1\n[[access]]\nname = \"lte0\"\ncap_gb = 5\n\
                    [[access]]\nname = \"wifi\"\n[[rule]]\nname = \"bulk\"\n\
                    mode = \"load-balancing\"\naccesses = [\"wfi\", \"cellular\", \"lte\"]\n\
                    weights = { wfi = 1, cellular = 2 }\n";
        let document = Document::from_toml(text, "test").unwrap();
        let reported = ["wifi", "lte"].map(str::to_owned).into();
        let found = unknown(&document, &reported);
        assert_eq!(Vec::from_iter(found), ["lte0", "wfi"]);
    }
}
