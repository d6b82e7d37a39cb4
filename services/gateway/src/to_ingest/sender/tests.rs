use super::{copies::COPIED_ENTRIES_MAX, *};

mod copied;
mod held_back;
mod pauses;
mod redundant;
mod unread;

const LIMITS: Limits = Limits {
    in_flight_max: 2,
    acknowledge_limit: Duration::from_secs(5),
    copies: 0,
    redundant: false,
    gather: Duration::ZERO,
    freshness: Duration::ZERO,
};

struct Bench {
    sender: Sender,
    now: Instant,
}

impl Bench {
    fn new(durable: u64) -> Self {
        Self::with(LIMITS, durable)
    }

    fn with(limits: Limits, durable: u64) -> Self {
        let now = Instant::now();
        Self {
            sender: Sender::new(now, limits, 0, durable),
            now,
        }
    }

    /// With a link for copies, number 3.
    fn with_copies(durable: u64) -> Self {
        let copies = Limits {
            copies: 1,
            ..LIMITS
        };
        let mut bench = Self::with(copies, durable);
        bench.commands();
        bench.on_event(Event::Up(1));
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
        bench.on_event(Event::Up(2));
        assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(3)]);
        assert_eq!(bench.on_event(Event::Up(3)), []);
        bench
    }

    fn on_event(&mut self, event: Event) -> Vec<Command> {
        self.sender.on_event(self.now, event);
        self.commands()
    }

    fn commands(&mut self) -> Vec<Command> {
        std::iter::from_fn(|| self.sender.poll(self.now)).collect()
    }

    fn pass(&mut self, time: Duration) -> Vec<Command> {
        self.now += time;
        self.commands()
    }

    fn sent(&mut self, generation: u64, end: u64) -> Vec<Command> {
        self.on_event(Event::Sent { generation, end })
    }
}

fn send(generation: u64, from: u64) -> Command {
    Command::Send { generation, from }
}

#[test]
fn the_window_bounds_what_is_unacknowledged() {
    let mut bench = Bench::new(100);
    assert_eq!(bench.commands(), [Command::Open(1)]);
    assert_eq!(bench.on_event(Event::Up(1)), [send(1, 0)]);
    assert_eq!(bench.sent(1, 10), [send(1, 10)]);
    assert_eq!(bench.sent(1, 20), []);
    assert_eq!(
        bench.on_event(Event::Acknowledged(10)),
        [Command::Trim(10), send(1, 20)]
    );
    assert_eq!(bench.sent(1, 100), []);
    assert_eq!(
        bench.on_event(Event::Acknowledged(100)),
        [Command::Trim(100)]
    );
    assert!(bench.sender.is_idle());
    assert_eq!(bench.on_event(Event::Durable(101)), [send(1, 100)]);
}

#[test]
fn readings_wait_for_their_freshness_and_those_of_an_alert_do_not() {
    let freshness = Duration::from_secs(1);
    let mut bench = Bench::with(
        Limits {
            freshness,
            ..LIMITS
        },
        0,
    );
    bench.commands();
    bench.on_event(Event::Up(1));
    assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
    assert_eq!(bench.on_event(Event::Up(2)), []);
    assert_eq!(bench.on_event(Event::Durable(1)), []);
    let first = bench.now;
    bench.now += freshness / 2;
    assert_eq!(bench.on_event(Event::Durable(4)), []);
    assert_eq!(bench.sender.deadline(), Some(first + freshness));
    bench.now = first + freshness;
    assert_eq!(bench.commands(), [send(1, 0)]);
    assert_eq!(bench.sent(1, 4), []);
    assert_eq!(bench.on_event(Event::Acknowledged(4)), [Command::Trim(4)]);
    // Waiting entries go with an alert, and so do entries a moment later.
    assert_eq!(bench.on_event(Event::Durable(5)), []);
    assert_eq!(bench.on_event(Event::Hurry), [send(1, 4)]);
    assert_eq!(bench.sent(1, 5), []);
    assert_eq!(bench.on_event(Event::Acknowledged(5)), [Command::Trim(5)]);
    bench.now += HURRY / 2;
    assert_eq!(bench.on_event(Event::Durable(6)), [send(1, 5)]);
    assert_eq!(bench.sent(1, 6), []);
    // A repetition over another link waits no more.
    assert_eq!(
        bench.on_event(Event::PathDown),
        [Command::Close(1), Command::Open(3), send(2, 5)]
    );
    bench.sent(2, 6);
    bench.on_event(Event::Acknowledged(6));
    bench.now += HURRY;
    assert_eq!(bench.on_event(Event::Durable(7)), []);
    // A shorter freshness holds for what waits, and a longer one from then on.
    bench.now += freshness / 2;
    assert_eq!(
        bench.on_event(Event::Freshness(freshness / 2)),
        [send(2, 6)]
    );
    bench.sent(2, 7);
    bench.on_event(Event::Acknowledged(7));
    bench.on_event(Event::Freshness(freshness * 10));
    assert_eq!(bench.on_event(Event::Durable(8)), []);
    let since = bench.now;
    assert_eq!(bench.sender.deadline(), Some(since + freshness * 10));
    bench.now += freshness * 9;
    assert_eq!(bench.commands(), []);
    assert_eq!(bench.on_event(Event::Hurry), [send(2, 7)]);
}

#[test]
fn what_comes_while_a_batch_is_out_is_gathered_for_a_bounded_time() {
    let gather = Duration::from_millis(200);
    let mut bench = Bench::with(Limits { gather, ..LIMITS }, 0);
    bench.commands();
    bench.on_event(Event::Up(1));
    assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
    assert_eq!(bench.on_event(Event::Up(2)), []);
    assert_eq!(bench.on_event(Event::Durable(1)), [send(1, 0)]);
    assert_eq!(bench.sent(1, 1), []);
    // With nothing in flight an entry goes at once. The ones behind it wait for its acknowledgement
    // and go together.
    assert_eq!(bench.on_event(Event::Durable(2)), []);
    bench.now += Duration::from_millis(100);
    assert_eq!(bench.on_event(Event::Durable(3)), []);
    assert_eq!(
        bench.on_event(Event::Acknowledged(1)),
        [Command::Trim(1), send(1, 1)]
    );
    assert_eq!(bench.sent(1, 3), []);
    // No acknowledgement: the first of them waits no longer than allowed, whatever comes behind it.
    assert_eq!(bench.on_event(Event::Durable(4)), []);
    let first = bench.now;
    bench.now += gather / 2;
    assert_eq!(bench.on_event(Event::Durable(5)), []);
    assert_eq!(bench.sender.deadline(), Some(first + gather));
    bench.now = first + gather;
    assert_eq!(bench.commands(), [send(1, 3)]);
    assert_eq!(bench.sent(1, 5), []);
    // A backlog fills batches and is not gathered, as far as the window goes.
    let batch = BATCH_ENTRIES_MAX as u64;
    let backlog = 5 + 2 * batch;
    assert_eq!(bench.on_event(Event::Durable(backlog)), []);
    bench.on_event(Event::Acknowledged(5));
    assert_eq!(bench.sent(1, 5 + batch), [send(1, 5 + batch)]);
}

#[test]
fn a_dead_path_opens_a_second_link_and_what_was_not_acknowledged_goes_again() {
    let mut bench = Bench::new(100);
    bench.commands();
    bench.on_event(Event::Up(1));
    bench.sent(1, 10);
    bench.sent(1, 20);
    bench.on_event(Event::Acknowledged(10));
    bench.sent(1, 30);
    bench.now += REOPEN_INTERVAL;
    assert_eq!(bench.on_event(Event::PathDown), [Command::Open(2)]);
    // The old link still counts.
    assert_eq!(
        bench.on_event(Event::Acknowledged(20)),
        [Command::Trim(20), send(1, 30)]
    );
    assert_eq!(bench.on_event(Event::Up(2)), [Command::Close(1)]);
    // A batch that the old link was sending does not count for the new one.
    assert_eq!(bench.sent(1, 40), [send(2, 20)]);
    assert_eq!(bench.on_event(Event::Acknowledged(30)), [Command::Trim(30)]);
    assert_eq!(bench.sent(2, 30), [send(2, 30)]);
}

#[test]
fn a_spare_takes_over_at_once_and_is_replaced() {
    let mut bench = Bench::new(100);
    bench.commands();
    bench.on_event(Event::Up(1));
    bench.sent(1, 10);
    assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
    assert_eq!(bench.on_event(Event::Up(2)), []);
    bench.sent(1, 20);
    assert_eq!(
        bench.on_event(Event::PathDown),
        [Command::Close(1), send(2, 0)]
    );
    assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(3)]);
    bench.on_event(Event::Up(3));
    // The same when the link itself is lost.
    bench.sent(2, 20);
    bench.sent(2, 30);
    assert_eq!(bench.on_event(Event::Lost(2, 0.5)), [send(3, 0)]);
    // A spare that is lost is opened again after a pause, and the current link goes on.
    let opened = bench.pass(Duration::from_secs(1));
    assert_eq!(opened, [Command::Open(4)]);
    bench.on_event(Event::Up(4));
    assert_eq!(bench.on_event(Event::Lost(4, 0.5)), []);
    assert_eq!(bench.pass(Duration::from_secs(1)), [Command::Open(5)]);
    assert_eq!(bench.sent(3, 10), [send(3, 10)]);
}

#[test]
fn links_that_take_long_come_up_although_paths_die_all_the_time() {
    const HANDSHAKES: Duration = Duration::from_secs(3);
    let mut bench = Bench::new(0);
    bench.commands();
    bench.on_event(Event::Up(1));
    let (began, mut opened) = (bench.now, Vec::new());
    let up = loop {
        let commands = bench.on_event(Event::PathDown);
        opened.extend(commands.iter().filter_map(|command| match command {
            Command::Open(generation) => Some((*generation, bench.now)),
            _ => None,
        }));
        if let Some((generation, since)) = opened.last()
            && bench.now >= *since + HANDSHAKES
        {
            break *generation;
        }
        bench.now += Duration::from_millis(50);
        assert!(bench.now - began < Duration::from_secs(30), "none comes up");
    };
    assert!(opened.len() <= 6, "{} opened", opened.len());
    let next = bench.on_event(Event::Up(up));
    assert_eq!(next, [Command::Close(1), Command::Open(up + 1)]);
    // The next one is not made to wait for what was slow before.
    assert_eq!(bench.on_event(Event::PathDown), []);
    let again = bench.pass(REOPEN_INTERVAL);
    assert_eq!(again, [Command::Close(up + 1), Command::Open(up + 2)]);
}

#[test]
fn a_storm_of_path_deaths_opens_links_at_a_bounded_pace() {
    let mut bench = Bench::new(0);
    bench.commands();
    bench.on_event(Event::Up(1));
    let mut opened = 0;
    for _ in 0..1000 {
        bench.now += Duration::from_millis(1);
        opened += bench
            .on_event(Event::PathDown)
            .iter()
            .filter(|command| matches!(command, Command::Open(_)))
            .count();
    }
    assert!((1..=4).contains(&opened), "{opened}");
}

#[test]
fn an_acknowledgement_that_is_later_than_usual_brings_the_spare() {
    let mut bench = Bench::new(0);
    bench.commands();
    bench.on_event(Event::Up(1));
    bench.pass(REOPEN_INTERVAL);
    bench.on_event(Event::Up(2));
    for batch in 1..=20 {
        assert_eq!(bench.on_event(Event::Durable(batch)), [send(1, batch - 1)]);
        bench.sent(1, batch);
        bench.now += Duration::from_millis(60);
        bench.on_event(Event::Acknowledged(batch));
    }
    bench.on_event(Event::Durable(21));
    bench.sent(1, 21);
    assert_eq!(bench.pass(OVERDUE_MIN - Duration::from_millis(1)), []);
    // The spare repeats what was not acknowledged, ten times sooner than the fixed limit.
    assert_eq!(
        bench.pass(Duration::from_millis(1)),
        [Command::Close(1), Command::Open(3), send(2, 20)]
    );
    bench.sent(2, 21);
    bench.on_event(Event::Up(3));
    // The second time it waits twice as long, and a late answer teaches nothing.
    assert_eq!(bench.pass(OVERDUE_MIN), []);
    bench.on_event(Event::Acknowledged(21));
    assert!(
        bench
            .sender
            .usual
            .overdue_after()
            .is_some_and(|usual| usual < OVERDUE_MIN)
    );
}

#[test]
fn silence_of_ingest_counts_as_death() {
    let mut bench = Bench::new(10);
    bench.commands();
    bench.on_event(Event::Up(1));
    bench.sent(1, 10);
    assert_eq!(bench.pass(REOPEN_INTERVAL), [Command::Open(2)]);
    let late = LIMITS.acknowledge_limit - REOPEN_INTERVAL;
    assert_eq!(bench.sender.deadline(), Some(bench.now + late));
    // A spare that is still not up is doubtful, too.
    assert_eq!(bench.pass(late), [Command::Close(2), Command::Open(3)]);
    // But a slow network gets its time.
    assert_eq!(bench.pass(Duration::from_secs(2)), []);
    assert_eq!(
        bench.on_event(Event::Up(3)),
        [Command::Close(1), Command::Open(4), send(3, 0)]
    );
}

#[test]
fn a_lost_link_is_retried_with_growing_pauses_until_data_flows() {
    let mut bench = Bench::new(10);
    bench.commands();
    let mut pauses = Vec::new();
    for generation in 1..8 {
        let before = bench.now;
        assert_eq!(bench.on_event(Event::Lost(generation, 0.999)), []);
        let mut commands = Vec::new();
        while commands.is_empty() {
            match bench.sender.deadline() {
                Some(at) if at > bench.now => bench.now = at,
                other => panic!("stuck at {other:?}"),
            }
            commands = bench.commands();
        }
        assert_eq!(commands, [Command::Open(generation + 1)]);
        pauses.push(bench.now - before);
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= RETRY_MAX));
    assert!(pauses.last() > Some(&Duration::from_secs(1)));
}

impl Bench {
    /// One of these links acknowledges what it has, up to the position.
    fn answer(&mut self, reached: &std::collections::BTreeMap<u64, u64>, skip: u64, held: u64) {
        let link = reached.iter().cycle().take(reached.len() * 8);
        if let Some((link, end)) = link.into_iter().nth(skip as usize) {
            let answered = Event::Answered(*link, held.min(*end));
            self.sender.on_event(self.now, answered);
        }
    }
}

/// The end of the longest run without a hole, which ingest acknowledges.
fn longest_run(seed: u64, delivered: &[(u64, u64)]) -> u64 {
    let mut held = 0;
    let mut runs = delivered.to_vec();
    runs.sort_unstable();
    for (from, end) in runs {
        assert!(from <= held, "seed {seed}: a hole before {from}");
        held = held.max(end);
    }
    held
}

#[test]
fn any_mix_of_events_sends_everything_in_the_end() {
    for seed in 0..300_u64 {
        let mut state = seed;
        let mut random = move |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let limits = Limits {
            copies: (seed % 4) as usize,
            redundant: seed % 2 == 1,
            ..LIMITS
        };
        let mut bench = Bench::with(limits, 0);
        let mut durable = 0;
        // Where each link has come to: none may skip an entry that was not acknowledged.
        let mut reached: std::collections::BTreeMap<u64, u64> = Default::default();
        let mut delivered: Vec<(u64, u64)> = Vec::new();
        let mut opening = Vec::new();
        let mut current = None;
        for step in 0..2000 {
            let commands = bench.commands();
            for command in commands {
                match command {
                    Command::Open(generation) => opening.push(generation),
                    Command::Close(generation) => {
                        opening.retain(|other| *other != generation);
                        if current == Some(generation) {
                            current = None;
                        }
                    }
                    Command::Trim(position) => assert!(position <= durable),
                    Command::Send { generation, from } => {
                        assert!(from < durable);
                        let end = (from + 1 + random(5)).min(durable);
                        let before = reached.insert(generation, end).unwrap_or(0);
                        assert!(from <= before.max(bench.sender.acknowledged));
                        delivered.push((from, end));
                        bench
                            .sender
                            .on_event(bench.now, Event::Sent { generation, end });
                    }
                    Command::Copy {
                        generation,
                        number: _,
                        from,
                        until,
                    } => {
                        assert!(limits.copies > 0 && from < until && until <= durable);
                        let end = (from + 1 + random(5)).min(until);
                        let before = reached.insert(generation, end).unwrap_or(0);
                        assert!(from <= before.max(bench.sender.acknowledged));
                        bench
                            .sender
                            .on_event(bench.now, Event::Sent { generation, end });
                    }
                }
            }
            let calm = step >= 300;
            if calm && bench.sender.is_idle() && bench.sender.durable == durable {
                break;
            }
            match random(if calm { 3 } else { 7 }) {
                0 => {
                    if !calm {
                        durable += random(10);
                    }
                    bench.sender.on_event(bench.now, Event::Durable(durable));
                }
                1 => {
                    let held = longest_run(seed, &delivered);
                    bench.answer(&reached, random(8), held);
                    bench.sender.on_event(bench.now, Event::Acknowledged(held));
                }
                2 => {
                    if let Some(generation) = opening.pop() {
                        current = Some(generation);
                        bench.sender.on_event(bench.now, Event::Up(generation));
                    }
                }
                3 => bench.sender.on_event(bench.now, Event::PathDown),
                5 => bench.sender.on_event(bench.now, Event::PathSilent),
                4 => {
                    if let Some(generation) = current.take() {
                        bench
                            .sender
                            .on_event(bench.now, Event::Lost(generation, 0.5));
                    }
                }
                _ => {}
            }
            bench.now += Duration::from_millis(random(400));
        }
        assert!(bench.sender.is_idle(), "seed {seed}: {:?}", bench.sender);
    }
}
