//! The proxy's address: at most one of each family, so that an access network of either family can
//! be used.
//!
//! The transport knows a proxy by one address, the IPv4 address if it exists. Sockets of the other
//! family translate it. So a handshake races over both families, and a path can move between them.
//!
//! Connecting never waits for a name server once an address is known. The last address is used, and
//! a new one is tried as soon as it arrives. A name with several addresses of one family should
//! mean one proxy, since its paths meet there.
//!
//! Bound: `TWINS_MAX` proxies with two addresses are remembered for sessions that are ending; at
//! the bound the oldest is forgotten.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Proxies with two addresses that are remembered for sessions that are ending.
const TWINS_MAX: usize = 8;

/// The addresses of one proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Addresses {
    pub(crate) v4: Option<SocketAddr>,
    pub(crate) v6: Option<SocketAddr>,
}

impl Addresses {
    /// The address by which the transport knows the proxy.
    pub(crate) fn canonical(&self) -> Option<SocketAddr> {
        self.v4.or(self.v6)
    }

    pub(crate) fn of_family(&self, ipv6: bool) -> Option<SocketAddr> {
        if ipv6 { self.v6 } else { self.v4 }
    }

    /// An address in use stays in use while it is among the resolved ones.
    fn learn(&mut self, found: &[SocketAddr]) -> bool {
        let before = *self;
        if !found.is_empty() {
            let pick = |current: Option<SocketAddr>, ipv6: bool| {
                let mut of_family = found.iter().filter(|address| address.is_ipv6() == ipv6);
                current
                    .filter(|current| found.contains(current))
                    .or_else(|| of_family.next().copied())
            };
            self.v4 = pick(self.v4, false);
            self.v6 = pick(self.v6, true);
        }
        *self != before
    }
}

#[derive(Debug)]
pub(crate) struct ProxyAddress {
    /// `host:port`; `None` if the address is configured.
    host: Option<String>,
    known: watch::Sender<Addresses>,
    twins: Mutex<VecDeque<(SocketAddr, SocketAddr)>>,
    /// One look-up at a time: a dead name server takes many seconds to fail.
    looking: AtomicBool,
}

impl ProxyAddress {
    /// Unspecified addresses are unknown yet.
    pub(crate) fn new(
        host: Option<String>,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            host,
            known: watch::Sender::default(),
            twins: Mutex::default(),
            looking: AtomicBool::new(false),
        });
        let known = addresses.into_iter().filter(|at| !at.ip().is_unspecified());
        this.learn(&known.collect::<Vec<_>>());
        this
    }

    pub(crate) fn current(&self) -> Addresses {
        *self.known.borrow()
    }

    /// Notified when an address has changed.
    pub(crate) fn watch(&self) -> watch::Receiver<Addresses> {
        self.known.subscribe()
    }

    /// Resolves the name in the background, unless that is under way.
    pub(crate) fn refresh(self: &Arc<Self>) {
        if self.host.is_none() || self.looking.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            if let Some(host) = &this.host {
                this.look_up(host).await;
            }
            this.looking.store(false, Ordering::Release);
        });
    }

    async fn look_up(&self, host: &str) {
        match tokio::net::lookup_host(host).await {
            Ok(found) => self.learn(&found.collect::<Vec<_>>()),
            Err(error) => tracing::info!(%host, %error, "the proxy's name does not resolve"),
        }
    }

    fn learn(&self, found: &[SocketAddr]) {
        self.known.send_if_modified(|known| {
            let changed = known.learn(found);
            if let (true, Some(v4), Some(v6)) = (changed, known.v4, known.v6) {
                let mut twins = self.twins.lock();
                twins.retain(|twins| twins.0 != v4 && twins.1 != v6);
                twins.push_front((v4, v6));
                twins.truncate(TWINS_MAX);
            }
            changed
        });
    }

    /// The address to which a socket of this family sends packets for the proxy at `destination`;
    /// `None` if it cannot.
    pub(crate) fn reached_by(&self, destination: SocketAddr, ipv6: bool) -> Option<SocketAddr> {
        if destination.is_ipv6() == ipv6 {
            return Some(destination);
        }
        let twins = self.twins.lock();
        let of_v4 = twins.iter().find(|(v4, _)| *v4 == destination);
        of_v4.map(|(_, v6)| *v6)
    }

    /// The address by which the transport knows the sender.
    pub(crate) fn known_as(&self, source: SocketAddr) -> SocketAddr {
        if source.is_ipv4() {
            return source;
        }
        let twins = self.twins.lock();
        let of_v6 = twins.iter().find(|(_, v6)| *v6 == source);
        of_v6.map_or(source, |(v4, _)| *v4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 4433).into()
    }

    fn six(last: u16) -> SocketAddr {
        ([0x2001, 0xdb8, 0, 0, 0, 0, 0, last], 4433).into()
    }

    #[test]
    fn an_address_holds_until_the_name_no_longer_has_it() {
        let proxy = ProxyAddress::new(None, [([0, 0, 0, 0], 4433).into()]);
        assert_eq!(proxy.current().canonical(), None);
        proxy.learn(&[four(1), four(2)]);
        assert_eq!(proxy.current().canonical(), Some(four(1)));
        let mut changes = proxy.watch();
        proxy.learn(&[four(2), four(1)]);
        proxy.learn(&[]);
        assert_eq!(proxy.current().canonical(), Some(four(1)));
        assert!(!changes.has_changed().expect("the sender lives"));
        proxy.learn(&[four(2), six(1)]);
        assert!(changes.has_changed().expect("the sender lives"));
        changes.mark_unchanged();
        let both = Addresses {
            v4: Some(four(2)),
            v6: Some(six(1)),
        };
        assert_eq!(proxy.current(), both);
        proxy.learn(&[six(1)]);
        assert_eq!(proxy.current().canonical(), Some(six(1)));
    }

    #[test]
    fn networks_of_both_families_reach_one_proxy() {
        let proxy = ProxyAddress::new(None, [four(1)]);
        assert_eq!(proxy.reached_by(four(1), false), Some(four(1)));
        assert_eq!(proxy.reached_by(four(1), true), None);
        proxy.learn(&[four(1), six(1)]);
        assert_eq!(proxy.reached_by(four(1), true), Some(six(1)));
        assert_eq!(proxy.known_as(six(1)), four(1));
        assert_eq!(proxy.known_as(six(2)), six(2));
        assert_eq!(proxy.known_as(four(9)), four(9));
        // Sessions with the former proxy continue.
        proxy.learn(&[four(3), six(3)]);
        assert_eq!(proxy.known_as(six(1)), four(1));
        assert_eq!(proxy.known_as(six(3)), four(3));
        for last in 10..10 + TWINS_MAX as u8 {
            proxy.learn(&[four(last), six(last.into())]);
        }
        assert_eq!(proxy.known_as(six(1)), six(1), "forgotten");
    }

    #[tokio::test]
    async fn a_name_is_looked_up_in_the_background() {
        let host = Some("localhost:4433".to_owned());
        let proxy = ProxyAddress::new(host, []);
        let mut changes = proxy.watch();
        proxy.refresh();
        proxy.refresh();
        changes.changed().await.expect("the sender lives");
        let canonical = proxy.current().canonical().expect("an address");
        assert!(canonical.ip().is_loopback() && canonical.port() == 4433);
    }
}
