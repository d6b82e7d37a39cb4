#![allow(clippy::unwrap_used)]
use contracts::alerts::AlertState;
use contracts::query::Risk;

use store::Spo2Scale;

use super::*;

#[path = "ward_view_stale_tests.rs"]
mod stale;

const NOW: i64 = 1_700_000_000_000_000;

fn entry(id: &str, tenant: &str) -> PatientEntry {
    PatientEntry {
        id: id.to_owned(),
        tenant: tenant.to_owned(),
        name: format!("name of {id}"),
        spo2_scale: Spo2Scale::One,
        ..PatientEntry::default()
    }
}

fn sample(patient: &str, metric: Metric, value: f64, time_us: i64) -> Sample {
    Sample {
        patient: patient.to_owned(),
        gateway: "g1".to_owned(),
        metric: metric.into(),
        device_time_us: time_us,
        reading: Some(Reading::Value(value)),
        ..Sample::default()
    }
}

fn alert(patient: &str, id: &str, priority: Priority, state: AlertState, revision: u32) -> Alert {
    Alert {
        id: id.to_owned(),
        patient: patient.to_owned(),
        priority: priority.into(),
        state: state.into(),
        revision,
        since_us: NOW,
        ..Alert::default()
    }
}

fn healthy(ward: &mut WardView, patient: &str) {
    for (metric, value) in [
        (Metric::RespirationRate, 15.0),
        (Metric::Spo2, 98.0),
        (Metric::SupplementalOxygen, 0.0),
        (Metric::SystolicPressure, 125.0),
        (Metric::HeartRate, 70.0),
        (Metric::Consciousness, 0.0),
        (Metric::Temperature, 36.8),
    ] {
        ward.on_sample(&sample(patient, metric, value, NOW));
    }
}

/// A sensor for each, assigned since yesterday.
fn sensors(patients: &[PatientEntry]) -> Vec<DeviceEntry> {
    let sensor = |patient: &PatientEntry| DeviceEntry {
        id: format!("sensor of {}", patient.id),
        tenant: patient.tenant.clone(),
        gateway: "g1".to_owned(),
        patient: patient.id.clone(),
        registered_us: NOW - 86_400_000_000,
    };
    patients.iter().map(sensor).collect()
}

fn ward(patients: &[&str]) -> WardView {
    let mut ward = WardView::new(RuleSet::default_set());
    let entries: Vec<_> = patients.iter().map(|id| entry(id, "t")).collect();
    ward.on_register(&entries, &sensors(&entries));
    ward
}

#[test]
fn who_has_departed_leaves_the_ward_and_a_paused_patient_stays() {
    let mut view = ward(&["ada", "ben", "eve"]);
    for patient in ["ada", "ben", "eve"] {
        healthy(&mut view, patient);
    }
    view.on_alert(&alert("ada", "fall", Priority::High, AlertState::Active, 1));
    let now_us = NOW + 3_600_000_000;
    assert_eq!(order(&view, now_us), ["ada", "ben", "eve"]);
    let paused = PatientEntry {
        status: PatientStatus::Paused,
        ..entry("ben", "t")
    };
    let present = [paused, entry("eve", "t")];
    view.on_register(&present, &sensors(&present));
    assert_eq!(order(&view, now_us), ["eve", "ben"], "nobody misses ben");
    // A reading that was under way brings nobody back.
    view.on_sample(&sample("ada", Metric::HeartRate, 70.0, now_us));
    let shown = view.snapshot(now_us).of("t");
    assert_eq!(shown.len(), 2);
    assert_eq!(shown[1].status(), PatientStatus::Paused);
    assert!(view.open_alerts().is_empty());
}

fn order(ward: &WardView, now_us: i64) -> Vec<String> {
    ward.snapshot(now_us)
        .of("t")
        .iter()
        .map(|p| p.id.clone())
        .collect()
}

#[test]
fn worst_first() {
    let mut ward = ward(&["a", "b", "c", "d"]);
    for id in ["a", "b", "c", "d"] {
        healthy(&mut ward, id);
    }
    ward.on_sample(&sample("c", Metric::HeartRate, 135.0, NOW + 1));
    ward.on_alert(&alert("b", "fall", Priority::High, AlertState::Active, 1));
    ward.on_alert(&alert("d", "x", Priority::Low, AlertState::Active, 1));
    assert_eq!(order(&ward, NOW + 1), ["b", "c", "d", "a"]);
    ward.on_alert(&alert(
        "b",
        "fall",
        Priority::High,
        AlertState::Acknowledged,
        2,
    ));
    assert_eq!(order(&ward, NOW + 1), ["b", "c", "d", "a"], "it is open");
    ward.on_alert(&alert("b", "fall", Priority::High, AlertState::Resolved, 3));
    assert_eq!(order(&ward, NOW + 1), ["c", "d", "a", "b"]);
}

/// 298 falls that are over, 20 silent patients, and one who lies on the floor.
#[test]
fn the_active_fall_is_the_first_card_among_hundreds() {
    let ids: Vec<String> = (0..300).map(|n| format!("p{n:03}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut ward = ward(&ids);
    let now_us = NOW + 60_000_000;
    for id in &ids[20..] {
        healthy(&mut ward, id);
        ward.on_sample(&sample(id, Metric::HeartRate, 70.0, now_us));
        ward.on_alert(&alert(id, id, Priority::High, AlertState::Latched, 1));
    }
    for id in &ids[..20] {
        ward.on_sample(&sample(id, Metric::HeartRate, 70.0, NOW));
    }
    let mut fall = alert("p299", "fall", Priority::High, AlertState::Active, 1);
    fall.since_us = NOW - 600_000_000;
    ward.on_alert(&fall);
    let order = order(&ward, now_us);
    assert_eq!((order[0].as_str(), order.len()), ("p299", 300));
    assert_eq!(order[299], "p019", "silence behind every open high alert");
}

#[test]
fn who_wears_no_sensor_is_not_listed_and_is_counted() {
    let mut ward = WardView::new(RuleSet::default_set());
    let all = ["home", "worn", "fallen", "never"].map(|id| entry(id, "t"));
    ward.on_register(&all, &sensors(&all[..2]));
    healthy(&mut ward, "home");
    healthy(&mut ward, "worn");
    assert_eq!(ward.snapshot(NOW).unassigned("t"), 2);
    // The assignment of `home` ends, and its readings do.
    ward.on_register(&all, &sensors(&all[1..2]));
    assert_eq!(order(&ward, NOW), ["home", "worn"], "readings arrive");
    let later = NOW + 40_000_000;
    ward.on_sample(&sample("worn", Metric::HeartRate, 70.0, later));
    let snapshot = ward.snapshot(later);
    assert_eq!(order(&ward, later), ["worn"]);
    assert_eq!((snapshot.unassigned("t"), snapshot.omitted("t")), (3, 0));
    // An open alert of high priority waits for a person, with or without a sensor.
    ward.on_alert(&alert(
        "fallen",
        "x",
        Priority::High,
        AlertState::Latched,
        1,
    ));
    assert_eq!(order(&ward, later), ["fallen", "worn"]);
    assert_eq!(ward.snapshot(later).unassigned("t"), 2);
}

#[test]
fn a_sensor_that_sends_nothing_is_unwatched_for_a_day_and_heads_no_ward_for_ever() {
    let mut ward = ward(&["ill", "new"]);
    healthy(&mut ward, "ill");
    ward.on_sample(&sample("ill", Metric::HeartRate, 140.0, NOW));
    assert_eq!(order(&ward, NOW), ["new", "ill"]);
    assert_eq!(order(&ward, NOW + 1_000_000), ["ill", "new"]);
}

#[test]
fn a_partial_score_names_what_is_missing_and_counts_nothing_for_it() {
    let mut ward = ward(&["a"]);
    ward.on_sample(&sample("a", Metric::HeartRate, 115.0, NOW));
    let news2 = ward.snapshot(NOW).of("t")[0].news2.clone().unwrap();
    assert!(news2.partial);
    assert_eq!(news2.score, Some(2));
    assert_eq!(news2.missing.len(), 6);
    assert!(!news2.missing.contains(&(Metric::HeartRate.number())));
}

#[test]
fn somebody_whose_sensors_fell_silent_does_not_sink() {
    let mut ward = ward(&["sick", "well"]);
    healthy(&mut ward, "sick");
    healthy(&mut ward, "well");
    ward.on_sample(&sample("sick", Metric::HeartRate, 135.0, NOW));
    let later = NOW + 86_400_000_000;
    ward.on_sample(&sample("well", Metric::HeartRate, 95.0, later));
    assert_eq!(order(&ward, later), ["sick", "well"]);
    let snapshot = ward.snapshot(later);
    let news2 = snapshot.of("t")[0].news2.clone().unwrap();
    assert_eq!((news2.score, news2.missing.len()), (None, 7));
}

#[test]
fn from_whom_nothing_arrives_has_no_score_and_comes_first() {
    let mut ward = ward(&["cut", "ill"]);
    healthy(&mut ward, "cut");
    healthy(&mut ward, "ill");
    let later = NOW + 40_000_000;
    for (metric, value) in [(Metric::HeartRate, 140.0), (Metric::RespirationRate, 27.0)] {
        ward.on_sample(&sample("ill", metric, value, later));
    }
    assert_eq!(order(&ward, NOW), ["ill", "cut"]);
    // Nothing more arrived. The time alone changes the order.
    assert_eq!(order(&ward, later), ["cut", "ill"]);
    let cut = ward.snapshot(later).of("t")[0].clone();
    let unknown = cut.unknown.unwrap();
    assert_eq!(unknown.since_us, NOW);
    let news2 = cut.news2.unwrap();
    assert_eq!((news2.score, news2.risk()), (None, Risk::Unspecified));
    assert_eq!(news2.unknown, Some(unknown), "since when and why");
    // A backlog of old readings does not count as watching; a fresh reading does.
    let arrives = |time_us| Sample {
        ingest_time_us: later,
        ..sample("cut", Metric::HeartRate, 70.0, time_us)
    };
    ward.on_sample(&arrives(NOW + 1_000_000));
    assert!(ward.snapshot(later).of("t")[0].unknown.is_some());
    ward.on_sample(&arrives(later));
    let snapshot = ward.snapshot(later);
    assert!(
        snapshot
            .of("t")
            .iter()
            .all(|patient| patient.unknown.is_none())
    );
}

#[test]
fn a_clock_that_is_ahead_makes_nobody_watched_for_longer() {
    let mut ward = ward(&["a"]);
    let hour_us = 3_600_000_000;
    ward.on_sample(&Sample {
        ingest_time_us: NOW,
        ..sample("a", Metric::HeartRate, 70.0, NOW + hour_us)
    });
    let unknown = ward.snapshot(NOW + 31_000_000).of("t")[0].unknown.clone();
    assert_eq!(unknown.unwrap().since_us, NOW);
}

#[test]
fn the_alert_of_a_silent_gateway_says_why_until_it_ends() {
    let mut ward = ward(&["a"]);
    healthy(&mut ward, "a");
    let later = NOW + 130_000_000;
    let silent = |state: AlertState, revision| Alert {
        id: "gateway-silent".to_owned(),
        gateway: "g1".to_owned(),
        rule: silence::GATEWAY.to_owned(),
        summary: "Gateway g1 is silent for 121 s; the cause is the path: lte, wifi lost before"
            .to_owned(),
        state: state.into(),
        revision,
        ..Alert::default()
    };
    ward.on_alert(&silent(AlertState::Active, 1));
    let shown = |ward: &WardView| ward.snapshot(later).of("t")[0].unknown.clone().unwrap();
    let unknown = shown(&ward);
    assert_eq!(unknown.cause(), UnknownCause::Path);
    assert_eq!(
        unknown.because,
        "the cause is the path: lte, wifi lost before"
    );
    assert_eq!(ward.open_alerts(), ["gateway-silent"]);
    ward.on_alert(&silent(AlertState::Resolved, 2));
    assert_eq!(
        shown(&ward).cause(),
        UnknownCause::Gateway,
        "as far as can be told"
    );
    assert!(ward.open_alerts().is_empty());
}

#[test]
fn a_parameter_that_is_too_old_makes_the_score_unknown_however_lively_the_rest() {
    let mut ward = ward(&["a", "ill"]);
    healthy(&mut ward, "a");
    healthy(&mut ward, "ill");
    let later = NOW + 601_000_000;
    for patient in ["a", "ill"] {
        for metric in [Metric::RespirationRate, Metric::Spo2] {
            ward.on_sample(&sample(patient, metric, 15.0, later));
        }
    }
    ward.on_sample(&sample("ill", Metric::HeartRate, 140.0, later));
    assert_eq!(
        order(&ward, later),
        ["a", "ill"],
        "no heart rate for ten minutes"
    );
    let a = ward.snapshot(later).of("t")[0].clone();
    assert!(a.unknown.is_none(), "readings arrive");
    let news2 = a.news2.unwrap();
    assert_eq!(
        (news2.score, news2.stale),
        (None, vec![Metric::HeartRate.number()])
    );
    assert_eq!(news2.unknown.unwrap().since_us, NOW);
}

#[test]
fn of_many_alerts_the_important_ones_are_remembered() {
    let mut ward = ward(&["a"]);
    let mut fall = alert("a", "fall", Priority::High, AlertState::Active, 1);
    fall.since_us = NOW - 1_000_000;
    ward.on_alert(&fall);
    for n in 0..OPEN_ALERTS_MAX + 10 {
        ward.on_alert(&alert(
            "a",
            &format!("low-{n}"),
            Priority::Low,
            AlertState::Active,
            1,
        ));
    }
    let shown = ward.snapshot(NOW).of("t")[0].clone();
    assert_eq!(
        shown.worst_priority(),
        Priority::High,
        "the oldest, and still here"
    );
    assert_eq!(shown.active_alerts as usize, OPEN_ALERTS_MAX);
    assert!(shown.active_alerts_more);
}

#[test]
fn who_finds_no_place_is_counted_and_pushes_out_nobody_of_the_own_tenant() {
    let mut ward = ward(&[]);
    let many: Vec<_> = (0..PATIENTS_MAX + 10)
        .map(|n| entry(&format!("p{n:05}"), "t"))
        .collect();
    ward.on_register(&many, &sensors(&many));
    for entry in &many {
        ward.on_sample(&sample(&entry.id, Metric::HeartRate, 60.0, NOW));
    }
    let snapshot = ward.snapshot(NOW);
    assert_eq!(snapshot.of("t").len(), PATIENTS_MAX);
    assert_eq!((snapshot.omitted("t"), snapshot.omitted("other")), (10, 0));
    let last = format!("p{:05}", PATIENTS_MAX + 9);
    ward.on_alert(&alert(&last, "fall", Priority::High, AlertState::Active, 1));
    ward.on_register(&many, &sensors(&many));
    assert_eq!(order(&ward, NOW).len(), PATIENTS_MAX);
    assert!(
        order(&ward, NOW).contains(&last),
        "an urgent alert finds a place"
    );
}

#[test]
fn what_a_clock_that_was_ahead_said_does_not_stand_for_hours() {
    let mut ward = ward(&["a"]);
    let hour_us = 3_600_000_000;
    let arrives = |value, time_us, arrived_us| Sample {
        ingest_time_us: arrived_us,
        ..sample("a", Metric::HeartRate, value, time_us)
    };
    ward.on_sample(&arrives(70.0, NOW + hour_us, NOW));
    // The clock is corrected.
    ward.on_sample(&arrives(140.0, NOW + 1_000_000, NOW + 1_000_000));
    let shown = |ward: &WardView| {
        let patient = ward.snapshot(NOW).of("t")[0].clone();
        (patient.latest[0].value, patient.last_seen_us)
    };
    assert_eq!(shown(&ward), (140.0, NOW + 1_000_000));
    // Readings that a gateway had kept arrive later and change nothing.
    ward.on_sample(&arrives(60.0, NOW - hour_us, NOW + 2_000_000));
    assert_eq!(shown(&ward), (140.0, NOW + 1_000_000));
}

#[test]
fn the_order_of_arrival_does_not_matter() {
    let events = [
        sample("a", Metric::HeartRate, 60.0, NOW),
        sample("a", Metric::HeartRate, 61.0, NOW + 1),
        sample("a", Metric::HeartRate, 62.0, NOW + 2),
    ];
    let alerts = [
        alert("a", "x", Priority::High, AlertState::Active, 1),
        alert("a", "x", Priority::High, AlertState::Resolved, 3),
        alert("a", "x", Priority::High, AlertState::Acknowledged, 2),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let mut ward = ward(&["a"]);
        for i in order {
            ward.on_sample(&events[i]);
            ward.on_alert(&alerts[i]);
            ward.on_sample(&events[i]);
        }
        let patient = ward.snapshot(NOW + 2).of("t")[0].clone();
        assert_eq!(patient.latest[0].value, 62.0);
        assert_eq!(patient.last_seen_us, NOW + 2);
        assert_eq!(
            patient.active_alerts, 0,
            "a late transition must not reopen an alert"
        );
    }
}

#[test]
fn a_tenant_sees_its_own_only_and_unregistered_patients_are_seen_by_nobody() {
    let mut ward = ward(&["a"]);
    let other = [entry("a", "t"), entry("z", "other")];
    ward.on_register(&other, &sensors(&other));
    assert!(!ward.on_sample(&sample("unregistered", Metric::HeartRate, 60.0, NOW)));
    assert_eq!(order(&ward, NOW), ["a"]);
    assert_eq!(ward.snapshot(NOW).of("other").len(), 1);
    assert!(ward.snapshot(NOW).of("nobody").is_empty());
    let later = [entry("a", "t"), entry("unregistered", "t")];
    ward.on_register(&later, &sensors(&later));
    assert_eq!(order(&ward, NOW), ["a", "unregistered"]);
}

#[test]
fn one_tenants_many_patients_push_out_no_others() {
    let mut ward = ward(&[]);
    let mut all = vec![entry("quiet", "small")];
    ward.on_register(&all, &sensors(&all));
    all.extend((0..PATIENTS_MAX + 10).map(|n| entry(&format!("p{n}"), "large")));
    for entry in &all[1..] {
        ward.on_sample(&sample(&entry.id, Metric::HeartRate, 60.0, NOW));
    }
    ward.on_register(&all, &sensors(&all));
    // A patient without a sensor leaves for one with a sensor, and replaces no other.
    let worn = &all[..=PATIENTS_MAX];
    ward.on_register(&all, &sensors(worn));
    assert_eq!(ward.snapshot(NOW).omitted("large"), 1);
    assert_eq!(ward.snapshot(NOW).of("small").len(), 1);
    assert_eq!(ward.patients.len(), PATIENTS_MAX);
}

#[test]
fn tables_are_bounded() {
    let mut ward = WardView::new(RuleSet::default_set());
    for n in 0..PATIENTS_MAX + 10 {
        ward.on_sample(&sample(
            &format!("p{n}"),
            Metric::HeartRate,
            60.0,
            NOW + n as i64,
        ));
    }
    assert_eq!(ward.patients.len(), PATIENTS_MAX);
    assert!(
        !ward.patients.contains_key("p0"),
        "the one not seen for longest left"
    );
    for n in 0..OPEN_ALERTS_MAX + 10 {
        ward.on_alert(&alert(
            "p100",
            &format!("a{n}"),
            Priority::Low,
            AlertState::Active,
            1,
        ));
    }
    assert_eq!(ward.patients["p100"].open.len(), OPEN_ALERTS_MAX);
}
