//! Leases of the addresses of a pool, by gateway. Sans-IO.
//!
//! A lease belongs to an identity and not to a session. A gateway that comes back gets the same
//! address, so connections inside the tunnel survive the loss of the session. The first choice is a
//! hash of the identity, so it is mostly the same after a restart and at another proxy. A lease
//! without a tunnel stays until its place is needed; then the lease that was unused for longest is
//! removed.
//!
//! Bounds: the pool, and `LEASES_MAX`. While all leases are in use, a new gateway gets no address.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    time::Instant,
};

use ip_packets::IpPrefix;
use service_kit::tls::GatewayId;

/// Leases of one pool; at the bound an unused lease is removed. A search for a free address takes
/// at most as many steps.
const LEASES_MAX: usize = 65_536;

/// The first address belongs to the network, the second to the proxy.
const FIRST_OFFSET: u128 = 2;

#[derive(Debug)]
struct Lease {
    offset: u128,
    /// Tunnels that use the lease.
    tunnels: usize,
    quiet_since: Instant,
    /// The holder was revoked: the lease ends with the last tunnel.
    forgotten: bool,
}

#[derive(Debug)]
pub(crate) struct Leases {
    pool: IpPrefix,
    /// Number of addresses to lease, from `FIRST_OFFSET` on.
    count: u128,
    leases: HashMap<GatewayId, Lease>,
    holders: BTreeMap<u128, GatewayId>,
}

impl Leases {
    /// Returns `None` if the pool has no address to lease.
    pub(crate) fn new(pool: IpPrefix) -> Option<Self> {
        // The last address of an IPv4 prefix is the broadcast address.
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
        // The address exists: a pool has at least two.
        self.pool.nth(1).unwrap_or(self.pool.network())
    }

    pub(crate) fn pool(&self) -> IpPrefix {
        self.pool
    }

    /// Leases an address to one more tunnel of this gateway, until [`release`](Self::release).
    /// `wanted` is used if it is free and the gateway has no lease.
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

    /// A tunnel ends. The lease stays, unless it was forgotten.
    pub(crate) fn release(&mut self, id: &GatewayId, now: Instant) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.tunnels = lease.tunnels.saturating_sub(1);
            lease.quiet_since = now;
            if lease.forgotten && lease.tunnels == 0 {
                self.remove(id);
            }
        }
    }

    /// The gateway was revoked: its address is free once no tunnel uses it. The old tunnel may
    /// still be ending, and a tunnel of the gateway's new certificate may have begun.
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

    /// The first free offset from the hash of the identity on; a free offset exists.
    fn free(&self, id: &GatewayId) -> u128 {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let mut index = u128::from(hasher.finish()) % self.count;
        // The loop ends: there are more offsets than leases.
        while self.holders.contains_key(&(FIRST_OFFSET + index)) {
            index = (index + 1) % self.count;
        }
        FIRST_OFFSET + index
    }

    /// Returns `None` if all leases are in use.
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
    fn a_returning_gateway_gets_its_address_and_a_new_one_its_wish_if_free() {
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
        // The choice is the same after a restart.
        let mut again = pool("10.64.0.0/16").unwrap();
        assert_eq!(again.claim(&gateway(1), None), Some(first));
    }

    #[test]
    fn the_lease_unused_for_longest_is_removed_and_none_in_use() {
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
        // The address of a forgotten gateway stays leased until its tunnel ends.
        leases.forget(&gateway(0));
        assert_eq!(leases.claim(&gateway(7), None), None);
        leases.release(&gateway(0), start);
        assert_eq!(leases.claim(&gateway(7), None), Some(given[0]));
    }

    /// The old certificate is revoked while the gateway is connected with a new certificate.
    #[test]
    fn a_forgotten_gateway_that_returns_keeps_its_address() {
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
            // A model of the rules: an address belongs to its holder until it is released.
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
