//! Refusals of what people and sensors send, and the checks of identifiers, names and texts.
//!
//! A refusal names the field, the reason and an accepted value, because the reader may be a person
//! with a sensor and `curl`.

/// Bytes of an identifier of a device, stream or patient. Longer ones are refused.
pub const IDENTIFIER_BYTES_MAX: usize = 128;
/// Bytes of the name of a person at a gateway. Longer ones are refused.
pub const PERSON_BYTES_MAX: usize = 120;

/// Reason of a refusal, and an accepted value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}; for example {example}")]
pub struct Invalid {
    pub field: &'static str,
    pub reason: String,
    pub example: String,
}

impl Invalid {
    pub fn new(
        field: &'static str,
        reason: impl Into<String>,
        example: impl Into<String>,
    ) -> Invalid {
        Invalid {
            field,
            reason: reason.into(),
            example: example.into(),
        }
    }
}

/// Accepts letters, digits and `. _ : -`, because identifiers appear in keys, labels and file
/// names.
pub fn validate_identifier(
    field: &'static str,
    identifier: &str,
    example: &str,
) -> Result<(), Invalid> {
    let reason = if identifier.is_empty() {
        "is missing".to_owned()
    } else if identifier.len() > IDENTIFIER_BYTES_MAX {
        format!("is longer than {IDENTIFIER_BYTES_MAX} bytes")
    } else if !identifier
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
    {
        format!(
            "{:?} has characters other than letters, digits and . _ : -",
            clip(identifier)
        )
    } else {
        return Ok(());
    };
    Err(Invalid::new(field, reason, format!("{example:?}")))
}

/// Accepts the name that a person typed. Control and direction characters are refused, because the
/// name appears in lists, messages and terminals.
pub fn validate_person(field: &'static str, name: &str) -> Result<(), Invalid> {
    validate_text(field, name, PERSON_BYTES_MAX, "\"Ada Carer\"")
}

/// Accepts one line of text that is not empty.
pub fn validate_text(
    field: &'static str,
    text: &str,
    bytes_max: usize,
    example: &str,
) -> Result<(), Invalid> {
    let reason = if text.trim().is_empty() {
        "is missing".to_owned()
    } else if text.len() > bytes_max {
        format!("is longer than {bytes_max} bytes")
    } else if let Err(found) = contracts::text::check(text) {
        found.to_string()
    } else {
        return Ok(());
    };
    Err(Invalid::new(field, reason, example))
}

/// The beginning of a foreign text, for a message.
pub(crate) fn clip(text: &str) -> &str {
    let end = text
        .char_indices()
        .nth(32)
        .map_or(text.len(), |(index, _)| index);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_person_is_short_and_has_no_control_characters() {
        for name in ["Ada Carer", "Zo\u{eb} d'Arc-Li", "\u{5f20}\u{4f1f}"] {
            assert_eq!(validate_person("by", name), Ok(()), "{name}");
        }
        let long = "x".repeat(PERSON_BYTES_MAX + 1);
        for name in ["", "  ", "a\nb", "\u{1b}[2J", "\u{202e}adA", &long] {
            assert!(validate_person("by", name).is_err(), "{name:?}");
        }
    }
}
