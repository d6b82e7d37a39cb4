//! Decides about the records of one batch. Sans-IO: answers of the store in, commands out.
//!
//! Each record ends stored, buried or lost to another member. The parts of a batch are taken in
//! their order, so progress never passes a record that is neither stored nor buried.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bus::Delivery;
use service_kit::Backoff;

use crate::{Answer, Decoded, Sink};

/// Writes of one part that the store may contradict. Past it the part is halved, and a single
/// record is buried.
pub const ANSWERS_MAX: u32 = 8;

/// The next step of the caller.
#[derive(Debug)]
pub enum Command<B> {
    /// Keep the record among the dead letters before the next command.
    Bury {
        delivery: Delivery,
        reason: String,
    },
    /// Write the rows, with progress to the next offset of each partition. Then call
    /// [`Work::on_answer`].
    Write {
        batch: Arc<B>,
        reached: Vec<(u32, u64)>,
    },
    /// The store is away for this reason: wait so long.
    Pause(Duration, String),
    /// The claims of these partitions are lost.
    Lost(Vec<u32>),
    /// Progress past buried records is refused. The next batch carries it.
    PassOver(String),
    Done,
}

#[derive(Debug)]
struct Item {
    delivery: Delivery,
    /// It has no rows.
    is_buried: bool,
    /// The dead letters have a copy, and its rows are written.
    is_copied: bool,
}

#[derive(Debug)]
struct Part<B> {
    items: Vec<Item>,
    /// `None` until it is decoded.
    batch: Option<Arc<B>>,
}

/// The work that one batch of the bus makes. Its writes are bounded: two for each record, besides
/// pauses, fences (one for each partition) and contradictions ([`ANSWERS_MAX`] for each part).
pub struct Work<'a, S: Sink> {
    sink: &'a S,
    /// Given out before anything is written. Bounded by the records of the batch.
    due: VecDeque<Command<S::Batch>>,
    /// The last one comes first.
    parts: Vec<Part<S::Batch>>,
    backoff: Backoff,
    contradicted: u32,
}

impl<'a, S: Sink> Work<'a, S> {
    pub fn new(sink: &'a S, deliveries: Vec<Delivery>) -> Work<'a, S> {
        let items = deliveries.into_iter().map(|delivery| Item {
            delivery,
            is_buried: false,
            is_copied: false,
        });
        let mut work = Work {
            sink,
            due: VecDeque::new(),
            parts: Vec::new(),
            backoff: Backoff::for_reconnect(),
            contradicted: 0,
        };
        work.push(items.collect());
        work
    }

    pub fn command(&mut self) -> Command<S::Batch> {
        loop {
            if let Some(command) = self.due.pop_front() {
                return command;
            }
            let Some(part) = self.parts.last_mut() else {
                return Command::Done;
            };
            if let Some(batch) = &part.batch {
                let batch = Arc::clone(batch);
                let reached = reached(&part.items);
                return Command::Write { batch, reached };
            }
            decode(self.sink, part, &mut self.due);
        }
    }

    /// The answer to the last [`Command::Write`].
    pub fn on_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Stored | Answer::Taken => {
                self.parts.pop();
                self.begin_part();
            }
            Answer::Transient(reason) => {
                let delay = self.backoff.next_delay();
                self.due.push_back(Command::Pause(delay, reason));
            }
            Answer::Contradicts(reason) => {
                self.contradicted += 1;
                if self.contradicted >= ANSWERS_MAX {
                    self.refuse(format!(
                        "the store has contradicted {ANSWERS_MAX} tries: {reason}"
                    ));
                }
            }
            // Without one of these partitions the same write would be fenced again.
            Answer::Fenced(lost) if !self.has_any(&lost) => {
                let lost = bus::listed(&lost);
                self.refuse(format!("fenced by partitions it does not have: {lost}"));
            }
            Answer::Fenced(lost) => {
                self.lose(&lost);
                self.due.push_back(Command::Lost(lost));
            }
            Answer::Refused(reason) => self.refuse(reason),
            Answer::Ended => {
                self.parts.clear();
                self.due.clear();
            }
        }
    }

    /// Records of these partitions are another member's to write.
    pub fn lose(&mut self, lost: &[u32]) {
        for part in &mut self.parts {
            let before = part.items.len();
            part.items
                .retain(|item| !lost.contains(&item.delivery.partition));
            if part.items.len() < before {
                part.batch = None;
            }
        }
        self.parts.retain(|part| !part.items.is_empty());
        self.begin_part();
    }

    fn has_any(&self, partitions: &[u32]) -> bool {
        let items = self.parts.last().into_iter().flat_map(|part| &part.items);
        let mut own = items.map(|item| item.delivery.partition);
        own.any(|partition| partitions.contains(&partition))
    }

    /// Halves the part, so that one record takes no other with it, and buries a single one.
    fn refuse(&mut self, reason: String) {
        self.begin_part();
        let Some(Part { mut items, .. }) = self.parts.pop() else {
            return;
        };
        if items.iter().all(|item| item.is_buried) {
            self.due.push_back(Command::PassOver(reason));
            return;
        }
        if let [single] = items.as_mut_slice() {
            single.is_buried = true;
            let delivery = single.delivery.clone();
            self.due.push_back(Command::Bury { delivery, reason });
            self.push(items);
            return;
        }
        let later = items.split_off(items.len() / 2);
        self.push(later);
        self.push(items);
    }

    fn push(&mut self, items: Vec<Item>) {
        if !items.is_empty() {
            self.parts.push(Part { items, batch: None });
        }
    }

    fn begin_part(&mut self) {
        self.backoff.reset();
        self.contradicted = 0;
    }
}

fn decode<S: Sink>(sink: &S, part: &mut Part<S::Batch>, due: &mut VecDeque<Command<S::Batch>>) {
    let mut batch = S::Batch::default();
    for item in part.items.iter_mut().filter(|item| !item.is_buried) {
        let reason = match sink.decode(&item.delivery, &mut batch) {
            Decoded::Whole => continue,
            Decoded::InPart(_) if item.is_copied => continue,
            Decoded::InPart(reason) => {
                item.is_copied = true;
                reason
            }
            Decoded::Refused(reason) => {
                item.is_buried = true;
                reason
            }
        };
        let delivery = item.delivery.clone();
        due.push_back(Command::Bury { delivery, reason });
    }
    part.batch = Some(Arc::new(batch));
}

/// The next offset of each partition.
fn reached(items: &[Item]) -> Vec<(u32, u64)> {
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    for Item { delivery, .. } in items {
        let offset = next.entry(delivery.partition).or_default();
        *offset = (*offset).max(delivery.offset + 1);
    }
    next.into_iter().collect()
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
