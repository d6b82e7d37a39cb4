//! What a plan comes to: loads in the busy hours, equilibrium rates when all gateways send at
//! once, bytes and price.
//!
//! Patients of a group are parted by the accesses that cover them, each access on its own. Rates
//! are those of payload: an access gives its rate less random loss and headers.

use ::fluid::{Capacity, Network, NoEquilibrium, Resource, Route, Source, equilibrium};
use serde::Serialize;

use super::file::{Access, Plan, Split};
use crate::scenario::HEADER_SHARE;

/// beta and a of the equilibrium: a (1 + beta) is below pi/2, and resources are used to 98 % and
/// more.
const RESPONSIVENESS: f64 = 2000.0;
const INCREASE: f64 = 5e-4;
const DECREASE: f64 = 0.875;
/// Rounds in which loads are balanced.
const ROUNDS_MAX: u32 = 20_000;
/// Patients of a part that counts.
const PATIENTS_MIN: f64 = 1e-9;

/// Patients with the same accesses within reach.
#[derive(Debug, Clone)]
struct Part {
    group: usize,
    patients: f64,
    /// Indices of accesses; never empty.
    accesses: Vec<usize>,
    /// Payload of one patient in the busy hours, Mbit/s.
    demand: f64,
    /// Of that, on each access.
    carried: Vec<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    pub(super) plan: String,
    pub(super) split: Split,
    pub(super) currency: String,
    pub(super) accesses: Vec<AccessOutcome>,
    pub(super) groups: Vec<GroupOutcome>,
    pub(super) gb_per_month: f64,
    pub(super) price_per_month: f64,
    pub(super) warnings: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct AccessOutcome {
    pub(super) name: String,
    /// Patients within reach.
    pub(super) patients: f64,
    /// Payload that it can carry, Mbit/s.
    pub(super) usable_mbit: f64,
    pub(super) busy_mbit: f64,
    pub(super) used_percent: f64,
    pub(super) headroom_mbit: f64,
    /// Of the payload of all accesses.
    pub(super) share_percent: f64,
    pub(super) gb_per_month: f64,
    pub(super) price_per_month: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct GroupOutcome {
    pub(super) name: String,
    pub(super) patients: f64,
    /// Out of reach of every access.
    pub(super) uncovered_percent: f64,
    pub(super) busy_kbit_per_patient: f64,
    /// Equilibrium rate of one gateway when all send as much as they can, Mbit/s, by access and
    /// in sum.
    pub(super) equilibrium_mbit: Vec<f64>,
    pub(super) equilibrium_sum_mbit: f64,
    /// One gateway with every access, and nobody else.
    pub(super) alone_mbit: f64,
    pub(super) gb_per_patient_month: f64,
    pub(super) price_per_patient_month: f64,
}

/// Payload that an access carries, by its rate.
pub(super) fn usable(access: &Access) -> f64 {
    access.rate_mbit * (1.0 - access.loss) * HEADER_SHARE
}

/// Bytes on the wire by bytes of payload: headers, and what is sent again.
fn wire_share(access: &Access) -> f64 {
    1.0 / (HEADER_SHARE * (1.0 - access.loss))
}

pub(super) fn solve(plan: &Plan) -> Result<Outcome, NoEquilibrium> {
    let mut parts = parts(plan);
    // A line of one's own is as wide as its users are many.
    let reach = |access: usize| -> f64 {
        let within = parts.iter().filter(|part| part.accesses.contains(&access));
        within.map(|part| part.patients).sum()
    };
    let reached: Vec<f64> = (0..plan.access.len()).map(reach).collect();
    let capacities: Vec<f64> = plan
        .access
        .iter()
        .zip(&reached)
        .map(|(access, patients)| {
            usable(access)
                * if access.per_patient {
                    patients.max(1.0)
                } else {
                    1.0
                }
        })
        .collect();
    match plan.split {
        Split::Balanced => balance(&mut parts, &capacities),
        Split::Fastest => fill(&mut parts, &capacities, |it| plan.access[it].rtt_ms),
        Split::Cheapest => fill(&mut parts, &capacities, |it| plan.access[it].price_per_gb),
    }
    let rates = rates(plan, &parts)?;
    Ok(outcome(plan, &parts, &reached, &capacities, &rates))
}

/// Each group by the accesses that cover its patients.
fn parts(plan: &Plan) -> Vec<Part> {
    let mut parts = Vec::new();
    for (index, group) in plan.patients.iter().enumerate() {
        let own = plan.accesses_of(group);
        let busy = group.traffic.iter().map(|it| {
            it.kbit / 1e3 * it.hours_per_day.min(plan.busy_hours_per_day) / plan.busy_hours_per_day
        });
        let demand: f64 = busy.sum();
        for subset in 1_u32..1 << own.len() {
            let is_in = |place: usize| subset >> place & 1 == 1;
            let shares = own.iter().enumerate().map(|(place, access)| {
                let coverage = plan.access[*access].coverage;
                if is_in(place) {
                    coverage
                } else {
                    1.0 - coverage
                }
            });
            let patients = group.count * shares.product::<f64>();
            let accesses: Vec<usize> = own
                .iter()
                .enumerate()
                .filter(|(place, _)| is_in(*place))
                .map(|(_, access)| *access)
                .collect();
            if patients > PATIENTS_MIN {
                let even = demand / accesses.len() as f64;
                parts.push(Part {
                    group: index,
                    patients,
                    carried: vec![even; accesses.len()],
                    accesses,
                    demand,
                });
            }
        }
    }
    parts
}

fn loads(parts: &[Part], accesses: usize) -> Vec<f64> {
    let mut loads = vec![0.0; accesses];
    for part in parts {
        for (access, carried) in part.accesses.iter().zip(&part.carried) {
            loads[*access] += carried * part.patients;
        }
    }
    loads
}

/// Moves load towards less used accesses until the accesses that a part uses are used alike.
fn balance(parts: &mut [Part], capacities: &[f64]) {
    for _ in 0..ROUNDS_MAX {
        let used: Vec<f64> = loads(parts, capacities.len())
            .iter()
            .zip(capacities)
            .map(|(load, capacity)| (load / capacity).max(1e-12))
            .collect();
        let mut moved: f64 = 0.0;
        for part in parts.iter_mut() {
            let mut sum = 0.0;
            let before = part.carried.clone();
            for (access, carried) in part.accesses.iter().zip(&mut part.carried) {
                *carried /= used[*access].powf(0.3);
                sum += *carried;
            }
            if sum > 0.0 {
                for (carried, before) in part.carried.iter_mut().zip(before) {
                    *carried *= part.demand / sum;
                    moved = moved.max((*carried - before).abs() / part.demand);
                }
            }
        }
        if moved < 1e-9 {
            return;
        }
    }
}

/// The best access of each part first; what does not fit goes on to its next, the rest to its last.
fn fill(parts: &mut [Part], capacities: &[f64], order: impl Fn(usize) -> f64) {
    let mut left = capacities.to_vec();
    for part in parts.iter_mut() {
        part.carried.fill(0.0);
    }
    let mut waiting: Vec<f64> = parts
        .iter()
        .map(|part| part.demand * part.patients)
        .collect();
    for choice in 0..capacities.len() {
        // All parts whose choice is the same access get equal shares of what they ask.
        let wish = |part: &Part| -> Option<usize> {
            let mut places: Vec<usize> = (0..part.accesses.len()).collect();
            places.sort_by(|a, b| {
                let (a, b) = (part.accesses[*a], part.accesses[*b]);
                order(a).total_cmp(&order(b)).then(a.cmp(&b))
            });
            places.get(choice).copied()
        };
        let mut asked = vec![0.0; capacities.len()];
        for (part, waits) in parts.iter().zip(&waiting) {
            if let Some(place) = wish(part) {
                asked[part.accesses[place]] += waits;
            }
        }
        let granted: Vec<f64> = asked
            .iter()
            .zip(&left)
            .map(|(asked, left)| {
                let left = left.max(0.0);
                if *asked > left { left / asked } else { 1.0 }
            })
            .collect();
        for (part, waits) in parts.iter_mut().zip(&mut waiting) {
            if let Some(place) = wish(part) {
                let access = part.accesses[place];
                let is_last = choice + 1 == part.accesses.len();
                let takes = if is_last {
                    *waits
                } else {
                    *waits * granted[access]
                };
                part.carried[place] += takes / part.patients;
                left[access] -= takes;
                *waits -= takes;
            }
        }
    }
}

/// Equilibrium rates of one patient of each part, by its accesses, when all send as much as they
/// can.
///
/// Each gateway is one sender at each access: the controller couples paths only where they share
/// a bottleneck.
fn rates(plan: &Plan, parts: &[Part]) -> Result<Vec<Vec<f64>>, NoEquilibrium> {
    let mut network = Network {
        increase: INCREASE,
        ..Network::default()
    };
    let mut senders = vec![0.0; plan.access.len()];
    for part in parts {
        for access in &part.accesses {
            senders[*access] += part.patients;
        }
    }
    let shared = |access: usize| !plan.access[access].per_patient && senders[access] > 0.0;
    let shared: Vec<usize> = (0..plan.access.len()).filter(|it| shared(*it)).collect();
    for &access in &shared {
        let own = &plan.access[access];
        let trip_s = (own.rtt_ms / 1e3).max(1e-3);
        network.resources.push(Resource {
            name: own.name.clone(),
            // The penalty's steepness asks for small units.
            nominal: usable(own) * 1e3,
            responsiveness: RESPONSIVENESS,
            capacity: Capacity::Constant,
        });
        network.sources.push(Source {
            name: own.name.clone(),
            weight: senders[access],
        });
        network.routes.push(Route {
            name: own.name.clone(),
            source: network.sources.len() - 1,
            decrease: DECREASE,
            round_trip_s: trip_s,
            resources: vec![(network.resources.len() - 1, trip_s / 2.0, trip_s / 2.0)],
        });
    }
    let mut each: Vec<f64> = plan.access.iter().map(usable).collect();
    if !shared.is_empty() {
        let free = vec![f64::INFINITY; network.sources.len()];
        let found = equilibrium(&network, &free)?;
        for (access, rate) in shared.iter().zip(&found.rates) {
            // Less than one patient on average is one patient now and then.
            each[*access] = rate / 1e3 / senders[*access].max(1.0);
        }
    }
    Ok(parts
        .iter()
        .map(|part| part.accesses.iter().map(|access| each[*access]).collect())
        .collect())
}

fn outcome(
    plan: &Plan,
    parts: &[Part],
    reached: &[f64],
    capacities: &[f64],
    rates: &[Vec<f64>],
) -> Outcome {
    let busy = loads(parts, plan.access.len());
    let total: f64 = busy.iter().sum();
    let mut bytes = vec![0.0; plan.access.len()];
    let mut groups = Vec::new();
    for (index, group) in plan.patients.iter().enumerate() {
        let own = || {
            parts
                .iter()
                .zip(rates)
                .filter(|(part, _)| part.group == index)
        };
        let covered: f64 = own().map(|(part, _)| part.patients).sum();
        let hours = group.traffic.iter().map(|it| it.kbit * it.hours_per_day);
        // kbit/s times hours, over a month.
        let payload = hours.sum::<f64>() * 1e3 / 8.0 * 3600.0 * plan.days_per_month;
        let (mut group_bytes, mut group_price) = (0.0, 0.0);
        let mut equilibrium = vec![0.0; plan.access.len()];
        for (part, rates) in own() {
            let places = part.accesses.iter().zip(part.carried.iter().zip(rates));
            for (&access, (carried, rate)) in places {
                let network = &plan.access[access];
                let share = if part.demand > 0.0 {
                    carried / part.demand
                } else {
                    0.0
                };
                let idle = network.idle_mb_per_month * 1e6;
                let wire = part.patients * (payload * share * wire_share(network) + idle);
                bytes[access] += wire;
                group_bytes += wire;
                group_price += wire / 1e9 * network.price_per_gb;
                equilibrium[access] += rate * part.patients / covered.max(PATIENTS_MIN);
            }
        }
        let alone = plan
            .accesses_of(group)
            .into_iter()
            .map(|it| usable(&plan.access[it]));
        groups.push(GroupOutcome {
            name: group.name.clone(),
            patients: group.count,
            uncovered_percent: 100.0 * (1.0 - covered / group.count).max(0.0),
            busy_kbit_per_patient: own().next().map_or(0.0, |(part, _)| part.demand * 1e3),
            equilibrium_sum_mbit: equilibrium.iter().sum(),
            equilibrium_mbit: equilibrium,
            alone_mbit: alone.sum(),
            gb_per_patient_month: group_bytes / 1e9 / group.count,
            price_per_patient_month: group_price / group.count,
        });
    }
    let accesses: Vec<AccessOutcome> = plan
        .access
        .iter()
        .enumerate()
        .map(|(index, access)| AccessOutcome {
            name: access.name.clone(),
            patients: reached[index],
            usable_mbit: capacities[index],
            busy_mbit: busy[index],
            used_percent: 100.0 * busy[index] / capacities[index],
            headroom_mbit: capacities[index] - busy[index],
            share_percent: if total > 0.0 {
                100.0 * busy[index] / total
            } else {
                0.0
            },
            gb_per_month: bytes[index] / 1e9,
            price_per_month: bytes[index] / 1e9 * access.price_per_gb,
        })
        .collect();
    Outcome {
        plan: plan.name.clone(),
        split: plan.split,
        currency: plan.currency.clone(),
        gb_per_month: accesses.iter().map(|it| it.gb_per_month).sum(),
        price_per_month: accesses.iter().map(|it| it.price_per_month).sum(),
        warnings: warnings(&accesses, &groups),
        accesses,
        groups,
    }
}

fn warnings(accesses: &[AccessOutcome], groups: &[GroupOutcome]) -> Vec<String> {
    let overloaded = accesses
        .iter()
        .filter(|it| it.headroom_mbit < 0.0)
        .map(|it| {
            format!(
                "{} is overloaded in the busy hours: {:.2} of {:.2} Mbit/s",
                it.name, it.busy_mbit, it.usable_mbit
            )
        });
    let uncovered = groups
        .iter()
        .filter(|it| it.uncovered_percent > 0.1)
        .map(|it| {
            format!(
                "{:.1} % of the patients \"{}\" are out of reach of every access; their gateways \
                 journal until then",
                it.uncovered_percent, it.name
            )
        });
    overloaded.chain(uncovered).collect()
}
