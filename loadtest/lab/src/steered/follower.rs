//! A simulated host that obeys upkeep rules: it decides by the function that ships, and feeds the
//! upkeep of its paths.

use std::time::{Duration, Instant};

use multipath::steering_rules::{AccessState, Measurement, Measurements, decide, schedule};
use multipath::{Event, PathController, PathState, PathUpkeep};
use noq_proto::{Connection, PathId};

use super::Steered;
use crate::address::interface_of;
use crate::scenario::Scenario;

/// How often measurements are looked at. An interface that comes or goes waits no longer than this.
const DECIDE_EVERY: Duration = Duration::from_millis(50);

/// One host's view of the rules.
#[derive(Debug)]
pub(crate) struct RuleFollower {
    steered: Steered,
    /// Names of the interfaces.
    names: Vec<String>,
    decide_at: Duration,
    /// Paths that were seen; at the server the upkeep knows their controllers.
    known: Vec<PathId>,
}

impl RuleFollower {
    pub(crate) fn new(steered: &Steered, scenario: &Scenario) -> Self {
        let names = scenario.interfaces.iter();
        Self {
            steered: steered.clone(),
            names: names.map(|interface| interface.name.clone()).collect(),
            decide_at: Duration::ZERO,
            known: Vec::new(),
        }
    }

    /// `now` in the scenario and as an instant.
    pub(crate) fn follow(
        &mut self,
        (now, at): (Duration, Instant),
        client: bool,
        conn: &mut Connection,
        open: &[PathId],
        upkeep: &mut PathUpkeep,
    ) {
        let is_new = |path: &PathId| !self.known.contains(path);
        if now < self.decide_at && !open.iter().any(is_new) {
            return;
        }
        self.decide_at = now + DECIDE_EVERY;
        let snapshot = upkeep.snapshot(at);
        let mut states: Vec<AccessState> = self.names.iter().map(AccessState::usable).collect();
        states.iter_mut().for_each(|state| state.usable = false);
        let mut measurements = Measurements::new();
        let mut paths = Vec::new();
        for &path in open {
            let seen = snapshot.iter().find(|entry| entry.path == path);
            let interface = if client {
                seen.and_then(|entry| entry.interface)
                    .map(|interface| usize::from(interface.0))
            } else {
                let remote = conn.network_path(path).ok().map(|way| way.remote());
                remote.and_then(|remote| interface_of(remote.ip().to_canonical()))
            };
            let (Some(interface), Some(seen)) = (interface, seen) else {
                continue;
            };
            let Some(state) = states.get_mut(interface) else {
                continue;
            };
            let lives = matches!(seen.state, PathState::Available | PathState::Backup);
            state.usable |= lives;
            paths.push((path, state.name.clone()));
            if let Some(stats) = conn.path_stats(path).filter(|_| lives) {
                let measurement = Measurement {
                    rtt: Some(stats.rtt).filter(|rtt| !rtt.is_zero()),
                    loss: Some(stats.lost_packets as f64 / stats.sent_packets.max(1) as f64),
                    ..Measurement::default()
                };
                measurements.insert(state.name.clone(), measurement);
            }
            if client && !self.known.contains(&path) {
                self.known.push(path);
            }
            if !client && !self.known.contains(&path) {
                let controller = conn.congestion_state(path).map(|state| state.clone_box());
                let controller = controller.and_then(|it| it.into_any().downcast().ok());
                if let Some(controller) = controller.map(|it: Box<PathController>| it.slot()) {
                    self.known.push(path);
                    let slot = controller;
                    upkeep.on_event(at, Event::Slot { path, slot });
                }
            }
        }
        let Steered { document, flow } = &self.steered;
        let decision = decide(document, flow, &states, &measurements);
        let joined = schedule(std::slice::from_ref(&decision));
        let (gathers, copies) = (joined.gathers, joined.copies);
        upkeep.on_event(at, Event::Spread { gathers, copies });
        for (path, name) in paths {
            let schedule = joined.of(&name);
            upkeep.on_event(at, Event::Scheduled { path, schedule });
        }
    }
}
