//! Links that have little in common: one more never costs what the others carry. Each of these runs
//! was found by a seed; virtual time, exact.

use lab::drive::Environment;
use lab::scenario::{Controller, Direction, Interface, Scenario};
use lab::{Identity, Mechanisms, Runner, lte, many, run};

/// 1 Mbit/s more beside 90 is tried with few packets. With a whole initial window in its queue, all
/// others stood still for half a second, and the seventh link made the transfer 7 % slower. In a
/// download the eighth, which loses packets, had them sent anew by the slowest: 5 % slower.
#[test]
fn a_far_slower_link_does_not_hurt() {
    let time_over = |links: u32, direction: Direction| {
        let runner = Runner::new(Identity::new().unwrap(), false)
            .only_run(Some(format!("unequal.3.first{links}")));
        let (_, reports) =
            many::run(&runner, "unequal", 77, 4, Controller::Ours, direction).unwrap();
        assert_eq!(reports.len(), 1);
        assert!(reports[0].completed, "{reports:?}");
        reports[0].from_connect_s
    };
    for (fewer, direction) in [(6, Direction::Upload), (7, Direction::Download)] {
        let times = [fewer, fewer + 1].map(|links| time_over(links, direction));
        assert!(times[1] * 0.99 <= times[0], "{direction:?} {times:?}");
    }
}

/// A fourth carrier of 0.4 Mbit/s beside three of 44 Mbit/s together: its initial window kept all
/// others waiting for 1.3 of 9 s.
#[test]
fn a_far_slower_carrier_does_not_hurt() {
    let times = [3, 4].map(|links| {
        let runner = Runner::new(Identity::new().unwrap(), false)
            .only_run(Some(format!("lte.case{links}.3150")));
        let (controller, direction) = (Controller::Ours, Direction::Download);
        let points = Some(8);
        let road = Environment::Road;
        let (_, reports) =
            lte::run(&runner, "lte", road, 77, points, controller, direction).unwrap();
        assert_eq!(reports.len(), 1);
        assert!(reports[0].completed, "{reports:?}");
        reports[0].from_connect_s
    });
    assert!(times[1] * 0.99 <= times[0], "{times:?}");
}

/// How long the transfer takes over the first link alone, and over both.
fn times(direction: Direction, bytes: u64, links: [Interface; 2]) -> [f64; 2] {
    let identity = Identity::new().unwrap();
    [1, 2].map(|count| {
        let interfaces = links[..count].to_vec();
        let (ours, limit_s) = (Controller::Ours, 120.0);
        let scenario = Scenario::transfer("two", 1, direction, bytes, ours, limit_s, interfaces);
        let report = run(&scenario, &identity, Mechanisms::default()).unwrap();
        assert!(report.completed);
        report.from_connect_s
    })
}

/// A link of 0.1 Mbit/s beside one of 100. The first packets on it come after the other one has
/// filled the receive window and stands still. It no longer counted as busy then. The slow link was
/// filled with all data: 2.2 and 2.3 times as long as without it.
#[test]
fn a_link_that_would_stop_all_others_is_left_alone() {
    for direction in [Direction::Upload, Direction::Download] {
        let links = [
            Interface::symmetric("ethernet", 100.0, 40.0, 0.0),
            Interface::symmetric("cellular", 0.1, 100.0, 0.0),
        ];
        let times = times(direction, 25_000_000, links);
        assert!(times[1] < times[0] * 1.7, "{direction:?} {times:?}");
    }
}

/// A narrow link that is quick while it is empty. Acknowledgements of 100 Mbit/s filled it, and its
/// queue made the fast link's round trip longer. An upload took 2.1 times as long as without it, or
/// 4.1 times beside 0.5 Mbit/s.
#[test]
fn acknowledgements_leave_a_link_that_is_too_narrow_for_them() {
    for direction in [Direction::Upload, Direction::Download] {
        for (narrow, at_most) in [(1.0, 1.08), (0.5, 1.2)] {
            let links = [
                Interface::symmetric("wide", 100.0, 100.0, 0.0),
                Interface::symmetric("quick", narrow, 10.0, 0.0),
            ];
            let times = times(direction, 100_000_000, links);
            assert!(
                times[1] < times[0] * at_most,
                "{direction:?} {narrow} {times:?}"
            );
        }
    }
}

/// A link that goes while the server sends costs the time to notice it, not three probe time-outs
/// of a path whose round trips grew. When a path that had been emptied over another one still
/// carried data, this run stood still for 6 s and reached 67 %.
#[test]
fn a_download_does_not_wait_for_a_path_that_was_given_up() {
    let run = "lte.case3.0".to_owned();
    let runner = Runner::new(Identity::new().unwrap(), false).only_run(Some(run));
    let (_, reports) = lte::run(
        &runner,
        "lte",
        Environment::Residential,
        77,
        Some(2),
        Controller::Ours,
        Direction::Download,
    )
    .unwrap();
    assert_eq!(reports.len(), 1);
    assert!(reports[0].completed, "{reports:?}");
    assert!(reports[0].efficiency_connect >= 90.0, "{reports:?}");
}
