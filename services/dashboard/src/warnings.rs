//! Warnings about the installation, which the page shows as banners and the API lists. Sans-IO.
//!
//! A part that finds a failure calls [`Warnings::raise`] with a code, and [`Warnings::end`] when it
//! is over. A warning concerns one tenant or everybody. It reaches every viewer with the next ward
//! view, within two seconds.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use contracts::query::{SystemWarning, WarningSeverity};

/// Warnings in force. At the bound the youngest of the least severe ones leaves.
const WARNINGS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Warnings {
    /// By code and tenant; an empty tenant stands for everybody.
    in_force: BTreeMap<(String, String), SystemWarning>,
}

impl Warnings {
    /// Replaces the warning of the same code and tenant. Keeps its beginning if the new one has
    /// none.
    pub(crate) fn raise(&mut self, tenant: &str, mut warning: SystemWarning) {
        let key = (warning.code.clone(), tenant.to_owned());
        if let Some(known) = self.in_force.get(&key)
            && warning.since_us == 0
        {
            warning.since_us = known.since_us;
        }
        self.in_force.insert(key, warning);
        if self.in_force.len() > WARNINGS_MAX {
            let least = self.in_force.iter().max_by_key(|(_, it)| rank(it));
            if let Some(key) = least.map(|(key, _)| key.clone()) {
                self.in_force.remove(&key);
            }
        }
    }

    pub(crate) fn end(&mut self, tenant: &str, code: &str) {
        self.in_force.remove(&(code.to_owned(), tenant.to_owned()));
    }

    /// Those that concern a tenant, the most severe first, then the oldest.
    pub(crate) fn of(&self, tenant: &str) -> Vec<SystemWarning> {
        let concerned = self.in_force.iter();
        let concerned = concerned.filter(|((_, of), _)| of.is_empty() || of == tenant);
        let mut warnings: Vec<_> = concerned.map(|(_, warning)| warning.clone()).collect();
        warnings.sort_by(|a, b| rank(a).cmp(&rank(b)));
        warnings
    }
}

/// Ascending: the most severe first.
fn rank(warning: &SystemWarning) -> (Reverse<i32>, i64, &str) {
    (
        Reverse(warning.severity),
        warning.since_us,
        warning.code.as_str(),
    )
}

/// A warning of this severity.
pub(crate) fn warning(
    code: &str,
    severity: WarningSeverity,
    since_us: i64,
    text: impl Into<String>,
) -> SystemWarning {
    SystemWarning {
        code: code.to_owned(),
        severity: severity.into(),
        text: text.into(),
        since_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(warnings: &[SystemWarning]) -> Vec<&str> {
        warnings.iter().map(|it| it.code.as_str()).collect()
    }

    #[test]
    fn the_most_severe_comes_first_and_only_whom_it_concerns_sees_it() {
        let mut warnings = Warnings::default();
        warnings.raise("", warning("late", WarningSeverity::Warning, 5, "Late."));
        warnings.raise("", warning("stalled", WarningSeverity::Critical, 9, "No."));
        warnings.raise("a", warning("team", WarningSeverity::Critical, 3, "None."));
        assert_eq!(codes(&warnings.of("a")), ["team", "stalled", "late"]);
        assert_eq!(codes(&warnings.of("b")), ["stalled", "late"]);
        warnings.end("", "stalled");
        assert_eq!(codes(&warnings.of("b")), ["late"]);
    }

    #[test]
    fn a_warning_that_is_repeated_keeps_its_beginning() {
        let mut warnings = Warnings::default();
        warnings.raise("", warning("late", WarningSeverity::Note, 5, "Late."));
        warnings.raise("", warning("late", WarningSeverity::Critical, 0, "Later."));
        let now = warnings.of("t");
        assert_eq!((now.len(), now[0].since_us), (1, 5));
        assert_eq!(now[0].severity(), WarningSeverity::Critical);
    }

    #[test]
    fn at_the_bound_the_least_severe_leaves() {
        let mut warnings = Warnings::default();
        warnings.raise("", warning("note", WarningSeverity::Note, 1, "A note."));
        for n in 0..WARNINGS_MAX {
            let code = format!("c{n:03}");
            warnings.raise("", warning(&code, WarningSeverity::Critical, 2, "No."));
        }
        let now = warnings.of("t");
        assert_eq!(now.len(), WARNINGS_MAX);
        assert!(!codes(&now).contains(&"note"));
    }
}
