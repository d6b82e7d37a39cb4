//! Long calls by peer. A peer has a bounded number of calls, and one more call ends its oldest. The
//! oldest call most likely belongs to a lost connection. Without the bound one peer could use up
//! the memory, and the connections of the front, for all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::tls::PeerId;

/// Calls of one peer; at the bound its oldest call ends. A gateway needs six, and each lost session
/// leaves as many behind.
const CALLS_MAX: usize = 32;

#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    newest: u64,
    /// By call number. Numbers rise, so the first call is the oldest.
    of: HashMap<PeerId, BTreeMap<u64, CancellationToken>>,
}

/// The reason for which a long call ends before its peer ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// The peer's certificate was revoked.
    Revoked,
    /// The peer has more calls than it may have, and this one is the oldest.
    GivesWay,
}

impl From<CallEnd> for tonic::Status {
    fn from(end: CallEnd) -> tonic::Status {
        match end {
            CallEnd::Revoked => tonic::Status::permission_denied("the certificate is revoked"),
            CallEnd::GivesWay => tonic::Status::resource_exhausted(
                "this gateway has newer calls, as many as it may have",
            ),
        }
    }
}

/// One call, until it is dropped.
#[derive(Debug)]
pub struct Call {
    calls: Calls,
    peer: PeerId,
    number: u64,
    ends: CancellationToken,
}

impl Calls {
    pub fn enter(&self, peer: PeerId) -> Call {
        let ends = CancellationToken::new();
        let mut table = self.0.lock();
        table.newest += 1;
        let number = table.newest;
        let own = table.of.entry(peer.clone()).or_default();
        if own.len() >= CALLS_MAX
            && let Some((_, oldest)) = own.pop_first()
        {
            oldest.cancel();
            metrics::counter!("braid_calls_given_way_total").increment(1);
        }
        own.insert(number, ends.clone());
        drop(table);
        Call {
            calls: self.clone(),
            peer,
            number,
            ends,
        }
    }
}

impl Call {
    /// Ends when the call has to end.
    pub async fn gives_way(&self) {
        self.ends.cancelled().await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut table = self.calls.0.lock();
        if let Some(own) = table.of.get_mut(&self.peer) {
            own.remove(&self.number);
            if own.is_empty() {
                table.of.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_beyond_the_bound_ends_the_oldest_of_the_same_peer() {
        let calls = Calls::default();
        let greedy = PeerId::gateway("t", "gw");
        let other = calls.enter(PeerId::gateway("u", "gw"));
        let mut own: Vec<Call> = (0..CALLS_MAX)
            .map(|_| calls.enter(greedy.clone()))
            .collect();
        let has_ended = |call: &Call| call.ends.is_cancelled();
        assert!(!own.iter().any(has_ended));
        // A call that ended by itself frees its place.
        own.remove(1);
        own.push(calls.enter(greedy.clone()));
        assert!(!own.iter().any(has_ended));
        own.push(calls.enter(greedy));
        assert_eq!(own.iter().position(has_ended), Some(0));
        assert_eq!(own.iter().filter(|call| has_ended(call)).count(), 1);
        assert!(!has_ended(&other));
        drop((own, other));
        assert!(calls.0.lock().of.is_empty());
    }
}
