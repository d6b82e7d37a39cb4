//! The journal cannot be read for a while, and no event says when it can be read again.

use super::*;

impl Bench {
    /// With a current link and a spare, so that nothing is opened meanwhile.
    fn with_links(durable: u64) -> Self {
        let mut bench = Self::new(durable);
        assert_eq!(bench.commands(), [Command::Open(1)]);
        bench.on_event(Event::Up(1));
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
        assert_eq!(bench.on_event(Event::Up(2)), []);
        bench
    }

    fn wait(&mut self) -> (Duration, Vec<Command>) {
        let deadline = self.sender.deadline();
        let pause = deadline.expect("the journal is read again") - self.now;
        (pause, self.pass(pause))
    }
}

#[test]
fn entries_that_cannot_be_read_are_tried_again_after_pauses_that_end() {
    let mut bench = Bench::with_links(1);
    let mut pause_before = Duration::ZERO;
    for _ in 0..10 {
        assert_eq!(bench.on_event(Event::Unread), []);
        // A new entry does not shorten the pause.
        assert_eq!(bench.on_event(Event::Durable(2)), []);
        let (pause, commands) = bench.wait();
        assert_eq!(commands, [send(1, 0)]);
        assert!((pause_before..=RETRY_MAX).contains(&pause), "{pause:?}");
        pause_before = pause;
    }
    assert_eq!(pause_before, RETRY_MAX);
    assert_eq!(bench.sent(1, 2), []);
    bench.on_event(Event::Acknowledged(2));
    assert_eq!(bench.sender.deadline(), None);
    // The next failure has the shortest pause again.
    assert_eq!(bench.on_event(Event::Durable(3)), [send(1, 2)]);
    assert_eq!(bench.on_event(Event::Unread), []);
    assert_eq!(bench.wait(), (RETRY_INITIAL, vec![send(1, 2)]));
}

#[test]
fn a_takeover_during_the_pause_reads_after_it_from_the_acknowledged_entry() {
    let mut bench = Bench::with_links(2);
    assert_eq!(bench.sent(1, 1), [send(1, 1)]);
    assert_eq!(bench.on_event(Event::Unread), []);
    assert_eq!(bench.on_event(Event::Lost(1, 0.0)), []);
    let mut commands = bench.pass(RETRY_INITIAL);
    commands.retain(|command| !matches!(command, Command::Open(_)));
    assert_eq!(commands, [send(2, 0)]);
}
