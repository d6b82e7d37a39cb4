//! The configuration file: one TOML table per service, so one file can serve all.

use std::path::Path;

use super::{
    error::ConfigError,
    field::{Field, id_of},
};

/// Bytes of the file; a larger file is refused.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: String,
    tables: toml::Table,
}

impl ConfigFile {
    /// Reads the file; `nouns` are the tables that it may contain.
    pub fn read(path: &Path, nouns: &[&str]) -> Result<ConfigFile, ConfigError> {
        let shown = path.display().to_string();
        let unreadable = |reason: String| {
            ConfigError::new(
                "config",
                format!("{shown}: {reason}"),
                "--config braid.toml",
            )
        };
        let size = std::fs::metadata(path)
            .map_err(|error| unreadable(error.to_string()))?
            .len();
        if size > FILE_BYTES_MAX {
            return Err(unreadable(format!(
                "{size} bytes are more than the {FILE_BYTES_MAX} allowed"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        let tables: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| unreadable(format!("not TOML: {error}")))?;
        for (name, value) in &tables {
            if !nouns.contains(&name.as_str()) {
                let near = nearest(name, nouns.iter().copied());
                return Err(ConfigError::new(
                    format!("[{name}]"),
                    format!("{shown} has an unknown table"),
                    format!("[{near}]"),
                ));
            }
            if !value.is_table() {
                return Err(ConfigError::new(
                    name.clone(),
                    format!("{shown}: a service's configuration is a table"),
                    format!("[{name}]"),
                ));
            }
        }
        Ok(ConfigFile {
            path: shown,
            tables,
        })
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn sets(&self, noun: &str, field: &Field) -> bool {
        self.table(noun)
            .is_some_and(|table| table.keys().any(|key| field.is_named(&id_of(key))))
    }

    /// The values of a service's table in the form of flags.
    pub(super) fn values(
        &self,
        noun: &str,
        known: &[Field],
    ) -> Result<Vec<(String, Vec<String>)>, ConfigError> {
        let Some(table) = self.table(noun) else {
            return Ok(Vec::new());
        };
        let mut values = Vec::with_capacity(table.len());
        for (key, value) in table {
            let id = id_of(key);
            let Some(field) = known.iter().find(|field| field.is_named(&id)) else {
                let near = nearest(&id, known.iter().map(|field| field.id.as_str()));
                return Err(ConfigError::new(
                    format!("[{noun}] {key}"),
                    format!("{} has a key that {noun} does not know", self.path),
                    format!("{near} = ... (the nearest known key)"),
                ));
            };
            let texts = match value {
                toml::Value::Array(items) => items.iter().map(scalar).collect(),
                single => scalar(single).map(|text| vec![text]),
            };
            let texts = texts.ok_or_else(|| {
                ConfigError::new(
                    format!("[{noun}] {key}"),
                    "is a table or a nested array instead of a value",
                    format!("{id} = \"...\""),
                )
            })?;
            values.push((field.id.clone(), texts));
        }
        Ok(values)
    }

    fn table(&self, noun: &str) -> Option<&toml::Table> {
        self.tables.get(noun)?.as_table()
    }
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        toml::Value::Datetime(time) => Some(time.to_string()),
        toml::Value::Array(_) | toml::Value::Table(_) => None,
    }
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    known
        .min_by_key(|candidate| strsim::damerau_levenshtein(name, candidate))
        .unwrap_or_default()
}
