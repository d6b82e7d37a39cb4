//! Warnings about environment variables with a mistyped name.

use std::collections::BTreeSet;

use clap::{Arg, Command};

/// Variables that differ by a letter or two from one of `command`, each with the right name. Other
/// variables belong to other programs, such as those that Kubernetes makes of the names of
/// services.
pub fn mistyped(command: &Command, set: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
    let mut known = BTreeSet::new();
    collect(command, &mut known);
    let meant = |name: String| {
        let word = name.strip_prefix("BRAID_")?;
        let distance = |known: &&String| strsim::damerau_levenshtein(&name, known);
        let nearest = known.iter().min_by_key(distance)?;
        // One letter in six may differ: PORT is not CERT.
        let is_near = (1..=(word.len() / 6).max(1)).contains(&distance(&nearest));
        is_near.then(|| (name.clone(), nearest.clone()))
    };
    set.into_iter().filter_map(meant).collect()
}

fn collect(command: &Command, to: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(Arg::get_env);
    to.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    for sub in command.get_subcommands() {
        collect(sub, to);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_mistyped_variable_is_reported_and_foreign_ones_are_not() {
        let command = super::super::layered(None).unwrap();
        let told = |name: &str| mistyped(&command, [name.to_owned()]);
        for (mistyped, meant) in [
            ("BRAID_GATEWAY_SENSOR_TOKNE", "BRAID_GATEWAY_SENSOR_TOKEN"),
            ("BRAID_INGEST_LISTENS", "BRAID_INGEST_LISTEN"),
            ("BRAID_DATTA", "BRAID_DATA"),
        ] {
            assert_eq!(told(mistyped), [(mistyped.to_owned(), meant.to_owned())]);
        }
        for other in [
            "BRAID_GATEWAY_SENSOR_TOKEN",
            "BRAID_INGEST_PORT",
            "BRAID_INGEST_PORT_7001_TCP",
            "BRAID_INGEST_SERVICE_HOST",
            "BRAID_SOURCES",
            "BRAID_CACHE",
            "BRAID_BINARY",
            "PATH",
        ] {
            assert_eq!(told(other), [], "{other}");
        }
    }
}
