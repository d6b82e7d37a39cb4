//! Forward Euler for the delay differential equations (1)-(5).
//!
//! Past rates and penalties lie in a buffer that is longer than the longest delay. When it is full,
//! the rows that are still read move to its front. Capacities that change are computed at every
//! `KNOT_S` and interpolated between. A node at 25 m/s moves a metre in that time, and the factor
//! (11) of the paper then errs by less than 1e-5.

use crate::mobility::Track;
use crate::network::{Capacity, Network, Resource, Warning, positive};
use toml_errors::Invalid;

/// Steps of one run, and values that it may record.
const STEPS_MAX: f64 = 1e9;
const RECORDED_MAX: f64 = 5e7;
const KNOT_S: f64 = 0.04;
/// A share of the nominal capacity, so that the penalty of a resource without capacity is a number.
const CAPACITY_SHARE_MIN: f64 = 1e-9;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    pub step_s: f64,
    pub duration_s: f64,
    /// Least value of x_r(t - T_r) in front of the bracket of (1), with which a stalled route
    /// probes.
    pub floor: f64,
    pub record_every_s: f64,
}

impl Settings {
    pub fn check(&self) -> Result<(), Invalid> {
        positive("step_ms", self.step_s, 10.0, "1.0")?;
        positive("duration_s", self.duration_s, 1e6, "540.0")?;
        positive("floor", self.floor, 1e9, "0.1")?;
        positive("record_every_ms", self.record_every_s, 1e6, "100.0")?;
        let steps = self.duration_s / self.step_s;
        positive("duration_s", steps, STEPS_MAX, "fewer than 1e9 steps")
    }
}

/// Rates and capacities over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub times_s: Vec<f64>,
    /// By route, then by time.
    pub rates: Vec<Vec<f64>>,
    /// By resource, then by time.
    pub capacities: Vec<Vec<f64>>,
    pub steps: u64,
    pub warnings: Vec<Warning>,
}

impl Run {
    /// Sum of the rates of some routes, by time.
    pub fn sum(&self, routes: &[usize]) -> Vec<f64> {
        (0..self.times_s.len())
            .map(|at| routes.iter().map(|&route| self.rates[route][at]).sum())
            .collect()
    }
}

/// Integrates from empty routes on. `nodes`: metres ahead of the middle, for capacities by
/// distance.
pub fn solve(
    network: &Network,
    track: Option<&Track>,
    nodes: &[f64],
    settings: Settings,
) -> Result<Run, Invalid> {
    network.check()?;
    settings.check()?;
    let layout = Layout::new(network);
    let supply = Supply::new(network, track, nodes, settings.step_s, &layout)?;
    let count = network.routes.len() + network.resources.len();
    let recorded = settings.duration_s / settings.record_every_s * count as f64;
    positive("record_every_ms", recorded, RECORDED_MAX, "100.0")?;
    let mut run = State::new(network, settings, &layout).integrate(supply, settings);
    run.warnings = network.warnings(settings.step_s);
    Ok(run)
}

/// Resources are computed four at once; those with one exponent stand together, and gaps are
/// filled up.
const LANES: usize = 4;
/// Rows of history that are written before the youngest are moved to the front.
const ROWS: usize = 1024;

/// The slot of each resource, and the exponent of each group of four.
struct Layout {
    slot: Vec<usize>,
    groups: Vec<Exponent>,
}

/// beta of four neighbours.
#[derive(Clone, Copy, PartialEq)]
enum Exponent {
    Whole(u32),
    Real(f64),
}

impl Layout {
    fn new(network: &Network) -> Self {
        let exponent = |beta: f64| match beta.fract() == 0.0 {
            true => Exponent::Whole(beta as u32),
            false => Exponent::Real(beta),
        };
        let mut slot = vec![0; network.resources.len()];
        let mut groups: Vec<Exponent> = Vec::new();
        let mut filled: Vec<usize> = Vec::new();
        for (index, resource) in network.resources.iter().enumerate() {
            let own = exponent(resource.responsiveness);
            let open = (0..groups.len()).find(|&at| groups[at] == own && filled[at] < LANES);
            let group = open.unwrap_or_else(|| {
                groups.push(own);
                filled.push(0);
                groups.len() - 1
            });
            slot[index] = group * LANES + filled[group];
            filled[group] += 1;
        }
        Self { slot, groups }
    }

    fn width(&self) -> usize {
        self.groups.len() * LANES
    }
}

/// Capacities at the knots, and by how much each changes in one step; by slot.
struct Supply<'a> {
    network: &'a Network,
    track: Option<&'a Track>,
    nodes: &'a [f64],
    slot: Vec<usize>,
    /// By resource: the capacity by which a factor is multiplied.
    scale: Vec<f64>,
    step_s: f64,
    /// Steps from knot to knot.
    knot: u64,
    until_knot: u64,
    now: Vec<f64>,
    next: Vec<f64>,
    slope: Vec<f64>,
    /// Capacities that jump: the step at which, the slot, and the new value; ascending.
    jumps: Vec<(u64, usize, f64)>,
    jumped: usize,
}

impl<'a> Supply<'a> {
    fn new(
        network: &'a Network,
        track: Option<&'a Track>,
        nodes: &'a [f64],
        step_s: f64,
        layout: &Layout,
    ) -> Result<Self, Invalid> {
        for (index, resource) in network.resources.iter().enumerate() {
            if let Capacity::Distance { node, .. } = resource.capacity
                && (track.is_none() || node >= nodes.len())
            {
                let field = format!("resource[{index}].node");
                let reason = "needs a way and a node of that name; for example a [[node]] table \
                              with name = \"head\" and ahead_m = 100.0";
                return Err(Invalid {
                    field,
                    reason: reason.to_owned(),
                });
            }
        }
        let mut supply = Self {
            network,
            track,
            nodes,
            slot: layout.slot.clone(),
            scale: network.resources.iter().map(scale).collect(),
            step_s,
            knot: ((KNOT_S / step_s).round() as u64).max(1),
            until_knot: 0,
            now: vec![1.0; layout.width()],
            next: vec![1.0; layout.width()],
            slope: vec![0.0; layout.width()],
            jumps: jumps(network, layout, step_s),
            jumped: 0,
        };
        for (slot, resource) in layout.slot.iter().zip(&network.resources) {
            supply.now[*slot] = resource.nominal;
        }
        supply.fill_next(0.0);
        Ok(supply)
    }

    fn fill_next(&mut self, at_s: f64) {
        // Resources of one node stand together, so its position is computed once.
        let mut last: Option<(usize, (f64, f64))> = None;
        let resources = self
            .slot
            .iter()
            .zip(&self.scale)
            .zip(&self.network.resources);
        for ((slot, scale), resource) in resources {
            let factor = match &resource.capacity {
                Capacity::Constant => 1.0,
                // Constant between two knots; `jumps` has the steps at which the capacity changes.
                Capacity::Steps(_) => {
                    self.next[*slot] = self.now[*slot];
                    continue;
                }
                Capacity::Distance {
                    node,
                    station_m,
                    decay,
                } => {
                    let at = match (last, self.track) {
                        (Some((same, at)), _) if same == *node => at,
                        (_, Some(track)) => track.position(at_s, self.nodes[*node]),
                        (_, None) => *station_m,
                    };
                    last = Some((*node, at));
                    let (dx, dy) = (at.0 - station_m.0, at.1 - station_m.1);
                    decay.logistic((dx * dx + dy * dy).sqrt())
                }
            };
            self.next[*slot] = scale * factor.max(CAPACITY_SHARE_MIN);
        }
    }

    /// Moves to step `n`; called for each step in turn.
    fn advance(&mut self, n: u64) {
        if self.until_knot == 0 {
            self.until_knot = self.knot;
            std::mem::swap(&mut self.now, &mut self.next);
            self.fill_next((n + self.knot) as f64 * self.step_s);
            let shares = 1.0 / self.knot as f64;
            for (slope, (now, next)) in self.slope.iter_mut().zip(self.now.iter().zip(&self.next)) {
                *slope = (next - now) * shares;
            }
        } else {
            let (now, slope) = (self.now.as_chunks_mut().0, self.slope.as_chunks().0);
            for (now, slope) in now.iter_mut().zip(slope) {
                let (now, slope): (&mut [f64; LANES], &[f64; LANES]) = (now, slope);
                for lane in 0..LANES {
                    now[lane] += slope[lane];
                }
            }
        }
        self.until_knot -= 1;
        while let Some(&(at, slot, value)) = self.jumps.get(self.jumped)
            && at <= n
        {
            // The next knot takes over what `next` holds.
            (self.now[slot], self.next[slot]) = (value, value);
            self.jumped += 1;
        }
    }
}

fn jumps(network: &Network, layout: &Layout, step_s: f64) -> Vec<(u64, usize, f64)> {
    let mut jumps = Vec::new();
    for (slot, resource) in layout.slot.iter().zip(&network.resources) {
        if let Capacity::Steps(steps) = &resource.capacity {
            jumps.extend(steps.iter().map(|&(at_s, factor)| {
                let value = resource.nominal * factor.max(CAPACITY_SHARE_MIN);
                ((at_s / step_s - 1e-6).ceil() as u64, *slot, value)
            }));
        }
    }
    jumps.sort_by_key(|jump| jump.0);
    jumps
}

fn scale(resource: &Resource) -> f64 {
    match resource.capacity {
        Capacity::Distance { decay, .. } => resource.nominal / decay.logistic(0.0),
        Capacity::Constant | Capacity::Steps(_) => resource.nominal,
    }
}

/// For each reader the values that it reads: places in a window of past rows.
#[derive(Default)]
struct Reads {
    places: Vec<u32>,
    ends: Vec<u32>,
}

impl Reads {
    fn push(&mut self, places: impl Iterator<Item = usize>) {
        self.places.extend(places.map(|it| it as u32));
        self.ends.push(self.places.len() as u32);
    }

    /// Folds the values of each reader.
    #[inline(always)]
    fn fold(&self, window: &[f64], first: f64, add: impl Fn(f64, f64) -> f64, results: &mut [f64]) {
        let mut begin = 0;
        for (result, &end) in results.iter_mut().zip(&self.ends) {
            let mut value = first;
            for &place in &self.places[begin..end as usize] {
                value = add(value, window[place as usize]);
            }
            begin = end as usize;
            *result = value;
        }
    }
}

struct State {
    increase: f64,
    floor: f64,
    groups: Vec<Exponent>,
    /// Rows before the current one that are read.
    oldest: usize,
    /// Rows by time; a column for each route, and for each slot.
    rates: Vec<f64>,
    penalties: Vec<f64>,
    /// The current row.
    row: usize,
    /// Values that each slot, and each route, reads.
    users: Reads,
    echoes: Reads,
    marks: Reads,
    sources: Vec<u32>,
    /// By route: dt / T_r, and b_r by the number of like senders.
    gain: Vec<f64>,
    decrease: Vec<f64>,
    loads: Vec<f64>,
    echoed: Vec<f64>,
    kept: Vec<f64>,
    flows: Vec<f64>,
}

impl State {
    fn new(network: &Network, settings: Settings, layout: &Layout) -> Self {
        let steps = |delay_s: f64| (delay_s / settings.step_s).round() as usize;
        let (width, height) = (network.routes.len(), layout.width());
        let longest = network.routes.iter().map(|it| steps(it.round_trip_s));
        let oldest = longest.max().unwrap_or(0) + 1;
        let mut users = Reads::default();
        for slot in 0..height {
            let readers = network.routes.iter().enumerate().flat_map(|(route, user)| {
                let own = user
                    .resources
                    .iter()
                    .filter(move |used| layout.slot[used.0] == slot);
                own.map(move |used| (oldest - steps(used.1)) * width + route)
            });
            users.push(readers);
        }
        let (mut echoes, mut marks) = (Reads::default(), Reads::default());
        for (index, route) in network.routes.iter().enumerate() {
            echoes.push(std::iter::once(
                (oldest - steps(route.round_trip_s)) * width + index,
            ));
            let used = route.resources.iter();
            marks.push(used.map(|it| (oldest - steps(it.2)) * height + layout.slot[it.0]));
        }
        let routes = || network.routes.iter();
        let weight = |it: &crate::network::Route| network.sources[it.source].weight;
        Self {
            increase: network.increase,
            floor: settings.floor,
            groups: layout.groups.clone(),
            oldest,
            rates: vec![0.0; (oldest + ROWS + 1) * width],
            penalties: vec![0.0; (oldest + ROWS + 1) * height],
            row: oldest,
            users,
            echoes,
            marks,
            sources: routes().map(|it| it.source as u32).collect(),
            gain: routes()
                .map(|it| settings.step_s / it.round_trip_s)
                .collect(),
            decrease: routes().map(|it| it.decrease / weight(it)).collect(),
            loads: vec![0.0; height],
            echoed: vec![0.0; width],
            kept: vec![0.0; width],
            flows: vec![0.0; network.sources.len()],
        }
    }

    fn integrate(mut self, mut supply: Supply<'_>, settings: Settings) -> Run {
        let steps = (settings.duration_s / settings.step_s).round() as u64;
        let every = ((settings.record_every_s / settings.step_s).round() as u64).max(1);
        let rows = (steps / every + 2) as usize;
        let columns = |count: usize| -> Vec<Vec<f64>> {
            (0..count).map(|_| Vec::with_capacity(rows)).collect()
        };
        let width = self.gain.len();
        let mut run = Run {
            times_s: Vec::with_capacity(rows),
            rates: columns(width),
            capacities: columns(supply.slot.len()),
            steps,
            warnings: Vec::new(),
        };
        let mut until_record = 0;
        for n in 0..=steps {
            supply.advance(n);
            if until_record == 0 || n == steps {
                until_record = every;
                run.times_s.push(n as f64 * settings.step_s);
                let row = &self.rates[self.row * width..];
                for (values, rate) in run.rates.iter_mut().zip(row) {
                    values.push(*rate);
                }
                for (values, slot) in run.capacities.iter_mut().zip(&supply.slot) {
                    values.push(supply.now[*slot]);
                }
            }
            until_record -= 1;
            self.step(&supply.now);
        }
        run
    }

    /// From the rates at the current row to those of the next.
    fn step(&mut self, capacities: &[f64]) {
        let (width, height) = (self.gain.len(), self.loads.len());
        if self.row == self.oldest + ROWS {
            let kept = ROWS..ROWS + self.oldest + 1;
            let range = |columns: usize| kept.start * columns..kept.end * columns;
            self.rates.copy_within(range(width), 0);
            self.penalties.copy_within(range(height), 0);
            self.row = self.oldest;
        }
        let from = self.row - self.oldest;
        let (past, next) = self.rates.split_at_mut((self.row + 1) * width);
        let past = &past[from * width..];
        self.users
            .fold(past, 0.0, |sum, rate| sum + rate, &mut self.loads);
        let fresh = &mut self.penalties[self.row * height..][..height];
        penalise(&self.groups, &self.loads, capacities, fresh);
        let marks = &self.penalties[from * height..(self.row + 1) * height];
        self.marks
            .fold(marks, 1.0, |kept, mark| kept * (1.0 - mark), &mut self.kept);
        self.echoes
            .fold(past, 0.0, |_, rate| rate, &mut self.echoed);
        self.flows.fill(0.0);
        for (source, echoed) in self.sources.iter().zip(&self.echoed) {
            self.flows[*source as usize] += echoed;
        }
        let routes = self.sources.iter().zip(&self.gain).zip(&self.decrease);
        let values = self
            .echoed
            .iter()
            .zip(&self.kept)
            .zip(&past[self.oldest * width..]);
        for ((next, ((source, gain), decrease)), ((echoed, kept), current)) in
            next.iter_mut().zip(routes).zip(values)
        {
            let down = decrease * self.flows[*source as usize] * (1.0 - kept);
            let change = gain * echoed.max(self.floor) * (self.increase * kept - down);
            *next = (current + change).max(0.0);
        }
        self.row += 1;
    }
}

/// p_j of (5), a probability: a load above the capacity is penalised as much as one that equals it.
#[inline(always)]
fn penalise(groups: &[Exponent], loads: &[f64], capacities: &[f64], penalties: &mut [f64]) {
    let lanes = loads
        .as_chunks::<LANES>()
        .0
        .iter()
        .zip(capacities.as_chunks::<LANES>().0);
    let penalties = penalties.as_chunks_mut::<LANES>().0;
    for ((exponent, (load, capacity)), penalty) in groups.iter().zip(lanes).zip(penalties) {
        let mut base = [0.0; LANES];
        for lane in 0..LANES {
            let share = load[lane] / capacity[lane];
            base[lane] = if share < 1.0 { share } else { 1.0 };
        }
        *penalty = match *exponent {
            Exponent::Whole(exponent) => power(base, exponent),
            Exponent::Real(beta) => base.map(|it| it.powf(beta)),
        };
    }
}

/// By squares, the same on every machine.
#[inline(always)]
fn power(mut base: [f64; LANES], mut exponent: u32) -> [f64; LANES] {
    let mut result = [1.0; LANES];
    loop {
        if exponent & 1 == 1 {
            for lane in 0..LANES {
                result[lane] *= base[lane];
            }
        }
        exponent >>= 1;
        if exponent == 0 {
            return result;
        }
        for value in &mut base {
            *value *= *value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_library() {
        for exponent in [1, 2, 15, 16, 30, 32, 1000] {
            let library = 0.97_f64.powi(exponent as i32);
            let ours = power([0.97; LANES], exponent)[2];
            assert!((ours - library).abs() < 1e-12 * library.max(1e-300) + 1e-15);
        }
    }
}
