//! The result of a plan: loads by the hour, equilibrium rates when all gateways send at once,
//! bytes and price.
//!
//! Patients of a group are parted by the accesses that cover them, each access on its own. Rates
//! are those of payload: an access gives its rate less random loss and headers.

use serde::Serialize;

use crate::HEADER_SHARE;
use crate::day::{self, HOURS, Offer};
use crate::file::{Access, Plan, Split};

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
    /// Payload of one patient in the hour that is looked at, Mbit/s.
    demand: f64,
    /// The same on each access.
    carried: Vec<f64>,
}

/// One access in one hour.
#[derive(Debug, Clone, Serialize)]
pub struct HourOutcome {
    pub hour: usize,
    /// Asked by other users of its cells, Mbit/s.
    pub background_mbit: f64,
    /// Left for the plan's gateways.
    pub usable_mbit: f64,
    pub load_mbit: f64,
    pub used_percent: f64,
    /// One gateway, while all within reach send as much as they can.
    pub gateway_mbit: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    pub plan: String,
    pub split: Split,
    pub currency: String,
    pub accesses: Vec<AccessOutcome>,
    pub groups: Vec<GroupOutcome>,
    pub gb_per_month: f64,
    pub price_per_month: f64,
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct AccessOutcome {
    pub name: String,
    /// Patients within reach.
    pub patients: f64,
    /// Payload that it can carry for the plan, in the hour in which it is used most, Mbit/s.
    pub usable_mbit: f64,
    /// The load of that hour.
    pub busy_mbit: f64,
    pub used_percent: f64,
    pub headroom_mbit: f64,
    /// That hour; the first of several.
    pub tightest_hour: usize,
    pub hours: Vec<HourOutcome>,
    /// Share of the payload of all accesses.
    pub share_percent: f64,
    pub gb_per_month: f64,
    pub price_per_month: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct GroupOutcome {
    pub name: String,
    pub patients: f64,
    /// Out of reach of every access.
    pub uncovered_percent: f64,
    /// Within reach of one access only: nothing takes over when it fails.
    pub single_percent: f64,
    pub busy_kbit_per_patient: f64,
    /// Equilibrium rate of one gateway when all send as much as they can, in Mbit/s. By access, in
    /// the worst hour of each, and in sum.
    pub equilibrium_mbit: Vec<f64>,
    pub equilibrium_sum_mbit: f64,
    /// One gateway with every access, and nobody else.
    pub alone_mbit: f64,
    pub gb_per_patient_month: f64,
    pub price_per_patient_month: f64,
}

/// Bytes on the wire by bytes of payload: headers, and what is sent again.
fn wire_share(access: &Access) -> f64 {
    1.0 / (HEADER_SHARE * (1.0 - access.loss))
}

/// The outcome of a plan.
pub fn solve(plan: &Plan) -> Outcome {
    let mut parts = parts(plan);
    let reach = |access: usize| -> f64 {
        let within = parts.iter().filter(|part| part.accesses.contains(&access));
        within.map(|part| part.patients).sum()
    };
    let reached: Vec<f64> = (0..plan.access.len()).map(reach).collect();
    let offers: Vec<[Offer; HOURS]> = plan
        .access
        .iter()
        .zip(&reached)
        .map(|(access, gateways)| day::offers(access, *gateways))
        .collect();
    let mut day = Day::new(plan, &parts);
    for hour in 0..HOURS {
        let capacities: Vec<f64> = offers.iter().map(|it| it[hour].usable_mbit).collect();
        let busy = day::busy_part(plan, hour);
        for part in &mut parts {
            part.demand = demand(plan, part.group, busy);
            let even = part.demand / part.accesses.len() as f64;
            part.carried.fill(even);
        }
        match plan.split {
            Split::Balanced => balance(&mut parts, &capacities),
            Split::Fastest => fill(&mut parts, &capacities, |it| plan.access[it].rtt_ms),
            Split::Cheapest => fill(&mut parts, &capacities, |it| plan.access[it].price_per_gb),
        }
        day.add(hour, &parts, &offers);
    }
    outcome(plan, &parts, &reached, day)
}

/// Sums over the hours.
struct Day {
    /// By access.
    hours: Vec<Vec<HourOutcome>>,
    /// Mbit/s times hours of one patient, by part and its accesses.
    carried: Vec<Vec<f64>>,
    /// Greatest payload of one patient, by group, Mbit/s.
    busy: Vec<f64>,
}

impl Day {
    fn new(plan: &Plan, parts: &[Part]) -> Self {
        let of_part = |part: &Part| vec![0.0; part.accesses.len()];
        Self {
            hours: vec![Vec::with_capacity(HOURS); plan.access.len()],
            carried: parts.iter().map(of_part).collect(),
            busy: vec![0.0; plan.patients.len()],
        }
    }

    fn add(&mut self, hour: usize, parts: &[Part], offers: &[[Offer; HOURS]]) {
        let loads = loads(parts, offers.len());
        for ((hours, load_mbit), offer) in self.hours.iter_mut().zip(loads).zip(offers) {
            let offer = offer[hour];
            hours.push(HourOutcome {
                hour,
                background_mbit: offer.background_mbit,
                usable_mbit: offer.usable_mbit,
                load_mbit,
                used_percent: 100.0 * load_mbit / offer.usable_mbit,
                gateway_mbit: offer.gateway_mbit,
            });
        }
        for (part, sums) in parts.iter().zip(&mut self.carried) {
            for (sum, carried) in sums.iter_mut().zip(&part.carried) {
                *sum += carried;
            }
            let busy = &mut self.busy[part.group];
            *busy = busy.max(part.demand);
        }
    }
}

/// Payload of one patient in an hour of which this part is busy, Mbit/s. Traffic of more hours than
/// the busy ones fills those, and goes on in the others.
fn demand(plan: &Plan, group: usize, busy: f64) -> f64 {
    let busy_hours = plan.busy_hours_per_day;
    let quiet_hours = HOURS as f64 - busy_hours;
    let traffic = plan.patients[group].traffic.iter();
    let mean = traffic.map(|it| {
        let within = it.hours_per_day.min(busy_hours) / busy_hours;
        let outside = if quiet_hours > 0.0 {
            (it.hours_per_day - busy_hours).max(0.0) / quiet_hours
        } else {
            0.0
        };
        it.kbit / 1e3 * (within * busy + outside * (1.0 - busy))
    });
    mean.sum()
}

/// Each group by the accesses that cover its patients.
fn parts(plan: &Plan) -> Vec<Part> {
    let mut parts = Vec::new();
    for (index, group) in plan.patients.iter().enumerate() {
        let own = plan.accesses_of(group);
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
                parts.push(Part {
                    group: index,
                    patients,
                    carried: vec![0.0; accesses.len()],
                    accesses,
                    demand: 0.0,
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

fn outcome(plan: &Plan, parts: &[Part], reached: &[f64], day: Day) -> Outcome {
    let worst = |hours: &Vec<HourOutcome>| {
        let rates = hours.iter().map(|it| it.gateway_mbit);
        rates.fold(f64::INFINITY, f64::min)
    };
    let worst: Vec<f64> = day.hours.iter().map(worst).collect();
    let mut bytes = vec![0.0; plan.access.len()];
    let mut payloads = vec![0.0; plan.access.len()];
    let mut groups = Vec::new();
    for (index, group) in plan.patients.iter().enumerate() {
        let own = || {
            let all = parts.iter().zip(&day.carried);
            all.filter(|(part, _)| part.group == index)
        };
        let covered: f64 = own().map(|(part, _)| part.patients).sum();
        let single: f64 = own()
            .filter(|(part, _)| part.accesses.len() == 1)
            .map(|(part, _)| part.patients)
            .sum();
        let (mut group_bytes, mut group_price) = (0.0, 0.0);
        let mut equilibrium = vec![0.0; plan.access.len()];
        for (part, carried) in own() {
            for (&access, mbit_hours) in part.accesses.iter().zip(carried) {
                let network = &plan.access[access];
                let idle = network.idle_mb_per_month * 1e6;
                let payload = mbit_hours * 1e6 / 8.0 * 3600.0 * plan.days_per_month;
                let wire = part.patients * (payload * wire_share(network) + idle);
                payloads[access] += part.patients * payload;
                bytes[access] += wire;
                group_bytes += wire;
                group_price += wire / 1e9 * network.price_per_gb;
                equilibrium[access] += worst[access] * part.patients / covered.max(PATIENTS_MIN);
            }
        }
        let alone = plan
            .accesses_of(group)
            .into_iter()
            .map(|it| day::usable(&plan.access[it]));
        groups.push(GroupOutcome {
            name: group.name.clone(),
            patients: group.count,
            uncovered_percent: 100.0 * (1.0 - covered / group.count).max(0.0),
            single_percent: 100.0 * single / group.count,
            busy_kbit_per_patient: day.busy[index] * 1e3,
            equilibrium_sum_mbit: equilibrium.iter().sum(),
            equilibrium_mbit: equilibrium,
            alone_mbit: alone.sum(),
            gb_per_patient_month: group_bytes / 1e9 / group.count,
            price_per_patient_month: group_price / group.count,
        });
    }
    let total: f64 = payloads.iter().sum();
    let mut accesses = Vec::new();
    for ((index, access), hours) in plan.access.iter().enumerate().zip(day.hours) {
        let tightest = hours.iter().reduce(|most, it| {
            if it.used_percent > most.used_percent {
                it
            } else {
                most
            }
        });
        let Some(tightest) = tightest.cloned() else {
            continue;
        };
        accesses.push(AccessOutcome {
            name: access.name.clone(),
            patients: reached[index],
            usable_mbit: tightest.usable_mbit,
            busy_mbit: tightest.load_mbit,
            used_percent: tightest.used_percent,
            headroom_mbit: tightest.usable_mbit - tightest.load_mbit,
            tightest_hour: tightest.hour,
            hours,
            share_percent: if total > 0.0 {
                100.0 * payloads[index] / total
            } else {
                0.0
            },
            gb_per_month: bytes[index] / 1e9,
            price_per_month: bytes[index] / 1e9 * access.price_per_gb,
        });
    }
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
                "{} is overloaded from {:02}:00 on: {:.2} of {:.2} Mbit/s",
                it.name, it.tightest_hour, it.busy_mbit, it.usable_mbit
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
