//! The next calls of a channel. Sans-IO: takes the list of open alerts and outcomes, returns calls.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use contracts::vitals::LocalAlert;

/// First pause after a failure; it doubles up to [`AGAIN_MAX`].
const AGAIN_INITIAL: Duration = Duration::from_secs(1);
/// Longest pause between two attempts.
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Attempts to tell that an alert is over. The alert is not open any more, so they end.
const ENDED_ATTEMPTS_MAX: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Raised,
    Acknowledged,
    Ended,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Raised => "raised",
            Stage::Acknowledged => "acknowledged",
            Stage::Ended => "ended",
        }
    }

    fn of(alert: &LocalAlert) -> Stage {
        match (alert.ended, alert.acknowledged_by.is_empty()) {
            (true, _) => Stage::Ended,
            (false, false) => Stage::Acknowledged,
            (false, true) => Stage::Raised,
        }
    }
}

/// A call for one alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub id: String,
    pub stage: Stage,
}

/// As many as the list has, and those of which the end was not told yet.
#[derive(Debug, Default)]
pub struct Due {
    alerts: BTreeMap<String, Item>,
}

#[derive(Debug)]
struct Item {
    alert: LocalAlert,
    stage: Stage,
    told: Option<Stage>,
    /// It is in the list of open alerts.
    is_listed: bool,
    /// A call for it is under way.
    is_called: bool,
    was_called: bool,
    failures: u32,
    again_at: Option<Instant>,
}

impl Due {
    pub fn on_list(&mut self, list: Vec<LocalAlert>) {
        let open: HashSet<String> = list.iter().map(|alert| alert.id.clone()).collect();
        for item in self
            .alerts
            .values_mut()
            .filter(|it| !open.contains(&it.alert.id))
        {
            item.alert.ended = true;
            item.is_listed = false;
            item.move_to(Stage::Ended);
        }
        for alert in list {
            let stage = Stage::of(&alert);
            let item = self.alerts.entry(alert.id.clone()).or_insert_with(|| Item {
                alert: alert.clone(),
                stage,
                told: None,
                is_listed: true,
                is_called: false,
                was_called: false,
                failures: 0,
                again_at: None,
            });
            item.alert = alert;
            item.is_listed = true;
            item.move_to(stage);
        }
        self.forget();
    }

    /// The next call, which is then under way.
    pub fn next(&mut self, now: Instant) -> Option<(LocalAlert, Stage)> {
        let mut due = self.alerts.values_mut().filter(|it| it.is_due());
        let item = due.find(|it| it.again_at.is_none_or(|at| at <= now))?;
        (item.is_called, item.was_called) = (true, true);
        Some((item.alert.clone(), item.stage))
    }

    pub fn on_outcome(&mut self, told: &Told, is_ok: bool, now: Instant) {
        if let Some(item) = self.alerts.get_mut(&told.id) {
            item.is_called = false;
            if is_ok {
                item.told = Some(told.stage);
                (item.failures, item.again_at) = (0, None);
            } else {
                let pause = AGAIN_INITIAL * 2u32.saturating_pow(item.failures.min(6));
                item.failures += 1;
                item.again_at = Some(now + pause.min(AGAIN_MAX));
            }
        }
        self.forget();
    }

    /// When the next attempt is due.
    pub fn again_at(&self) -> Option<Instant> {
        let due = self.alerts.values().filter(|it| it.is_due());
        due.filter_map(|it| it.again_at).min()
    }

    /// Drops alerts that are over once their end was told. The end of an alert that was never told
    /// is not told either.
    fn forget(&mut self) {
        self.alerts.retain(|_, item| {
            let is_told = item.told == Some(Stage::Ended) || !item.was_called;
            let is_given_up = item.failures >= ENDED_ATTEMPTS_MAX;
            item.is_listed || item.is_called || !(is_told || is_given_up)
        });
    }
}

impl Item {
    fn is_due(&self) -> bool {
        !self.is_called && self.told != Some(self.stage)
    }

    /// Another stage is told at once.
    fn move_to(&mut self, stage: Stage) {
        if self.stage != stage {
            self.stage = stage;
            (self.failures, self.again_at) = (0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn alert(id: &str) -> LocalAlert {
        LocalAlert {
            id: id.into(),
            ..LocalAlert::default()
        }
    }

    /// The calls that are due now, each with this outcome.
    fn call(due: &mut Due, is_ok: bool, now: Instant) -> Vec<(String, Stage)> {
        let mut calls = Vec::new();
        while let Some((alert, stage)) = due.next(now) {
            calls.push((alert.id.clone(), stage));
            let told = Told {
                id: alert.id,
                stage,
            };
            due.on_outcome(&told, is_ok, now);
        }
        calls
    }

    #[test]
    fn an_alert_is_told_when_it_is_raised_acknowledged_and_over() {
        let (mut due, now) = (Due::default(), Instant::now());
        let of = |stage| vec![("fall".to_owned(), stage)];
        due.on_list(vec![alert("fall")]);
        assert_eq!(call(&mut due, true, now), of(Stage::Raised));
        due.on_list(vec![alert("fall")]);
        assert_eq!(call(&mut due, true, now), []);
        let acknowledged = LocalAlert {
            acknowledged_by: "Ada".into(),
            ..alert("fall")
        };
        due.on_list(vec![acknowledged]);
        assert_eq!(call(&mut due, true, now), of(Stage::Acknowledged));
        due.on_list(Vec::new());
        assert_eq!(call(&mut due, true, now), of(Stage::Ended));
        assert!(due.alerts.is_empty());
    }

    #[test]
    fn one_call_at_a_time_and_an_end_that_comes_meanwhile_is_told_afterwards() {
        let (mut due, now) = (Due::default(), Instant::now());
        due.on_list(vec![alert("fall")]);
        let (raised, stage) = due.next(now).unwrap();
        due.on_list(Vec::new());
        assert_eq!(due.next(now), None, "the first call is under way");
        let told = Told {
            id: raised.id,
            stage,
        };
        due.on_outcome(&told, true, now);
        assert_eq!(call(&mut due, true, now), [("fall".into(), Stage::Ended)]);
    }

    #[test]
    fn a_failed_call_is_tried_again_while_the_alert_is_open() {
        let (mut due, mut now) = (Due::default(), Instant::now());
        due.on_list(vec![alert("fall")]);
        for _ in 0..100 {
            assert_eq!(call(&mut due, false, now).len(), 1);
            assert_eq!(due.next(now), None);
            let again_at = due.again_at().unwrap();
            assert!(again_at > now && again_at <= now + AGAIN_MAX);
            now = again_at;
        }
        // The receiver may have taken the call all the same, so it is told of the end.
        due.on_list(Vec::new());
        for _ in 0..ENDED_ATTEMPTS_MAX {
            assert_eq!(call(&mut due, false, now), [("fall".into(), Stage::Ended)]);
            now += AGAIN_MAX;
        }
        assert!(due.alerts.is_empty());
    }

    #[test]
    fn an_alert_that_is_over_before_its_call_is_not_told() {
        let (mut due, now) = (Due::default(), Instant::now());
        due.on_list(vec![alert("fall")]);
        due.on_list(Vec::new());
        assert_eq!(call(&mut due, true, now), []);
    }
}
