//! Steering rules at the gateway: which accesses its session may use, and which flows are let in.
//!
//! The document comes from path-telemetry, which serves the documents of `braid steering put`. It
//! is kept on disk and applies at the next start before any network is up. Before the first
//! document the file of `--steering` applies.
//!
//! A session has one schedule for all its flows: the strictest of their decisions. A flow has it
//! before its first byte, at both ends (`flows`, and the tunnel's `orders`). A flow without an
//! allowed living access is refused. An open one waits, because its bytes would use an access
//! reserved for alerts, and is closed after `BLOCKED_MAX`.

mod copied;
mod document;
mod ended;
mod flows;
mod hold;
mod keeper;
mod next_look;
mod rule_bytes;
mod series;
mod table;
mod usage;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use service_kit::Shutdown;
use tokio::sync::{broadcast::error::RecvError, watch};
use tunnel::{
    PathSnapshot, PathState, Tunnel,
    steering_rules::{AccessState, Measurement, Measurements},
};

pub use copied::Copied;
pub use document::{InForce, Kept};
pub use flows::{Blocked, FlowGuard, Flows};
use keeper::Keeper;
use series::Series;
use usage::Usage;

use crate::{alarms::Alarms, clock::Clock};

/// Flows of datagrams and packets have ended after so long without one. Their decisions end within
/// 10 s of the last one, with the pauses of both looks.
pub const QUIET_MAX: Duration = Duration::from_secs(7);
/// Weight of a new interval in the loss of a path, which falls slowly and rises at once.
const LOSS_FALLS: f64 = 0.05;
/// Fewer packets in an interval do not measure loss.
const LOSS_PACKETS_MIN: u64 = 10;

/// Follows the document and the measurements, until shutdown is requested.
pub struct Steering {
    pub tunnel: Tunnel,
    pub flows: Flows,
    pub in_force: watch::Receiver<Arc<InForce>>,
    pub data_dir: PathBuf,
    pub clock: Clock,
    pub alarms: Alarms,
    /// Name of this gateway.
    pub gateway: String,
    /// Receiver of what the document says about the age of its vitals.
    pub freshness: watch::Sender<Option<Duration>>,
}

impl Steering {
    pub async fn run(mut self, shutdown: Shutdown) {
        let file = self.data_dir.join("steering-usage.json");
        let mut usage = Usage::read(file);
        let mut losses = Losses::default();
        let mut series = Series::default();
        let mut keeper = Keeper::new(Instant::now());
        let mut alarmed = self.alarms.watch();
        let mut events = self.tunnel.events();
        let (wakes, mut pause) = (self.flows.wakes(), Duration::ZERO);
        let mut is_over = false;
        while !is_over {
            tokio::select! {
                () = tokio::time::sleep(pause) => self.alarms.expire(Instant::now()),
                Ok(()) = self.in_force.changed() => {}
                () = wakes.notified() => {}
                // At once: the alert itself is about to be sent.
                Ok(()) = alarmed.changed() => {}
                // Before data moves to an access that some flow may not take. A slow subscriber
                // looks as well.
                event = events.recv() => is_over = matches!(event, Err(RecvError::Closed)),
                () = shutdown.requested() => is_over = true,
            }
            let in_force = self.in_force.borrow_and_update().clone();
            let freshness = in_force.document.freshness_of(&self.gateway);
            self.freshness
                .send_if_modified(|before| std::mem::replace(before, freshness) != freshness);
            let now = Instant::now();
            let (carried, of_current) = self.tunnel.paths_with_former();
            let paths = &carried[..of_current];
            let accesses = self.tunnel.interfaces();
            let wall_us = (self.clock)().wall_us;
            usage.add(&carried, &accesses, wall_us, &in_force.document);
            losses.observe(paths);
            let names: Vec<String> = accesses.into_iter().map(|it| it.0).collect();
            let reachable = self.tunnel.reachable();
            let (states, measurements) = measure(names, (paths, &reachable), &losses, &usage);
            series.publish(&carried, &measurements, &in_force.document);
            usage.publish();
            let is_near_cap = next_look::is_near_cap(&measurements, &in_force.document);
            pause = next_look::pause(is_near_cap, self.flows.note_near_cap(is_near_cap));
            {
                let mut table = self.flows.0.lock();
                table.in_force = in_force;
                table.alarmed = *alarmed.borrow_and_update();
            }
            self.flows.decide_all(now, states, measurements);
            keeper.keep(&mut usage, now);
        }
        keeper.keep_last(usage).await;
    }
}

/// Share of packets that each path lost lately.
#[derive(Default)]
struct Losses {
    /// Packets sent and lost so far, and the share; the paths are the tunnel's.
    paths: BTreeMap<(u64, u64), (u64, u64, f64)>,
}

impl Losses {
    fn observe(&mut self, paths: &[PathSnapshot]) {
        self.paths
            .retain(|id, _| paths.iter().any(|it| (it.session, it.path_id) == *id));
        for path in paths {
            let id = (path.session, path.path_id);
            let entry = self.paths.entry(id).or_insert((0, 0, 0.0));
            let sent = path.sent_packets.saturating_sub(entry.0);
            let lost = path.lost_packets.saturating_sub(entry.1);
            if sent >= LOSS_PACKETS_MIN {
                let share = (lost as f64 / sent as f64).min(1.0);
                let fallen = entry.2 + (share - entry.2) * LOSS_FALLS;
                *entry = (path.sent_packets, path.lost_packets, fallen.max(share));
            }
        }
    }
}

/// `reachable` are accesses without a path that the session would move to.
fn measure(
    names: Vec<String>,
    (paths, reachable): (&[PathSnapshot], &[String]),
    losses: &Losses,
    usage: &Usage,
) -> (Vec<AccessState>, Measurements) {
    let mut measurements = Measurements::new();
    let mut states = Vec::new();
    for name in names {
        let alive = paths.iter().filter(|path| {
            path.name == name && matches!(path.state, PathState::Available | PathState::Backup)
        });
        let best = alive.min_by_key(|path| path.rtt);
        let loss = best.and_then(|path| losses.paths.get(&(path.session, path.path_id)));
        let measurement = Measurement {
            rtt: best.map(|path| path.rtt).filter(|rtt| !rtt.is_zero()),
            loss: loss.map(|entry| entry.2),
            rate_bytes_per_s: None,
            used: usage.used(&name),
        };
        states.push(AccessState {
            usable: best.is_some() || reachable.contains(&name),
            name: name.clone(),
        });
        measurements.insert(name, measurement);
    }
    (states, measurements)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use tunnel::steering_rules::{Document, Rank};

    use super::*;

    /// Flows of the TUN device to even ports keep off lte.
    pub(crate) fn ruled() -> Flows {
        const RULES: &str = "format = 1\n[[rule]]\nname = \"kept off\"\n\
                             accesses = [\"wifi\"]\n\
                             match = { port = [\"9000\", \"9002\", \"9004\"] }\n";
        let flows = Flows::default();
        flows.0.lock().in_force = Arc::new(InForce {
            version: 1,
            document: Document::from_toml(RULES, "test").unwrap(),
        });
        look(&flows, Instant::now());
        flows
    }

    /// The look that runs every 250 ms; returns whether lte is free.
    pub(crate) fn look(flows: &Flows, now: Instant) -> bool {
        let states = ["wifi", "lte"].map(AccessState::usable).to_vec();
        flows.decide_all(now, states, Measurements::new());
        is_free(flows)
    }

    pub(crate) fn is_free(flows: &Flows) -> bool {
        flows.0.lock().schedule.of("lte").rank == Some(Rank::Active)
    }

    #[test]
    fn an_access_that_the_session_would_move_to_is_usable() {
        let folder = tempfile::tempdir().unwrap();
        let usage = Usage::read(folder.path().join("usage.json"));
        let names = || vec!["wifi".to_owned(), "lte".to_owned()];
        let over_lte = PathSnapshot {
            name: "lte".to_owned(),
            state: PathState::Backup,
            ..PathSnapshot::default()
        };
        let usable = |reachable: &[String]| {
            let found = (std::slice::from_ref(&over_lte), reachable);
            let (states, _) = measure(names(), found, &Losses::default(), &usage);
            [states[0].usable, states[1].usable]
        };
        assert_eq!(usable(&[]), [false, true]);
        assert_eq!(usable(&["wifi".to_owned()]), [true, true]);
    }
}
