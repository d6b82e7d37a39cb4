//! The choice of forgotten streams in a full table, and that no stream gets a sequence twice.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const HOUR_US: i64 = 3600 * 1_000_000;
/// A clock that is set.
const CLOCK_US: i64 = 1_790_000_000_000_000;

/// A snapshot in which all but `places` rows belong to streams that are never forgotten.
fn snapshot(places: usize) -> Vec<StreamRow> {
    let own = (places..STREAMS_MAX).map(|n| StreamRow {
        stream: n.to_string(),
        next_sequence: 1,
        ..StreamRow::default()
    });
    own.collect()
}

fn at_hour(hour: i64, wall_us: i64) -> Moment {
    Moment {
        wall_us,
        uptime_us: hour * HOUR_US,
        boot: 1,
    }
}

fn take(streams: &mut Streams, device: &str, at: Moment) -> Next {
    streams.next(device, "hr", at, 1, None, None)
}

fn devices(streams: &Streams) -> Vec<String> {
    let others = streams.to_rows().into_iter();
    others
        .map(|row| row.device)
        .filter(|device| !device.is_empty())
        .collect()
}

#[test]
fn the_stream_used_longest_ago_is_forgotten_and_returns_above_all_others() {
    let mut streams = Streams::from_rows(&snapshot(3));
    let clock = CLOCK_US as u64;
    for (hour, device) in [(0, "a"), (1, "b"), (2, "c"), (3, "a")] {
        take(&mut streams, device, at_hour(hour, CLOCK_US));
    }
    assert_eq!(devices(&streams), ["b", "c", "a"]);
    let early = take(&mut streams, "d", at_hour(24, CLOCK_US));
    assert_eq!(early, Next::TooManyStreams);
    // The clock was set back: it begins above the three numbers at its time.
    let first = take(&mut streams, "d", at_hour(25, CLOCK_US / 2));
    assert_eq!(first, Next::Sequence(clock + 2));
    assert_eq!(devices(&streams), ["c", "a", "d"]);
    streams.revert();
    assert_eq!(devices(&streams), [] as [&str; 0]);
}

#[test]
fn a_stream_used_within_a_day_stays_against_invented_names() {
    let mut streams = Streams::from_rows(&snapshot(8));
    for hour in 0..40 {
        take(&mut streams, "a", at_hour(hour, CLOCK_US));
        for n in 0..20 {
            let from = Some(IpAddr::from([192, 0, 2, n]));
            let name = format!("{hour} {n}");
            streams.next(&name, "hr", at_hour(hour, CLOCK_US), 1, None, from);
        }
        streams.commit();
        assert!(devices(&streams).contains(&"a".to_owned()), "hour {hour}");
        assert!(streams.to_rows().len() <= STREAMS_MAX);
    }
    // A day after they ended there is room.
    let next = take(&mut streams, "b", at_hour(70, CLOCK_US));
    assert!(matches!(next, Next::Sequence(_)), "{next:?}");
}

#[test]
fn a_stream_used_before_the_start_is_forgotten_first_and_one_address_takes_most_places() {
    let mut streams = Streams::from_rows(&snapshot(8));
    for n in 0..8 {
        take(&mut streams, &format!("before {n}"), at_hour(n, CLOCK_US));
    }
    streams.commit();
    let mut streams = Streams::from_rows(&streams.to_rows());
    let from = Some(IpAddr::from([192, 0, 2, 1]));
    let begun = (0..8).map(|n| {
        streams.next(
            &format!("after {n}"),
            "hr",
            at_hour(1, CLOCK_US),
            1,
            None,
            from,
        )
    });
    let begun = begun.filter(|next| matches!(next, Next::Sequence(_)));
    assert_eq!(begun.count(), 6);
    assert_eq!(devices(&streams)[..3], ["before 6", "before 7", "after 0"]);
}

#[derive(Clone, Debug)]
enum Step {
    Sample {
        device: usize,
        number: Option<u64>,
        time_us: i64,
        hours: i64,
        wall_us: i64,
    },
    Commit,
    Revert,
    Segment,
    /// With this many entries of the batch on disk.
    Restart(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let walls = prop::sample::select(vec![
        0,
        30_000_000,
        CLOCK_US,
        CLOCK_US - HOUR_US,
        CLOCK_US / 2,
    ]);
    let sample = (
        0..9_usize,
        prop::option::of(0..6_u64),
        0..4_i64,
        0..30_i64,
        walls,
    );
    let sample = sample.prop_map(|(device, number, time_us, hours, wall_us)| Step::Sample {
        device,
        number,
        time_us,
        hours,
        wall_us,
    });
    let step = prop_oneof![
        16 => sample,
        4 => Just(Step::Commit),
        2 => Just(Step::Revert),
        1 => Just(Step::Segment),
        1 => (0..4_usize).prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..80)
}

type Entry = (String, u64, i64, Option<u64>);

/// The streams of a journal in their form on disk.
struct Kept {
    snapshot: Vec<StreamRow>,
    entries: Vec<Entry>,
}

impl Kept {
    fn recovered(&self) -> Streams {
        let mut streams = Streams::from_rows(&self.snapshot);
        for (device, sequence, time_us, number) in &self.entries {
            streams.replay(device, "hr", *sequence, *time_us, *number);
        }
        streams
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_sequence_is_given_twice_and_a_recovery_finds_the_same_table(steps in steps()) {
        let mut kept = Kept { snapshot: snapshot(5), entries: Vec::new() };
        let mut streams = kept.recovered();
        let mut batch: Vec<Entry> = Vec::new();
        let mut highest = BTreeMap::<String, u64>::new();
        let mut hour = 0;
        for step in steps {
            match step {
                Step::Sample { device, number, time_us, hours, wall_us } => {
                    hour += hours;
                    let device = device.to_string();
                    let at = at_hour(hour, wall_us);
                    let next = streams.next(&device, "hr", at, time_us, number, None);
                    if let Next::Sequence(sequence) = next {
                        let earlier = batch.iter().filter(|it| it.0 == device).map(|it| it.1);
                        let earlier = earlier.chain(highest.get(&device).copied()).max();
                        prop_assert!(earlier < Some(sequence), "{device}: {sequence} after {earlier:?}");
                        batch.push((device, sequence, time_us, number));
                    }
                    continue;
                }
                Step::Commit | Step::Segment => streams.commit(),
                Step::Revert => {
                    streams.revert();
                    batch.clear();
                }
                Step::Restart(whole) => {
                    streams.revert();
                    batch.truncate(whole);
                    hour = 0;
                }
            }
            for (device, sequence, ..) in &batch {
                highest.insert(device.clone(), *sequence);
            }
            kept.entries.append(&mut batch);
            let recovered = kept.recovered();
            if let Step::Restart(_) = step {
                streams = recovered;
            } else {
                prop_assert_eq!(recovered.to_rows(), streams.to_rows());
            }
            prop_assert!(streams.rows.len() <= STREAMS_MAX);
            if let Step::Segment | Step::Restart(_) = step {
                kept = Kept { snapshot: streams.to_rows(), entries: Vec::new() };
            }
        }
    }
}
