//! The day of a plan, in hours. Each hour has its traffic and the part of others in the cells. The
//! rest of the capacity is for the plan's gateways.
//!
//! In a cell each gateway is one sender and each other user another; the fluid solver gives their
//! shares. A line of one's own is a cell with one gateway.

use std::collections::BTreeMap;

use ::fluid::{Capacity, Network, NoEquilibrium, Resource, Route, Source, equilibrium};

use super::file::{Access, Plan};
use crate::packet::HEADER_SHARE;

pub(super) const HOURS: usize = 24;

/// beta and a of the equilibrium: a (1 + beta) is below pi/2, and resources are used to 98 % and
/// more.
const RESPONSIVENESS: f64 = 2000.0;
const INCREASE: f64 = 5e-4;
const DECREASE: f64 = 0.875;
/// The penalty's steepness asks for small units.
const KBIT: f64 = 1e3;

/// Capacity of one access for the gateways of the plan in one hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offer {
    /// Payload of all cells together, Mbit/s.
    pub(super) usable_mbit: f64,
    /// One gateway's part when all send as much as they can.
    pub(super) gateway_mbit: f64,
    /// Traffic of others, in all cells together.
    pub(super) background_mbit: f64,
}

/// Payload that an access carries, by its rate.
pub(super) fn usable(access: &Access) -> f64 {
    access.rate_mbit * (1.0 - access.loss) * HEADER_SHARE
}

/// Part of the hour that belongs to the busy hours.
pub(super) fn busy_part(plan: &Plan, hour: usize) -> f64 {
    let (from, lasts) = (plan.busy_from_hour, plan.busy_hours_per_day);
    // The busy hours may go on after midnight.
    overlap(hour, from, from + lasts) + overlap(hour, from - 24.0, from + lasts - 24.0)
}

fn overlap(hour: usize, from: f64, to: f64) -> f64 {
    let hour = hour as f64;
    (to.min(hour + 1.0) - from.max(hour)).max(0.0)
}

/// Traffic of others in one cell in this hour: Mbit/s, and their number.
fn background(access: &Access, hour: usize) -> (f64, f64) {
    let parts = access.background.iter().map(|it| {
        let part = overlap(hour, it.from_hour, it.to_hour);
        (it.mbit * part, if part > 0.0 { it.users } else { 0.0 })
    });
    parts.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
}

/// The offers of an access by the hour. `gateways`: those within reach, in all cells together.
pub(super) fn offers(access: &Access, gateways: f64) -> Result<[Offer; HOURS], NoEquilibrium> {
    let cells = if access.per_patient {
        gateways.max(1.0)
    } else {
        access.cells
    };
    // Less than one gateway on average is one gateway now and then.
    let senders = (gateways / cells).max(1.0);
    let mut known: BTreeMap<(u64, u64), (f64, f64)> = BTreeMap::new();
    let mut offers = [Offer {
        usable_mbit: 0.0,
        gateway_mbit: 0.0,
        background_mbit: 0.0,
    }; HOURS];
    for (hour, offer) in offers.iter_mut().enumerate() {
        let (mbit, users) = background(access, hour);
        let key = (mbit.to_bits(), users.to_bits());
        let of_cell = match known.get(&key) {
            Some(of_cell) => *of_cell,
            None => {
                let of_cell = cell(access, senders, mbit, users)?;
                known.insert(key, of_cell);
                of_cell
            }
        };
        *offer = Offer {
            usable_mbit: of_cell.0 * cells,
            gateway_mbit: of_cell.1 / senders,
            background_mbit: mbit * cells,
        };
    }
    Ok(offers)
}

/// Capacity of one cell for its gateways, and their rates together while all send as much as they
/// can. The equilibrium leaves a little of a full cell unused.
fn cell(access: &Access, senders: f64, mbit: f64, users: f64) -> Result<(f64, f64), NoEquilibrium> {
    let whole = usable(access);
    let is_alone = mbit <= 0.0;
    if is_alone && access.per_patient {
        return Ok((whole, whole));
    }
    let trip_s = (access.rtt_ms / 1e3).max(1e-3);
    let mut network = Network {
        increase: INCREASE,
        resources: vec![Resource {
            name: access.name.clone(),
            nominal: whole * KBIT,
            responsiveness: RESPONSIVENESS,
            capacity: Capacity::Constant,
        }],
        ..Network::default()
    };
    let mut demands = Vec::new();
    let mut add = |name: &str, weight: f64, demand: f64| {
        network.sources.push(Source {
            name: name.to_owned(),
            weight,
        });
        network.routes.push(Route {
            name: name.to_owned(),
            source: network.sources.len() - 1,
            decrease: DECREASE,
            round_trip_s: trip_s,
            resources: vec![(0, trip_s / 2.0, trip_s / 2.0)],
        });
        demands.push(demand);
    };
    add("gateways", senders, f64::INFINITY);
    if !is_alone {
        add("others", users, mbit * KBIT);
    }
    let found = equilibrium(&network, &demands)?;
    let sum: f64 = found.rates.iter().sum();
    Ok((whole * found.rates[0] / sum, found.rates[0] / KBIT))
}
