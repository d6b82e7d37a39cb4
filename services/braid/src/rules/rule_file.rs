//! A rule set in a file.

use std::path::Path;

use service_kit::ConfigError;
use service_kit::config::parse_file;
use vitals::RuleSet;

pub(super) fn read_rules(file: Option<&Path>) -> Result<RuleSet, ConfigError> {
    let Some(file) = file else {
        return Ok(RuleSet::default_set());
    };
    let example = "what `braid rules show` prints";
    parse_file("rules", file, example, RuleSet::from_json)
}
