use std::collections::BTreeMap;

use super::*;

/// A core whose ingest delays a gateway. New entries take their time, and known ones none. A closed
/// stream is read no further.
struct Held {
    bench: Bench,
    /// By generation: what each batch on its way or waiting is.
    streams: BTreeMap<Generation, VecDeque<(u64, u64)>>,
    up: Vec<Generation>,
    durable: u64,
    /// Entries that ingest has, and when it admits more.
    held: u64,
    free_at: Instant,
    entry_takes: Duration,
    /// On their way back, which takes up to 10 ms.
    answers: VecDeque<(Instant, u64)>,
    sent: u64,
}

impl Held {
    const STEP: Duration = Duration::from_millis(2);

    fn with(backlog: u64, entries_per_s: u32) -> Self {
        let limits = Limits {
            in_flight_max: 16,
            acknowledge_limit: Duration::from_secs(10),
            copies: 1,
            redundant: false,
            gather: Duration::from_millis(500),
            freshness: Duration::ZERO,
        };
        let bench = Bench::with(limits, backlog);
        Self {
            free_at: bench.now,
            bench,
            streams: BTreeMap::new(),
            up: Vec::new(),
            durable: backlog,
            held: 0,
            entry_takes: Duration::from_secs(1) / entries_per_s,
            answers: VecDeque::new(),
            sent: 0,
        }
    }

    fn ingest(&mut self) {
        let now = self.bench.now;
        for stream in self.streams.values_mut() {
            while now >= self.free_at
                && let Some((from, end)) = stream.pop_front()
            {
                assert!(from <= self.held, "a hole");
                let new = end.saturating_sub(self.held) as u32;
                self.held = self.held.max(end);
                self.free_at = self.free_at.max(now - Self::STEP) + self.entry_takes * new;
                let way = Duration::from_millis(end / BATCH_ENTRIES_MAX as u64 * 7 % 11);
                self.answers.push_back((now + way, end));
            }
        }
        while let Some((_, end)) = self.answers.pop_front_if(|(at, _)| now >= *at) {
            self.bench.sender.on_event(now, Event::Acknowledged(end));
        }
    }

    fn gateway(&mut self) {
        let now = self.bench.now;
        for generation in std::mem::take(&mut self.up) {
            self.bench.sender.on_event(now, Event::Up(generation));
        }
        while let Some(command) = self.bench.sender.poll(now) {
            match command {
                Command::Open(generation) => self.up.push(generation),
                Command::Close(generation) => drop(self.streams.remove(&generation)),
                Command::Trim(_) => {}
                Command::Copy { .. } => panic!("a backlog is not copied"),
                Command::Send { generation, from } => {
                    let end = self.durable.min(from + BATCH_ENTRIES_MAX as u64);
                    self.sent += end - from;
                    let stream = self.streams.entry(generation).or_default();
                    stream.push_back((from, end));
                    self.bench
                        .sender
                        .on_event(now, Event::Sent { generation, end });
                }
            }
        }
    }
}

/// The wait of queued batches once counted as silence. Each takeover sent the queue again, and
/// answers to repetitions teach nothing about the usual time.
#[test]
fn a_core_that_holds_back_is_sent_hardly_more_than_the_backlog() {
    for (entries_per_s, takeovers_max) in [(5_000, 0), (4_000, 1), (2_000, 2), (1_000, 3), (300, 5)]
    {
        let backlog = 60_000;
        let mut core = Held::with(backlog, entries_per_s);
        let seconds = u64::from(2 * backlog as u32 / entries_per_s);
        for _ in 0..seconds * 500 {
            core.gateway();
            core.ingest();
            core.bench.now += Held::STEP;
        }
        assert_eq!(core.held, backlog, "{entries_per_s} a second");
        let row = 16 * BATCH_ENTRIES_MAX as u64;
        let most = backlog + takeovers_max * row;
        assert!(
            core.sent <= most,
            "{} at {entries_per_s} a second",
            core.sent
        );
    }
}

/// A sender with a spare that is used to answers of 100 ms.
fn used_to_100_ms() -> Bench {
    let mut bench = Bench::new(0);
    bench.commands();
    bench.on_event(Event::Up(1));
    bench.pass(REOPEN_INTERVAL);
    bench.on_event(Event::Up(2));
    for end in 1..=50 {
        assert_eq!(bench.on_event(Event::Durable(end)), [send(1, end - 1)]);
        bench.sent(1, end);
        bench.now += Duration::from_millis(100);
        assert_eq!(
            bench.on_event(Event::Acknowledged(end)),
            [Command::Trim(end)]
        );
    }
    bench
}

#[test]
fn an_answer_in_time_puts_no_other_off() {
    let mut bench = used_to_100_ms();
    bench.on_event(Event::Durable(51));
    bench.sent(1, 51);
    bench.now += Duration::from_millis(10);
    bench.on_event(Event::Durable(52));
    bench.sent(1, 52);
    let sent = bench.now;
    bench.now += Duration::from_millis(90);
    bench.on_event(Event::Acknowledged(51));
    assert_eq!(bench.sender.deadline(), Some(sent + OVERDUE_MIN));
}

#[test]
fn an_outage_is_nobodys_pace() {
    let mut bench = used_to_100_ms();
    bench.on_event(Event::Durable(60));
    bench.sent(1, 60);
    bench.now += Duration::from_secs(60);
    bench.commands();
    bench.sent(2, 60);
    bench.on_event(Event::Durable(70));
    bench.sent(2, 70);
    let sent = bench.now;
    bench.now += Duration::from_millis(100);
    bench.on_event(Event::Acknowledged(60));
    assert_eq!(bench.sender.deadline(), Some(sent + OVERDUE_MIN));
}
