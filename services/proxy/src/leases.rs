//! Which gateway has which address of a pool; sans-IO.
//!
//! A lease belongs to an identity, not to a session: whoever comes back gets what it had, so that connections inside the tunnel survive the
//! loss of the session. The first choice follows from the identity, so that mostly it is the same after a restart of the proxy, too, and
//! in front of another one. A lease that no tunnel uses stays until its place is needed; then the one that was unused for longest goes.
//!
//! Bounds: the pool, and `LEASES_MAX`. When all are in use nobody new gets one.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    time::Instant,
};

use service_kit::tls::GatewayId;
use tunnel::IpPrefix;

/// Leases of one pool. A search for a free address takes as many steps at most.
const LEASES_MAX: usize = 65_536;

/// The first address is the network's, the second the proxy's own.
const FIRST_OFFSET: u128 = 2;

#[derive(Debug)]
struct Lease {
    offset: u128,
    /// Tunnels that use it.
    tunnels: usize,
    quiet_since: Instant,
    /// Its holder was turned away: it goes with the last tunnel.
    forgotten: bool,
}

#[derive(Debug)]
pub(crate) struct Leases {
    pool: IpPrefix,
    /// How many addresses there are to give, from `FIRST_OFFSET` on.
    count: u128,
    leases: HashMap<GatewayId, Lease>,
    holders: BTreeMap<u128, GatewayId>,
}

impl Leases {
    /// None where the pool has no address to give.
    pub(crate) fn new(pool: IpPrefix) -> Option<Self> {
        // The last one of IPv4 is the broadcast's.
        let last = pool
            .last_offset()
            .checked_sub(u128::from(pool.network().is_ipv4()))?;
        let count = last.checked_sub(FIRST_OFFSET)?.saturating_add(1);
        Some(Self {
            pool,
            count,
            leases: HashMap::new(),
            holders: BTreeMap::new(),
        })
    }

    /// The proxy's own address of the pool.
    pub(crate) fn own(&self) -> IpAddr {
        // There is one: a pool is larger.
        self.pool.nth(1).unwrap_or(self.pool.network())
    }

    pub(crate) fn pool(&self) -> IpPrefix {
        self.pool
    }

    /// For one more tunnel of this gateway; to be given back by [`release`](Self::release). `wanted` counts where it is free and the gateway has none.
    pub(crate) fn claim(&mut self, id: &GatewayId, wanted: Option<IpAddr>) -> Option<IpAddr> {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.tunnels += 1;
            lease.forgotten = false;
            return self.pool.nth(lease.offset);
        }
        let room = self.count.min(LEASES_MAX as u128);
        if self.leases.len() as u128 >= room {
            self.drop_quietest()?;
        }
        let offset = wanted
            .and_then(|wanted| self.offset(wanted))
            .filter(|offset| !self.holders.contains_key(offset))
            .unwrap_or_else(|| self.free(id));
        self.holders.insert(offset, id.clone());
        let lease = Lease {
            offset,
            tunnels: 1,
            quiet_since: Instant::now(),
            forgotten: false,
        };
        self.leases.insert(id.clone(), lease);
        self.pool.nth(offset)
    }

    /// A tunnel uses it no longer. The lease stays, unless it was forgotten.
    pub(crate) fn release(&mut self, id: &GatewayId, now: Instant) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.tunnels = lease.tunnels.saturating_sub(1);
            lease.quiet_since = now;
            if lease.forgotten && lease.tunnels == 0 {
                self.remove(id);
            }
        }
    }

    /// The gateway was turned away: whoever comes next may have the address, once no tunnel uses it. One may still end, and one of the
    /// gateway's new certificate may have begun.
    pub(crate) fn forget(&mut self, id: &GatewayId) {
        match self.leases.get_mut(id) {
            Some(lease) if lease.tunnels > 0 => lease.forgotten = true,
            _ => self.remove(id),
        }
    }

    fn remove(&mut self, id: &GatewayId) {
        if let Some(lease) = self.leases.remove(id) {
            self.holders.remove(&lease.offset);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    fn offset(&self, address: IpAddr) -> Option<u128> {
        let bits = |address| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        let inside = self.pool.contains(address);
        let offset = inside.then(|| bits(address) - bits(self.pool.network()))?;
        let index = offset.checked_sub(FIRST_OFFSET)?;
        (index < self.count).then_some(offset)
    }

    /// The first free one from the identity's own on; there is one.
    fn free(&self, id: &GatewayId) -> u128 {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let mut index = u128::from(hasher.finish()) % self.count;
        // As many are taken as there are leases.
        while self.holders.contains_key(&(FIRST_OFFSET + index)) {
            index = (index + 1) % self.count;
        }
        FIRST_OFFSET + index
    }

    /// None where all are in use.
    fn drop_quietest(&mut self) -> Option<()> {
        let quiet = self.leases.iter().filter(|(_, lease)| lease.tunnels == 0);
        let (id, _) = quiet.min_by_key(|(_, lease)| lease.quiet_since)?;
        let id = id.clone();
        self.remove(&id);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn gateway(number: u32) -> GatewayId {
        GatewayId::new("acme", format!("gw-{number}"))
    }

    fn pool(text: &str) -> Option<Leases> {
        Leases::new(text.parse().unwrap())
    }

    #[test]
    fn a_pool_gives_neither_network_nor_broadcast_nor_the_proxys_own() {
        for (text, count) in [("10.0.0.0/30", 1), ("10.0.0.0/29", 5), ("fd00::/126", 2)] {
            let mut leases = pool(text).unwrap();
            let given: Vec<_> = (0..count)
                .map(|n| leases.claim(&gateway(n), None).unwrap())
                .collect();
            assert_eq!(leases.claim(&gateway(99), None), None, "{text}");
            let prefix = leases.pool();
            for (index, address) in given.iter().enumerate() {
                assert!(!given[..index].contains(address));
                assert!(prefix.contains(*address) && *address != leases.own());
                assert!(Some(*address) != prefix.nth(0));
                let last = prefix.nth(prefix.last_offset());
                assert!(address.is_ipv6() || Some(*address) != last);
            }
        }
        for none in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/127", "fd00::/128"] {
            assert!(pool(none).is_none(), "{none}");
        }
        assert!(pool("::/0").is_some());
    }

    #[test]
    fn whoever_comes_back_gets_what_it_had_and_what_it_wants_where_that_is_free() {
        let start = Instant::now();
        let mut leases = pool("10.64.0.0/16").unwrap();
        let first = leases.claim(&gateway(1), None).unwrap();
        leases.release(&gateway(1), start);
        assert_eq!(
            leases.claim(&gateway(1), Some("10.64.9.9".parse().unwrap())),
            Some(first)
        );
        let wanted = "10.64.9.9".parse().ok();
        assert_eq!(leases.claim(&gateway(2), wanted), wanted);
        assert_ne!(leases.claim(&gateway(3), wanted), wanted);
        for bad in ["10.64.0.0", "10.64.0.1", "10.64.255.255", "10.65.0.2", "::"] {
            let bad = bad.parse().ok();
            assert_ne!(leases.claim(&gateway(4), bad), bad);
            leases.release(&gateway(4), start);
            leases.forget(&gateway(4));
        }
        // After a restart, too.
        let mut again = pool("10.64.0.0/16").unwrap();
        assert_eq!(again.claim(&gateway(1), None), Some(first));
    }

    #[test]
    fn the_one_unused_for_longest_gives_way_and_none_in_use() {
        let start = Instant::now();
        let mut leases = pool("10.0.0.0/29").unwrap();
        let given: Vec<_> = (0..5)
            .map(|n| leases.claim(&gateway(n), None).unwrap())
            .collect();
        assert_eq!(leases.claim(&gateway(5), None), None);
        leases.release(&gateway(3), start + Duration::from_secs(1));
        leases.release(&gateway(1), start + Duration::from_secs(2));
        assert_eq!(leases.claim(&gateway(5), None), Some(given[3]));
        assert_eq!(leases.claim(&gateway(6), None), Some(given[1]));
        assert_eq!(leases.claim(&gateway(7), None), None);
        // Of one that was turned away its end is awaited.
        leases.forget(&gateway(0));
        assert_eq!(leases.claim(&gateway(7), None), None);
        leases.release(&gateway(0), start);
        assert_eq!(leases.claim(&gateway(7), None), Some(given[0]));
    }

    /// Its old certificate is revoked while it is here by a new one.
    #[test]
    fn who_was_forgotten_and_came_back_keeps_the_address_while_the_old_tunnel_ends() {
        let now = Instant::now();
        let mut leases = pool("10.0.0.0/30").unwrap();
        let own = leases.claim(&gateway(1), None);
        for forgotten_first in [true, false] {
            if forgotten_first {
                leases.forget(&gateway(1));
            }
            assert_eq!(leases.claim(&gateway(1), None), own);
            if !forgotten_first {
                leases.forget(&gateway(1));
            }
            leases.release(&gateway(1), now);
            assert_eq!(leases.claim(&gateway(2), own), None);
        }
    }

    #[test]
    fn no_two_ever_have_the_same_address() {
        for seed in 0..100 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut leases = pool("10.0.0.0/28").unwrap();
            let mut now = Instant::now();
            // Who holds what, by the rules: an address given is the holder's until it was released.
            let mut held: HashMap<u32, (IpAddr, usize)> = HashMap::new();
            for _ in 0..200 {
                now += Duration::from_millis(1);
                let number = rng.random_range(0..20);
                let id = gateway(number);
                match rng.random_range(0..4_u8) {
                    0 | 1 => {
                        let wanted = leases.pool().nth(rng.random_range(0..20));
                        if let Some(given) = leases.claim(&id, wanted) {
                            let mine = held.entry(number).or_insert((given, 0));
                            assert_eq!(mine.0, given, "{seed}");
                            mine.1 += 1;
                        }
                    }
                    2 => {
                        leases.release(&id, now);
                        if let Some(mine) = held.get_mut(&number) {
                            mine.1 -= 1;
                            if mine.1 == 0 {
                                held.remove(&number);
                            }
                        }
                    }
                    _ => leases.forget(&id),
                }
                let addresses: Vec<_> = held.values().map(|(address, _)| address).collect();
                for (index, address) in addresses.iter().enumerate() {
                    assert!(!addresses[..index].contains(address), "{seed}");
                }
                assert!(leases.len() <= 13 && leases.holders.len() == leases.len());
            }
        }
    }
}
