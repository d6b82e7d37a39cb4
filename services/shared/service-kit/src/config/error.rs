//! Why a setting is refused.

use std::fmt;

/// A refused setting, with the reason and an example of a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    pub field: String,
    pub reason: String,
    pub example: String,
}

impl ConfigError {
    pub fn new(
        field: impl Into<String>,
        reason: impl Into<String>,
        example: impl Into<String>,
    ) -> ConfigError {
        ConfigError {
            field: field.into(),
            reason: reason.into(),
            example: example.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}\n  example: {}",
            self.field, self.reason, self.example
        )
    }
}
