//! Patients who are not monitored while an alert of a gateway or of the pipeline lasts.

use std::collections::BTreeSet;

use contracts::alerts::{Alert, AlertState};
use vitals::silence::{GATEWAY, PATH, PIPELINE};

use crate::names::NamePolicy;

/// Patients named in a message. The rest is counted.
pub(crate) const NAMED_MAX: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unmonitored {
    count: usize,
    /// Id and registered name of the first [`NAMED_MAX`] by id.
    named: Vec<(String, String)>,
}

impl Unmonitored {
    pub(crate) fn new(patients: &BTreeSet<String>) -> Unmonitored {
        let first = patients.iter().take(NAMED_MAX);
        Unmonitored {
            count: patients.len(),
            named: first.map(|id| (id.clone(), String::new())).collect(),
        }
    }

    pub(crate) fn named(&mut self) -> &mut [(String, String)] {
        &mut self.named
    }

    /// The summary of the alert with the patients whom it concerns. The cause in it is derived from
    /// what else is heard, so it is called an estimate.
    pub(super) fn summary(&self, alert: &Alert, policy: NamePolicy) -> String {
        let summary = alert.summary.clone();
        if alert.state() == AlertState::Resolved {
            return summary;
        }
        let intro = match alert.rule.as_str() {
            PIPELINE | GATEWAY => "The cause is an estimate. Not monitored",
            PATH => "At this gateway",
            _ => return summary,
        };
        if self.count == 0 {
            return format!("{summary}. {intro}: no patient wears a sensor there.");
        }
        let label = |(id, name): &(String, String)| match policy.label(name) {
            label if label.is_empty() => id.clone(),
            label => format!("{label} ({id})"),
        };
        let names: Vec<String> = self.named.iter().map(label).collect();
        let others = match self.count - self.named.len() {
            0 => String::new(),
            1 => " and 1 other".to_owned(),
            others => format!(" and {others} others"),
        };
        let patients = if self.count == 1 {
            "patient"
        } else {
            "patients"
        };
        format!(
            "{summary}. {intro}: {} {patients}: {}{others}.",
            self.count,
            names.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize) -> Unmonitored {
        let ids: BTreeSet<String> = (0..count).map(|n| format!("p{n:02}")).collect();
        let mut unmonitored = Unmonitored::new(&ids);
        for (_, name) in unmonitored.named() {
            *name = "Ada Example".to_owned();
        }
        unmonitored
    }

    #[test]
    fn the_list_is_bounded_and_names_no_more_than_the_policy_allows() {
        let alert = Alert {
            rule: PIPELINE.into(),
            summary: "Nothing is heard; the cause is the core".into(),
            state: AlertState::Active.into(),
            ..Alert::default()
        };
        assert_eq!(
            of(1).summary(&alert, NamePolicy::Id),
            "Nothing is heard; the cause is the core. The cause is an estimate. \
             Not monitored: 1 patient: p00."
        );
        let many = of(14).summary(&alert, NamePolicy::Initials);
        assert!(many.contains("14 patients: A. E. (p00), "), "{many}");
        assert!(many.ends_with("A. E. (p09) and 4 others."), "{many}");
        let full = of(2).summary(&alert, NamePolicy::Full);
        assert!(
            full.contains("Ada Example (p00), Ada Example (p01)."),
            "{full}"
        );
        let nobody = of(0).summary(&alert, NamePolicy::Id);
        assert!(nobody.contains("no patient wears a sensor"), "{nobody}");
        let over = Alert {
            state: AlertState::Resolved.into(),
            ..alert.clone()
        };
        assert_eq!(of(2).summary(&over, NamePolicy::Id), alert.summary);
        let fall = Alert {
            rule: "fall".into(),
            ..alert.clone()
        };
        assert_eq!(of(2).summary(&fall, NamePolicy::Id), alert.summary);
    }
}
