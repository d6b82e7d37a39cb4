//! Warnings about the installation, which the page shows as banners and the API lists. Sans-IO.
//!
//! A part that finds a failure calls [`Warnings::raise`] with a code, and [`Warnings::end`] when it
//! is over. A warning concerns one tenant or everybody. It reaches every viewer with the next ward
//! view, within two seconds.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use contracts::query::{SystemWarning, WarningSeverity};
use service_kit::Warning;
use service_kit::wrong::{Level, Wrong};
use vitals::silence;

/// Warnings in force. At the bound the youngest of the least severe ones leaves.
const WARNINGS_MAX: usize = 64;
/// A fault of the process is a banner once it lasts for so long. A start takes less.
const LASTS_US: i64 = 5_000_000;
/// The service that these warnings are of.
const SERVICE: &str = "dashboard";
/// Alerting itself lists it as wrong.
pub(crate) const NOBODY_TOLD: &str = "nobody-told";
pub(crate) const NOBODY_TOLD_UNKNOWN: &str = "nobody-told-unknown";

#[derive(Debug, Default)]
pub(crate) struct Warnings {
    /// By code and tenant; an empty tenant stands for everybody.
    in_force: BTreeMap<(String, String), SystemWarning>,
    /// Faults of this process, by service and name.
    process: BTreeMap<String, SystemWarning>,
    /// Time of the newest look at the process.
    looked_us: i64,
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
        let concerned = concerned.map(|(_, warning)| warning);
        let lasts = |it: &&SystemWarning| self.looked_us.saturating_sub(it.since_us) >= LASTS_US;
        let all = concerned.chain(self.process.values().filter(lasts));
        let mut warnings: Vec<_> = all.cloned().collect();
        warnings.sort_by(|a, b| rank(a).cmp(&rank(b)));
        warnings
    }

    /// Takes what is wrong in this process. Names that have a warning of their own say more there.
    pub(crate) fn on_process(&mut self, wrong: Vec<Wrong>, now_us: i64) {
        self.looked_us = now_us;
        let before = std::mem::take(&mut self.process);
        for it in wrong {
            let is_said = self.in_force.keys().any(|(code, _)| *code == it.name);
            if is_said || self.process.len() >= WARNINGS_MAX {
                continue;
            }
            let code = format!("{}/{}", it.service, it.name);
            let since_us = before.get(&code).map_or(now_us, |known| known.since_us);
            let severity = match it.level {
                Level::Warning => WarningSeverity::Note,
                Level::Failing | Level::Stalled => WarningSeverity::Warning,
            };
            let says = it.says.trim_end_matches('.');
            let text = match it.to_do.trim_end_matches('.') {
                "" => format!("{}, {}: {says}.", it.service, it.name),
                to_do => format!("{}, {}: {says}. To do: {to_do}.", it.service, it.name),
            };
            let warning = warning(&code, severity, since_us, text);
            self.process.insert(code, warning);
        }
    }

    /// These warnings as a part of what is wrong in this process, one for each code.
    pub(crate) fn wrong(&self) -> Vec<Wrong> {
        let mut all: Vec<Wrong> = Vec::new();
        for ((code, _), warning) in &self.in_force {
            let to_do = match code.as_str() {
                NOBODY_TOLD => continue,
                NOBODY_TOLD_UNKNOWN => "see whether alerting runs, and --alerting of the dashboard",
                silence::PIPELINE => "see infra/runbooks.md#novitals",
                _ => "see the page",
            };
            if all.last().is_none_or(|it| it.name != *code) {
                let (says, to_do) = (warning.text.clone(), to_do.to_owned());
                all.push(Wrong::warning(
                    SERVICE,
                    code.clone(),
                    Warning { says, to_do },
                ));
            }
        }
        all
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
    fn what_is_wrong_in_the_process_is_a_banner_unless_it_is_one_already() {
        let mut warnings = Warnings::default();
        warnings.raise("", warning("canary", WarningSeverity::Critical, 3, "No."));
        warnings.raise("a", warning("ending", WarningSeverity::Note, 4, "Soon."));
        warnings.raise("b", warning("ending", WarningSeverity::Note, 5, "Late."));
        let says = |says: &str| Warning {
            says: says.to_owned(),
            to_do: "look".to_owned(),
        };
        let wrong = || {
            vec![
                Wrong::warning("dashboard", "canary", says("missing")),
                Wrong::warning("alerting", "no-link", says("no page")),
            ]
        };
        warnings.on_process(wrong(), 7);
        assert_eq!(
            codes(&warnings.of("a")),
            ["canary", "ending"],
            "a start takes a moment"
        );
        warnings.on_process(wrong(), 7 + LASTS_US);
        let shown = warnings.of("a");
        assert_eq!(codes(&shown), ["canary", "ending", "alerting/no-link"]);
        assert_eq!(shown[2].since_us, 7);
        assert_eq!(shown[2].text, "alerting, no-link: no page. To do: look.");
        let listed = warnings.wrong();
        let listed: Vec<&str> = listed.iter().map(|it| &*it.name).collect();
        assert_eq!(
            listed,
            ["canary", "ending"],
            "each code once, and nothing of others"
        );
        warnings.on_process(Vec::new(), 11);
        assert_eq!(codes(&warnings.of("b")), ["canary", "ending"]);
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
