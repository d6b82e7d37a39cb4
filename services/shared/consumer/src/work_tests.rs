#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use bus::Topic;
use proptest::prelude::*;
use store::Progress;

use super::*;

type Position = (u32, u64);

/// First byte of a record's value.
const READABLE: u8 = 0;
const NEWER: u8 = 1;
const UNREADABLE: u8 = 2;

/// Rows are the positions of their records.
struct PositionSink;

#[async_trait]
impl Sink for PositionSink {
    type Batch = Vec<Position>;

    fn decode(&self, delivery: &Delivery, batch: &mut Vec<Position>) -> Decoded {
        let kind = delivery.value[0];
        if kind == UNREADABLE {
            return Decoded::Refused("unreadable".into());
        }
        batch.push((delivery.partition, delivery.offset));
        match kind {
            NEWER => Decoded::InPart("newer".into()),
            _ => Decoded::Whole,
        }
    }

    async fn write(&self, _: Arc<Vec<Position>>, _: &[Progress]) -> Answer {
        Answer::Ended
    }
}

fn delivery(partition: u32, offset: u64, kind: u8) -> Delivery {
    Delivery {
        topic: Topic::Paths,
        partition,
        offset,
        key: String::new(),
        value: vec![kind].into(),
        headers: Vec::new(),
        published_us: 0,
    }
}

/// One partition with records of these kinds.
fn of_kinds(kinds: &[u8]) -> Vec<Delivery> {
    let numbered = (0..).zip(kinds);
    numbered
        .map(|(offset, kind)| delivery(0, offset, *kind))
        .collect()
}

/// A store with faults, and what it has.
#[derive(Debug, Clone, Default)]
struct Model {
    /// Rows that it never takes.
    never: BTreeSet<Position>,
    /// Rows that it contradicts so many times.
    contradicts: BTreeMap<Position, u32>,
    /// Writes from the first on at which it is away.
    away: BTreeSet<usize>,
    /// Partitions that another member takes before the write of this number.
    takes: BTreeMap<usize, u32>,

    stolen: BTreeSet<u32>,
    lost: BTreeSet<u32>,
    writes: usize,
    stored: Vec<Position>,
    letters: Vec<(Position, String)>,
    progress: BTreeMap<u32, u64>,
}

impl Model {
    fn answer(&mut self, batch: &[Position], reached: &[(u32, u64)]) -> Answer {
        let number = self.writes;
        self.writes += 1;
        self.stolen.extend(self.takes.get(&number));
        if self.away.contains(&number) {
            return Answer::Transient("away".into());
        }
        let of_batch = reached.iter().map(|(partition, _)| *partition);
        let fenced: Vec<u32> = of_batch.filter(|it| self.stolen.contains(it)).collect();
        if !fenced.is_empty() {
            return Answer::Fenced(fenced);
        }
        if let Some(row) = batch.iter().find(|row| self.never.contains(row)) {
            return Answer::Refused(format!("never {row:?}"));
        }
        for row in batch {
            if let Some(left) = self.contradicts.get_mut(row)
                && *left > 0
            {
                *left -= 1;
                return Answer::Contradicts("other rows".into());
            }
        }
        self.stored.extend(batch);
        for (partition, next) in reached {
            let before = self.progress.insert(*partition, *next);
            assert!(before.is_none_or(|before| before < *next), "it moves on");
        }
        Answer::Stored
    }

    fn run(&mut self, deliveries: &[Delivery]) {
        let mut work = Work::new(&PositionSink, deliveries.to_vec());
        loop {
            match work.command() {
                Command::Done => return,
                Command::Bury { delivery, reason } => {
                    let position = (delivery.partition, delivery.offset);
                    self.letters.push((position, reason));
                }
                Command::Write { batch, reached } => {
                    let answer = self.answer(&batch, &reached);
                    work.on_answer(answer);
                    self.check_progress(deliveries);
                }
                Command::Lost(partitions) => self.lost.extend(partitions),
                Command::Pause(..) => {}
                Command::PassOver(reason) => panic!("{reason}"),
            }
        }
    }

    /// Every record that progress has passed is stored or buried.
    fn check_progress(&self, deliveries: &[Delivery]) {
        for it in deliveries {
            let position = (it.partition, it.offset);
            let next = self.progress.get(&it.partition).copied();
            if next.is_some_and(|next| it.offset < next) {
                let is_kept = self.letters.iter().any(|(kept, _)| *kept == position);
                assert!(
                    self.stored.contains(&position) || is_kept,
                    "{position:?} is lost"
                );
            }
        }
    }

    fn letters_of(&self, position: Position) -> usize {
        self.letters
            .iter()
            .filter(|(of, _)| *of == position)
            .count()
    }
}

#[test]
fn a_batch_without_faults_is_one_write() {
    let mut model = Model::default();
    model.run(&of_kinds(&[READABLE; 100]));
    assert_eq!((model.writes, model.stored.len()), (1, 100));
    assert_eq!(model.letters, []);
}

#[test]
fn a_refused_row_is_found_by_halving_and_is_buried_alone() {
    let mut model = Model {
        never: [(0, 700)].into(),
        ..Model::default()
    };
    model.run(&of_kinds(&[READABLE; 1024]));
    assert_eq!(model.letters, [((0, 700), "never (0, 700)".to_owned())]);
    assert_eq!(model.stored.len(), 1023);
    assert!(model.stored.is_sorted(), "in the order of the partition");
    assert_eq!(model.progress, [(0, 1024)].into());
    // Ten levels, two writes each, the first one, and the one past the letter.
    assert_eq!(model.writes, 22);
}

#[test]
fn an_unreadable_record_is_buried_before_anything_is_written() {
    let mut work = Work::new(&PositionSink, of_kinds(&[READABLE, UNREADABLE, READABLE]));
    let Command::Bury { delivery, reason } = work.command() else {
        panic!("a write comes first");
    };
    assert_eq!((delivery.offset, reason.as_str()), (1, "unreadable"));
    let Command::Write { batch, reached } = work.command() else {
        panic!("no write");
    };
    assert_eq!(
        (batch.as_slice(), reached),
        (&[(0, 0), (0, 2)][..], vec![(0, 3)])
    );
    work.on_answer(Answer::Stored);
    assert!(matches!(work.command(), Command::Done));
}

#[test]
fn a_record_of_a_newer_version_is_stored_and_copied_once_although_its_batch_is_halved() {
    let mut model = Model {
        never: [(0, 0)].into(),
        ..Model::default()
    };
    model.run(&of_kinds(&[READABLE, READABLE, NEWER, READABLE]));
    assert_eq!(model.letters_of((0, 2)), 1);
    assert_eq!(model.stored, [(0, 1), (0, 2), (0, 3)]);
}

#[test]
fn a_store_that_contradicts_without_end_costs_one_record() {
    let mut model = Model {
        contradicts: [((0, 1), u32::MAX)].into(),
        ..Model::default()
    };
    model.run(&of_kinds(&[READABLE; 3]));
    assert_eq!(model.letters_of((0, 1)), 1);
    assert_eq!(model.stored, [(0, 0), (0, 2)]);
    // Three parts with this record, and three writes that are stored.
    assert_eq!(model.writes, 3 * ANSWERS_MAX as usize + 3);
}

#[test]
fn a_contradiction_that_ends_costs_nothing() {
    let mut model = Model {
        contradicts: [((0, 1), ANSWERS_MAX - 1)].into(),
        ..Model::default()
    };
    model.run(&of_kinds(&[READABLE; 3]));
    assert_eq!((model.letters.len(), model.stored.len()), (0, 3));
}

#[test]
fn a_fence_by_foreign_partitions_is_a_refusal_and_ends() {
    let mut work = Work::new(&PositionSink, of_kinds(&[READABLE]));
    let mut writes = 0;
    let passed = loop {
        match work.command() {
            Command::Write { .. } => {
                writes += 1;
                work.on_answer(Answer::Fenced(vec![9]));
            }
            Command::PassOver(reason) => break reason,
            Command::Bury { reason, .. } => assert!(reason.contains("does not have: 9")),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(writes, 2);
    assert!(passed.contains("does not have: 9"));
    assert!(matches!(work.command(), Command::Done));
}

#[test]
fn pauses_grow_while_the_store_is_away_and_end_with_its_answer() {
    let mut work = Work::new(&PositionSink, of_kinds(&[READABLE; 2]));
    let mut pauses = Vec::new();
    for _ in 0..12 {
        assert!(matches!(work.command(), Command::Write { .. }));
        work.on_answer(Answer::Transient("away".into()));
        let Command::Pause(delay, reason) = work.command() else {
            panic!("no pause");
        };
        assert_eq!(reason, "away");
        pauses.push(delay);
    }
    assert!(pauses[0] <= Duration::from_millis(100));
    assert!(pauses[11] >= Duration::from_millis(2500), "{pauses:?}");
    assert!(pauses.iter().all(|it| *it <= Duration::from_secs(5)));
    assert!(matches!(work.command(), Command::Write { .. }));
    work.on_answer(Answer::Stored);
    assert!(matches!(work.command(), Command::Done));
}

#[test]
fn after_the_end_of_the_service_nothing_is_commanded() {
    let mut work = Work::new(&PositionSink, of_kinds(&[READABLE; 2]));
    assert!(matches!(work.command(), Command::Write { .. }));
    work.on_answer(Answer::Ended);
    assert!(matches!(work.command(), Command::Done));
}

fn records() -> impl Strategy<Value = Vec<Delivery>> {
    let kind = prop_oneof![8 => Just(READABLE), 1 => Just(NEWER), 1 => Just(UNREADABLE)];
    prop::collection::vec((0..3_u32, kind), 1..40).prop_map(|drawn| {
        let mut next = BTreeMap::<u32, u64>::new();
        let position = |(partition, kind)| {
            let offset = next.entry(partition).or_default();
            *offset += 1;
            delivery(partition, *offset - 1, kind)
        };
        drawn.into_iter().map(position).collect()
    })
}

fn model() -> impl Strategy<Value = Model> {
    let position = || (0..3_u32, 0..14_u64);
    (
        prop::collection::btree_set(position(), 0..4),
        prop::collection::btree_map(position(), 0..2 * ANSWERS_MAX, 0..3),
        prop::collection::btree_set(0..30_usize, 0..6),
        prop::collection::btree_map(0..20_usize, 0..3_u32, 0..3),
    )
        .prop_map(|(never, contradicts, away, takes)| Model {
            never,
            contradicts,
            away,
            takes,
            ..Model::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_record_is_stored_once_or_buried_once_or_another_members(
        deliveries in records(),
        mut model in model(),
    ) {
        let (never, contradicts) = (model.never.clone(), model.contradicts.clone());
        model.run(&deliveries);
        for it in &deliveries {
            let position = (it.partition, it.offset);
            let stored = model.stored.iter().filter(|row| **row == position).count();
            let letters = model.letters_of(position);
            let kind = it.value[0];
            prop_assert!(stored <= 1, "{position:?} is stored {stored} times");
            if model.lost.contains(&it.partition) {
                // Rows stored before the loss stay. The other member writes the rest.
                continue;
            }
            let is_bad = never.contains(&position) || contradicts.contains_key(&position);
            match kind {
                UNREADABLE => prop_assert_eq!((stored, letters), (0, 1)),
                // The copy, and another letter with the store's reason.
                NEWER if stored == 0 => prop_assert!(is_bad && letters == 2),
                NEWER => prop_assert_eq!(letters, 1),
                _ if stored == 0 => prop_assert!(is_bad && letters == 1),
                _ => prop_assert_eq!(letters, 0),
            }
            prop_assert!(!(never.contains(&position) && stored == 1));
            let passed = model.progress.get(&it.partition).copied();
            prop_assert!(passed.is_some_and(|next| it.offset < next), "it is passed");
        }
        let parts = 2 * deliveries.len();
        let contradicted = contradicts.len() * ANSWERS_MAX as usize * 7;
        let bound = parts + model.letters.len() + model.away.len() + model.lost.len();
        prop_assert!(model.writes <= bound + contradicted, "{} writes", model.writes);
    }
}
