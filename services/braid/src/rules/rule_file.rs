//! A rule set in a file.

use std::path::Path;

use service_kit::ConfigError;
use service_kit::config::parse_file;
use vitals::{RuleDocument, RuleSet};

const EXAMPLE: &str = "what `braid rules show` prints";

/// The rules that hold by a file. `None`: the built-in ones.
pub(super) fn read_rules(file: Option<&Path>) -> Result<RuleSet, ConfigError> {
    read_document(file).map(|document| document.resolve())
}

pub(super) fn read_document(file: Option<&Path>) -> Result<RuleDocument, ConfigError> {
    let Some(file) = file else {
        return Ok(RuleDocument::built_in());
    };
    parse_file("rules", file, EXAMPLE, RuleDocument::from_json)
}

/// Also refuses a set that loses falls or NEWS2 without saying so.
pub(super) fn read_to_put(file: &Path) -> Result<RuleDocument, ConfigError> {
    parse_file("rules", file, EXAMPLE, |text| {
        let document = RuleDocument::from_json(text)?;
        document.check_extends().map(|()| document)
    })
}
