//! `braid config <service>`: the effective configuration with its origins.

use std::fmt::Write;

use clap::{ArgMatches, Command};
use serde::Serialize;

use super::{ConfigFile, is_about_the_command_line, origin};

/// The effective configuration as TOML with the origin of each value. Secrets are masked by their
/// type.
pub fn render<C: Serialize>(
    config: &C,
    matches: &ArgMatches,
    noun: &str,
    file: Option<&ConfigFile>,
    command: &Command,
) -> Result<String, toml::ser::Error> {
    let mut values = toml::Table::new();
    flatten(toml::Table::try_from(config)?, &mut values);
    let mut text = format!("[{noun}]\n");
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if is_about_the_command_line(id) || arg.get_long().is_none() {
            continue;
        }
        // Writing to a String cannot fail.
        let _ = match values.get(id) {
            Some(value) => {
                let origin = origin(matches, noun, file, command, id);
                writeln!(text, "{id} = {value}  # {origin}")
            }
            None => writeln!(text, "# {id} is not set"),
        };
    }
    Ok(text)
}

/// Flags have no levels, so fields of flattened structs join those of their owner.
fn flatten(from: toml::Table, into: &mut toml::Table) {
    for (key, value) in from {
        match value {
            toml::Value::Table(nested) => flatten(nested, into),
            value => {
                into.insert(key, value);
            }
        }
    }
}
