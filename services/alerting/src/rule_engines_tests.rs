#![allow(clippy::unwrap_used)]

use contracts::{
    alerts::AlertState,
    vitals::{Metric, sample},
};

use super::*;

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;
const RULE: &str = "consciousness-lowered";

fn engines() -> RuleEngines {
    RuleEngines::new(Arc::new(RuleSet::default_set()), 600 * S)
}

/// A reading of consciousness. Its rule has high priority and no delays.
fn record(sequence: u64, value: f64) -> (u32, String, VitalsRecord) {
    let at_us = T0 + sequence as i64 * S;
    let mut sample = Sample {
        device: "d".into(),
        patient: "p".into(),
        sequence,
        metric: Metric::Consciousness.into(),
        device_time_us: at_us,
        ingest_time_us: at_us + 1000,
        reading: Some(sample::Reading::Value(value)),
        ..Sample::default()
    };
    vitals::fill_defaults(&mut sample);
    let record = VitalsRecord {
        samples: vec![sample],
        ..VitalsRecord::default()
    };
    (3, "p".into(), record)
}

/// The same of another metric.
fn record_of(metric: Metric, sequence: u64, value: f64) -> (u32, String, VitalsRecord) {
    let mut record = record(sequence, value);
    let sample = &mut record.2.samples[0];
    sample.metric = metric.into();
    sample.unit.clear();
    vitals::fill_defaults(sample);
    record
}

fn of_rule(evaluation: &Evaluation) -> Vec<(u32, AlertState)> {
    let transitions = evaluation.transitions.iter();
    transitions
        .filter(|alert| alert.rule == RULE)
        .map(|alert| (alert.revision, alert.state()))
        .collect()
}

#[test]
fn a_try_that_is_taken_back_leaves_nothing_behind() {
    let mut engines = engines();
    let first = engines.evaluate(&[record(1, 2.0)], T0 + S);
    assert_eq!(of_rule(&first), [(1, AlertState::Active)]);
    engines.undo();
    assert_eq!(engines.len(), 0);
    let again = engines.evaluate(&[record(1, 2.0)], T0 + 2 * S);
    assert_eq!(of_rule(&again), of_rule(&first));
    assert_eq!(again.skipped, 0);
    engines.keep();
    engines.undo();
    let duplicate = engines.evaluate(&[record(1, 2.0)], T0 + 3 * S);
    assert_eq!((duplicate.skipped, duplicate.samples), (1, 1));
}

#[test]
fn readings_of_a_patient_who_has_departed_are_not_judged_and_a_new_stay_begins_afresh() {
    let mut engines = engines();
    engines.set_profile("p", 3, "t", Profile::default(), T0);
    let raised = engines.evaluate(&[record(1, 2.0)], T0 + S);
    assert_eq!(of_rule(&raised), [(1, AlertState::Active)]);
    engines.stored();
    engines.set_departed("p", true);
    assert!(
        engines.has_unstored(),
        "the state is forgotten in the store, too"
    );
    let late = engines.evaluate(&[record(2, 0.0), record(3, 2.0)], T0 + 4 * S);
    assert_eq!((of_rule(&late), late.skipped), (Vec::new(), 2));
    engines.stored();
    engines.set_departed("p", false);
    let again = engines.evaluate(&[record(5, 2.0)], T0 + 6 * S);
    assert_eq!(of_rule(&again), [(1, AlertState::Active)]);
    assert_ne!(again.transitions[0].id, raised.transitions[0].id);
}

#[test]
fn a_gateway_whose_clock_is_set_back_an_hour_is_heard_at_once() {
    let mut engines = engines();
    let taken = |sequence: i64, skew_us: i64, value| {
        let mut one = record(sequence as u64, value);
        let sample = &mut one.2.samples[0];
        sample.stream = "consciousness".into();
        sample.device_time_us += skew_us;
        sample.gateway_time_us = sample.device_time_us;
        one
    };
    for second in 1..60 {
        let calm = engines.evaluate(&[taken(second, 3600 * S, 0.0)], T0 + second * S);
        assert_eq!(of_rule(&calm), []);
    }
    let mut ill = taken(60, 0, 2.0);
    let raised = engines.evaluate(&[ill.clone()], T0 + 60 * S);
    assert_eq!(of_rule(&raised), [(1, AlertState::Active)]);
    assert!(!raised.transitions[0].backfill, "somebody is called");
    // From here on the clock is an hour behind, and the edge also reports an hour ago.
    for second in 61..70 {
        engines.evaluate(&[taken(second, -3600 * S, 0.0)], T0 + second * S);
    }
    ill.2.samples.clear();
    ill.2.alerts.push(contracts::vitals::EdgeAlert {
        device: "d".into(),
        patient: "p".into(),
        rule: "of-the-edge-alone".into(),
        time_us: T0 + (70 - 3600) * S,
        ..Default::default()
    });
    let told = engines.evaluate(&[ill], T0 + 70 * S);
    assert!(!told.transitions[0].backfill);
}

#[test]
fn an_outage_of_the_core_makes_no_alert_of_the_edge_a_backfill() {
    let alert = |patient: &str, arrived_us| {
        let alert = contracts::vitals::EdgeAlert {
            device: "d".into(),
            patient: patient.into(),
            rule: "of-the-edge-alone".into(),
            time_us: T0,
            ingest_time_us: arrived_us,
            ..Default::default()
        };
        let record = VitalsRecord {
            alerts: vec![alert],
            ..VitalsRecord::default()
        };
        (3, patient.to_owned(), record)
    };
    let mut engines = engines();
    let records = [alert("in-time", T0 + S), alert("late", T0 + 700 * S)];
    let judged = engines.evaluate(&records, T0 + 7200 * S);
    let is_backfill: Vec<bool> = judged.transitions.iter().map(|it| it.backfill).collect();
    assert_eq!(is_backfill, [false, true]);
}

fn in_force_by(rules: contracts::alerts::Document) -> DocumentsInForce {
    let set = crate::rules_in_force::rules_of(&rules).unwrap();
    DocumentsInForce::new(Vec::new(), Vec::new(), vec![(rules, set)])
}

#[test]
fn other_rules_hold_from_the_next_event_on() {
    let mut engines = engines();
    engines.set_profile("p", 3, "one", Profile::default(), T0);
    let first = engines.evaluate(&[record(1, 2.0)], T0 + S);
    assert_eq!(of_rule(&first), [(1, AlertState::Active)]);
    engines.keep();
    let mut set = RuleSet::default_set();
    set.rules.retain(|rule| rule.id != RULE);
    let document = |tenant: &str, version| contracts::alerts::Document {
        kind: "rules".into(),
        tenant: tenant.into(),
        subject: "patient:p".into(),
        version,
        body: serde_json::to_string(&set).unwrap(),
        ..contracts::alerts::Document::default()
    };
    // A patient of another tenant with the same name is a different patient.
    engines.set_documents_in_force(Arc::new(in_force_by(document("two", 7))));
    let same = engines.evaluate(&[record(2, 2.0)], T0 + 2 * S);
    assert_eq!(of_rule(&same), []);
    engines.keep();
    engines.set_documents_in_force(Arc::new(in_force_by(document("one", 8))));
    let other = engines.evaluate(&[record(3, 2.0)], T0 + 3 * S);
    assert_eq!(of_rule(&other), [(2, AlertState::Resolved)]);
    assert_eq!(other.transitions[0].rule_version, 8);
    engines.keep();
    let again = engines.evaluate(&[record(4, 2.0)], T0 + 4 * S);
    assert_eq!(of_rule(&again), []);
}

#[test]
fn an_acknowledgement_is_taken_over_when_the_write_conflicts() {
    let mut engines = engines();
    let first = engines.evaluate(&[record(1, 2.0)], T0 + S);
    let raised = first.transitions.iter().find(|alert| alert.rule == RULE);
    let stored = Alert {
        revision: 2,
        state: AlertState::Acknowledged.into(),
        acknowledged_by: "Ada".into(),
        ..raised.unwrap().clone()
    };
    engines.keep();
    let ended = engines.evaluate(&[record(2, 0.0)], T0 + 2 * S);
    assert_eq!(of_rule(&ended), [(2, AlertState::Latched)]);
    // The store already has revision 2.
    engines.undo();
    engines.adopt(&stored);
    let ended = engines.evaluate(&[record(2, 0.0)], T0 + 2 * S);
    assert_eq!(of_rule(&ended), [(3, AlertState::Resolved)]);
    engines.keep();
}

#[test]
fn an_alert_that_only_the_store_knows_is_not_written_again() {
    let mut engines = engines();
    let first = engines.evaluate(&[record(1, 2.0)], T0 + S);
    let stored = first
        .transitions
        .iter()
        .find(|alert| alert.rule == RULE)
        .unwrap()
        .clone();
    engines.undo();
    engines.adopt(&Alert {
        revision: 4,
        ..stored.clone()
    });
    let again = engines.evaluate(&[record(1, 2.0)], T0 + 2 * S);
    assert_eq!(of_rule(&again), []);
    engines.keep();
    // The rules continue from the stored row.
    let next = engines.evaluate(&[record(2, 0.0)], T0 + 3 * S);
    assert_eq!(of_rule(&next), [(5, AlertState::Latched)]);
}

#[test]
fn another_member_goes_on_from_the_stored_states() {
    let mut first = engines();
    let evaluation = first.evaluate(&[record(1, 2.0)], T0 + S);
    assert_eq!(of_rule(&evaluation), [(1, AlertState::Active)]);
    let states = first.states();
    assert_eq!(states.len(), 1);
    assert_eq!(states[0].partition, 3);
    let mut second = engines();
    second.load(3, states, T0 + 2 * S);
    assert_eq!(second.len(), 1);
    let ended = second.evaluate(&[record(1, 2.0), record(2, 0.0)], T0 + 2 * S);
    assert_eq!(of_rule(&ended), [(2, AlertState::Latched)]);
    assert_eq!(ended.skipped, 1);
    second.keep();
    second.release(3);
    assert_eq!(second.len(), 0);
}

#[test]
fn what_a_patients_own_rules_remember_outlives_a_takeover() {
    let mut set = RuleSet::default_set();
    let is_change = |rule: &&vitals::Rule| {
        matches!(rule.condition, vitals::Condition::Change { .. })
            && rule.condition.metric() == Metric::HeartRate
    };
    let mut own = set.rules.iter().find(is_change).unwrap().clone();
    own.id = "own".into();
    own.for_ms = 0;
    set.rules.push(own);
    let document = contracts::alerts::Document {
        kind: "rules".into(),
        tenant: "one".into(),
        subject: "patient:p".into(),
        version: 8,
        body: serde_json::to_string(&set).unwrap(),
        ..contracts::alerts::Document::default()
    };
    let in_force = Arc::new(in_force_by(document));
    let begin = |engines: &mut RuleEngines| {
        engines.set_documents_in_force(Arc::clone(&in_force));
        engines.set_profile("p", 3, "one", Profile::default(), T0);
    };
    let pulse = |second: u64, value| {
        let mut one = record_of(Metric::HeartRate, second, value);
        let sample = &mut one.2.samples[0];
        sample.stream = "heart-rate".into();
        sample.unit = String::new();
        vitals::fill_defaults(sample);
        one
    };
    let mut first = engines();
    begin(&mut first);
    for second in 1..=600 {
        first.evaluate(&[pulse(second, 70.0)], T0 + second as i64 * S);
        first.keep();
    }
    let states = first.states();
    let mut second = engines();
    second.load(3, states, T0 + 600 * S);
    begin(&mut second);
    for member in [&mut first, &mut second] {
        let jump = member.evaluate(&[pulse(601, 125.0)], T0 + 601 * S);
        let mut raised = jump.transitions.iter();
        assert!(raised.any(|alert| alert.rule == "own"), "{jump:?}");
    }
}

#[test]
fn a_state_is_owed_until_it_is_stored() {
    let mut engines = engines();
    engines.evaluate(&[record(1, 0.0)], T0 + S);
    assert_eq!(engines.states().len(), 1);
    engines.undo();
    assert!(engines.states().is_empty() && !engines.has_unstored());
    engines.evaluate(&[record(1, 0.0)], T0 + S);
    engines.keep();
    // Undoing another attempt takes none of it along.
    engines.evaluate(&[record(2, 0.0)], T0 + 2 * S);
    engines.undo();
    assert!(engines.has_unstored());
    assert_eq!(engines.states().len(), 1);
    engines.evaluate(&[record(2, 2.0)], T0 + 2 * S);
    assert_eq!(engines.states().len(), 1, "one patient, one state");
    engines.stored();
    assert!(engines.states().is_empty() && !engines.has_unstored());
    engines.evaluate(&[record(3, 0.0)], T0 + 3 * S);
    engines.keep();
    engines.release(3);
    assert!(
        !engines.has_unstored(),
        "whoever has the partition now finds it out again"
    );
}

#[test]
fn time_passes_only_for_those_who_are_present() {
    let mut engines = engines();
    engines.set_profile("p", 3, "", Profile::default(), T0);
    let pulse = record_of(Metric::HeartRate, 1, 150.0);
    let arrived_us = T0 + S;
    engines.evaluate(&[pulse], arrived_us);
    engines.keep();
    let mut raised = |now_us| {
        let transitions = engines.on_time(now_us, now_us);
        engines.undo();
        let mut transitions = transitions.iter();
        transitions.any(|alert| alert.rule == "heart-rate-very-high")
    };
    assert!(
        !raised(arrived_us + 10 * S + LATE_US_MIN),
        "a reading of then may come"
    );
    assert!(raised(arrived_us + 11 * S + LATE_US_MIN));
    assert!(!raised(arrived_us + PRESENT_US));
}

#[test]
fn time_goes_on_when_the_clock_is_set_back() {
    let mut engines = engines();
    engines.set_profile("p", 3, "", Profile::default(), T0);
    let pulse = [record_of(Metric::HeartRate, 1, 150.0)];
    engines.evaluate(&pulse, T0 + S);
    engines.keep();
    let back_us = T0 - 3600 * S;
    assert_eq!(engines.without_profile(&pulse).len(), 0);
    assert_eq!(engines.with_old_profile(T0 + S, 1).len(), 0);
    assert_eq!(engines.with_old_profile(back_us, 1).len(), 1);
    engines.on_time(back_us, back_us);
    engines.keep();
    let back_us = back_us + 11 * S + LATE_US_MIN;
    let raised = engines.on_time(back_us, back_us);
    let mut raised = raised.iter();
    assert!(raised.any(|alert| alert.rule == "heart-rate-very-high"));
}

#[test]
fn what_waits_for_time_to_pass_is_raised_by_whoever_takes_over() {
    let rule = "heart-rate-very-high";
    // One right clock and one that is an hour behind. With the latter it is unknown whether the
    // patient is present.
    for (behind_us, is_raised) in [(0, true), (3600 * S, false)] {
        let mut first = engines();
        let mut pulse = record_of(Metric::HeartRate, 1, 150.0);
        pulse.2.samples[0].device_time_us -= behind_us;
        first.evaluate(&[pulse], T0 + S);
        first.keep();
        let mut second = engines();
        let taken_over_us = T0 + 8 * S;
        second.load(3, first.states(), taken_over_us);
        let raised = |engines: &mut RuleEngines, now_us| {
            let waiting = engines.waiting_without_profile(now_us);
            for (key, partition) in waiting {
                engines.set_profile(&key, partition, "", Profile::default(), now_us);
            }
            let transitions = engines.on_time(now_us, now_us);
            engines.undo();
            transitions.iter().any(|alert| alert.rule == rule)
        };
        let due_us = taken_over_us + 10 * S + LATE_US_MIN;
        assert!(!raised(&mut second, due_us), "early");
        assert_eq!(raised(&mut second, due_us + S), is_raised);
        assert!(!raised(&mut second, taken_over_us + PRESENT_US));
    }
}

/// An outage hides the end of a stretch from the member that takes over. Time does not pass
/// beyond the next reading of its stream, also when readings of other streams come first.
#[test]
fn a_takeover_in_an_outage_raises_nothing_that_the_next_reading_contradicts() {
    let rule = "heart-rate-very-high";
    let reading = |metric: Metric, second: i64, value: f64| {
        let mut reading = record_of(metric, second as u64 + 1, value);
        let sample = &mut reading.2.samples[0];
        sample.stream = format!("{metric:?}");
        sample.device_time_us = T0 + second * S;
        sample.ingest_time_us = sample.device_time_us + 1000;
        reading
    };
    for other_comes_first in [false, true] {
        let mut first = engines();
        first.set_profile("p", 3, "", Profile::default(), T0);
        for (second, value) in [(0, 80.0), (1, 80.0), (2, 150.0), (3, 150.0)] {
            let pulse = reading(Metric::HeartRate, second, value);
            let breath = reading(Metric::RespirationRate, second, 14.0);
            first.evaluate(&[pulse, breath], T0 + (second + 1) * S);
            first.keep();
        }
        let mut second = engines();
        second.load(3, first.states(), T0 + 5 * S);
        second.set_profile("p", 3, "", Profile::default(), T0 + 5 * S);
        if other_comes_first {
            let breaths: Vec<_> = (4..30)
                .map(|second| reading(Metric::RespirationRate, second, 14.0))
                .collect();
            second.evaluate(&breaths, T0 + 30 * S);
            second.keep();
        }
        let is_said = |alerts: &[Alert]| alerts.iter().any(|alert| alert.rule == rule);
        // The bus was read up to a time before the takeover, and later to its end.
        for (now_s, heard_s) in [(31, 4), (60, 60)] {
            let passed = second.on_time(T0 + now_s * S, T0 + heard_s * S);
            assert!(!is_said(&passed), "{other_comes_first} {now_s}");
            second.keep();
        }
        let end = second.evaluate(&[reading(Metric::HeartRate, 4, 80.0)], T0 + 61 * S);
        assert!(!is_said(&end.transitions), "{other_comes_first}");
        second.keep();
        // A stretch that lasts is raised by its own readings.
        let ill: Vec<_> = (5..20)
            .map(|second| reading(Metric::HeartRate, second, 150.0))
            .collect();
        assert!(is_said(&second.evaluate(&ill, T0 + 62 * S).transitions));
    }
}

/// The condition may have returned during an outage, so a member that takes over ends nothing
/// before a reading comes.
#[test]
fn nothing_is_resolved_by_time_alone_after_a_takeover() {
    let rule = "heart-rate-very-high";
    let pulse = |second: i64, value: f64| {
        let mut pulse = record_of(Metric::HeartRate, second as u64 + 1, value);
        pulse.2.samples[0].device_time_us = T0 + second * S;
        pulse
    };
    let mut first = engines();
    first.set_profile("p", 3, "", Profile::default(), T0);
    let ill: Vec<_> = (0..20).map(|second| pulse(second, 150.0)).collect();
    let raised = first.evaluate(&ill, T0 + 20 * S).transitions;
    assert!(raised.iter().any(|alert| alert.rule == rule));
    first.evaluate(&[pulse(20, 80.0)], T0 + 21 * S);
    first.keep();

    let mut second = engines();
    second.load(3, first.states(), T0 + 22 * S);
    second.set_profile("p", 3, "", Profile::default(), T0 + 22 * S);
    let is_said = |alerts: Vec<Alert>| alerts.iter().any(|alert| alert.rule == rule);
    assert!(!is_said(second.on_time(T0 + 60 * S, T0 + 60 * S)));
    second.keep();
    // The condition had returned and ends later.
    let back = second.evaluate(&[pulse(21, 150.0)], T0 + 61 * S);
    assert!(!is_said(back.transitions), "the same alert goes on");
    let well: Vec<_> = (22..40).map(|second| pulse(second, 80.0)).collect();
    assert!(is_said(second.evaluate(&well, T0 + 62 * S).transitions));
}

#[test]
fn a_state_that_cannot_be_read_begins_anew() {
    let mut engines = engines();
    engines.load(
        0,
        vec![RuleState {
            topic: Topic::Vitals,
            partition: 0,
            key: "p".into(),
            state: bytes::Bytes::from_static(b"{"),
        }],
        T0,
    );
    assert_eq!(
        of_rule(&engines.evaluate(&[record(1, 2.0)], T0 + S)),
        [(1, AlertState::Active)]
    );
}

/// Alerting or the bus was delayed by a minute. The reading that ends the condition still waits
/// there.
#[test]
fn what_waits_on_the_bus_is_judged_before_a_delay_ends() {
    let mut engines = engines();
    engines.set_profile("p", 3, "", Profile::default(), T0);
    let pulse = record_of(Metric::HeartRate, 1, 150.0);
    engines.evaluate(&[pulse], T0 + S);
    engines.keep();
    let mut is_raised = |heard_us| {
        let raised = engines.on_time(T0 + 60 * S, heard_us);
        engines.undo();
        raised.iter().any(|it| it.rule == "heart-rate-very-high")
    };
    assert!(!is_raised(T0 + 5 * S));
    assert!(is_raised(T0 + 60 * S));
}

/// One activity reading each second.
fn activity(sequence: u64, value: f64) -> (u32, String, VitalsRecord) {
    let (partition, key, mut record) = record(sequence, value);
    record.samples[0].metric = Metric::Activity.into();
    record.samples[0].unit.clear();
    vitals::fill_defaults(&mut record.samples[0]);
    (partition, key, record)
}

#[test]
fn a_fall_that_breaks_the_sensor_is_raised() {
    let mut engines = engines();
    engines.set_profile("p", 3, "t", Profile::default(), T0);
    for (sequence, value) in [(1, 1.0), (2, 1.3), (3, 6.0), (4, 1.0), (5, 1.0)] {
        let now_us = T0 + sequence as i64 * S;
        engines.evaluate(&[activity(sequence, value)], now_us + S / 10);
        engines.keep();
    }
    let fall_at = |engines: &mut RuleEngines, second: i64| {
        let now_us = T0 + second * S;
        let alerts = engines.on_time(now_us, now_us);
        engines.keep();
        alerts.iter().filter(|alert| alert.rule == "fall").count()
    };
    assert_eq!(fall_at(&mut engines, 12), 0);
    assert_eq!(fall_at(&mut engines, 20), 1);
}

impl RuleEngines {
    pub(crate) fn tenant_of(&self, key: &str) -> Option<&str> {
        self.patients.get(key).map(|it| it.tenant.as_str())
    }
}

/// A reading of a sensor whose clock is behind by `behind_s`, through a gateway whose clock is
/// right.
fn of_sensor(second: i64, behind_s: i64, value: f64) -> (u32, String, VitalsRecord) {
    let mut one = record_of(Metric::Spo2, second as u64 + 1, value);
    let sample = &mut one.2.samples[0];
    let taken_us = T0 + second * S;
    sample.device_time_us = taken_us - behind_s * S;
    sample.gateway_time_us = taken_us;
    sample.ingest_time_us = taken_us + 1000;
    sample.device_offset_us = Some(0);
    one
}

/// Another member takes over from what is stored.
fn taken_over(engines: &RuleEngines, now_us: i64) -> RuleEngines {
    let mut taken_over = self::engines();
    taken_over.load(3, engines.states(), now_us);
    taken_over
}

#[test]
fn what_was_learned_of_a_sensors_clock_survives_a_restart() {
    for behind_s in [0, 900] {
        let mut engines = engines();
        for second in 0..1300 {
            engines.evaluate(&[of_sensor(second, behind_s, 97.0)], T0 + second * S);
            engines.keep();
        }
        let mut engines = taken_over(&engines, T0 + 1300 * S);
        let mut raised = Vec::new();
        for second in 1300..1330 {
            let judged = engines.evaluate(&[of_sensor(second, behind_s, 88.0)], T0 + second * S);
            raised.extend(judged.transitions);
            engines.keep();
        }
        let alert = raised.iter().find(|it| it.rule == "spo2-low").unwrap();
        assert!(!alert.backfill, "somebody is called: {alert:?}");
        // The same clock makes a reading late that the sensor kept.
        engines.evaluate(&[of_sensor(1330, behind_s + 700, 97.0)], T0 + 1330 * S);
        let clock = &engines.patients["p"].beside.clocks["d"];
        let kept = of_sensor(1331, behind_s + 700, 97.0);
        let late_us = clock.clone().of(&kept.2.samples[0], T0 + 1331 * S);
        assert!(late_us >= 690 * S, "{late_us}");
    }
}

#[test]
fn a_sensor_of_a_wrong_clock_alerts_at_its_first_contact() {
    let mut engines = engines();
    let mut raised = Vec::new();
    for second in 0..30 {
        let judged = engines.evaluate(&[of_sensor(second, 900, 88.0)], T0 + second * S);
        raised.extend(judged.transitions);
        engines.keep();
    }
    let alert = raised.iter().find(|it| it.rule == "spo2-low").unwrap();
    assert!(!alert.backfill, "{alert:?}");
}

/// Forty minutes without a network: of each of three rules two episodes are over, a third lasts,
/// and no live reading follows.
#[test]
fn a_backlog_ends_in_one_report_also_over_restarts() {
    let mut engines = engines();
    let arrives_us = T0 + 2400 * S;
    let late = |second: i64, value: f64| {
        let mut one = of_sensor(second, 0, value);
        one.2.samples[0].ingest_time_us = arrives_us;
        one
    };
    engines.evaluate(&[of_sensor(0, 0, 97.0)], T0);
    engines.keep();
    let value = |second: i64| match second {
        100..200 | 600..700 | 1400.. => 88.0,
        _ => 97.0,
    };
    let mut transitions = Vec::new();
    for second in 1..1500 {
        let judged = engines.evaluate(&[late(second, value(second))], arrives_us);
        transitions.extend(judged.transitions);
        engines.keep();
        if second % 300 == 0 {
            engines = taken_over(&engines, arrives_us);
        }
    }
    let own = transitions.iter().filter(|it| it.rule == "spo2-low");
    assert_eq!(own.clone().count(), 5);
    assert!(own.clone().all(|it| it.backfill));
    // The bus may have more.
    let mut reported = engines.on_time(arrives_us + 60 * S, arrives_us + 20 * S);
    engines.keep();
    engines = taken_over(&engines, arrives_us + 60 * S);
    for second in 60..80 {
        let now_us = arrives_us + second * S;
        let again = engines.on_time(now_us, now_us);
        // The write loses, and is tried again.
        engines.undo();
        let told = engines.on_time(now_us, now_us);
        assert_eq!(again, told);
        engines.keep();
        if !told.is_empty() {
            engines = taken_over(&engines, now_us);
        }
        reported.extend(told);
    }
    let reports = reported.iter().filter(|it| unheard::is_report(it));
    let reports: Vec<&Alert> = reports.collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
    let (state, summary) = (reports[0].state(), &reports[0].summary);
    assert_eq!(state, AlertState::Resolved);
    assert_eq!(summary.matches(" to 08:").count(), 6, "{summary}");
    assert_eq!(summary.matches("lasts").count(), 3, "{summary}");
    assert_eq!(summary.matches("others").count(), 0, "{summary}");
}
