//! Copies on links of their own.

use super::*;

#[test]
fn what_has_no_answer_a_moment_later_is_copied_once() {
    let mut bench = Bench::with_copies(0);
    let copy = |from, until| Command::Copy {
        generation: 3,
        number: 1,
        from,
        until,
    };
    assert_eq!(bench.on_event(Event::Durable(2)), [send(1, 0)]);
    assert_eq!(bench.sent(1, 2), []);
    let after = bench.sender.usual.copy_after();
    assert_eq!(bench.sender.deadline(), Some(bench.now + after));
    assert_eq!(bench.pass(after), [copy(0, 2)]);
    assert_eq!(bench.sent(3, 2), []);
    assert_eq!(bench.pass(after), []);
    // Entries sent meanwhile are copied with the next batch, and none is skipped.
    assert_eq!(bench.on_event(Event::Durable(3)), [send(1, 2)]);
    bench.sent(1, 3);
    assert_eq!(bench.pass(after), [copy(2, 3)]);
    bench.sent(3, 3);
    // Either answer counts.
    assert_eq!(bench.on_event(Event::Acknowledged(3)), [Command::Trim(3)]);
    // An entry answered in time is not copied, and the next copy begins behind it.
    assert_eq!(bench.on_event(Event::Durable(4)), [send(1, 3)]);
    bench.sent(1, 4);
    bench.on_event(Event::Acknowledged(4));
    assert_eq!(bench.pass(after), []);
    assert_eq!(bench.on_event(Event::Durable(5)), [send(1, 4)]);
    bench.sent(1, 5);
    assert_eq!(bench.pass(after), [copy(4, 5)]);
}

#[test]
fn a_backlog_is_not_copied() {
    let mut bench = Bench::with_copies(0);
    bench.on_event(Event::Durable(COPIED_ENTRIES_MAX + 1));
    bench.sent(1, COPIED_ENTRIES_MAX + 1);
    assert_eq!(bench.pass(Duration::from_millis(100)), []);
}

#[test]
fn the_link_of_copies_goes_with_the_path() {
    let mut bench = Bench::with_copies(0);
    bench.on_event(Event::Durable(1));
    bench.sent(1, 1);
    bench.pass(Duration::from_millis(20));
    bench.sent(3, 1);
    // The link of copies may have bytes on the dead path, so the idle spare takes over.
    let taken = [Command::Close(1), Command::Close(3), send(2, 0)];
    assert_eq!(bench.on_event(Event::PathDown), taken);
    bench.sent(2, 1);
    assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(4)]);
    bench.on_event(Event::Up(4));
    assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(5)]);
    // When the link of copies is lost alone, or takes no more, the others go on.
    let copy = |generation| Command::Copy {
        generation,
        number: 1,
        from: 0,
        until: 1,
    };
    assert_eq!(bench.on_event(Event::Up(5)), [copy(5)]);
    assert_eq!(bench.sent(5, 1), []);
    assert_eq!(bench.on_event(Event::Lost(5, 0.5)), []);
    assert_eq!(bench.pass(Duration::from_secs(1)), [Command::Open(6)]);
    assert_eq!(bench.on_event(Event::Up(6)), [copy(6)]);
    assert_eq!(bench.sent(6, 0), [Command::Close(6)]);
}
