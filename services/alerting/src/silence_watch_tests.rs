#![allow(clippy::unwrap_used)]

use contracts::{
    paths::{End, PathReport, PathState},
    vitals::Metric,
};
use store::{Assignment, Change, LatestVital};
use vitals::RuleSet;

use super::*;
use crate::signs_of_life::Signs;

#[path = "silence_watch_episode_tests.rs"]
mod episodes;
#[path = "silence_watch_signal_tests.rs"]
mod signal;

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;

fn heard(
    patient: &str,
    device: &str,
    gateway: &str,
    metric: Metric,
    value: f64,
    at_s: i64,
) -> LatestVital {
    LatestVital {
        patient: patient.into(),
        metric,
        value,
        // The device's own time does not count.
        device_time_us: T0 - 7200 * S,
        ingest_time_us: T0 + at_s * S,
        device: device.into(),
        gateway: gateway.into(),
    }
}

fn pulse(patient: &str, device: &str, gateway: &str, at_s: i64) -> LatestVital {
    heard(patient, device, gateway, Metric::HeartRate, 70.0, at_s)
}

fn path(gateway: &str, name: &str, state: PathState, at_s: i64) -> PathReport {
    PathReport {
        gateway: gateway.into(),
        path: name.into(),
        end: End::Gateway.into(),
        state: state.into(),
        time_us: T0 + at_s * S,
        ..PathReport::default()
    }
}

/// A process that looks, with what it remembers.
struct Looker {
    arrivals: Signs<usize>,
    reports: Signs<usize>,
    signals: Signals,
    known: BTreeMap<String, i64>,
}

impl Default for Looker {
    fn default() -> Looker {
        Looker {
            arrivals: Signs::new(AFTER),
            reports: Signs::new(AFTER),
            signals: Signals::default(),
            known: BTreeMap::new(),
        }
    }
}

const AFTER: i64 = 120 * S;

/// Rounds over one store.
#[derive(Default)]
struct Scene {
    /// Empty: each sensor is with the patient and at the gateway of its readings.
    worn: Vec<(&'static str, &'static str, &'static str, i64)>,
    latest: Vec<LatestVital>,
    reports: Vec<PathReport>,
    open: Vec<Silent>,
    looker: Looker,
}

impl Scene {
    /// Transitions at this second: rule, subject, and whether the alert begins.
    fn round(&mut self, at_s: i64) -> Vec<(String, String, bool)> {
        self.look(at_s, at_s)
    }

    /// The same with a present that differs from the monotonic time.
    fn look(&mut self, at_s: i64, monotonic_s: i64) -> Vec<(String, String, bool)> {
        let (now_us, monotonic_us) = (T0 + at_s * S, monotonic_s * S);
        let assignments = self.assignments();
        let mut worn = Worn::default();
        assignments
            .iter()
            .cloned()
            .for_each(|it| worn.add(it, now_us));
        let times = self.latest.iter().map(|row| row.ingest_time_us);
        let signs = self
            .looker
            .arrivals
            .of_round(times.enumerate(), now_us, monotonic_us);
        let latest = self.latest.iter().cloned().zip(signs);
        let latest = latest.map(|(row, sign)| Arrival::new(row, sign)).collect();
        let mut latest = worn.attribute(latest);
        latest.extend(worn.unheard(&worn.without(&latest)));
        self.looker.signals.look(&latest);
        let times = self.reports.iter().map(|report| report.time_us);
        let signs = self
            .looker
            .reports
            .of_round(times.enumerate(), now_us, monotonic_us);
        let reports = self.reports.iter().cloned().zip(signs);
        let reports: Vec<Report> = reports
            .map(|(report, sign)| Report { report, sign })
            .collect();
        let open = self.open.iter().map(|silent| {
            let alert = &silent.alert;
            let known = &mut self.looker.known;
            Open {
                known_us: *known.entry(alert.id.clone()).or_insert(monotonic_us),
                has_ended: worn.lacks(alert) && has_ended(alert, &assignments, now_us),
                silent: silent.clone(),
            }
        });
        let open: Vec<Open> = open.collect();
        let known = Known {
            latest: &latest,
            signals: &self.looker.signals,
            reports: &reports,
            open: &open,
            rules: &RuleSet::default_set(),
            silent_after_us: AFTER,
            now_us,
            monotonic_us,
        };
        let batch = assess(&known);
        let mut said = Vec::new();
        let mut say = |alert: &Alert, begins: bool| {
            let whom = [&alert.patient, &alert.device, &alert.gateway]
                .into_iter()
                .find(|id| !id.is_empty());
            let whom = whom.cloned().unwrap_or_default();
            said.push((alert.rule.clone(), whom, begins));
        };
        for silent in batch.begun {
            say(&silent.alert, true);
            let id = silent.alert.id.clone();
            self.looker.known.insert(id, monotonic_us);
            self.open.push(silent);
        }
        for alert in batch.ended {
            say(&alert, false);
            self.open.retain(|open| open.alert.id != alert.id);
        }
        said
    }

    /// Another process takes over.
    fn restart(&mut self) {
        self.looker = Looker::default();
    }

    fn assignments(&self) -> Vec<Assignment> {
        let assignment = |device: &str, patient: &str, gateway: &str, from_us| Assignment {
            device: device.into(),
            tenant: "t".into(),
            gateway: gateway.into(),
            patient: patient.into(),
            from_us,
            until_us: i64::MAX,
            entered: Change::by_program("test"),
        };
        if self.worn.is_empty() {
            let of_row =
                |row: &LatestVital| assignment(&row.device, &row.patient, &row.gateway, i64::MIN);
            return self.latest.iter().map(of_row).collect();
        }
        let worn = self.worn.iter();
        worn.map(|(device, patient, gateway, from_s)| {
            assignment(device, patient, gateway, T0 + from_s * S)
        })
        .collect()
    }

    fn summary(&self, rule: &str) -> &str {
        &self
            .open
            .iter()
            .map(|open| &open.alert)
            .find(|alert| alert.rule == rule)
            .unwrap()
            .summary
    }
}

fn said(rule: &str, whom: &str, begins: bool) -> (String, String, bool) {
    (rule.into(), whom.into(), begins)
}

#[test]
fn a_silent_device_is_told_from_a_silent_signal() {
    let mut scene = Scene {
        latest: vec![
            pulse("ann", "belt", "g1", 0),
            heard("ann", "belt", "g1", Metric::Temperature, 36.8, 0),
            pulse("ben", "ring", "g1", 0),
            heard("ben", "ring", "g1", Metric::Battery, 4.0, 0),
        ],
        ..Scene::default()
    };
    assert_eq!(scene.round(120), []);
    // The belt continues with temperature, and the ring is silent.
    scene.latest[1].ingest_time_us = T0 + 700 * S;
    assert_eq!(
        scene.round(700),
        [said(DEVICE, "ben", true), said(SIGNAL, "ann", true)]
    );
    assert!(scene.summary(DEVICE).contains("battery was at 4 %"));
    assert!(
        scene.summary(SIGNAL).contains("heart-rate") && scene.summary(SIGNAL).contains("person")
    );
    assert_eq!(scene.round(710), [], "said once");
    scene.latest[0].ingest_time_us = T0 + 720 * S;
    scene.latest[2].ingest_time_us = T0 + 720 * S;
    let mut ended = scene.round(725);
    ended.sort();
    assert_eq!(
        ended,
        [said(DEVICE, "ben", false), said(SIGNAL, "ann", false)]
    );
    assert!(scene.open.is_empty());
}

#[test]
fn a_silent_gateway_has_its_cause() {
    for (state, cause) in [
        (PathState::Available, "gateway itself"),
        (PathState::Closed, "the path: wifi"),
    ] {
        let mut scene = Scene {
            latest: vec![pulse("ann", "belt", "g1", 0), pulse("ben", "ring", "g2", 0)],
            reports: vec![path("g1", "wifi", state, 0)],
            ..Scene::default()
        };
        scene.latest[1].ingest_time_us = T0 + 130 * S;
        assert_eq!(
            scene.round(130),
            [said(GATEWAY, "g1", true), said(DEVICE, "ann", true)]
        );
        assert!(
            scene.summary(GATEWAY).contains(cause),
            "{}",
            scene.summary(GATEWAY)
        );
        // The gateway is back, but one of its devices is not.
        scene.reports = vec![path("g1", "wifi", PathState::Available, 140)];
        scene.latest[1].ingest_time_us = T0 + 140 * S;
        assert_eq!(scene.round(140), [said(GATEWAY, "g1", false)]);
    }
}

#[test]
fn a_gateway_that_reports_its_paths_is_not_silent() {
    let mut scene = Scene {
        latest: vec![
            pulse("ann", "belt", "g1", 0),
            pulse("ben", "ring", "g2", 130),
        ],
        reports: vec![path("g1", "wifi", PathState::Available, 129)],
        ..Scene::default()
    };
    assert_eq!(scene.round(130), [said(DEVICE, "ann", true)]);
    let summary = scene.summary(DEVICE);
    assert!(summary.starts_with("Device belt is silent for 2 min; "));
    assert!(summary.contains("the cause is the device"));
}

#[test]
fn everybody_at_once_is_the_pipeline_and_each_gateway_has_its_alert() {
    let mut scene = Scene {
        latest: vec![pulse("ann", "belt", "g1", 0), pulse("ben", "ring", "g2", 5)],
        ..Scene::default()
    };
    let all = |begins| {
        [
            said(GATEWAY, "g1", begins),
            said(GATEWAY, "g2", begins),
            said(PIPELINE, "", begins),
        ]
    };
    assert_eq!(sorted(scene.round(126)), all(true));
    let unknown = "the cause is unknown: network, proxy or core";
    assert!(scene.summary(PIPELINE).ends_with(unknown));
    // Reports that ended with the readings prove nothing; those that went on do.
    for (last_s, cause) in [(7, unknown), (125, "gateways still report their paths")] {
        let mut cut = Scene {
            latest: scene.latest.clone(),
            reports: vec![path("g1", "wifi", PathState::Available, last_s)],
            ..Scene::default()
        };
        cut.round(126);
        assert!(cut.summary(PIPELINE).ends_with(cause), "{last_s}");
    }
    assert_eq!(
        scene.round(900),
        [],
        "the devices wait behind their gateways"
    );
    for latest in &mut scene.latest {
        latest.ingest_time_us = T0 + 1000 * S;
    }
    assert_eq!(sorted(scene.round(1001)), all(false));

    // With one gateway alone, its paths show whether it is there.
    let mut alone = Scene {
        latest: vec![pulse("ann", "belt", "g1", 0)],
        reports: vec![path("g1", "wifi", PathState::Available, 125)],
        ..Scene::default()
    };
    assert_eq!(
        alone.round(126),
        [said(PIPELINE, "", true), said(DEVICE, "ann", true)],
        "her belt may as well be the cause"
    );
    let causes = "the cause is the core (ingest, bus or store) or the devices";
    assert!(alone.summary(PIPELINE).ends_with(causes));
    alone.reports.clear();
    let gateway = [said(GATEWAY, "g1", true)];
    assert_eq!(alone.round(300), gateway, "no reading has come since");
}

#[test]
fn whoever_is_the_last_to_fall_silent_is_missed() {
    let mut scene = Scene {
        latest: vec![pulse("ann", "belt", "g1", 0), pulse("ben", "ring", "g2", 0)],
        reports: vec![path("g1", "wifi", PathState::Available, 3600)],
        ..Scene::default()
    };
    scene.latest[1].ingest_time_us = T0 + 3600 * S;
    assert_eq!(scene.round(3600), [said(DEVICE, "ann", true)]);
    // The patient took her belt off an hour ago. Now the other patient's gateway loses power.
    scene.reports[0].time_us = T0 + 3700 * S;
    assert_eq!(
        scene.round(3726),
        [said(GATEWAY, "g2", true), said(DEVICE, "ben", true)]
    );
}

#[test]
fn a_cuff_at_rest_does_not_hide_a_silent_pipeline() {
    let cuff = |at_s| heard("eve", "cuff", "g3", Metric::SystolicPressure, 120.0, at_s);
    let mut scene = Scene {
        latest: vec![
            pulse("ann", "belt", "g1", 0),
            pulse("ben", "ring", "g2", 5),
            cuff(-1800),
        ],
        ..Scene::default()
    };
    assert_eq!(scene.round(126)[0], said(PIPELINE, "", true));
    // The cuff's reading came through that gateway.
    scene.latest[2] = cuff(200);
    let said_now = scene.round(201);
    assert!(
        said_now.contains(&said(DEVICE, "ann", true)),
        "{said_now:?}"
    );
    assert!(
        said_now.contains(&said(PIPELINE, "", false)),
        "{said_now:?}"
    );
}

#[test]
fn a_lost_path_is_said_while_another_goes_on() {
    let mut scene = Scene {
        latest: vec![pulse("ann", "belt", "g1", 200)],
        reports: vec![
            path("g1", "wifi", PathState::Closed, 50),
            path("g1", "lte", PathState::Available, 100),
        ],
        ..Scene::default()
    };
    assert_eq!(scene.round(110), [], "not yet for long enough");
    scene.reports[1].time_us = T0 + 170 * S;
    assert_eq!(scene.round(171), [said(PATH, "g1", true)]);
    assert!(scene.summary(PATH).contains("lost wifi"));
    scene.reports[0] = path("g1", "wifi", PathState::Available, 180);
    assert_eq!(scene.round(181), [said(PATH, "g1", false)]);
}

fn sorted(mut said: Vec<(String, String, bool)>) -> Vec<(String, String, bool)> {
    said.sort();
    said
}

#[test]
fn a_cuff_used_twice_a_day_is_not_silent_at_noon() {
    let mut scene = Scene {
        latest: vec![
            heard("ann", "cuff", "g1", Metric::SystolicPressure, 120.0, 0),
            heard("ann", "cuff", "g1", Metric::Consciousness, 0.0, 0),
        ],
        ..Scene::default()
    };
    assert_eq!(scene.round(3 * 3600), []);
    assert_eq!(
        scene.round(4 * 3600 + 1),
        [said(GATEWAY, "g1", true), said(DEVICE, "ann", true)]
    );
}

#[test]
fn a_sensor_that_changed_hands_is_missed_for_the_patient_who_wears_it() {
    let mut scene = Scene {
        worn: vec![("belt", "ann", "g1", -9000), ("ring", "ben", "g2", -9000)],
        latest: vec![
            pulse("ann", "belt", "g1", 0),
            heard("ann", "belt", "g1", Metric::Battery, 80.0, 0),
            pulse("ben", "ring", "g2", 300),
        ],
        ..Scene::default()
    };
    let silent_of_ann = [said(GATEWAY, "g1", true), said(DEVICE, "ann", true)];
    assert_eq!(scene.round(300), silent_of_ann);
    // The belt goes to Eve at Ben's gateway: Ann's silence ends, and Eve's begins at the change.
    scene.worn[0] = ("belt", "eve", "g2", 310);
    let mut ended = scene.round(320);
    ended.sort();
    assert_eq!(
        ended,
        [said(DEVICE, "ann", false), said(GATEWAY, "g1", false)]
    );
    scene.latest[2].ingest_time_us = T0 + 440 * S;
    assert_eq!(scene.round(430), [], "not yet for long enough");
    assert_eq!(scene.round(431), [said(DEVICE, "eve", true)]);
    assert_eq!(scene.open[0].alert.since_us, T0 + 310 * S);
    // Eve's first reading ends it. The battery reading of Ann's time is not a missing signal of
    // Eve.
    scene.latest.push(pulse("eve", "belt", "g2", 440));
    assert_eq!(scene.round(445), [said(DEVICE, "eve", false)]);
    // No patient wears the belt any more.
    scene.worn.remove(0);
    scene.latest[2].ingest_time_us = T0 + 9000 * S;
    assert_eq!(scene.round(9000), []);
}
