//! Pauses after losses, where no acknowledgement ends them.

use super::*;

/// Number of links of a sender with all copies.
const LINKS: u64 = 5;

impl Bench {
    /// Attempts that fail in a row, until the pause between them is the longest.
    fn fail(&mut self, generations: std::ops::Range<u64>) {
        for generation in generations {
            assert_eq!(self.on_event(Event::Lost(generation, 0.999)), []);
            assert_eq!(self.pass(RETRY_MAX), [Command::Open(generation + 1)]);
        }
    }

    /// Brings up all links from this one on, which is being opened.
    fn up_from(&mut self, first: u64) {
        for generation in first..first + LINKS {
            self.on_event(Event::Up(generation));
            let opened = self.pass(REOPEN_INTERVAL);
            let is_last = generation + 1 == first + LINKS;
            assert_eq!(opened.is_empty(), is_last, "{opened:?}");
        }
    }

    /// One event ends all links from this one on. Returns the time until the next is opened.
    fn lose_from(&mut self, first: u64) -> Duration {
        for generation in first..first + LINKS {
            assert_eq!(self.on_event(Event::Lost(generation, 0.999)), []);
        }
        let deadline = self.sender.deadline().expect("a link is opened again");
        deadline.saturating_duration_since(self.now)
    }
}

fn with_all_links() -> Bench {
    let limits = Limits {
        copies: 3,
        redundant: true,
        ..LIMITS
    };
    let mut bench = Bench::with(limits, 0);
    assert_eq!(bench.commands(), [Command::Open(1)]);
    bench
}

#[test]
fn a_link_that_was_up_for_long_is_opened_again_at_once_although_it_carried_nothing() {
    let mut bench = Bench::new(0);
    assert_eq!(bench.commands(), [Command::Open(1)]);
    bench.fail(1..8);
    bench.on_event(Event::Up(8));
    bench.now += Duration::from_secs(600);
    bench.sender.on_event(bench.now, Event::Lost(8, 0.999));
    let deadline = bench.sender.deadline();
    assert!(deadline <= Some(bench.now + RETRY_INITIAL), "{deadline:?}");
    assert_eq!(bench.commands(), []);
    assert_eq!(bench.pass(RETRY_INITIAL), [Command::Open(9)]);
}

#[test]
fn one_event_that_ends_all_links_costs_one_pause() {
    let mut bench = with_all_links();
    bench.up_from(1);
    // None was up for long.
    assert!(REOPEN_INTERVAL * 5 < RETRY_MAX);
    let pause = bench.lose_from(1);
    assert!(pause <= RETRY_INITIAL, "{pause:?}");
    assert_eq!(bench.pass(pause), [Command::Open(6)]);
    // The next pause is the second one, not the sixth.
    assert_eq!(bench.on_event(Event::Lost(6, 0.999)), []);
    assert_eq!(bench.pass(RETRY_INITIAL * 2), []);
    assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(7)]);
}

#[test]
fn a_long_pause_of_one_link_does_not_hold_up_the_others() {
    let mut bench = with_all_links();
    bench.up_from(1);
    bench.now += Duration::from_secs(600);
    // The spare cannot be replaced, and then all are lost during the pause.
    bench.on_event(Event::Lost(2, 0.999));
    assert_eq!(bench.pass(RETRY_MAX), [Command::Open(6)]);
    bench.fail(6..13);
    assert_eq!(bench.on_event(Event::Lost(13, 0.999)), []);
    assert_eq!(bench.pass(REOPEN_INTERVAL), []);
    let deadline = bench.sender.deadline();
    assert!(deadline > Some(bench.now + RETRY_MAX / 2), "{deadline:?}");
    let pause = bench.lose_from(1);
    assert!(pause <= RETRY_INITIAL, "{pause:?}");
}

#[test]
fn a_link_that_is_up_for_a_moment_only_does_not_shorten_the_pauses() {
    let mut bench = Bench::new(0);
    assert_eq!(bench.commands(), [Command::Open(1)]);
    bench.fail(1..8);
    bench.on_event(Event::Up(8));
    bench.now += REOPEN_INTERVAL / 2;
    assert_eq!(bench.on_event(Event::Lost(8, 0.999)), []);
    let deadline = bench.sender.deadline();
    assert!(deadline > Some(bench.now + RETRY_MAX / 2), "{deadline:?}");
}

#[test]
fn closed_links_are_forgotten() {
    let mut bench = Bench::new(0);
    assert_eq!(bench.commands(), [Command::Open(1)]);
    bench.on_event(Event::Up(1));
    for generation in 2..100 {
        assert_eq!(bench.pass(RETRY_MAX), [Command::Open(generation)]);
        bench.on_event(Event::Up(generation));
        bench.on_event(Event::PathDown);
    }
    assert!(bench.sender.pauses.up_since.len() <= 2);
}
