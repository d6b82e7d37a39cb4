//! How much may be kept apart: a bound for each gateway and one for all gateways. So entries of no
//! patient cannot fill the store.
//!
//! An entry that does not fit is refused by its index. The gateway then writes it to its own file,
//! counts it and warns. The stored amount is read every [`LOOK_EVERY`]. Entries that were admitted
//! since the look before the last are added to this amount. Replicas together may exceed the bounds
//! by what they admit within two looks.

use std::{collections::HashMap, sync::Arc, time::Duration};

use contracts::vitals::{Quarantined, quarantined::Entry};
use parking_lot::Mutex;
use prost::Message;
use service_kit::{Shutdown, Warning, WarningHandle};
use store::{QuarantineFill, Store};

use crate::admission::{GatewayId, Refusal};

/// Entries kept apart for one gateway: half a day of five values a second.
pub(crate) const GATEWAY_ENTRIES_MAX: u64 = 200_000;
/// Bytes kept apart for one gateway; at the bound no more is taken.
pub(crate) const GATEWAY_BYTES_MAX: u64 = 256 << 20;
/// Entries kept apart for all gateways together.
pub(crate) const ALL_ENTRIES_MAX: u64 = 2_000_000;
/// Bytes kept apart for all gateways together; at the bound no more is taken.
pub(crate) const ALL_BYTES_MAX: u64 = 2 << 30;
const LOOK_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    entries: u64,
    bytes: u64,
}

impl Amount {
    fn add(&mut self, other: Amount) {
        self.entries += other.entries;
        self.bytes += other.bytes;
    }

    fn plus(mut self, other: Amount) -> Amount {
        self.add(other);
        self
    }

    fn is_within(self, entries: u64, bytes: u64) -> bool {
        self.entries <= entries && self.bytes <= bytes
    }
}

/// By tenant and gateway. The bound of all entries bounds the number of gateways, too.
type ByGateway = HashMap<(String, String), Amount>;

/// Keeps entries of no patient apart while there is room.
#[derive(Default)]
pub(crate) struct QuarantineRoom(Mutex<Room>);

impl QuarantineRoom {
    /// Adds the entry to `kept` if it may belong to a patient and there is room. Otherwise returns
    /// the reason.
    pub(crate) fn keep(
        &self,
        gateway: &GatewayId,
        refusal: Refusal,
        entry: Entry,
        arrived_us: i64,
        kept: &mut Vec<Quarantined>,
    ) -> Result<(), Refusal> {
        if !refusal.is_kept_apart() {
            return Err(refusal);
        }
        let quarantined = Quarantined {
            tenant: gateway.tenant.clone(),
            gateway: gateway.id.clone(),
            kind: refusal.kind.to_owned(),
            reason: refusal.reason.clone(),
            arrived_us,
            entry: Some(entry),
        };
        if !self.0.lock().take(gateway, &quarantined) {
            return Err(refusal.without_room());
        }
        metrics::counter!("braid_ingest_quarantined_total", "kind" => refusal.kind).increment(1);
        kept.push(quarantined);
        Ok(())
    }
}

#[derive(Default)]
struct Room {
    stored: ByGateway,
    stored_in_all: Amount,
    /// Admitted since the last look, and between that look and the one before.
    since: ByGateway,
    since_in_all: Amount,
    before: ByGateway,
    before_in_all: Amount,
}

impl Room {
    /// Whether there is room for one more entry; if so, the room is taken.
    fn take(&mut self, gateway: &GatewayId, quarantined: &Quarantined) -> bool {
        let more = Amount {
            entries: 1,
            bytes: quarantined.encoded_len() as u64,
        };
        let key = (gateway.tenant.clone(), gateway.id.clone());
        let of = |amounts: &ByGateway| amounts.get(&key).copied().unwrap_or_default();
        let own = of(&self.stored)
            .plus(of(&self.since))
            .plus(of(&self.before));
        let all = self.stored_in_all.plus(self.since_in_all);
        let all = all.plus(self.before_in_all).plus(more);
        let fits = own
            .plus(more)
            .is_within(GATEWAY_ENTRIES_MAX, GATEWAY_BYTES_MAX)
            && all.is_within(ALL_ENTRIES_MAX, ALL_BYTES_MAX);
        if fits {
            self.since.entry(key).or_default().add(more);
            self.since_in_all.add(more);
        }
        fits
    }

    fn on_look(&mut self, fill: Vec<QuarantineFill>) {
        self.before = std::mem::take(&mut self.since);
        self.before_in_all = std::mem::take(&mut self.since_in_all);
        self.stored.clear();
        self.stored_in_all = Amount::default();
        for fill in fill {
            let amount = Amount {
                entries: fill.entries,
                bytes: fill.bytes,
            };
            self.stored_in_all.add(amount);
            self.stored.insert((fill.tenant, fill.gateway), amount);
        }
    }

    fn says(&self) -> Option<Warning> {
        let Amount { entries, bytes } = self.stored_in_all;
        let full = self
            .stored
            .values()
            .filter(|of| !of.is_within(GATEWAY_ENTRIES_MAX - 1, GATEWAY_BYTES_MAX - 1))
            .count();
        let full = match (full, self.stored_in_all) {
            (_, all) if !all.is_within(ALL_ENTRIES_MAX - 1, ALL_BYTES_MAX - 1) => {
                "; no more is taken".to_owned()
            }
            (0, _) => String::new(),
            (gateways, _) => format!("; of {gateways} gateways no more is taken"),
        };
        (entries > 0).then(|| Warning {
            says: format!(
                "{entries} readings, gaps and alerts of {} gateways ({bytes} bytes) belong to no patient and are kept apart{full}",
                self.stored.len()
            ),
            to_do: "see whose they are with `braid quarantine list`; assign or discard them".to_owned(),
        })
    }
}

/// Keeps the room in step with the store until shutdown.
pub(crate) async fn follow(
    store: Arc<dyn Store>,
    apart: Arc<QuarantineRoom>,
    warning: WarningHandle,
    shutdown: Shutdown,
) {
    loop {
        match store.quarantine_fill().await {
            Ok(fill) => {
                let mut room = apart.0.lock();
                room.on_look(fill);
                metrics::gauge!("braid_ingest_quarantined_entries")
                    .set(room.stored_in_all.entries as f64);
                metrics::gauge!("braid_ingest_quarantined_bytes")
                    .set(room.stored_in_all.bytes as f64);
                warning.set(room.says());
            }
            Err(error) => tracing::debug!(%error, "the amount that is kept apart is unknown"),
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(id: &str) -> GatewayId {
        GatewayId {
            tenant: "t".into(),
            id: id.into(),
        }
    }

    #[test]
    fn one_gateway_leaves_room_for_others_and_all_have_a_bound() {
        let mut room = Room::default();
        let kept = Quarantined::default();
        let mut taken = 0;
        while room.take(&gateway("a"), &kept) {
            taken += 1;
        }
        assert_eq!(taken, GATEWAY_ENTRIES_MAX);
        assert!(room.take(&gateway("b"), &kept));
        // An entry that the store does not show yet still counts at the next look. A stored entry
        // counts from then on.
        room.on_look(Vec::new());
        assert!(!room.take(&gateway("a"), &kept));
        let fill = |gateway: &str, entries, bytes| QuarantineFill {
            tenant: "t".into(),
            gateway: gateway.into(),
            entries,
            bytes,
        };
        room.on_look(vec![fill("a", GATEWAY_ENTRIES_MAX - 1, 9)]);
        assert!(room.take(&gateway("a"), &kept));
        assert!(!room.take(&gateway("a"), &kept));
        assert!(room.says().is_some());
        room.on_look(vec![fill("c", 1, ALL_BYTES_MAX)]);
        assert!(
            room.says()
                .is_some_and(|it| it.says.contains("no more is taken"))
        );
        let large = Quarantined {
            reason: "x".repeat(9),
            ..Quarantined::default()
        };
        assert!(!room.take(&gateway("d"), &large));
        room.on_look(Vec::new());
        assert_eq!(room.says(), None);
    }
}
