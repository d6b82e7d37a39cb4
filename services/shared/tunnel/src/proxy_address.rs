//! Where the proxy is. Connecting never waits for a name server once an address is known: the last one is used, and a new one, when
//! it comes, is tried at once.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct ProxyAddress {
    /// `host:port`; none when the address is given.
    host: Option<String>,
    /// The family that the endpoint was made for.
    ipv6: bool,
    known: watch::Sender<SocketAddr>,
    /// One look-up at a time: a dead name server takes many seconds to give up.
    looking: AtomicBool,
}

impl ProxyAddress {
    /// An unspecified `address` means that it is not known yet.
    pub(crate) fn new(host: Option<String>, address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            host,
            ipv6: address.is_ipv6(),
            known: watch::Sender::new(address),
            looking: AtomicBool::new(false),
        })
    }

    /// The address known last, if there is one.
    pub(crate) fn current(&self) -> Option<SocketAddr> {
        Some(*self.known.borrow()).filter(|address| !address.ip().is_unspecified())
    }

    /// Told when the address has changed.
    pub(crate) fn watch(&self) -> watch::Receiver<SocketAddr> {
        self.known.subscribe()
    }

    /// Looks the name up in the background, unless that is under way.
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
            Ok(found) => self.learn(found.collect()),
            Err(error) => tracing::info!(%host, %error, "the proxy's name does not resolve"),
        }
    }

    /// The address in use stays in use for as long as the name has it.
    fn learn(&self, mut found: Vec<SocketAddr>) {
        found.retain(|address| address.is_ipv6() == self.ipv6);
        self.known.send_if_modified(|known| match found.first() {
            Some(first) if !found.contains(known) => {
                *known = *first;
                true
            }
            _ => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 4433).into()
    }

    #[test]
    fn an_address_holds_until_the_name_no_longer_has_it() {
        let address = ProxyAddress::new(None, ([0, 0, 0, 0], 4433).into());
        assert_eq!(address.current(), None);
        address.learn(vec![at(1), at(2)]);
        assert_eq!(address.current(), Some(at(1)));
        let mut changes = address.watch();
        address.learn(vec![at(2), at(1)]);
        address.learn(Vec::new());
        address.learn(vec![([0_u16; 8], 1).into()]);
        assert_eq!(address.current(), Some(at(1)));
        assert!(!changes.has_changed().expect("the sender lives"));
        address.learn(vec![at(2)]);
        assert_eq!(address.current(), Some(at(2)));
        assert!(changes.has_changed().expect("the sender lives"));
        changes.mark_unchanged();
    }

    #[tokio::test]
    async fn a_name_is_looked_up_in_the_background() {
        let host = Some("localhost:4433".to_owned());
        let address = ProxyAddress::new(host, ([0, 0, 0, 0], 4433).into());
        let mut changes = address.watch();
        address.refresh();
        address.refresh();
        changes.changed().await.expect("the sender lives");
        assert_eq!(address.current(), Some(([127, 0, 0, 1], 4433).into()));
    }
}
