//! The alerts of the gateway's own rules that are open, for the people beside it.
//!
//! The list needs no network: it follows the edge rules, and is on disk.
//!
//! - An alert is open until its rule ends it. One of high priority stays, marked as ended, until a
//!   person has acknowledged it here or in the core.
//! - An acknowledgement here holds at once. It goes up as a repetition of the report that raised
//!   the alert, with the person's name.
//! - An alert that the core already had as the alert was raised belongs to an earlier episode. Its
//!   acknowledgement does not count here.
//! - After a restart the states of the rules decide which alerts of the file are active, and add
//!   those that the file lacks.

mod file;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{EdgeAlert, HighAlert, HighAlerts, LocalAlert, Priority},
};
use parking_lot::Mutex;
use tokio::sync::watch;
use vitals::edge_alert;

use crate::clock::Moment;

pub use file::AlertsFile;

/// Open alerts. Beyond it an alert replaces the least urgent one, acknowledged before
/// unacknowledged, and then the oldest.
pub const OPEN_MAX: usize = 256;
/// Alerts that were acknowledged and are over, so that a repeated acknowledgement is answered.
const RECENT_MAX: usize = 16;
/// Alerts of the core that are remembered beside one alert. Further ones may count for it.
const CORE_BEFORE_MAX: usize = 8;
/// Longest age of an alert at its first report, by the sensor's clock. It bounds what a wrong clock
/// shows.
const AGE_US_MAX: i64 = 31 * 86_400 * 1_000_000;
/// Name that is shown where the core reports an acknowledgement.
const BY_THE_TEAM: &str = "the care team";

/// An open alert, as the file keeps it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenAlert {
    /// The newest transition of the rules. The id is that of the episode at this gateway.
    #[prost(message, required, tag = "1")]
    alert: Alert,
    /// The report that raised it.
    #[prost(message, required, tag = "2")]
    report: EdgeAlert,
    #[prost(bool, tag = "3")]
    ended: bool,
    #[prost(string, tag = "4")]
    acknowledged_by: String,
    /// The gateway's clocks as the alert was noted.
    #[prost(int64, tag = "5")]
    noted_us: i64,
    #[prost(int64, tag = "6")]
    noted_uptime_us: i64,
    #[prost(fixed32, tag = "7")]
    noted_boot: u32,
    /// Alerts of the core about the same rule and person that were open before.
    #[prost(string, repeated, tag = "8")]
    core_before: Vec<String>,
    /// The core has reported this alert as open.
    #[prost(bool, tag = "9")]
    core_has_it: bool,
}

/// The result of [`OpenAlerts::acknowledge`].
#[derive(Debug)]
pub struct Acknowledged {
    pub alert: LocalAlert,
    /// The report for the core; `None`: somebody acknowledged before.
    pub report: Option<EdgeAlert>,
}

#[derive(Debug, Default)]
struct Table {
    alerts: Vec<OpenAlert>,
    recent: VecDeque<OpenAlert>,
    core: Vec<HighAlert>,
}

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct OpenAlerts {
    table: Arc<Mutex<Table>>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

impl Default for OpenAlerts {
    fn default() -> Self {
        Self {
            table: Arc::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl OpenAlerts {
    /// The alerts of the file, and those that the restored rules hold as active.
    pub fn restored(
        stored: Vec<OpenAlert>,
        active: Vec<Alert>,
        gateway: &str,
        now: Moment,
    ) -> Self {
        let open = Self::default();
        {
            let mut table = open.table.lock();
            let ids: HashSet<&str> = active.iter().map(|alert| alert.id.as_str()).collect();
            for mut alert in stored.into_iter().take(OPEN_MAX) {
                alert.ended |= !ids.contains(alert.alert.id.as_str());
                if alert.stays() {
                    table.alerts.push(alert);
                }
            }
            for alert in active {
                let report = report_of(&alert, gateway);
                table.on_transition(alert, report, now);
            }
        }
        open.publish();
        open
    }

    /// Transitions of the edge rules, each with its report to the core.
    pub fn note(&self, transitions: Vec<(Alert, EdgeAlert)>, now: Moment) {
        if transitions.is_empty() {
            return;
        }
        let mut table = self.table.lock();
        for (alert, report) in transitions {
            table.on_transition(alert, report, now);
        }
        drop(table);
        self.publish();
    }

    /// Takes the complete list of high alerts that the core has open.
    pub fn on_core(&self, alerts: &HighAlerts) {
        let is_changed = self.table.lock().on_core(alerts);
        if is_changed {
            self.publish();
        }
    }

    /// A person beside the gateway attends to the alert. `None`: no such alert is open.
    pub fn acknowledge(&self, id: &str, by: &str, now: Moment) -> Option<Acknowledged> {
        let acknowledged = self.table.lock().acknowledge(id, by, now)?;
        if acknowledged.report.is_some() {
            self.publish();
        }
        Some(acknowledged)
    }

    /// The most urgent first: active before ended, unacknowledged before acknowledged, by priority,
    /// then the newest.
    pub fn list(&self, now: Moment) -> Vec<LocalAlert> {
        let mut alerts: Vec<LocalAlert> = {
            let table = self.table.lock();
            table.alerts.iter().map(|it| it.shown(now)).collect()
        };
        alerts.sort_by_key(|alert| {
            let is_acknowledged = !alert.acknowledged_by.is_empty();
            (is_acknowledged, -alert.priority, alert.ended, alert.age_ms)
        });
        alerts
    }

    /// Changes with every change of the list.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The list as the file keeps it.
    fn stored(&self) -> (u64, Vec<OpenAlert>) {
        let table = self.table.lock();
        (*self.changes.borrow(), table.alerts.clone())
    }

    fn publish(&self) {
        let count = {
            let table = self.table.lock();
            table.alerts.len()
        };
        metrics::gauge!("braid_gateway_local_alerts_open").set(count as f64);
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl Table {
    fn on_transition(&mut self, alert: Alert, report: EdgeAlert, now: Moment) {
        let place = self.alerts.iter().position(|it| it.alert.id == alert.id);
        let is_active = matches!(
            alert.state(),
            AlertState::Active | AlertState::Acknowledged | AlertState::Pending
        );
        match place {
            Some(place) if is_active => {
                self.alerts[place].alert = alert;
                self.alerts[place].ended = false;
            }
            Some(place) => {
                self.alerts[place].ended = true;
                if !self.alerts[place].stays() {
                    self.alerts.remove(place);
                }
            }
            None if is_active => {
                let mut new = OpenAlert {
                    alert,
                    report,
                    noted_us: now.wall_us,
                    noted_uptime_us: now.uptime_us,
                    noted_boot: now.boot,
                    ..OpenAlert::default()
                };
                let before = self.core.iter().filter(|it| new.is_same(it));
                let before = before.take(CORE_BEFORE_MAX).map(|it| it.id.clone());
                new.core_before = before.collect();
                self.make_room(&new);
                self.alerts.push(new);
            }
            None => {}
        }
    }

    fn make_room(&mut self, new: &OpenAlert) {
        if self.alerts.len() < OPEN_MAX {
            return;
        }
        let rank = |it: &OpenAlert| {
            (
                it.acknowledged_by.is_empty(),
                it.alert.priority,
                it.noted_us,
            )
        };
        let least = (0..self.alerts.len()).min_by_key(|place| rank(&self.alerts[*place]));
        if let Some(place) = least {
            let gone = self.alerts.swap_remove(place);
            metrics::counter!("braid_gateway_local_alerts_dropped_total").increment(1);
            tracing::error!(
                rule = gone.alert.rule,
                device = gone.alert.device,
                by = new.alert.rule,
                "more alerts are open than the list for people here holds; the core has them all"
            );
        }
    }

    fn on_core(&mut self, alerts: &HighAlerts) -> bool {
        let mut is_changed = false;
        self.core = alerts.alerts.iter().take(OPEN_MAX * 4).cloned().collect();
        let mut by_rule: HashMap<&str, Vec<&HighAlert>> = HashMap::new();
        for alert in &self.core {
            by_rule.entry(&alert.rule).or_default().push(alert);
        }
        for open in &mut self.alerts {
            let of_rule = by_rule.get(open.alert.rule.as_str()).into_iter().flatten();
            let same = of_rule.filter(|it| open.is_same(it) && !open.core_before.contains(&it.id));
            let same: Vec<&&HighAlert> = same.collect();
            let is_gone = open.core_has_it && open.ended && same.is_empty();
            open.core_has_it |= !same.is_empty();
            if open.acknowledged_by.is_empty() && (is_gone || same.iter().any(|it| it.acknowledged))
            {
                BY_THE_TEAM.clone_into(&mut open.acknowledged_by);
                is_changed = true;
            }
        }
        self.alerts.retain(OpenAlert::stays);
        is_changed
    }

    fn acknowledge(&mut self, id: &str, by: &str, now: Moment) -> Option<Acknowledged> {
        let Some(place) = self.alerts.iter().position(|it| it.alert.id == id) else {
            let over = self.recent.iter().find(|it| it.alert.id == id)?;
            return Some(Acknowledged {
                alert: over.shown(now),
                report: None,
            });
        };
        let open = &mut self.alerts[place];
        let is_first = open.acknowledged_by.is_empty();
        if is_first {
            by.trim().clone_into(&mut open.acknowledged_by);
        }
        let acknowledged = Acknowledged {
            alert: open.shown(now),
            report: is_first.then(|| EdgeAlert {
                acknowledged_by: open.acknowledged_by.clone(),
                acknowledged_us: now.wall_us,
                sequence: 0,
                ..open.report.clone()
            }),
        };
        if !open.stays() {
            let over = self.alerts.remove(place);
            self.recent.push_back(over);
            if self.recent.len() > RECENT_MAX {
                self.recent.pop_front();
            }
        }
        Some(acknowledged)
    }
}

impl OpenAlert {
    fn stays(&self) -> bool {
        let waits = self.alert.priority() == Priority::High && self.acknowledged_by.is_empty();
        !self.ended || waits
    }

    /// Whether the core's alert is about the same rule and person.
    fn is_same(&self, core: &HighAlert) -> bool {
        let of_person = core.patient == self.alert.patient || core.device == self.alert.device;
        core.rule == self.alert.rule && of_person
    }

    fn shown(&self, now: Moment) -> LocalAlert {
        let alert = &self.alert;
        // The sensor's clock counts only up to the first report. Then the uptime does, or after a
        // restart of the machine the wall clock.
        let first_us = self.noted_us.saturating_sub(alert.since_us);
        let since_us = match self.noted_boot == now.boot && now.boot != 0 {
            true => now.uptime_us.saturating_sub(self.noted_uptime_us),
            false => now.wall_us.saturating_sub(self.noted_us),
        };
        let age_us = first_us.clamp(0, AGE_US_MAX) + since_us.max(0);
        LocalAlert {
            id: alert.id.clone(),
            device: alert.device.clone(),
            patient: match alert.patient == alert.device {
                true => self.report.patient.clone(),
                false => alert.patient.clone(),
            },
            rule: alert.rule.clone(),
            metric: alert.metric,
            priority: alert.priority,
            summary: alert.summary.clone(),
            value: alert.value,
            since_us: alert.since_us,
            age_ms: age_us / 1000,
            ended: self.ended,
            acknowledged_by: self.acknowledged_by.clone(),
        }
    }
}

/// The report of an alert that only the states of the rules have. Its sensor named no patient, as
/// far as is known.
fn report_of(alert: &Alert, gateway: &str) -> EdgeAlert {
    let active = Alert {
        state: AlertState::Active.into(),
        ..alert.clone()
    };
    EdgeAlert {
        patient: String::new(),
        gateway: gateway.to_owned(),
        gateway_time_us: alert.changed_us,
        ..edge_alert(&active, 0).unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "open_alerts_tests.rs"]
mod tests;
