//! Queries that wait for an answer of the resolver. Sans-IO.
//!
//! All clients share one connection to the resolver, on which each query has an id of the gateway.
//! An answer that repeats another question than was asked is dropped. Queries of a lost connection
//! are asked again on the next one, at most `ASKED_MAX` times.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::message;

/// Queries under way; further ones are answered with a failure.
pub(super) const QUERIES_MAX: usize = 256;

/// Longest wait for an answer; then the client gets a failure. Clients themselves wait for 5 s.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_millis(4_500);

/// Silence of a connection on which a query waits; then another connection is tried. A resolver
/// that answers in order may be held up by one name.
pub(super) const SILENCE_MAX: Duration = Duration::from_millis(1_500);

/// How often a query is asked.
const ASKED_MAX: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAsked {
    #[error("no query, or more than one in a message")]
    Malformed,
    #[error("{QUERIES_MAX} queries are under way")]
    Full,
}

#[derive(Debug)]
struct Waiting<C> {
    client: C,
    /// Under the client's id.
    query: Vec<u8>,
    /// Bytes that the client takes; `None` by TCP.
    room: Option<usize>,
    deadline: Instant,
    asked: u8,
}

/// An answer for a client, in the form of its protocol.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer<C> {
    pub(super) client: C,
    pub(super) message: Vec<u8>,
    pub(super) result: &'static str,
}

#[derive(Debug)]
pub(super) struct Queries<C> {
    waiting: BTreeMap<u16, Waiting<C>>,
    next_id: u16,
    /// Time at which the connection last gave an answer, or was asked first.
    heard: Instant,
}

impl<C> Queries<C> {
    /// Ids begin with `first_id`.
    pub(super) fn new(first_id: u16, now: Instant) -> Self {
        Self {
            waiting: BTreeMap::new(),
            next_id: first_id,
            heard: now,
        }
    }

    /// Takes a query, and returns the message for the resolver.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        client: C,
        query: Vec<u8>,
        by_datagram: bool,
    ) -> Result<Vec<u8>, (NotAsked, C)> {
        if !message::is_query(&query) || message::question(&query).is_none() {
            return Err((NotAsked::Malformed, client));
        }
        if self.waiting.len() >= QUERIES_MAX {
            return Err((NotAsked::Full, client));
        }
        if self.waiting.is_empty() {
            self.heard = now;
        }
        // One is free: there are more ids than places.
        while self.waiting.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let asked = under(id, &query);
        let waiting = Waiting {
            client,
            room: by_datagram.then(|| message::room(&query)),
            query,
            deadline: now + ANSWERED_WITHIN,
            asked: 1,
        };
        self.waiting.insert(id, waiting);
        Ok(asked)
    }

    /// An answer of the resolver; `None` if nobody waits for it.
    pub(super) fn answer(&mut self, now: Instant, mut answer: Vec<u8>) -> Option<Answer<C>> {
        self.heard = now;
        let id = message::id(&answer);
        let waiting = self.waiting.get(&id)?;
        let repeats = same_question(&answer, &waiting.query);
        if !message::is_answer(&answer) || !repeats {
            return None;
        }
        let waiting = self.waiting.remove(&id)?;
        message::set_id(&mut answer, message::id(&waiting.query));
        let (message, result) = match waiting.room {
            Some(room) if answer.len() > room => (message::truncated(&answer), "truncated"),
            _ => (answer, "answered"),
        };
        Some(Answer {
            client: waiting.client,
            message,
            result,
        })
    }

    /// Queries that waited for too long.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Answer<C>> {
        self.fail(|waiting| waiting.deadline <= now, "timeout")
    }

    /// The connection is lost, and cannot be made again.
    pub(super) fn fail_all(&mut self) -> Vec<Answer<C>> {
        self.fail(|_| true, "failed")
    }

    /// The connection is lost: the messages for the next one, and the queries that are given up.
    pub(super) fn ask_again(&mut self, now: Instant) -> (Vec<Vec<u8>>, Vec<Answer<C>>) {
        let given_up = self.fail(|waiting| waiting.asked >= ASKED_MAX, "failed");
        self.heard = now;
        let again = self.waiting.iter_mut().map(|(id, waiting)| {
            waiting.asked += 1;
            under(*id, &waiting.query)
        });
        (again.collect(), given_up)
    }

    fn fail(
        &mut self,
        is_over: impl Fn(&Waiting<C>) -> bool,
        result: &'static str,
    ) -> Vec<Answer<C>> {
        let over = self.waiting.extract_if(.., |_, waiting| is_over(waiting));
        over.map(|(_, waiting)| Answer {
            message: message::failure(&waiting.query),
            client: waiting.client,
            result,
        })
        .collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether queries wait, and the connection was silent for `SILENCE_MAX`.
    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        !self.is_empty() && now.saturating_duration_since(self.heard) >= SILENCE_MAX
    }

    /// Time of the next call of `expire` or `is_stalled`; `None` while nothing waits.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.waiting.values().map(|waiting| waiting.deadline);
        Some(deadlines.min()?.min(self.heard + SILENCE_MAX))
    }
}

fn under(id: u16, query: &[u8]) -> Vec<u8> {
    let mut asked = query.to_vec();
    message::set_id(&mut asked, id);
    asked
}

/// Whether both have the same question. Letters of a name may differ in case, and an answer to a
/// query that the resolver could not read may have no question.
fn same_question(answer: &[u8], query: &[u8]) -> bool {
    match (message::question(answer), message::question(query)) {
        (Some(answered), Some(asked)) => answered.eq_ignore_ascii_case(asked),
        (None, _) => answer.get(4..6) == Some(&[0, 0]),
        (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::message::tests::*, *};

    fn queries() -> (Queries<u32>, Instant) {
        let now = Instant::now();
        (Queries::new(65_535, now), now)
    }

    #[test]
    fn answers_find_their_clients_under_their_own_ids() {
        let (mut queries, now) = queries();
        let asked: Vec<Vec<u8>> = (0..3)
            .map(|client| {
                let name = format!("n{client}.example");
                queries
                    .ask(now, client, query(7, &name, None), true)
                    .unwrap()
            })
            .collect();
        let ids = asked.iter().map(|asked| message::id(asked));
        assert_eq!(ids.collect::<Vec<_>>(), [65_535, 0, 1]);
        for client in [2, 0, 1] {
            let found = queries.answer(now, answer(&asked[client], 1)).unwrap();
            assert_eq!(
                (found.client, message::id(&found.message)),
                (client as u32, 7)
            );
        }
        assert!(queries.is_empty() && queries.next_deadline().is_none());
    }

    #[test]
    fn an_answer_to_another_question_is_dropped_and_none_counts_twice() {
        let (mut queries, now) = queries();
        let asked = queries
            .ask(now, 1, query(7, "a.example", None), true)
            .unwrap();
        let mut other = query(0, "b.example", None);
        message::set_id(&mut other, message::id(&asked));
        assert_eq!(queries.answer(now, answer(&other, 1)), None);
        assert_eq!(queries.answer(now, asked.clone()), None);
        assert!(queries.answer(now, answer(&asked, 1)).is_some());
        assert_eq!(queries.answer(now, answer(&asked, 1)), None);
    }

    #[test]
    fn a_long_answer_is_truncated_for_udp_only() {
        let (mut queries, now) = queries();
        for (by_datagram, result) in [(true, "truncated"), (false, "answered")] {
            let asked = queries.ask(now, 1, query(7, "a.example", None), by_datagram);
            let whole = answer(&asked.unwrap(), 60);
            let found = queries.answer(now, whole.clone()).unwrap();
            assert_eq!(found.result, result);
            assert_eq!(found.message.len() == whole.len(), !by_datagram);
        }
    }

    #[test]
    fn queries_wait_for_a_bounded_time_and_are_bounded_in_number() {
        let (mut queries, now) = queries();
        for client in 0..QUERIES_MAX as u32 {
            queries
                .ask(now, client, query(7, "a.example", None), true)
                .unwrap();
        }
        let beyond = queries.ask(now, 999, query(7, "a.example", None), true);
        assert_eq!(beyond, Err((NotAsked::Full, 999)));
        assert_eq!(queries.expire(now + ANSWERED_WITHIN / 2), []);
        let failed = queries.expire(now + ANSWERED_WITHIN);
        assert_eq!(failed.len(), QUERIES_MAX);
        assert!(failed.iter().all(|failed| failed.message[3] & 0xf == 2));
        assert!(
            queries
                .ask(now, 999, query(7, "a.example", None), true)
                .is_ok()
        );
        let malformed = queries.ask(now, 1, vec![0; 11], true);
        assert_eq!(malformed, Err((NotAsked::Malformed, 1)));
    }

    #[test]
    fn a_lost_connection_loses_no_query_and_a_silent_one_is_noticed() {
        let (mut queries, now) = queries();
        let asked = queries
            .ask(now, 1, query(7, "a.example", None), true)
            .unwrap();
        assert!(!queries.is_stalled(now));
        let later = now + SILENCE_MAX;
        assert!(queries.is_stalled(later));
        assert_eq!(queries.ask_again(later), (vec![asked.clone()], vec![]));
        assert!(!queries.is_stalled(later));
        assert_eq!(queries.ask_again(later).0, [asked]);
        let (again, given_up) = queries.ask_again(later);
        assert_eq!((again.len(), given_up.len()), (0, 1));
    }
}
