//! Errors of a TOML file with their line and an example, for files that people write by hand.

use toml::de::{DeTable, DeValue};

/// A value that cannot be taken, with the field's path.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    pub field: String,
    pub reason: String,
}

/// A file that cannot be taken; its writer is at fault.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FileError {
    /// The text is not TOML, or a field is missing, unknown or of another type.
    #[error("line {line}: {reason}")]
    Toml { line: usize, reason: String },
    /// A value is out of its range.
    #[error("line {line}: {field}: {reason}")]
    Field {
        line: usize,
        field: String,
        reason: String,
    },
}

impl FileError {
    /// A text that is not TOML of the right shape. `examples`: what to write for which field.
    pub fn of_toml(text: &str, error: &toml::de::Error, examples: &[(&str, &str)]) -> Self {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let at = (0..=at)
            .rev()
            .find(|it| text.is_char_boundary(*it))
            .unwrap_or(0);
        let begin = text[..at].rfind('\n').map_or(0, |it| it + 1);
        let written = text[begin..].lines().next().unwrap_or_default().trim();
        let key = written.split(['=', ' ']).next().unwrap_or_default();
        let reason = error.message();
        let named = |it: &&(&str, &str)| reason.contains(&format!("`{}`", it.0));
        let of = |wanted: &dyn Fn(&str) -> bool| examples.iter().find(|it| wanted(it.0));
        let alike = |name: &str| name.starts_with(key) || key.starts_with(name);
        let own = if reason.contains("missing field") || key.is_empty() {
            None
        } else {
            of(&|name| name == key).or_else(|| of(&alike))
        };
        let example = own
            .or_else(|| examples.iter().find(named))
            .or(examples.first())
            .map_or("", |it| it.1);
        Self::Toml {
            line: text[..at].matches('\n').count() + 1,
            reason: format!("{reason}, at {written:?}; for example {example}"),
        }
    }

    /// A value that cannot be taken, with the line of its field.
    pub fn of_field(text: &str, invalid: Invalid) -> Self {
        let Invalid { field, reason } = invalid;
        Self::Field {
            line: line_of(text, &field).unwrap_or(1),
            field,
            reason,
        }
    }
}

/// The line of a field such as `route[2].resources[0].there_ms` in its file, or of what would
/// hold it.
fn line_of(text: &str, field: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut at = table.span().start;
    let mut value: Option<&DeValue<'_>> = None;
    for part in field.split(['.', '[']) {
        let found = match (part.strip_suffix(']'), value) {
            (Some(index), Some(DeValue::Array(list))) => list.get(index.parse::<usize>().ok()?),
            (None, None) => table.get_ref().get(part),
            (None, Some(DeValue::Table(table))) => table.get(part),
            _ => None,
        };
        let Some(found) = found else {
            break;
        };
        at = found.span().start;
        value = Some(found.get_ref());
    }
    Some(text.get(..at)?.matches('\n').count() + 1)
}
