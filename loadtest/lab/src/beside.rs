//! Traffic and links beside the measured paths: on-off sources on every link, and the link next to
//! the server that everything to the client passes.

use std::cmp::Reverse;
use std::time::Duration;

use crate::address::INTERFACES_MAX;
use crate::scenario::{Half, Interface, Scenario, ScenarioError};
use crate::seed::derive_seed;
use crate::wire::Wire;

/// Queue of the link next to the server.
const TRUNK_QUEUE_S: f64 = 0.05;
const TRUNK_QUEUE_BYTES_MIN: u64 = 30_000;

/// The shared link next to the server: no delay of its own, a queue of 50 ms.
pub(crate) fn trunk(scenario: &Scenario) -> Result<Option<Wire>, ScenarioError> {
    let Some(mbit) = scenario.trunk_mbit else {
        return Ok(None);
    };
    let mut half = Half::constant(mbit, 0.0);
    half.queue_bytes = Some((mbit * 1e6 / 8.0 * TRUNK_QUEUE_S) as u64 + TRUNK_QUEUE_BYTES_MIN);
    let interface = Interface::alike("trunk", half);
    let [_, to_client] = Wire::pair(&interface, scenario.seed, INTERFACES_MAX)?;
    Ok(Some(to_client))
}

/// Packets of the background on every link, the last one first.
pub(crate) fn other_packets(
    scenario: &Scenario,
    wires: &[[Wire; 2]],
    sender: usize,
) -> Vec<(Duration, usize, u64)> {
    let Some(background) = &scenario.background else {
        return Vec::new();
    };
    let mut packets = Vec::new();
    for (link, wires) in wires.iter().enumerate() {
        let seed = derive_seed(scenario.seed, 600 + link as u64);
        let own = background.packets(wires[sender].mbit(), scenario.limit(), seed);
        packets.extend(own.into_iter().map(|(at, bytes)| (at, link, bytes)));
    }
    packets.sort_by_key(|packet| Reverse((packet.0, packet.1)));
    packets
}
