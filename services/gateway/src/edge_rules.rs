//! Alerts without the core: the rules of the `vitals` crate, run beside the sensor.
//!
//! A reading is judged by the rules of the patient who wore its sensor at its time, according to
//! the core's register. If the register has no answer, the patient that the sensor names counts.
//! Otherwise the sensor is a subject of its own. The state of the rules is kept on disk by
//! [`crate::rule_states`], and a restart continues it.

pub(crate) mod at_start;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{EdgeAlert, Sample, sample::Reading},
};
use vitals::{Engine, Origin, Profile, RuleSet, edge_alert};

use crate::{
    clock::{Moment, SteadyClock},
    rule_states::States,
    rules_in_force::RulesInForce,
    sensor_clocks::SensorClocks,
};

/// Patients or devices with rule state; past it the one that was silent for longest starts afresh.
const SUBJECTS_MAX: usize = 1024;

/// The gateway's clock was set back if a reading's gateway time is this much earlier than
/// another's. A smaller difference comes from concurrent requests.
const STEP_US: i64 = 1_000_000;

pub struct EdgeRules {
    /// The gateway's own rules, for subjects without rules from the core.
    own: Arc<RuleSet>,
    in_force: RulesInForce,
    subjects: HashMap<String, Engine>,
    /// Gateway time of the newest sample.
    newest: Moment,
    /// Number of times that the clock was set back. Readings have no sequence yet, so this number
    /// marks an earlier time as new to the rules.
    clock: u64,
    /// The same for sensors with a clock of their own, by stream.
    sensors: SensorClocks,
    /// Subjects whose states have changed since they were last taken; those without an engine
    /// were removed.
    changed: BTreeSet<String>,
}

/// Result of judging the samples of a request.
#[derive(Debug, Default)]
pub struct Raised {
    /// Raised or ended.
    pub alerts: Vec<EdgeAlert>,
    /// The transitions behind these reports, in the same order. A cancelled fall has none.
    pub transitions: Vec<Alert>,
    /// Subjects of the alerts.
    pub of_alerts: BTreeSet<String>,
    /// Subjects of the samples.
    pub touched: BTreeSet<String>,
}

impl EdgeRules {
    pub fn new(rules: RuleSet) -> Self {
        Self {
            own: Arc::new(rules),
            in_force: RulesInForce::default(),
            subjects: HashMap::new(),
            newest: Moment::default(),
            clock: 1,
            sensors: SensorClocks::default(),
            changed: BTreeSet::new(),
        }
    }

    /// Continues from the stored states under the present rules. If the clock shows an earlier time
    /// than the newest sample, it was set back. An open stretch would then lie in the future, and
    /// no reading could end it. The rules start without states.
    pub fn restore(&mut self, kept: States, now: Moment) {
        let now = SteadyClock::resume(kept.newest, now).name(now);
        if kept.newest.wall_us.saturating_sub(now.wall_us) > STEP_US {
            tracing::warn!(
                subjects = kept.engines.len(),
                "the clock was set back while the gateway was off; kept rule states are not used"
            );
            return;
        }
        self.newest = kept.newest;
        self.clock = self.clock.max(kept.clock);
        for (subject, state) in kept.engines.into_iter().take(SUBJECTS_MAX) {
            let (rules, profile) = judged(&self.in_force, &self.own, &subject);
            let rules = Arc::clone(rules);
            match Engine::restore(subject.clone(), rules, profile, Origin::Edge, &state) {
                Ok(mut engine) => {
                    engine.settle();
                    for (device, stream, sequence, time_us) in engine.streams() {
                        let steps = sequence.saturating_sub(self.clock);
                        self.sensors.restore(device, stream, time_us, steps);
                    }
                    self.subjects.insert(subject, engine);
                }
                Err(error) => tracing::warn!(subject, %error, "a subject's rules begin anew"),
            }
        }
    }

    /// The newest time that a sample got.
    pub fn newest(&self) -> Moment {
        self.newest
    }

    /// Whether the subject's state has changed since it was last taken.
    pub fn has_changed(&self, subject: &str) -> bool {
        self.changed.contains(subject)
    }

    /// The states of settled subjects that have changed since they were last taken.
    pub fn take_changed(&mut self, is_settled: impl Fn(&str) -> bool) -> States {
        let settled = self.changed.extract_if(.., |subject| is_settled(subject));
        let settled: Vec<String> = settled.collect();
        self.states(settled)
    }

    /// These were taken, and not kept.
    pub fn not_kept(&mut self, states: &States) {
        self.changed.extend(states.engines.keys().cloned());
    }

    /// All states, which count as taken then.
    pub fn take_all(&mut self) -> States {
        self.changed.clear();
        self.states(self.subjects.keys().cloned())
    }

    fn states(&self, subjects: impl IntoIterator<Item = String>) -> States {
        let state = |subject: String| {
            let engine = self.subjects.get(&subject);
            let state = engine.map_or_else(Vec::new, Engine::state);
            (subject, state)
        };
        States {
            newest: self.newest,
            clock: self.clock,
            engines: subjects.into_iter().map(state).collect(),
        }
    }

    /// Changes the rules from the next sample on. Common rules of a patient continue.
    pub fn judge_by(&mut self, in_force: RulesInForce) {
        self.in_force = in_force;
        for (subject, engine) in &mut self.subjects {
            let (rules, profile) = judged(&self.in_force, &self.own, subject);
            if engine.rules() != rules {
                *engine = engine.with_rules(Arc::clone(rules));
            }
            engine.set_profile(profile);
        }
    }

    /// Subject of the core's document for a patient or device. Empty: the gateway's own rules.
    fn rules_subject(&self, subject: &str) -> String {
        let rules = self
            .in_force
            .judged(subject)
            .and_then(|it| it.rules.as_ref());
        rules.map(|(of, _)| of.clone()).unwrap_or_default()
    }

    pub fn in_force(&self) -> &RulesInForce {
        &self.in_force
    }

    /// Judges the samples of a request. The journal assigns the sequence of the alerts.
    pub fn raise(&mut self, samples: &[Sample]) -> Raised {
        let mut raised = Raised::default();
        for sample in samples {
            let (subject, alerts) = self.judge(sample);
            if !alerts.is_empty() {
                raised.of_alerts.insert(subject.clone());
                let (transitions, reports): (Vec<_>, Vec<_>) = alerts.into_iter().unzip();
                raised.transitions.extend(transitions);
                raised.alerts.extend(reports);
            }
            raised.touched.insert(subject);
        }
        raised
    }

    /// Alerts that the sample raises or ends.
    #[cfg(test)]
    pub fn on_sample(&mut self, sample: &Sample) -> Vec<EdgeAlert> {
        let alerts = self.judge(sample).1.into_iter();
        alerts.map(|(_, report)| report).collect()
    }

    /// The active alerts of all subjects, each as its newest transition.
    pub fn active(&self) -> Vec<Alert> {
        let engines = self.subjects.values();
        engines.flat_map(Engine::active_alerts).collect()
    }

    /// The subject of the sample, and the alerts that it raises or ends, each with its report.
    fn judge(&mut self, sample: &Sample) -> (String, Vec<(Alert, EdgeAlert)>) {
        let taken = Moment::of_sample(sample);
        let is_set_back = self.newest.wall_us.saturating_sub(taken.wall_us) > STEP_US;
        self.clock += u64::from(is_set_back);
        if is_set_back || taken.wall_us > self.newest.wall_us {
            self.newest = taken;
        }
        // Rules look at single values only, and waveforms are long.
        if !matches!(sample.reading, Some(Reading::Value(_))) {
            return (String::new(), Vec::new());
        }
        let sample = &Sample {
            sequence: self.clock + self.sensors.steps(sample),
            ..sample.clone()
        };
        let wearer = self.in_force.wearer(&sample.device, sample.device_time_us);
        let subject = match wearer {
            Some(wearer) if sample.patient.is_empty() || sample.patient == wearer => wearer,
            // The sensor contradicts the register, so the reading belongs to no patient.
            Some(_) => &sample.device,
            None if sample.patient.is_empty() => &sample.device,
            None => &sample.patient,
        };
        let subject = &subject.to_owned();
        if !self.subjects.contains_key(subject) {
            self.make_room();
            let (rules, profile) = judged(&self.in_force, &self.own, subject);
            let rules = Arc::clone(rules);
            let engine = Engine::new(subject.clone(), rules, profile, Origin::Edge);
            self.subjects.insert(subject.clone(), engine);
        }
        let Some(engine) = self.subjects.get_mut(subject) else {
            return (String::new(), Vec::new());
        };
        let alerts = engine.on_sample(sample);
        if engine.take_dirty() {
            self.changed.insert(subject.clone());
        }
        let begun = alerts.iter().filter(|it| it.state() == AlertState::Active);
        let unseen = begun.filter(|it| engine.is_first_look(&it.rule));
        let first_looks: BTreeSet<String> = unseen.map(|it| it.rule.clone()).collect();
        let alerts = alerts.into_iter().filter_map(|alert| {
            let report = EdgeAlert {
                // Only the name that the sensor sent. A device's name is not a patient.
                patient: sample.patient.clone(),
                device: sample.device.clone(),
                gateway: sample.gateway.clone(),
                gateway_time_us: taken.wall_us,
                gateway_uptime_us: taken.uptime_us,
                gateway_boot: taken.boot,
                gateway_behind_us: sample.gateway_behind_us,
                rules_subject: self.rules_subject(subject),
                first_look: first_looks.contains(&alert.rule),
                ..edge_alert(&alert, 0)?
            };
            Some((alert, report))
        });
        (subject.clone(), alerts.collect())
    }

    /// Cancels falls that are not raised yet, on behalf of a person. Empty: there is none.
    pub fn cancel_falls(&mut self, device: &str, patient: &str) -> Raised {
        let wearer = self.in_force.wearer(device, self.newest.wall_us);
        let subject = match wearer {
            _ if !patient.is_empty() => patient.to_owned(),
            Some(wearer) => wearer.to_owned(),
            None => device.to_owned(),
        };
        let Some(engine) = self.subjects.get_mut(&subject) else {
            return Raised::default();
        };
        // On the sensor's clock, like everything that rules see.
        let now_us = engine.clock_us();
        let cancelled = engine.cancel_falls(now_us);
        if engine.take_dirty() {
            self.changed.insert(subject.clone());
        }
        let rule_version = engine.rules().version;
        let alerts = cancelled
            .into_iter()
            .map(|rule| EdgeAlert {
                patient: patient.to_owned(),
                device: device.to_owned(),
                rule_version,
                rules_subject: self.rules_subject(&subject),
                metric: rule.condition.metric().into(),
                priority: rule.priority.into(),
                rule: rule.id,
                time_us: now_us,
                gateway_time_us: self.newest.wall_us,
                gateway_uptime_us: self.newest.uptime_us,
                gateway_boot: self.newest.boot,
                summary: "Cancelled at the gateway".into(),
                resolved: true,
                cancelled: true,
                ..EdgeAlert::default()
            })
            .collect();
        Raised {
            alerts,
            transitions: Vec::new(),
            of_alerts: BTreeSet::from([subject.clone()]),
            touched: BTreeSet::from([subject]),
        }
    }

    fn make_room(&mut self) {
        while self.subjects.len() >= SUBJECTS_MAX {
            let Some(oldest) = self
                .subjects
                .iter()
                .min_by_key(|(_, engine)| engine.clock_us())
                .map(|(subject, _)| subject.clone())
            else {
                return;
            };
            self.subjects.remove(&oldest);
            self.changed.insert(oldest);
        }
    }
}

/// Rules and profile of a patient or of the wearer of a device.
fn judged<'a>(
    in_force: &'a RulesInForce,
    own: &'a Arc<RuleSet>,
    subject: &str,
) -> (&'a Arc<RuleSet>, Profile) {
    let Some(judged) = in_force.judged(subject) else {
        return (own, Profile::default());
    };
    let rules = judged.rules.as_ref().map_or(own, |(_, set)| set);
    (rules, judged.profile)
}

#[cfg(test)]
mod tests {
    use contracts::vitals::{FollowRulesResponse, Metric, PatientRules, RulesDocument, sample};
    use vitals::Condition;

    use super::*;

    const START_US: i64 = 1_800_000_000_000_000;

    fn heart_rate(device: &str, second: i64, value: f64) -> Sample {
        let mut sample = Sample {
            device: device.into(),
            gateway: "g".into(),
            metric: Metric::HeartRate.into(),
            device_time_us: START_US + second * 1_000_000,
            reading: Some(sample::Reading::Value(value)),
            ..Sample::default()
        };
        vitals::fill_defaults(&mut sample);
        sample
    }

    #[test]
    fn a_lasting_tachycardia_is_raised_once_and_resolved() {
        let mut rules = EdgeRules::new(RuleSet::default_set());
        let mut raised = Vec::new();
        for second in 0..300 {
            let value = if (60..180).contains(&second) {
                170.0
            } else {
                75.0
            };
            raised.extend(rules.on_sample(&heart_rate("d1", second, value)));
            assert!(rules.on_sample(&heart_rate("d2", second, 75.0)).is_empty());
        }
        let Some(first) = raised.first() else {
            panic!("nothing was raised");
        };
        assert_eq!(first.device, "d1");
        assert_eq!(first.patient, "");
        assert!(!first.resolved);
        for alert in &raised {
            let (up, down) = raised.iter().filter(|other| other.rule == alert.rule).fold(
                (0, 0),
                |(up, down), other| {
                    if other.resolved {
                        (up, down + 1)
                    } else {
                        (up + 1, down)
                    }
                },
            );
            assert_eq!((up, down), (1, 1), "rule {}", alert.rule);
        }
    }

    #[test]
    fn an_alert_says_whether_its_beginning_may_have_been_missed() {
        for first_ill in [0, 60] {
            let mut rules = EdgeRules::new(RuleSet::default_set());
            let mut raised = Vec::new();
            for second in 0..120 {
                let value = if second >= first_ill { 170.0 } else { 75.0 };
                raised.extend(rules.on_sample(&heart_rate("d1", second, value)));
            }
            let high = raised.iter().find(|it| it.rule == "heart-rate-very-high");
            let first_look = high.map(|it| it.first_look);
            assert_eq!(first_look, Some(first_ill == 0));
        }
    }

    #[test]
    fn a_sensor_whose_clock_is_set_back_is_not_passed_over() {
        let mut rules = EdgeRules::new(RuleSet::default_set());
        let mut raised = Vec::new();
        for second in 0..300 {
            let is_set_back = second >= 100;
            let value = if second >= 150 { 170.0 } else { 75.0 };
            let mut sample = heart_rate("d1", second, value);
            sample.device_time_us -= i64::from(is_set_back) * 3_600_000_000;
            sample.gateway_time_us = START_US + second * 1_000_000;
            sample.gateway_uptime_us = second * 1_000_000;
            raised.extend(rules.on_sample(&sample));
        }
        assert!(!raised.is_empty(), "an hour's deafness");
    }

    #[test]
    fn a_fall_is_cancelled_before_anybody_is_told_and_not_after() {
        for (pause_s, is_raised) in [(5, false), (15, true)] {
            let mut rules = EdgeRules::new(RuleSet::default_set());
            let feed = |rules: &mut EdgeRules, second, value_g| {
                let mut sample = heart_rate("d1", second, value_g);
                sample.metric = Metric::Activity.into();
                sample.unit = "[g]".into();
                let alerts = rules.on_sample(&sample);
                alerts.iter().any(|alert| alert.rule == "fall")
            };
            assert_eq!(rules.cancel_falls("d1", "").alerts, []);
            feed(&mut rules, 0, 1.1);
            let cancelled = rules.cancel_falls("d1", "").alerts;
            assert_eq!(cancelled, [], "nothing has happened");
            feed(&mut rules, 1, 3.5);
            let raised = (2..2 + pause_s).any(|second| feed(&mut rules, second, 1.0));
            assert_eq!(raised, is_raised);
            let cancelled = rules.cancel_falls("d1", "").alerts;
            assert_eq!(cancelled.len(), usize::from(!is_raised));
            if let Some(alert) = cancelled.first() {
                assert!(alert.cancelled && alert.resolved && alert.rule == "fall");
                assert_eq!(alert.time_us, START_US + (1 + pause_s) * 1_000_000);
                let later = (2 + pause_s..60).any(|second| feed(&mut rules, second, 1.0));
                assert!(!later, "still lying there, and fine");
                // A new impact counts.
                feed(&mut rules, 61, 3.5);
                assert!((62..90).any(|second| feed(&mut rules, second, 1.0)));
            }
        }
    }

    /// The built-in rules with another heart rate limit, for the wearer of `device`.
    fn in_force(device: &str, version: u32, heart_rate: f64) -> RulesInForce {
        let mut set = RuleSet::default_set();
        for rule in &mut set.rules {
            if let Condition::Above {
                metric: Metric::HeartRate,
                limit,
                clear,
            } = &mut rule.condition
            {
                (*limit, *clear) = (heart_rate, heart_rate - 5.0);
            }
        }
        let answer = FollowRulesResponse {
            documents: vec![RulesDocument {
                subject: "patient:ada".into(),
                version,
                body: serde_json::to_string(&set).unwrap_or_default(),
            }],
            patients: vec![PatientRules {
                patient: "ada".into(),
                devices: vec![device.into()],
                subject: "patient:ada".into(),
                spo2_scale: 1,
            }],
            ..FollowRulesResponse::default()
        };
        let (in_force, refused) = RulesInForce::default().take(answer);
        assert_eq!(refused, []);
        in_force
    }

    #[test]
    fn rules_of_the_core_hold_from_the_next_sample_on_and_are_named() {
        let mut rules = EdgeRules::new(RuleSet::default_set());
        let feed = |rules: &mut EdgeRules, seconds: std::ops::Range<i64>, value| {
            let mut raised = Vec::new();
            for second in seconds {
                raised.extend(rules.on_sample(&heart_rate("d1", second, value)));
                raised.extend(rules.on_sample(&heart_rate("d2", second, value)));
            }
            raised
        };
        assert_eq!(
            feed(&mut rules, 0..120, 90.0),
            [],
            "well by anybody's rules"
        );
        rules.judge_by(in_force("d1", 7, 80.0));
        let raised = feed(&mut rules, 120..240, 90.0);
        assert!(!raised.is_empty());
        for alert in &raised {
            assert_eq!((&*alert.device, alert.rule_version), ("d1", 7), "{alert:?}");
            assert_eq!(alert.rules_subject, "patient:ada");
        }
        // A wider limit ends the alert of the narrow one, with the new version. No episode alerts
        // twice.
        rules.judge_by(in_force("d1", 8, 130.0));
        let ended = feed(&mut rules, 240..360, 90.0);
        assert_eq!(ended.len(), raised.len(), "{ended:?}");
        assert!(ended.iter().all(|it| it.resolved && it.rule_version == 8));
        // The core withdraws its rules.
        rules.judge_by(RulesInForce::default());
        let raised = feed(&mut rules, 360..480, 170.0);
        assert!(raised.iter().any(|alert| alert.device == "d1"));
        assert!(raised.iter().all(|it| it.rules_subject.is_empty()));
    }

    #[test]
    fn a_belt_that_changes_hands_takes_nothing_of_one_patient_to_the_next() {
        use contracts::vitals::DeviceInterval;
        let mut rules = EdgeRules::new(RuleSet::default_set());
        let worn = |patient: &str, from_us, until_us| DeviceInterval {
            device: "d1".into(),
            patient: patient.into(),
            from_us,
            until_us,
        };
        let handed_over_us = START_US + 600 * 1_000_000;
        let (in_force, refused) = RulesInForce::default().take(FollowRulesResponse {
            intervals: vec![
                worn("ada", i64::MIN, handed_over_us),
                worn("ben", handed_over_us, i64::MAX),
            ],
            has_intervals: true,
            ..FollowRulesResponse::default()
        });
        assert_eq!(refused, []);
        rules.judge_by(in_force);
        let feed = |rules: &mut EdgeRules, seconds: std::ops::Range<i64>, value| {
            let mut raised = Vec::new();
            for second in seconds {
                raised.extend(rules.on_sample(&heart_rate("d1", second, value)));
            }
            raised
        };
        let of_ada = feed(&mut rules, 0..300, 170.0);
        assert!(of_ada.iter().any(|alert| !alert.resolved));
        // Ben is well from his first reading on, and that ends no alert of Ada.
        assert_eq!(feed(&mut rules, 800..1000, 75.0), []);
        assert!(rules.subjects.contains_key("ada") && rules.subjects.contains_key("ben"));
        // Ada's readings that the belt kept continue her alert.
        let ended = feed(&mut rules, 300..420, 75.0);
        assert!(ended.iter().any(|alert| alert.resolved));
    }

    #[test]
    fn subjects_are_bounded() {
        let mut rules = EdgeRules::new(RuleSet::default_set());
        for n in 0..SUBJECTS_MAX as i64 + 10 {
            rules.on_sample(&heart_rate(&format!("d{n}"), n, 75.0));
        }
        assert_eq!(rules.subjects.len(), SUBJECTS_MAX);
        assert!(!rules.subjects.contains_key("d0"));
    }
}
