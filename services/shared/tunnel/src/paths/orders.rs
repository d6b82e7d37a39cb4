//! The schedule that both ends of a session obey, and whether they do so yet.
//!
//! The client numbers its schedules. The request of a flow names the newest number (`ordered`), and
//! the proxy answers it once its own paths obey that schedule. The client asks only once its paths
//! do. So a flow has its schedule before its first byte, at both ends, and without a further round
//! trip.

use std::{sync::Arc, time::Duration};

use multipath::steering_rules::Schedule;
use tokio::sync::watch;

/// Longest wait for a schedule, at either end; then the flow begins without it. The line of a
/// schedule that was lost arrives within it, unless all paths are in trouble.
const OBEYED_WITHIN: Duration = Duration::from_secs(1);

/// A schedule and its number, which rises from one to the next. 0: nothing was ever scheduled.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Order {
    pub(crate) number: u64,
    pub(crate) schedule: Arc<Schedule>,
}

/// The orders of one session.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// At the proxy: the client's, for what the proxy sends.
    received: watch::Sender<Order>,
    /// Number of the order that the paths of this end obey.
    obeyed: watch::Sender<u64>,
    /// At the client: number of the order that was sent to the proxy.
    told: watch::Sender<u64>,
}

impl Orders {
    pub(crate) fn receive(&self, order: Order) {
        self.received.send_replace(order);
    }

    pub(crate) fn received(&self) -> Order {
        self.received.borrow().clone()
    }

    pub(crate) fn watch_received(&self) -> watch::Receiver<Order> {
        self.received.subscribe()
    }

    /// From now on the paths of this end obey the order of that number.
    pub(crate) fn obey(&self, number: u64) {
        rise(&self.obeyed, number);
    }

    /// The order of that number is on its way to the proxy.
    pub(crate) fn tell(&self, number: u64) {
        rise(&self.told, number);
    }

    /// The proxy is told nothing more in this session, so nothing waits for that.
    pub(crate) fn tell_no_more(&self) {
        self.tell(u64::MAX);
    }

    /// Returns once the paths of this end obey that order, at the latest after `OBEYED_WITHIN`.
    pub(crate) async fn obeyed(&self, number: u64) {
        reached(&self.obeyed, number).await;
    }

    /// The same, and the order has left for the proxy.
    pub(crate) async fn obeyed_and_told(&self, number: u64) {
        self.obeyed(number).await;
        reached(&self.told, number).await;
    }
}

fn rise(known: &watch::Sender<u64>, number: u64) {
    known.send_if_modified(|known| {
        let rises = number > *known;
        *known = number.max(*known);
        rises
    });
}

async fn reached(known: &watch::Sender<u64>, number: u64) {
    if *known.borrow() >= number {
        return;
    }
    let mut known = known.subscribe();
    let reached = known.wait_for(|known| *known >= number);
    if tokio::time::timeout(OBEYED_WITHIN, reached).await.is_err() {
        tracing::debug!(number, "a flow begins before its schedule");
        metrics::counter!("braid_tunnel_schedules_late_total").increment(1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_flow_waits_for_its_schedule_at_both_ends() {
        let orders = Orders::default();
        let obeyed = |number| orders.obeyed(number).now_or_never().is_some();
        let told = |number| orders.obeyed_and_told(number).now_or_never().is_some();
        assert!(obeyed(0), "without rules nothing waits");
        assert!(!obeyed(3));
        orders.obey(3);
        orders.obey(2);
        assert!(obeyed(3) && !obeyed(4), "it never falls");
        assert!(!told(3));
        orders.tell(3);
        assert!(told(3));
        orders.obey(9);
        orders.tell_no_more();
        assert!(told(9));
    }

    #[tokio::test]
    async fn it_waits_not_for_ever() {
        let orders = Orders::default();
        orders.obeyed(1).await;
    }
}
