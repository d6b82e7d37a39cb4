//! Follows the end of a topic without a group: every process sees every record.

use std::collections::BTreeMap;

use bus::{Bus, Consumer, Delivery, Event, Extent, Topic};
use service_kit::{Backoff, Shutdown};

pub trait Follower: Send {
    /// Reading begins at these ends. Records before them, and after an earlier end, were missed.
    fn on_begun(&mut self, ends: &BTreeMap<u32, Extent>);

    fn on_records(&mut self, deliveries: Vec<Delivery>);

    /// Nothing is read until the next [`Follower::on_begun`].
    fn on_away(&mut self, reason: String);
}

/// Follows until shutdown. After a failure of the bus a new tail begins, at the end of that time.
pub async fn tail(
    bus: &dyn Bus,
    topic: Topic,
    records_max: usize,
    follower: &mut dyn Follower,
    shutdown: &Shutdown,
) {
    let mut backoff = Backoff::for_reconnect();
    while !shutdown.is_requested() {
        let reason = match begin(bus, topic).await {
            Ok((ends, consumer)) => {
                follower.on_begun(&ends);
                backoff.reset();
                tokio::select! {
                    () = shutdown.requested() => return,
                    reason = read(consumer, records_max, follower) => reason,
                }
            }
            Err(reason) => reason,
        };
        follower.on_away(reason);
        tokio::select! {
            () = shutdown.requested() => return,
            () = backoff.wait() => {}
        }
    }
}

/// The ends are asked for first: the tail begins at them or later.
async fn begin(
    bus: &dyn Bus,
    topic: Topic,
) -> Result<(BTreeMap<u32, Extent>, Box<dyn Consumer>), String> {
    let ends = bus.extents(topic).await;
    let ends = ends.map_err(|error| error.to_string())?;
    let consumer = bus.tail(topic).await.map_err(|error| error.to_string())?;
    Ok((ends, consumer))
}

/// Returns the reason for which the tail broke.
async fn read(
    mut consumer: Box<dyn Consumer>,
    records_max: usize,
    follower: &mut dyn Follower,
) -> String {
    loop {
        match consumer.next(records_max).await {
            Ok(Event::Batch(deliveries)) => follower.on_records(deliveries),
            Ok(Event::Assigned(_) | Event::Revoked(_)) => {}
            Err(error) => return error.to_string(),
        }
    }
}
