//! Where an episode of silence begins and ends.

use super::*;

#[test]
fn a_silence_of_days_is_raised_and_never_forgotten() {
    let mut scene = Scene {
        latest: vec![
            pulse("ann", "belt", "g1", -90_000),
            pulse("ben", "ring", "g2", 0),
        ],
        ..Scene::default()
    };
    let silent = [said(GATEWAY, "g1", true), said(DEVICE, "ann", true)];
    assert_eq!(scene.round(60), silent);
    scene.latest[1].ingest_time_us = T0 + 900_000 * S;
    assert_eq!(scene.round(900_000), []);
    scene.latest[0].ingest_time_us = T0 + 900_010 * S;
    scene.latest[1].ingest_time_us = T0 + 900_010 * S;
    let heard = [said(DEVICE, "ann", false), said(GATEWAY, "g1", false)];
    assert_eq!(scene.round(900_012), heard);
}

#[test]
fn no_other_process_and_no_clock_ends_a_silence() {
    let mut scene = Scene {
        latest: vec![
            pulse("ann", "belt", "g1", 0),
            heard("ann", "belt", "g1", Metric::Temperature, 36.8, 0),
            pulse("ben", "ring", "g1", 0),
            heard("ben", "ring", "g1", Metric::RespirationRate, 15.0, 0),
            pulse("eve", "band", "g2", 0),
        ],
        reports: vec![
            path("g1", "wifi", PathState::Closed, 0),
            path("g1", "lte", PathState::Available, 650),
        ],
        ..Scene::default()
    };
    scene.latest[3].ingest_time_us = T0 + 650 * S;
    let raised = [
        said(DEVICE, "ann", true),
        said(DEVICE, "eve", true),
        said(GATEWAY, "g2", true),
        said(PATH, "g1", true),
        said(SIGNAL, "ben", true),
    ];
    assert_eq!(sorted(scene.round(660)), raised);
    // To each of these processes all readings look new, or all look old.
    for (at_s, monotonic_s) in [(0, 0), (660, 5), (700, 10), (10, 900), (90_000, 1_000)] {
        scene.restart();
        let said = scene.look(at_s, monotonic_s);
        assert!(
            said.iter().all(|(_, _, begins)| *begins),
            "{at_s}: {said:?}"
        );
        let others = said.iter().filter(|said| raised.contains(said));
        assert_eq!(others.count(), 0, "{at_s}: twice");
    }
}

#[test]
fn a_sensor_heard_while_nobody_looked_has_another_silence() {
    let mut scene = Scene {
        latest: vec![pulse("ann", "belt", "g1", 0), pulse("ben", "ring", "g2", 0)],
        ..Scene::default()
    };
    scene.latest[1].ingest_time_us = T0 + 130 * S;
    scene.round(130);
    let first: Vec<String> = scene.open.iter().map(|it| it.alert.id.clone()).collect();
    // The belt was heard for a while, and no process looked. The store may also be late.
    scene.restart();
    scene.latest[0].ingest_time_us = T0 + 5_000 * S;
    scene.latest[1].ingest_time_us = T0 + 6_000 * S;
    assert_eq!(scene.look(6_000, 0), []);
    scene.latest[1].ingest_time_us = T0 + 6_121 * S;
    let mut again = scene.look(6_121, 121);
    again.sort();
    let both = |rule, whom| [said(rule, whom, false), said(rule, whom, true)];
    let expected = [both(DEVICE, "ann"), both(GATEWAY, "g1")].concat();
    assert_eq!(again, expected);
    for open in &scene.open {
        assert_eq!(open.alert.since_us, T0 + 5_000 * S);
        assert!(!first.contains(&open.alert.id));
    }
}

#[test]
fn a_silence_after_the_same_reading_is_another_episode() {
    let mut scene = Scene {
        worn: vec![("belt", "ann", "g1", -9_000), ("ring", "ben", "g1", -9_000)],
        latest: vec![
            pulse("ann", "belt", "g1", 0),
            pulse("ben", "ring", "g1", 130),
        ],
        ..Scene::default()
    };
    assert_eq!(scene.round(130), [said(DEVICE, "ann", true)]);
    let first = scene.open[0].alert.clone();
    let belt = scene.worn.remove(0);
    scene.latest[1].ingest_time_us = T0 + 140 * S;
    assert_eq!(scene.round(140), [said(DEVICE, "ann", false)]);
    // The assignment was ended by mistake and is entered again.
    scene.worn.push(belt);
    assert_eq!(scene.round(145), [said(DEVICE, "ann", true)]);
    let second = &scene.open[0].alert;
    assert_eq!(second.since_us, first.since_us);
    assert_ne!(second.id, first.id);
}

#[test]
fn a_gateway_is_heard_by_what_it_delivers_itself() {
    let mut scene = Scene {
        worn: vec![("belt", "ann", "g1", -9_000), ("ring", "ben", "g2", -9_000)],
        latest: vec![
            pulse("ann", "belt", "g1", 0),
            pulse("ben", "ring", "g2", 130),
        ],
        ..Scene::default()
    };
    assert_eq!(
        scene.round(130),
        [said(GATEWAY, "g1", true), said(DEVICE, "ann", true)]
    );
    // Ben moves to the silent gateway, which has delivered nothing of his.
    scene.worn[1] = ("ring", "ben", "g1", 140);
    scene.latest[1].ingest_time_us = T0 + 141 * S;
    assert_eq!(scene.round(145), []);
    scene.latest[1] = pulse("ben", "ring", "g1", 146);
    assert_eq!(scene.round(150), [said(GATEWAY, "g1", false)]);
}

#[test]
fn a_sensor_that_never_sent_is_missed_after_one_interval() {
    let mut scene = Scene {
        worn: vec![("belt", "ann", "g1", 0), ("ring", "ben", "g1", 100)],
        latest: vec![pulse("ann", "belt", "g1", 200)],
        ..Scene::default()
    };
    assert_eq!(scene.round(220), [], "not yet for long enough");
    scene.latest[0].ingest_time_us = T0 + 221 * S;
    assert_eq!(scene.round(221), [said(DEVICE, "ben", true)]);
    assert!(
        scene
            .summary(DEVICE)
            .contains("has sent nothing since it was assigned 2 min ago")
    );
    scene.latest.push(pulse("ben", "ring", "g1", 222));
    assert_eq!(scene.round(225), [said(DEVICE, "ben", false)]);
}

#[test]
fn an_assignment_that_begins_later_or_goes_on_ends_no_silence() {
    let of = |rule: &str| Alert {
        rule: rule.into(),
        patient: "ann".into(),
        device: "belt".into(),
        gateway: "g1".into(),
        ..Alert::default()
    };
    let worn = |from_s: i64, until_us: i64| Assignment {
        device: "belt".into(),
        tenant: "t".into(),
        gateway: "g1".into(),
        patient: "ann".into(),
        from_us: T0 + from_s * S,
        until_us,
        entered: Change::by_program("test"),
    };
    for rule in [SIGNAL, DEVICE, GATEWAY, PATH, PIPELINE] {
        let alert = of(rule);
        // To a clock that is behind, the assignment has not begun.
        assert!(!has_ended(&alert, &[worn(3_600, i64::MAX)], T0), "{rule}");
        assert!(!has_ended(&alert, &[worn(-9, i64::MAX)], T0), "{rule}");
        assert!(has_ended(&alert, &[worn(-9, T0)], T0), "{rule}");
        assert!(has_ended(&alert, &[], T0), "{rule}");
    }
}

#[test]
fn a_reading_that_is_stored_late_ends_no_silence_and_begins_none() {
    // It arrived soon after the newest one that the store had, which then did not answer.
    for (late_s, is_everybody) in [(1, false), (1, true), (100, false), (100, true)] {
        let mut scene = Scene {
            latest: vec![pulse("ann", "belt", "g1", 0), pulse("ben", "ring", "g2", 0)],
            ..Scene::default()
        };
        let round = |scene: &mut Scene, at_s: i64, ann_s: i64| {
            scene.latest[0].ingest_time_us = T0 + ann_s * S;
            let ben_s = if is_everybody { ann_s } else { at_s };
            scene.latest[1].ingest_time_us = T0 + ben_s * S;
            scene.round(at_s)
        };
        let raised = round(&mut scene, 130, 0);
        let rule = if is_everybody { PIPELINE } else { DEVICE };
        assert!(raised.iter().any(|it| it.0 == rule), "{raised:?}");
        for at_s in [290, 295, 420] {
            assert_eq!(round(&mut scene, at_s, late_s), [], "{late_s} s, {at_s} s");
        }
        let ended = round(&mut scene, 426, 425);
        assert_eq!(ended.len(), raised.len(), "{ended:?}");
        assert!(ended.iter().all(|(_, _, begins)| !begins), "{ended:?}");
    }
}
