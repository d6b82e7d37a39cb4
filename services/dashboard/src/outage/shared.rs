//! One post for the installation, although each replica of the dashboard sees an outage. Sans-IO.
//!
//! A document in the store lists the replicas that see the outage. The first of them posts. The
//! last one that recovers posts the end. An entry expires, so a replica that dies does not prolong
//! the outage, and another replica takes over its post.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// For how long a replica that sees the outage is listed; it renews its entry after half of it.
const LISTED_US: i64 = 600_000_000;
/// For how long a replica that posts has the post for itself. It renews this with each try, and
/// the pause between two tries is at most 60 s.
const POSTING_US: i64 = 90_000_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutageDocument {
    /// Replicas that see the outage, and until when each is listed.
    replicas: BTreeMap<String, i64>,
    is_posted: bool,
    /// The replica that posts, and until when no other does.
    posting: Option<(String, i64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This replica posts.
    Post,
    /// Another replica may post; ask again.
    Wait,
    /// The installation has posted.
    Done,
}

impl OutageDocument {
    /// The replica sees an outage. `has_posted`: it has posted.
    pub(crate) fn enter(&mut self, replica: &str, has_posted: bool, now_us: i64) -> Turn {
        self.replicas.retain(|_, until_us| *until_us > now_us);
        if self.replicas.is_empty() {
            (self.is_posted, self.posting) = (false, None);
        }
        let until_us = self.replicas.entry(replica.to_owned()).or_insert(now_us);
        if until_us.saturating_sub(now_us) < LISTED_US / 2 {
            *until_us = now_us + LISTED_US;
        }
        self.is_posted |= has_posted;
        if self.is_posted {
            self.posting = None;
            return Turn::Done;
        }
        match &self.posting {
            Some((other, until_us)) if other != replica && *until_us > now_us => Turn::Wait,
            _ => {
                self.posting = Some((replica.to_owned(), now_us + POSTING_US));
                Turn::Post
            }
        }
    }

    /// The replica could not post: another one has its turn.
    pub(crate) fn pass_on(&mut self, replica: &str) -> Turn {
        let is_its = |(posting, _): &mut (String, i64)| posting == replica;
        self.posting.take_if(is_its);
        Turn::Wait
    }

    /// The replica is well again. `Wait`: others are not.
    pub(crate) fn leave(&mut self, replica: &str, now_us: i64) -> Turn {
        self.replicas
            .retain(|other, until_us| other != replica && *until_us > now_us);
        if !self.replicas.is_empty() {
            return Turn::Wait;
        }
        self.posting = None;
        if std::mem::replace(&mut self.is_posted, false) {
            Turn::Post
        } else {
            Turn::Done
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;

    #[test]
    fn the_first_replica_posts_the_outage_and_the_last_posts_the_recovery() {
        let mut shared = OutageDocument::default();
        assert_eq!(shared.enter("a", false, 0), Turn::Post);
        assert_eq!(shared.enter("b", false, S), Turn::Wait);
        assert_eq!(shared.enter("a", true, 2 * S), Turn::Done);
        assert_eq!(shared.enter("b", false, 3 * S), Turn::Done);
        assert_eq!(shared.leave("a", 10 * S), Turn::Wait);
        assert_eq!(shared.leave("b", 11 * S), Turn::Post);
        assert_eq!(shared.leave("a", 12 * S), Turn::Done);
        let next = shared.enter("b", false, 20 * S);
        assert_eq!(next, Turn::Post, "the next outage");
    }

    #[test]
    fn a_replica_that_cannot_post_passes_the_post_on_and_nothing_counts_as_posted() {
        let mut shared = OutageDocument::default();
        assert_eq!(shared.enter("cut", false, 0), Turn::Post);
        assert_eq!(shared.enter("b", false, S), Turn::Wait);
        shared.pass_on("b");
        assert_eq!(shared.enter("b", false, 2 * S), Turn::Wait);
        shared.pass_on("cut");
        assert_eq!(shared.enter("b", false, 3 * S), Turn::Post);
        assert_eq!(shared.enter("cut", false, 4 * S), Turn::Wait);
        shared.enter("b", true, 5 * S);
        assert_eq!(shared.enter("cut", false, 6 * S), Turn::Done);
    }

    #[test]
    fn a_replica_that_dies_is_replaced() {
        let mut shared = OutageDocument::default();
        assert_eq!(shared.enter("dead", false, 0), Turn::Post);
        assert_eq!(shared.enter("b", false, POSTING_US - S), Turn::Wait);
        assert_eq!(shared.enter("b", false, POSTING_US), Turn::Post);
        shared.enter("b", true, POSTING_US + S);
        assert_eq!(shared.leave("b", 200 * S), Turn::Wait);
        assert_eq!(shared.leave("b", LISTED_US), Turn::Post);
        // All replicas died in an outage: the next outage is posted.
        shared.enter("b", true, LISTED_US);
        assert_eq!(shared.enter("c", false, 3 * LISTED_US), Turn::Post);
    }
}
