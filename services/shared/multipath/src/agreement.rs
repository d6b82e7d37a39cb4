//! How the two ends of a connection change the keepalive without closing a healthy path.
//!
//! Invariant: an end never judges silence by a keepalive that is denser than the pings of the other
//! end. Three messages over an ordered, reliable stream keep it:
//!
//! | message | sent by | before it is sent | once it is received |
//! |---|---|---|---|
//! | propose | client | The client sends at the shorter of the agreed and the proposed interval. | The server sends at the shorter interval and judges by the longer silence of both. |
//! | accept | server | The server has changed as the cell above says. | The client sends and judges by the proposal. |
//! | confirm | client | The client has changed. | The server sends and judges by the proposal. |
//!
//! A message that is lost with its stream leaves both ends in a state that keeps the invariant. One
//! proposal is under way at a time, and a policy that arrives meanwhile replaces the one that
//! waits.
//!
//! A peer of an older release applies a proposal at once and answers nothing. Towards it an end
//! sends at the shortest interval and judges by the longest silence of all proposals of the
//! session. A rarer keepalive then saves nothing, and closes nothing.

use std::time::Duration;

use crate::keepalive::Keepalive;

/// Rest of a connection that carries little: its paths are asked rarely
/// ([`PathUpkeep`](crate::PathUpkeep)).
///
/// An end rests only towards a peer that tolerates it. So each end tolerates rest before it says
/// that it knows of rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rest {
    /// Silence at rest is no verdict: this end asks before it judges.
    pub tolerates: bool,
    /// The peer tolerates rest, so this end may rest.
    pub rests: bool,
    /// The peer has agreed on no pings, so silence on a path is never a verdict, however active the
    /// connection is.
    pub foreign: bool,
    /// Both ends know that paths are also used for copies, which is no sign of a backlog.
    pub copies: bool,
}

impl Rest {
    /// Both ends know of rest.
    pub const AGREED: Self = Self {
        tolerates: true,
        rests: true,
        foreign: false,
        copies: false,
    };
    /// State of a client that has said nothing about rest: it may be of another make.
    pub const FOREIGN: Self = Self {
        tolerates: true,
        rests: false,
        foreign: true,
        copies: false,
    };
}

/// How often this end asks, and how long it waits for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepaliveTerms {
    /// Between this end's pings of a path.
    pub send_interval: Duration,
    /// The keepalive of the peer's pings.
    pub judge_by: Keepalive,
    pub rest: Rest,
}

impl From<Keepalive> for KeepaliveTerms {
    fn from(keepalive: Keepalive) -> Self {
        Self {
            send_interval: keepalive.interval,
            judge_by: keepalive,
            rest: Rest::default(),
        }
    }
}

impl Default for KeepaliveTerms {
    fn default() -> Self {
        Keepalive::default().into()
    }
}

impl KeepaliveTerms {
    /// A server's terms until the client posts its names, which one of another make never does.
    pub fn of_unknown_client() -> Self {
        Self::default().with_rest(Rest::FOREIGN)
    }

    /// Right whether the peer keeps to its old terms or to this keepalive.
    fn tolerating(self, keepalive: Keepalive) -> Self {
        Self {
            send_interval: self.send_interval.min(keepalive.interval),
            judge_by: self.judge_by.or_rarer(keepalive),
            rest: self.rest,
        }
    }

    /// The same with another rest.
    #[must_use]
    pub fn with_rest(self, rest: Rest) -> Self {
        Self { rest, ..self }
    }
}

/// The client's part. It starts from the default keepalive, as the server's does.
#[derive(Debug, Clone)]
pub struct KeepaliveProposer {
    peer_answers: bool,
    wanted: Keepalive,
    /// The keepalive that both ends keep to; towards a peer that does not answer, what was proposed
    /// last.
    agreed: Keepalive,
    proposed: Option<Keepalive>,
    terms: KeepaliveTerms,
}

impl KeepaliveProposer {
    /// `peer_answers`: the server knows the messages accept and confirm.
    pub fn new(peer_answers: bool) -> Self {
        Self {
            peer_answers,
            wanted: Keepalive::default(),
            agreed: Keepalive::default(),
            proposed: None,
            terms: KeepaliveTerms::default(),
        }
    }

    /// A new policy.
    pub fn want(&mut self, keepalive: Keepalive) {
        self.wanted = keepalive.bounded();
    }

    /// The next proposal, if there is one: apply the [`terms`](Self::terms), then send it.
    pub fn propose(&mut self) -> Option<Keepalive> {
        if self.proposed.is_some() || self.wanted == self.agreed {
            return None;
        }
        let proposal = self.wanted;
        if self.peer_answers {
            self.proposed = Some(proposal);
            self.terms.send_interval = self.terms.send_interval.min(proposal.interval);
        } else {
            self.agreed = proposal;
            self.terms = self.terms.tolerating(proposal);
        }
        Some(proposal)
    }

    /// The server accepted. True: apply the terms, then confirm. An answer to nothing that was
    /// proposed changes nothing.
    pub fn on_accept(&mut self, keepalive: Keepalive) -> bool {
        if self.proposed.take_if(|proposed| *proposed == keepalive) != Some(keepalive) {
            return false;
        }
        self.agreed = keepalive;
        self.terms = KeepaliveTerms::from(keepalive).with_rest(self.terms.rest);
        true
    }

    /// The agreement about rest; the keepalive of a path in use is agreed apart from it.
    pub fn set_rest(&mut self, rest: Rest) {
        self.terms.rest = rest;
    }

    pub fn terms(&self) -> KeepaliveTerms {
        self.terms
    }
}

/// The server's part.
#[derive(Debug, Clone, Default)]
pub struct KeepaliveAcceptor {
    proposed: Option<Keepalive>,
    terms: KeepaliveTerms,
}

impl KeepaliveAcceptor {
    /// The client proposed: apply the terms, then accept with what is returned.
    pub fn on_propose(&mut self, keepalive: Keepalive) -> Keepalive {
        let keepalive = keepalive.bounded();
        self.proposed = Some(keepalive);
        self.terms = self.terms.tolerating(keepalive);
        keepalive
    }

    /// The client confirmed: apply the terms. A confirmation of anything but the last proposal
    /// changes nothing.
    pub fn on_confirm(&mut self, keepalive: Keepalive) {
        if self.proposed.take_if(|proposed| *proposed == keepalive) == Some(keepalive) {
            self.terms = KeepaliveTerms::from(keepalive).with_rest(self.terms.rest);
        }
    }

    /// The agreement about rest; the keepalive of a path in use is agreed apart from it.
    pub fn set_rest(&mut self, rest: Rest) {
        self.terms.rest = rest;
    }

    pub fn terms(&self) -> KeepaliveTerms {
        self.terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn every(interval_ms: u64) -> Keepalive {
        Keepalive {
            interval: Duration::from_millis(interval_ms),
            silent_intervals: 4,
        }
    }

    const RARE: Keepalive = every(5_000);
    const DENSE: Keepalive = every(60);

    /// Each end tolerates the other's pings; checked after every message.
    fn check(client: KeepaliveTerms, server: KeepaliveTerms) {
        assert!(server.judge_by.interval >= client.send_interval);
        assert!(client.judge_by.interval >= server.send_interval);
    }

    #[test]
    fn a_change_is_agreed_in_three_steps_whatever_its_direction() {
        let (mut client, mut server) = (KeepaliveProposer::new(true), KeepaliveAcceptor::default());
        for policy in [RARE, DENSE, every(1_000), RARE, Keepalive::default()] {
            client.want(policy);
            let proposal = client.propose();
            assert_eq!(proposal, Some(policy));
            assert_eq!(client.propose(), None, "one at a time");
            check(client.terms(), server.terms());
            let accepted = server.on_propose(policy);
            check(client.terms(), server.terms());
            assert!(client.on_accept(accepted));
            check(client.terms(), server.terms());
            server.on_confirm(accepted);
            check(client.terms(), server.terms());
            assert_eq!(client.terms(), policy.into());
            assert_eq!(server.terms(), policy.into());
        }
        assert_eq!(client.propose(), None);
    }

    #[test]
    fn the_client_judges_by_the_agreed_keepalive_until_the_server_accepts() {
        let mut client = KeepaliveProposer::new(true);
        client.want(RARE);
        client.propose();
        assert_eq!(client.terms(), KeepaliveTerms::default());
    }

    #[test]
    fn a_policy_that_arrives_meanwhile_is_proposed_afterwards() {
        let mut client = KeepaliveProposer::new(true);
        client.want(RARE);
        assert_eq!(client.propose(), Some(RARE));
        client.want(DENSE);
        assert_eq!(client.propose(), None);
        assert!(!client.on_accept(DENSE), "not what was proposed");
        assert!(client.on_accept(RARE));
        assert!(!client.on_accept(RARE), "twice");
        assert_eq!(client.propose(), Some(DENSE));
    }

    #[test]
    fn peers_that_do_not_answer_are_given_every_allowance() {
        let mut client = KeepaliveProposer::new(false);
        let mut server = KeepaliveAcceptor::default();
        for policy in [RARE, DENSE] {
            client.want(policy);
            assert_eq!(client.propose(), Some(policy));
            assert_eq!(client.propose(), None);
            server.on_propose(policy);
        }
        let terms = KeepaliveTerms {
            send_interval: DENSE.interval,
            judge_by: RARE,
            rest: Rest::default(),
        };
        assert_eq!(client.terms(), terms);
        assert_eq!(server.terms(), terms);
    }
}
