//! The names of a field: its flag, its key in the file, its variable, and former names of each.

use clap::Arg;

/// A field of a configuration: the id of its flag. Hidden aliases of the flag are former names.
pub(super) struct Field {
    pub(super) id: String,
    former: Vec<String>,
}

impl Field {
    pub(super) fn of(arg: &Arg) -> Field {
        let former = arg.get_all_aliases().unwrap_or_default().into_iter();
        Field {
            id: arg.get_id().to_string(),
            former: former.map(id_of).collect(),
        }
    }

    pub(super) fn is_named(&self, id: &str) -> bool {
        self.id == id || self.former.iter().any(|former| former == id)
    }

    /// The variable of the field. A variable of a former name holds if it alone is set.
    pub(super) fn variable(&self, noun: &str, is_set: impl Fn(&str) -> bool) -> String {
        let current = variable(noun, &self.id);
        let mut former = self.former.iter().map(|id| variable(noun, id));
        match is_set(&current) {
            true => current,
            false => former.find(|it| is_set(it)).unwrap_or(current),
        }
    }
}

/// The variable of a field: `("path-telemetry", "keepalive_ms")` gives
/// `BRAID_PATH_TELEMETRY_KEEPALIVE_MS`.
pub fn variable(noun: &str, field: &str) -> String {
    format!("BRAID_{noun}_{field}")
        .to_uppercase()
        .replace('-', "_")
}

/// The id of a key of the file, or of a flag.
pub(super) fn id_of(name: &str) -> String {
    name.replace('-', "_")
}
