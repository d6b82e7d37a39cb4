//! Links that serve in bursts, as cellular ones do: filled across their pauses, and followed where
//! the bursts grow and shrink. Virtual time, exact.

use lab::scenario::{Controller, Direction, Half, Interface, RateSpec, Scenario};
use lab::{Identity, Mechanisms, run};

/// Part of a link that a download fills, in percent; the rate goes by these steps.
fn filled(steps: Vec<(f64, f64)>, queue_bytes: u64) -> f64 {
    let identity = Identity::new().unwrap();
    let mut half = Half::constant(0.0, 25.0);
    half.rate = RateSpec::Steps(steps);
    half.queue_bytes = Some(queue_bytes);
    let scenario = Scenario::transfer(
        "bursts",
        5,
        Direction::Download,
        15_000_000,
        Controller::Ours,
        120.0,
        vec![Interface::alike("bursts", half)],
    );
    let report = run(&scenario, &identity, Mechanisms::default()).unwrap();
    assert!(report.completed);
    report.efficiency_connect
}

/// A link that serves for 20 ms and hardly for the next 20, as cellular ones do. Its losses are not
/// those of cross-traffic, and the window reaches over the pause. Taken for a queue of
/// cross-traffic it reached 90 %.
#[test]
fn a_link_that_serves_in_bursts_is_filled() {
    let steps = (0..2000).map(|step| {
        let mbit = if step % 2 == 0 { 20.0 } else { 0.5 };
        (f64::from(step) * 0.02, mbit)
    });
    let reached = filled(steps.collect(), 40_000);
    assert!(reached >= 92.5, "{reached}");
}

/// Bursts of 40 Mbit/s for half a second, of 8 for the next. The rate before is remembered while
/// the queue overflows, since that is no cross-traffic. Lost bytes take no room in the window. With
/// rates forgotten after four rounds it reached 65 %.
#[test]
fn a_link_whose_bursts_grow_and_shrink_is_followed() {
    let steps = (0..6000).map(|step| {
        let mbit = match (step % 2, step % 50) {
            (1, _) => 0.3,
            (_, 0..25) => 40.0,
            _ => 8.0,
        };
        (f64::from(step) * 0.02, mbit)
    });
    let reached = filled(steps.collect(), 60_000);
    assert!(reached >= 80.0, "{reached}");
}

/// A rate of 3, 8, 20 or 50 Mbit/s, drawn every 0.3 s, of which three tenths are pauses of 10 ms.
/// The acknowledged bytes show a rise before samples that are no faster than their packets were
/// sent. By those alone it reached 71 %, at most 75 in one of the three.
#[test]
fn a_link_whose_bursts_come_and_go_at_random_is_followed() {
    let of = |seed: u64| {
        let mut state = seed;
        let mut draw = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut rate = 0.0;
        let steps = (0..6000).map(|step| {
            if step % 30 == 0 {
                rate = [3.0, 8.0, 20.0, 50.0][draw(4) as usize];
            }
            let mbit = if draw(100) < 70 { rate } else { 0.3 };
            (f64::from(step) * 0.01, mbit)
        });
        filled(steps.collect(), 100_000)
    };
    let reached = [1, 2, 3].map(of);
    assert!(reached.iter().sum::<f64>() / 3.0 >= 77.0, "{reached:?}");
}
