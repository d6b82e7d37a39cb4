//! The plan of a run in virtual time, and its randomness.

use std::time::Duration;

use crate::{Keepalive, Rest};

/// SplitMix64: the seed determines a run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(super) fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Events of a run.
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) length: Duration,
    /// Policies given to the client.
    pub(super) policies: Vec<(Duration, Keepalive)>,
    /// The second path loses everything from then on.
    pub(super) cut: Duration,
    /// Messages of the agreement sent from then on are lost.
    pub(super) mute: Duration,
    /// Percent of packets lost.
    pub(super) loss: u64,
    /// Seconds in which data flows both ways on all Available paths.
    pub(super) busy: fn(u64) -> bool,
    /// The data is a backlog, so every living path becomes Available.
    pub(super) bulk: bool,
    /// Only the client has data, and little: 25 packets a second on each path.
    pub(super) one_way: bool,
    pub(super) old: Option<usize>,
    pub(super) rest: Rest,
    /// Seconds in which the schedule has copies. The client then sends two messages a second on
    /// each path, and the server answers each.
    pub(super) copies: fn(u64) -> bool,
    /// Seconds in which the client sends four alerts a second on each path.
    pub(super) alerts: fn(u64) -> bool,
}

impl Plan {
    pub(super) fn quiet(seed: u64, length_s: u64) -> Self {
        Self {
            seed,
            length: Duration::from_secs(length_s),
            policies: Vec::new(),
            cut: Duration::MAX,
            mute: Duration::MAX,
            loss: 0,
            busy: |_| false,
            bulk: true,
            one_way: false,
            old: None,
            rest: Rest::default(),
            copies: |_| false,
            alerts: |_| false,
        }
    }
}
