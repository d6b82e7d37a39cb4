//! The day of a plan, in hours. Each hour has its traffic and the part of others in the cells. The
//! rest of the capacity is for the plan's gateways.
//!
//! In a cell each gateway is one sender and each other user another. A full cell gives each of them
//! the same part, which is the equilibrium of the fluid model at one resource. A line of one's own
//! is a cell with one gateway.

use crate::HEADER_SHARE;
use crate::file::{Access, Plan};

pub(crate) const HOURS: usize = 24;

/// Capacity of one access for the gateways of the plan in one hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Offer {
    /// Payload of all cells together, Mbit/s.
    pub(crate) usable_mbit: f64,
    /// One gateway's part when all send as much as they can.
    pub(crate) gateway_mbit: f64,
    /// Traffic of others, in all cells together.
    pub(crate) background_mbit: f64,
}

/// Payload that an access carries, by its rate.
pub(crate) fn usable(access: &Access) -> f64 {
    access.rate_mbit * (1.0 - access.loss) * HEADER_SHARE
}

/// Part of the hour that belongs to the busy hours.
pub(crate) fn busy_part(plan: &Plan, hour: usize) -> f64 {
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
pub(crate) fn offers(access: &Access, gateways: f64) -> [Offer; HOURS] {
    let cells = if access.per_patient {
        gateways.max(1.0)
    } else {
        access.cells
    };
    // Less than one gateway on average is one gateway now and then.
    let senders = (gateways / cells).max(1.0);
    std::array::from_fn(|hour| {
        let (mbit, users) = background(access, hour);
        let of_cell = left(usable(access), senders, mbit, users);
        Offer {
            usable_mbit: of_cell * cells,
            gateway_mbit: of_cell / senders,
            background_mbit: mbit * cells,
        }
    })
}

/// Rate that `users` leave to `senders` of a cell. In a full cell all have the same part. The users
/// never take more than the `mbit` that they ask for together.
fn left(whole: f64, senders: f64, mbit: f64, users: f64) -> f64 {
    whole - mbit.min(whole * users / (senders + users))
}
