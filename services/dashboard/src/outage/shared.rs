//! Each person is told once of an outage, although each replica of the dashboard sees it. Sans-IO.
//!
//! A document in the store lists the replicas that see the outage, and who has been told. One
//! replica at a time notifies the others. The last one that recovers notifies the same people of
//! the end. An entry expires, so a replica that dies does not prolong the outage, and another
//! replica takes over its turn.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// For how long a replica that sees the outage is listed; it renews its entry after half of it.
const LISTED_US: i64 = 600_000_000;
/// For how long a replica has the turn for itself. It renews this with each person and
/// with each round, and the pause between two rounds is at most 60 s.
const TURN_US: i64 = 90_000_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OutageDocument {
    /// Replicas that see the outage, and until when each is listed.
    replicas: BTreeMap<String, i64>,
    /// Names the outage, so that two letters about it to one person are the same letter.
    pub outage: String,
    /// Keys of those who were told.
    pub told: BTreeSet<String>,
    /// The replica whose turn it is, and until when it is no other's.
    telling: Option<(String, i64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This replica notifies those who were not told.
    Tell,
    /// It is another replica's turn; ask again.
    Wait,
    /// All were told.
    Done,
}

impl OutageDocument {
    /// The replica sees an outage, has told some, and wants all of `wanted` told.
    pub(crate) fn enter(
        &mut self,
        replica: &str,
        told: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
        now_us: i64,
    ) -> Turn {
        self.replicas.retain(|_, until_us| *until_us > now_us);
        if self.replicas.is_empty() {
            *self = OutageDocument {
                outage: format!("{replica}-{now_us}"),
                ..OutageDocument::default()
            };
        }
        let until_us = self.replicas.entry(replica.to_owned()).or_insert(now_us);
        if until_us.saturating_sub(now_us) < LISTED_US / 2 {
            *until_us = now_us + LISTED_US;
        }
        self.told.extend(told.iter().cloned());
        if wanted.is_subset(&self.told) {
            self.pass_on(replica);
            return Turn::Done;
        }
        match &self.telling {
            Some((other, until_us)) if other != replica && *until_us > now_us => Turn::Wait,
            _ => {
                self.telling = Some((replica.to_owned(), now_us + TURN_US));
                Turn::Tell
            }
        }
    }

    /// The replica could not tell all: another one has its turn.
    pub(crate) fn pass_on(&mut self, replica: &str) {
        let is_its = |(telling, _): &mut (String, i64)| telling == replica;
        self.telling.take_if(is_its);
    }

    /// The replica is well again. Returns the people for its letters about the end. `None`: others
    /// are not well.
    pub(crate) fn leave(&mut self, replica: &str, now_us: i64) -> Option<BTreeSet<String>> {
        self.replicas
            .retain(|other, until_us| other != replica && *until_us > now_us);
        if !self.replicas.is_empty() {
            return None;
        }
        self.telling = None;
        Some(std::mem::take(&mut self.told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;

    fn keys<const N: usize>(keys: [&str; N]) -> BTreeSet<String> {
        keys.map(str::to_owned).into()
    }

    #[test]
    fn one_replica_tells_each_person_and_the_last_tells_the_end() {
        let mut shared = OutageDocument::default();
        let (none, ada, all) = (keys([]), keys(["ada"]), keys(["ada", "ben"]));
        assert_eq!(shared.enter("a", &none, &all, 0), Turn::Tell);
        assert_eq!(shared.enter("b", &none, &all, S), Turn::Wait);
        assert_eq!(shared.enter("a", &ada, &all, 2 * S), Turn::Tell);
        assert_eq!(shared.told, ada, "ben is left");
        let outage = shared.outage.clone();
        assert_eq!(shared.enter("a", &all, &all, 3 * S), Turn::Done);
        assert_eq!(shared.enter("b", &none, &all, 4 * S), Turn::Done);
        // Somebody goes on call in the outage.
        let with_eve = keys(["ada", "ben", "eve"]);
        assert_eq!(shared.enter("b", &none, &with_eve, 5 * S), Turn::Tell);
        assert_eq!(shared.enter("b", &with_eve, &with_eve, 6 * S), Turn::Done);
        assert_eq!(shared.leave("a", 10 * S), None);
        assert_eq!(shared.outage, outage);
        assert_eq!(shared.leave("b", 11 * S), Some(with_eve));
        assert_eq!(shared.leave("a", 12 * S), Some(keys([])));
        let next = shared.enter("b", &none, &all, 20 * S);
        assert_eq!(next, Turn::Tell, "the next outage");
        assert_ne!(shared.outage, outage);
    }

    #[test]
    fn a_replica_that_cannot_tell_passes_its_turn_on() {
        let mut shared = OutageDocument::default();
        let (none, all) = (keys([]), keys(["ada"]));
        assert_eq!(shared.enter("cut", &none, &all, 0), Turn::Tell);
        assert_eq!(shared.enter("b", &none, &all, S), Turn::Wait);
        shared.pass_on("b");
        assert_eq!(shared.enter("b", &none, &all, 2 * S), Turn::Wait);
        shared.pass_on("cut");
        assert_eq!(shared.enter("b", &none, &all, 3 * S), Turn::Tell);
        assert_eq!(shared.enter("cut", &none, &all, 4 * S), Turn::Wait);
        shared.enter("b", &all, &all, 5 * S);
        assert_eq!(shared.enter("cut", &none, &all, 6 * S), Turn::Done);
    }

    #[test]
    fn a_replica_that_dies_is_replaced() {
        let mut shared = OutageDocument::default();
        let (none, all) = (keys([]), keys(["ada"]));
        assert_eq!(shared.enter("dead", &none, &all, 0), Turn::Tell);
        assert_eq!(shared.enter("b", &none, &all, TURN_US - S), Turn::Wait);
        assert_eq!(shared.enter("b", &none, &all, TURN_US), Turn::Tell);
        shared.enter("b", &all, &all, TURN_US + S);
        assert_eq!(shared.leave("b", 200 * S), None);
        assert_eq!(shared.leave("b", LISTED_US), Some(all.clone()));
        // All replicas died in an outage: people are told of the next one.
        shared.enter("b", &all, &all, LISTED_US);
        assert_eq!(shared.enter("c", &none, &all, 3 * LISTED_US), Turn::Tell);
    }

    #[test]
    fn the_document_of_the_version_before_is_read() {
        let body = r#"{"replicas":{"a":9},"is_posted":true,"posting":["a",5]}"#;
        let mut shared: OutageDocument = serde_json::from_str(body).unwrap_or_default();
        assert_eq!(
            shared.leave("b", 1),
            None,
            "replica a still sees the outage"
        );
    }
}
