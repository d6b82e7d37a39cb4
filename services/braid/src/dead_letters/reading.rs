//! Reads all dead letters.

use std::collections::BTreeMap;

use bus::{Bus, Consumer, Event, Topic};

use super::letter::{self, Letter, LetterId};
use crate::process::Failure;

/// Records taken from the bus at once; further records wait there.
const BATCH_RECORDS_MAX: usize = 500;

/// Letters that one command reads, the newest; older ones are counted and left. Many dead letters
/// mean a fault.
const LETTERS_MAX: usize = 10_000;

/// All letters up to the topic's present end, and which of them were replayed.
pub(super) async fn read(bus: &dyn Bus) -> Result<BTreeMap<LetterId, Letter>, Failure> {
    let mut reader = bus
        .read_back(Topic::DeadLetters)
        .await
        .map_err(Failure::other)?;
    let mut letters = BTreeMap::new();
    let mut replayed = Vec::new();
    let mut older = 0;
    while left(&mut reader).await? > 0 {
        let event = reader.next(BATCH_RECORDS_MAX).await;
        let Event::Batch(batch) = event.map_err(Failure::other)? else {
            continue;
        };
        for delivery in batch {
            match letter::read(delivery) {
                letter::Read::Letter(letter) => {
                    letters.insert(letter.id, letter);
                }
                letter::Read::Note(id) => replayed.push(id),
            }
        }
        while letters.len() > LETTERS_MAX {
            letters.pop_first();
            older += 1;
        }
    }
    for id in replayed {
        if let Some(letter) = letters.get_mut(&id) {
            letter.replayed = true;
        }
    }
    if older > 0 {
        eprintln!("{older} older letters are left out");
    }
    Ok(letters)
}

async fn left(reader: &mut Box<dyn Consumer>) -> Result<u64, Failure> {
    reader.lag().await.map_err(Failure::other)
}

pub(super) fn unknown(id: LetterId) -> Failure {
    Failure::other(format!(
        "no dead letter {id}; `braid dead-letters list --all` shows them"
    ))
}
