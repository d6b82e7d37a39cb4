//! Values that must not appear in logs, in `braid config` or in debug output.

use std::convert::Infallible;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

/// Printed in place of a secret.
pub const MASK: &str = "***";

/// A password, a token or a URL that contains one. `Debug` and `Serialize` print [`MASK`].
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Secret {
        Secret(value.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Compares in constant time, independent of the position of a difference.
    pub fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        own.len() == given.len()
            && own
                .iter()
                .zip(given)
                .fold(0, |difference, (own, given)| difference | (own ^ given))
                == 0
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(value: &str) -> Result<Secret, Infallible> {
        Ok(Secret::new(value))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn neither_debug_nor_serialize_shows_a_secret() {
        let secret: Secret = "hunter2".parse().unwrap();
        assert_eq!(secret.expose(), "hunter2");
        assert!(secret.is(b"hunter2"));
        assert!(!secret.is(b"hunter") && !secret.is(b"hunter3") && !secret.is(b""));
        assert_eq!(format!("{secret:?}"), MASK);
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"***\"");
    }
}
