//! A short run in kernel time agrees with virtual time. Needs root; without it the test says so and
//! passes.
#![allow(clippy::unwrap_used)]

use lab::Identity;
use lab::kernel::{Identities, compare, permitted};
use lab::scenario::{Controller, Direction, Interface, Scenario};

/// Percentage points within which the two agree (target of `braid-lab kernel`).
const POINTS_MAX: f64 = 3.0;
const ATTEMPTS_MAX: u32 = 5;

fn scenario(direction: Direction) -> Scenario {
    let interfaces = vec![
        Interface::symmetric("wifi", 5.0, 20.0, 0.01),
        Interface::symmetric("cellular", 3.0, 40.0, 0.0),
    ];
    Scenario::transfer(
        "short",
        5,
        direction,
        4_000_000,
        Controller::Ours,
        15.0,
        interfaces,
    )
}

#[test]
fn real_time_agrees_with_virtual_time() {
    if let Err(why) = permitted() {
        eprintln!("skipped: {why}");
        return;
    }
    let identity = Identity::new().unwrap();
    let identities = Identities::new().unwrap();
    for direction in [Direction::Upload, Direction::Download] {
        let scenario = scenario(direction);
        let found = compare("short", &scenario, &identity, &identities, ATTEMPTS_MAX).unwrap();
        let real = &found.real_time;
        assert!(real.report.completed, "{:?}", real.report.error);
        assert_eq!(real.report.delivered_bytes, scenario.bytes);
        assert!(found.virtual_time.completed);
        if real.kept.up {
            assert!(
                found.points().abs() <= POINTS_MAX,
                "{direction:?}: {:.2} % in real time, {:.2} % in virtual time",
                real.report.efficiency_connect,
                found.virtual_time.efficiency_connect,
            );
        } else {
            eprintln!(
                "the machine did not keep up, figures not compared: {:?}",
                real.kept
            );
        }
    }
}
