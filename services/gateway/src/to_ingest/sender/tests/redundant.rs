//! Copies that go at once, and what they win where packets are lost; in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

const MS: Duration = Duration::from_millis(1);

#[test]
fn while_redundant_each_batch_is_copied_at_once() {
    let mut bench = Bench::with_copies(0);
    let copy = |from, until| Command::Copy {
        generation: 3,
        number: 1,
        from,
        until,
    };
    bench.on_event(Event::Redundant(true));
    assert_eq!(bench.on_event(Event::Durable(2)), [send(1, 0)]);
    assert_eq!(bench.sent(1, 2), [copy(0, 2)]);
    assert_eq!(bench.sent(3, 2), []);
    bench.on_event(Event::Acknowledged(2));
    bench.on_event(Event::Redundant(false));
    assert_eq!(bench.on_event(Event::Durable(3)), [send(1, 2)]);
    assert_eq!(bench.sent(1, 3), []);
    let after = bench.sender.usual.copy_after();
    assert_eq!(bench.pass(after), [copy(2, 3)]);
}

#[test]
fn while_redundant_entries_wait_half_a_second_at_most_and_those_of_an_alert_not_at_all() {
    let freshness = Duration::from_secs(10);
    let mut bench = Bench::with(
        Limits {
            freshness,
            ..LIMITS
        },
        0,
    );
    bench.commands();
    bench.on_event(Event::Up(1));
    assert_eq!(bench.on_event(Event::Durable(1)), []);
    let since = bench.now;
    bench.on_event(Event::Redundant(true));
    let due = since + REDUNDANT_FRESHNESS_MAX;
    assert_eq!(
        bench.sender.deadline(),
        Some(due.min(since + REOPEN_INTERVAL))
    );
    bench.now = due - MS;
    assert!(!bench.commands().contains(&send(1, 0)));
    bench.now = due;
    assert!(bench.commands().contains(&send(1, 0)));
    bench.sent(1, 1);
    bench.on_event(Event::Acknowledged(1));
    bench.on_event(Event::Hurry);
    assert!(bench.on_event(Event::Durable(2)).contains(&send(1, 1)));
}

/// The current link is 1 and the spare is 2; the links for copies follow.
fn with_links_up(limits: Limits) -> Bench {
    let mut bench = Bench::with(limits, 0);
    bench.commands();
    for generation in 1..=(2 + limits.copies as u64) {
        bench.on_event(Event::Up(generation));
        bench.pass(REOPEN_INTERVAL);
    }
    bench
}

#[test]
fn all_links_of_copies_are_used_at_once() {
    let limits = Limits {
        copies: 2,
        redundant: true,
        ..LIMITS
    };
    let mut bench = Bench::with(limits, 0);
    bench.commands();
    for generation in 1..=4 {
        bench.on_event(Event::Up(generation));
        let opened = bench.pass(REOPEN_INTERVAL);
        let expected = (generation < 4).then_some(Command::Open(generation + 1));
        assert_eq!(opened, Vec::from_iter(expected));
    }
    assert_eq!(bench.on_event(Event::Durable(1)), [send(1, 0)]);
    for (before, generation, number) in [(1, 3, 1), (3, 4, 2)] {
        let copy = Command::Copy {
            generation,
            number,
            from: 0,
            until: 1,
        };
        assert_eq!(bench.sent(before, 1), [copy]);
    }
    assert_eq!(bench.sent(4, 1), []);
    // A link that takes no more is closed, and the other copies go on.
    bench.on_event(Event::Durable(2));
    bench.sent(1, 2);
    let commands = bench.sent(3, 1);
    assert!(commands.contains(&Command::Close(3)), "{commands:?}");
}

#[test]
fn copies_go_on_during_a_takeover_until_their_replacements_are_up() {
    let mut bench = with_links_up(Limits {
        copies: 2,
        redundant: true,
        ..LIMITS
    });
    bench.on_event(Event::Durable(1));
    for link in [1, 3, 4] {
        bench.sent(link, 1);
    }
    let copy = |generation, number, from| Command::Copy {
        generation,
        number,
        from,
        until: from + 1,
    };
    assert_eq!(
        bench.on_event(Event::PathDown),
        [Command::Close(1), Command::Open(5), send(2, 0)]
    );
    assert_eq!(bench.sent(2, 1), []);
    bench.on_event(Event::Durable(2));
    assert_eq!(bench.sent(2, 2), [copy(3, 1, 1)]);
    assert_eq!(bench.sent(3, 2), [copy(4, 2, 1)]);
    assert_eq!(bench.sent(4, 2), []);
    // The next link is a spare; the ones that follow replace the copies.
    bench.on_event(Event::Acknowledged(2));
    bench.on_event(Event::Up(5));
    for (generation, old) in [(6, 3), (7, 4)] {
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(generation)]);
        let commands = bench.on_event(Event::Up(generation));
        assert_eq!(commands, [Command::Close(old)]);
    }
    assert_eq!(bench.pass(REOPEN_INTERVAL * 4), []);
    bench.on_event(Event::Durable(3));
    assert_eq!(bench.sent(2, 3), [copy(6, 1, 2)]);
    assert_eq!(bench.sent(6, 3), [copy(7, 2, 2)]);
}

#[test]
fn a_silent_path_costs_no_handshake_if_its_links_recover() {
    let mut bench = Bench::with_copies(0);
    bench.on_event(Event::Redundant(true));
    let copy = |from, until| Command::Copy {
        generation: 3,
        number: 1,
        from,
        until,
    };
    for round in 0..3 {
        let (current, other) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        let from = round * 2;
        assert_eq!(
            bench.on_event(Event::Durable(from + 1)),
            [send(current, from)]
        );
        assert_eq!(bench.sent(current, from + 1), [copy(from, from + 1)]);
        bench.sent(3, from + 1);
        // Entries without an answer go again by the spare. The copy keeps its link.
        assert_eq!(bench.on_event(Event::PathSilent), [send(other, from)]);
        assert_eq!(bench.sent(other, from + 1), []);
        // Nothing is opened while the old link may recover.
        bench.on_event(Event::Acknowledged(from + 1));
        assert_eq!(bench.pass(MS * 1_500), [], "{round}");
        assert_eq!(bench.on_event(Event::Answered(current, from)), []);
        assert_eq!(bench.on_event(Event::Answered(current, from + 1)), []);
        // It is the next spare.
        bench.on_event(Event::Durable(from + 2));
        bench.sent(other, from + 2);
        bench.sent(3, from + 2);
        bench.on_event(Event::Acknowledged(from + 2));
    }
    // One that has acknowledged everything is the spare at once.
    bench.on_event(Event::Answered(2, 6));
    assert_eq!(bench.on_event(Event::PathSilent), []);
    assert_eq!(bench.on_event(Event::PathSilent), []);
    assert_eq!(
        (bench.sender.current, bench.sender.spare),
        (Some(2), Some(1))
    );
    // A link that does not recover is replaced.
    bench.on_event(Event::Durable(7));
    bench.sent(2, 7);
    bench.sent(3, 7);
    assert_eq!(bench.on_event(Event::PathSilent), [send(1, 6)]);
    bench.sent(1, 7);
    bench.on_event(Event::Acknowledged(7));
    assert_eq!(bench.pass(Duration::from_millis(1_999)), []);
    let commands = bench.pass(MS);
    assert_eq!(commands, [Command::Close(2), Command::Open(4)]);
}

#[test]
fn a_link_that_recovers_keeps_no_other_from_being_opened() {
    for then in [Event::Lost(2, 0.5), Event::PathDown] {
        let mut bench = Bench::with_copies(0);
        bench.on_event(Event::Redundant(true));
        bench.on_event(Event::Durable(1));
        bench.sent(1, 1);
        bench.sent(3, 1);
        assert_eq!(bench.on_event(Event::PathSilent), [send(2, 0)]);
        bench.sent(2, 1);
        let mut commands = bench.on_event(then);
        commands.extend(bench.pass(REOPEN_INTERVAL));
        assert!(
            commands.contains(&Command::Open(4)),
            "{then:?}: {commands:?}"
        );
        assert!(
            bench.on_event(Event::Up(4)).contains(&send(4, 0)),
            "{then:?}"
        );
    }
}

/// Alerts at this interval over two paths, 8 and 35 ms away, that lose 3 % of packets. With
/// `redundant` each copy keeps its path. A link delivers in order; a lost packet comes again after
/// three round trips. While a path is cut the other one loses nothing. Returns the delays, sorted.
fn delays(
    limits: Limits,
    cut_path: Option<usize>,
    (alerts, interval): (u64, Duration),
) -> Vec<Duration> {
    let mut bench = with_links_up(limits);
    let mut random = 77_u64;
    let mut lost = move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % 1_000 < 30
    };
    let one_way = [MS * 8, MS * 35];
    let mut free_at: std::collections::BTreeMap<u64, Instant> = Default::default();
    // When a link's packet arrives, and when its answer does.
    let mut all = Vec::new();
    for alert in 1..=alerts {
        let raised = bench.now;
        let mut first: Option<Instant> = None;
        let mut answers = BinaryHeap::new();
        let mut commands = bench.on_event(Event::Durable(alert));
        while first.is_none_or(|at| bench.now < at) || !answers.is_empty() {
            for command in std::mem::take(&mut commands) {
                let (generation, number) = match command {
                    Command::Send { generation, .. } => (generation, 0),
                    Command::Copy {
                        generation, number, ..
                    } => (generation, number),
                    _ => continue,
                };
                // The third one, number 2, begins again with the quicker path.
                let path = usize::from(limits.redundant && number % 2 == 1);
                let mut at = bench.now + one_way[path];
                // A silent path is noticed after 250 ms; then the other one carries.
                if cut_path == Some(path) {
                    at = bench.now + MS * 250 + one_way[1 - path];
                } else {
                    while cut_path.is_none() && lost() {
                        at += one_way[path] * 6;
                    }
                }
                let free = free_at.entry(generation).or_insert(at);
                at = at.max(*free);
                *free = at;
                first = Some(first.map_or(at, |first| first.min(at)));
                answers.push(Reverse((at + one_way[path], alert)));
                commands.extend(bench.sent(generation, alert));
            }
            if !commands.is_empty() {
                continue;
            }
            let answer = answers.peek().map(|it| it.0.0);
            let deadline = bench.sender.deadline().filter(|at| *at > bench.now);
            let next = answer.into_iter().chain(deadline).min();
            bench.now = next.unwrap_or(bench.now + MS).max(bench.now);
            while answers.peek().is_some_and(|it| it.0.0 <= bench.now) {
                answers.pop();
                commands.extend(bench.on_event(Event::Acknowledged(alert)));
            }
            commands.extend(bench.commands());
        }
        all.push(first.unwrap_or(raised) - raised);
        bench.now = bench.now.max(raised + interval);
    }
    all.sort_unstable();
    all
}

fn p99(delays: &[Duration]) -> Duration {
    delays[delays.len() * 99 / 100]
}

#[test]
fn copies_at_once_on_both_paths_cut_the_99th_percentile_under_loss_and_in_a_cut() {
    let late = Limits {
        copies: 1,
        ..LIMITS
    };
    let at_once = Limits {
        copies: 2,
        redundant: true,
        ..LIMITS
    };
    let each_second = |alerts| (alerts, MS * 1_000);
    let without_cut = |limits| delays(limits, None, each_second(5_000));
    let (before, after) = (without_cut(late), without_cut(at_once));
    // The copy that waits a moment, beside the one on the same path at once.
    assert!(p99(&before) >= MS * 13, "{:?}", p99(&before));
    assert_eq!(p99(&after), MS * 8);
    for (cut_path, interval) in [(0, MS * 1_000), (0, MS * 50), (1, MS * 50)] {
        let in_cut = |limits| delays(limits, Some(cut_path), (500, interval));
        let (before, after) = (in_cut(late), in_cut(at_once));
        if cut_path == 0 {
            assert!(p99(&before) >= MS * 250, "{:?}", p99(&before));
        }
        assert!(p99(&after) <= MS * 35, "{cut_path}: {:?}", p99(&after));
    }
}
