//! One message about what happened to a patient while nobody could hear. Sans-IO.
//!
//! Episodes of a backlog that call nobody on their own are noted here. When the backlog has
//! arrived, one alert reports to the patient's people: what happened, when, and whether it lasts.
//! An alert of high priority calls people at once and is not noted.
//!
//! The notes are stored with the state of the rules, and the report with their removal. So a
//! restart neither loses nor repeats it.

use std::cmp::Reverse;

use calendar::Zone;
use contracts::alerts::{Alert, AlertState};
use serde::{Deserialize, Serialize};
use vitals::episode_id;

/// The rule that a report names. It is over when it is raised, so nothing escalates.
pub(crate) const RULE: &str = "while-unheard";

/// A backlog without a late reading for this time has arrived.
const QUIET_US: i64 = 30_000_000;
/// Longest wait for the end of a backlog. Later readings are a report of its own.
const WAIT_US_MAX: i64 = 600_000_000;
/// Episodes of one report, the most urgent first. Beyond it they are counted only.
const LISTED_MAX: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Unheard {
    listed: Vec<Episode>,
    others: u32,
    /// When the first was noted and the newest late reading came, by the core's clock.
    noted_us: i64,
    late_us: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Episode {
    id: String,
    priority: i32,
    summary: String,
    device: String,
    gateway: String,
    since_us: i64,
    /// `None`: it lasts, as far as is known.
    until_us: Option<i64>,
    /// A live reading has confirmed it, so people are told of it by its own alert.
    is_told: bool,
}

impl Unheard {
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// A late reading or report of the edge was judged.
    pub(crate) fn on_late(&mut self, now_us: i64) {
        self.late_us = now_us;
    }

    /// Notes transitions of a backlog, and what becomes of their episodes. Whether this changed
    /// anything.
    pub(crate) fn note(&mut self, alerts: &[Alert], now_us: i64) -> bool {
        let mut is_changed = false;
        for alert in alerts {
            let known = self.listed.iter_mut().find(|it| it.id == alert.id);
            match known {
                Some(known) => {
                    known.is_told |= !alert.backfill;
                    known.since_us = alert.since_us;
                    known.until_us = until_us(alert);
                    known.summary.clone_from(&alert.summary);
                    is_changed = true;
                }
                // A later revision of an episode that is only counted.
                None if !alert.backfill || alert.revision > 1 => {}
                None => {
                    self.add(alert, now_us);
                    is_changed = true;
                }
            }
        }
        is_changed
    }

    fn add(&mut self, alert: &Alert, now_us: i64) {
        if self.listed.is_empty() {
            self.noted_us = now_us;
            self.late_us = now_us;
        }
        self.listed.push(Episode {
            id: alert.id.clone(),
            priority: alert.priority,
            summary: alert.summary.clone(),
            device: alert.device.clone(),
            gateway: alert.gateway.clone(),
            since_us: alert.since_us,
            until_us: until_us(alert),
            is_told: false,
        });
        self.listed
            .sort_by_key(|it| (Reverse(it.priority), it.since_us));
        if self.listed.len() > LISTED_MAX {
            self.listed.truncate(LISTED_MAX);
            self.others = self.others.saturating_add(1);
        }
    }

    /// Whether the backlog has arrived. Everything published before `heard_us` has been judged.
    pub(crate) fn is_due(&mut self, now_us: i64, heard_us: i64) -> bool {
        // After the own clock was set back, the times of before count from now.
        self.late_us = self.late_us.min(now_us);
        self.noted_us = self.noted_us.min(now_us);
        !self.listed.is_empty()
            && (heard_us.saturating_sub(self.late_us) >= QUIET_US
                || now_us.saturating_sub(self.noted_us) >= WAIT_US_MAX)
    }

    /// The report, after which nothing is noted. `None`: people are told of every episode already.
    pub(crate) fn take(&mut self, patient: &str, zone: &Zone) -> Option<Alert> {
        let Unheard { listed, others, .. } = std::mem::take(self);
        if others == 0 && listed.iter().all(|it| it.is_told) {
            return None;
        }
        let first = listed.first()?;
        let since_us = listed.iter().map(|it| it.since_us).min()?;
        let until_us = listed.iter().map(|it| it.until_us.unwrap_or(it.since_us));
        let changed_us = until_us.max()?.max(since_us);
        let id = episode_id(patient, RULE, since_us);
        Some(Alert {
            id,
            patient: patient.to_owned(),
            device: first.device.clone(),
            gateway: first.gateway.clone(),
            rule: RULE.to_owned(),
            priority: first.priority,
            state: AlertState::Resolved.into(),
            summary: summary(&listed, others, zone),
            since_us,
            changed_us,
            revision: 1,
            from_core: true,
            ..Alert::default()
        })
    }
}

fn until_us(alert: &Alert) -> Option<i64> {
    let is_over = matches!(alert.state(), AlertState::Latched | AlertState::Resolved);
    is_over.then_some(alert.changed_us)
}

fn summary(listed: &[Episode], others: u32, zone: &Zone) -> String {
    let count = listed.len() + others as usize;
    let listed: Vec<String> = listed.iter().map(|it| describe(it, zone)).collect();
    let others = match others {
        0 => String::new(),
        others => format!("; and {others} others"),
    };
    format!(
        "While nothing was heard, {count} alerts: {}{others} (times: {})",
        listed.join("; "),
        zone.name()
    )
}

fn describe(episode: &Episode, zone: &Zone) -> String {
    let (what, since) = (&episode.summary, zone.minute_text(episode.since_us));
    let Some(until_us) = episode.until_us else {
        return format!("{what} (since {since}, lasts as far as is known)");
    };
    let until = zone.minute_text(until_us);
    let is_same_day = zone.day(episode.since_us) == zone.day(until_us);
    let until = match until.rsplit_once(' ') {
        Some((_, time)) if is_same_day => time,
        _ => &until,
    };
    format!("{what} ({since} to {until})")
}

/// The part of a report's summary that fits a title.
pub(crate) fn title(summary: &str) -> &str {
    summary.split_once(": ").map_or(summary, |(title, _)| title)
}

/// Whether the alert reports what is over. Its people are told once.
pub(crate) fn is_report(alert: &Alert) -> bool {
    alert.rule == RULE
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::vitals::Priority;

    use super::*;

    const S: i64 = 1_000_000;
    /// 2026-11-28 14:00:00 in Berlin.
    const T0: i64 = 1_795_870_800 * S;

    fn alert(id: &str, priority: Priority, revision: u32, since_s: i64) -> Alert {
        Alert {
            id: id.into(),
            priority: priority.into(),
            state: AlertState::Active.into(),
            summary: format!("Pulse of {id}"),
            since_us: T0 + since_s * S,
            changed_us: T0 + since_s * S,
            revision,
            backfill: true,
            ..Alert::default()
        }
    }

    fn over(id: &str, since_s: i64, until_s: i64) -> Alert {
        Alert {
            state: AlertState::Resolved.into(),
            changed_us: T0 + until_s * S,
            ..alert(id, Priority::Medium, 2, since_s)
        }
    }

    fn berlin() -> Zone {
        Zone::parse("Europe/Berlin").unwrap()
    }

    #[test]
    fn what_happened_and_whether_it_lasts_is_one_report_when_the_backlog_is_there() {
        let mut unheard = Unheard::default();
        let now_us = T0 + 3600 * S;
        assert!(!unheard.is_due(now_us, now_us));
        let begun = [
            alert("low", Priority::Low, 1, 0),
            alert("medium", Priority::Medium, 1, 120),
        ];
        assert!(unheard.note(&begun, now_us));
        assert!(unheard.note(&[over("medium", 120, 600)], now_us));
        assert!(!unheard.is_due(now_us + 29 * S, now_us + 29 * S));
        unheard.on_late(now_us + 29 * S);
        // The bus may have more until it is known to be empty.
        assert!(!unheard.is_due(now_us + 90 * S, now_us + 58 * S));
        assert!(unheard.is_due(now_us + 60 * S, now_us + 59 * S));
        let report = unheard.take("ada", &berlin()).unwrap();
        assert_eq!(
            report.summary,
            "While nothing was heard, 2 alerts: Pulse of medium (Sat 28 Nov 14:02 to 14:10); \
             Pulse of low (since Sat 28 Nov 14:00, lasts as far as is known) (times: Europe/Berlin)"
        );
        assert_eq!(report.priority(), Priority::Medium);
        assert_eq!((report.since_us, report.changed_us), (T0, T0 + 600 * S));
        assert!(!report.backfill && unheard.is_empty());
        assert_eq!(unheard.take("ada", &berlin()), None);
    }

    #[test]
    fn a_backlog_that_takes_long_is_reported_meanwhile() {
        let mut unheard = Unheard::default();
        unheard.note(&[alert("a", Priority::Low, 1, 0)], T0);
        for second in 0..600 {
            unheard.on_late(T0 + second * S);
            assert!(!unheard.is_due(T0 + second * S, 0), "{second} s");
        }
        assert!(unheard.is_due(T0 + 600 * S, 0));
        // The own clock was set back an hour.
        let back_us = T0 - 3600 * S;
        assert!(!unheard.is_due(back_us, back_us));
        assert!(unheard.is_due(back_us + 30 * S, back_us + 30 * S));
    }

    #[test]
    fn what_people_are_told_of_by_its_own_alert_needs_no_report() {
        let mut unheard = Unheard::default();
        unheard.note(&[alert("a", Priority::Medium, 1, 0)], T0);
        let confirmed = Alert {
            backfill: false,
            ..alert("a", Priority::Medium, 2, 0)
        };
        unheard.note(std::slice::from_ref(&confirmed), T0);
        assert_eq!(unheard.take("ada", &Zone::default()), None);
        // An episode of a live reading is not noted.
        assert!(!unheard.note(&[confirmed], T0) && unheard.is_empty());
    }

    #[test]
    fn the_most_urgent_are_listed_and_the_others_counted() {
        let mut unheard = Unheard::default();
        for number in 0..LISTED_MAX as i64 + 3 {
            let id = number.to_string();
            unheard.note(&[alert(&id, Priority::Low, 1, number)], T0);
        }
        unheard.note(&[alert("urgent", Priority::Medium, 1, 99)], T0);
        // The end of one that is only counted.
        assert!(!unheard.note(&[over("12", 12, 13)], T0));
        let report = unheard.take("ada", &Zone::default()).unwrap();
        let summary = &report.summary;
        assert_eq!(title(summary), "While nothing was heard, 14 alerts");
        assert!(summary.contains(": Pulse of urgent (since"), "{summary}");
        assert!(summary.contains("; and 4 others"), "{summary}");
    }
}
