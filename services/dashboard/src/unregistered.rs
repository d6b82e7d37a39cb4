//! Patients and gateways that the register does not have. Sans-IO.
//!
//! Each new name causes one reading of the register at once. A name that such a reading did not
//! find waits for the regular readings, so it delays no other name.

use std::collections::BTreeSet;

/// Names that are remembered. At the bound all are forgotten, and each causes one reading again.
const UNREGISTERED_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Unregistered {
    /// Heard since the last reading of the register began.
    new: BTreeSet<String>,
    /// The running reading may find them.
    looked_for: BTreeSet<String>,
    /// A reading has not found them.
    vain: BTreeSet<String>,
}

impl Unregistered {
    /// Whether the register is to be read at once for this name.
    pub(crate) fn heard(&mut self, name: &str) -> bool {
        if self.vain.contains(name) {
            return false;
        }
        if self.new.len() + self.looked_for.len() + self.vain.len() >= UNREGISTERED_MAX {
            *self = Self::default();
        }
        self.new.insert(name.to_owned());
        true
    }

    /// A reading of the register begins.
    pub(crate) fn on_reading(&mut self) {
        self.looked_for.append(&mut self.new);
    }

    /// The reading has ended. Whether it has found all names that it was begun for.
    pub(crate) fn on_register(&mut self, is_known: impl Fn(&str) -> bool) -> bool {
        let looked_for = std::mem::take(&mut self.looked_for);
        let (found, vain): (Vec<_>, Vec<_>) =
            looked_for.into_iter().partition(|name| is_known(name));
        let has_found = !found.is_empty() && vain.is_empty();
        self.vain.extend(vain);
        self.vain.retain(|name| !is_known(name));
        metrics::gauge!("braid_dashboard_unregistered_names").set(self.vain.len() as f64);
        has_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_not_found_causes_no_second_reading_and_a_new_one_does() {
        let mut unregistered = Unregistered::default();
        assert!(unregistered.heard("stray"));
        unregistered.on_reading();
        // Heard while the register is read: that reading may have been too early.
        assert!(unregistered.heard("late"));
        assert!(!unregistered.on_register(|_| false));
        assert!(!unregistered.heard("stray"));
        assert!(unregistered.heard("late") && unregistered.heard("new"));
        unregistered.on_reading();
        assert!(unregistered.on_register(|name| name != "stray"));
        assert!(!unregistered.heard("stray"));
        // A regular reading has found it, and then it was removed.
        unregistered.on_reading();
        assert!(!unregistered.on_register(|_| true), "it was begun for none");
        assert!(unregistered.heard("stray"));
    }

    #[test]
    fn names_are_bounded() {
        let mut unregistered = Unregistered::default();
        for number in 0..3 * UNREGISTERED_MAX {
            assert!(unregistered.heard(&number.to_string()));
            unregistered.on_reading();
            unregistered.on_register(|_| false);
            assert!(unregistered.vain.len() <= UNREGISTERED_MAX);
        }
    }
}
