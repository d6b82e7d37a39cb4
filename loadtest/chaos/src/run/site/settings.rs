//! Arguments and environment of `braid`.

use std::process::Command;

pub(super) fn put_rules<'a>(file: &'a str, tenant: &'a str) -> [&'a str; 8] {
    [
        "rules",
        "put",
        file,
        "--for=default",
        "--by=chaos",
        "--reason=a chaos run",
        "--tenant",
        tenant,
    ]
}

/// The environment of the caller must not configure the services.
pub(super) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BRAID_") {
            command.env_remove(name);
        }
    }
}
