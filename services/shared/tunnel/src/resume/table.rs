//! The server's resumable tunnels by token: their owners, and the detached ones. Sans-IO.
//!
//! A tunnel belongs to the identity that opened it; for any other peer its token is unknown.
//! Detached tunnels are bounded for each peer and in total: at the bound the tunnel that was
//! detached first is reset.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use super::{header::Token, ledger::Ledger};

/// Bounds of a server's resumable tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeLimits {
    /// Time for which a detached tunnel is kept; then it is reset. Zero: tunnels are plain.
    pub detached_max: std::time::Duration,
    /// Resumable tunnels of one peer; further tunnels are plain.
    pub tunnels_per_peer_max: usize,
    /// Detached tunnels of one peer; at the bound the oldest is reset.
    pub detached_per_peer_max: usize,
    /// Detached tunnels in total; at the bound the oldest is reset.
    pub detached_all_max: usize,
    /// Bytes that the tunnels of one peer hold beyond 64 KB each; at the bound they read nothing
    /// more.
    pub bytes_per_peer_max: usize,
    /// The same for all tunnels.
    pub bytes_all_max: usize,
}

impl Default for ResumeLimits {
    fn default() -> Self {
        Self {
            detached_max: std::time::Duration::from_secs(120),
            tunnels_per_peer_max: 256,
            detached_per_peer_max: 128,
            detached_all_max: 4096,
            bytes_per_peer_max: 64 << 20,
            bytes_all_max: 1 << 30,
        }
    }
}

/// Why a token is not entered in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotKept {
    #[error("the token is in use")]
    InUse,
    #[error("the peer has its largest number of resumable tunnels")]
    Full,
    #[error("the server does not resume tunnels")]
    Off,
}

#[derive(Debug)]
struct Peer {
    tunnels: usize,
    /// In the order of their detachment.
    detached: BTreeMap<u64, Token>,
    ledger: Ledger,
}

#[derive(Debug)]
struct Entry<P, L> {
    peer: P,
    line: L,
    detached: Option<u64>,
}

/// `P` identifies a peer, `L` is the tunnel.
#[derive(Debug)]
pub(crate) struct Table<P, L> {
    limits: ResumeLimits,
    entries: HashMap<Token, Entry<P, L>>,
    peers: HashMap<P, Peer>,
    detached: BTreeMap<u64, Token>,
    detachments: u64,
    ledger: Ledger,
    draining: bool,
}

impl<P: Clone + Eq + Hash, L: Clone> Table<P, L> {
    pub(crate) fn new(limits: ResumeLimits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            peers: HashMap::new(),
            detached: BTreeMap::new(),
            detachments: 0,
            ledger: Ledger::new(limits.bytes_all_max),
            draining: false,
        }
    }

    /// Enters a new tunnel; `line` makes it from the account that it draws on.
    pub(crate) fn enter(
        &mut self,
        token: Token,
        peer: P,
        line: impl FnOnce(Ledger) -> L,
    ) -> Result<L, NotKept> {
        if self.limits.detached_max.is_zero() || self.draining {
            return Err(NotKept::Off);
        }
        if self.entries.contains_key(&token) {
            return Err(NotKept::InUse);
        }
        let limits = self.limits;
        let known = self.peers.get(&peer).map_or(0, |peer| peer.tunnels);
        if known >= limits.tunnels_per_peer_max {
            return Err(NotKept::Full);
        }
        let of_peer = self.peers.entry(peer.clone()).or_insert_with(|| Peer {
            tunnels: 0,
            detached: BTreeMap::new(),
            ledger: self.ledger.below(limits.bytes_per_peer_max),
        });
        of_peer.tunnels += 1;
        let line = line(of_peer.ledger.clone());
        self.entries.insert(
            token,
            Entry {
                peer,
                line: line.clone(),
                detached: None,
            },
        );
        Ok(line)
    }

    pub(crate) fn leave(&mut self, token: Token) {
        self.carried(token);
        let Some(entry) = self.entries.remove(&token) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.tunnels -= 1;
            if peer.tunnels == 0 {
                self.peers.remove(&entry.peer);
            }
        }
    }

    /// The tunnel of that token, if it belongs to this peer.
    pub(crate) fn find(&self, token: Token, peer: &P) -> Option<L> {
        let entry = self.entries.get(&token)?;
        (entry.peer == *peer).then(|| entry.line.clone())
    }

    /// The tunnel has no carrying stream any more. Returns the tunnels that must be reset, possibly
    /// including this one.
    pub(crate) fn detached(&mut self, token: Token) -> Vec<L> {
        let Some(entry) = self.entries.get_mut(&token) else {
            return Vec::new();
        };
        if entry.detached.is_some() {
            return Vec::new();
        }
        if self.draining {
            return vec![entry.line.clone()];
        }
        self.detachments += 1;
        let number = self.detachments;
        entry.detached = Some(number);
        self.detached.insert(number, token);
        let mut leaving = Vec::new();
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.detached.insert(number, token);
            if peer.detached.len() > self.limits.detached_per_peer_max {
                leaving.extend(peer.detached.values().next().copied());
            }
        }
        if self.detached.len() > self.limits.detached_all_max {
            leaving.extend(self.detached.values().next().copied());
        }
        leaving.dedup();
        for token in &leaving {
            self.carried(*token);
        }
        let lines = leaving.iter().filter_map(|token| self.entries.get(token));
        lines.map(|entry| entry.line.clone()).collect()
    }

    /// The tunnel has a carrying stream again, or has ended.
    pub(crate) fn carried(&mut self, token: Token) {
        let Some(entry) = self.entries.get_mut(&token) else {
            return;
        };
        if let Some(number) = entry.detached.take() {
            self.detached.remove(&number);
            if let Some(peer) = self.peers.get_mut(&entry.peer) {
                peer.detached.remove(&number);
            }
        }
    }

    /// No session will come any more, so no detached tunnel can be resumed: returns those, and
    /// accepts no new ones.
    pub(crate) fn drain(&mut self) -> Vec<L> {
        self.draining = true;
        let tokens: Vec<Token> = self.detached.values().copied().collect();
        for token in &tokens {
            self.carried(*token);
        }
        let lines = tokens.iter().filter_map(|token| self.entries.get(token));
        lines.map(|entry| entry.line.clone()).collect()
    }

    pub(crate) fn detached_count(&self) -> usize {
        self.detached.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn table() -> Table<&'static str, u32> {
        Table::new(ResumeLimits {
            tunnels_per_peer_max: 3,
            detached_per_peer_max: 2,
            detached_all_max: 3,
            ..ResumeLimits::default()
        })
    }

    fn enter(table: &mut Table<&'static str, u32>, peer: &'static str, line: u32) -> Token {
        let token = Token::random();
        table.enter(token, peer, |_| line).unwrap();
        token
    }

    #[test]
    fn only_its_owner_can_use_a_token() {
        let mut table = table();
        let token = enter(&mut table, "a", 1);
        assert_eq!(table.find(token, &"a"), Some(1));
        assert_eq!(table.find(token, &"b"), None);
        assert_eq!(table.find(Token::random(), &"a"), None);
        assert_eq!(table.enter(token, "b", |_| 2), Err(NotKept::InUse));
        table.leave(token);
        assert_eq!(table.find(token, &"a"), None);
        assert_eq!(table.enter(token, "b", |_| 2), Ok(2));
    }

    #[test]
    fn the_tunnel_detached_first_is_reset() {
        let mut table = table();
        let a: Vec<_> = (0..3).map(|n| enter(&mut table, "a", n)).collect();
        assert_eq!(table.enter(Token::random(), "a", |_| 9), Err(NotKept::Full));
        let b: Vec<_> = (10..12).map(|n| enter(&mut table, "b", n)).collect();
        assert!(table.detached(a[0]).is_empty());
        assert!(table.detached(a[0]).is_empty());
        assert!(table.detached(a[1]).is_empty());
        // The bound of this peer.
        assert_eq!(table.detached(a[2]), [0]);
        assert_eq!(table.detached_count(), 2);
        assert!(table.detached(b[0]).is_empty());
        // The bound in total.
        assert_eq!(table.detached(b[1]), [1]);
        table.carried(a[2]);
        assert!(table.detached(a[1]).is_empty());
        assert_eq!(table.detached_count(), 3);
        for token in a.into_iter().chain(b) {
            table.leave(token);
        }
        assert_eq!(table.detached_count(), 0);
        assert!(table.peers.is_empty());
    }

    #[test]
    fn a_draining_server_keeps_no_detached_tunnel() {
        let mut table = table();
        let (one, other) = (enter(&mut table, "a", 1), enter(&mut table, "a", 2));
        table.detached(one);
        assert_eq!(table.drain(), [1]);
        assert_eq!(table.detached(other), [2]);
        assert_eq!(table.enter(Token::random(), "a", |_| 3), Err(NotKept::Off));
        assert_eq!(table.detached_count(), 0);
    }
}
