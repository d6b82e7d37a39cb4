//! Virtual time: two hosts, a link per interface and direction, and the queue of datagrams under
//! way.
//!
//! The loop jumps to the next arrival or timer, hands over everything due, and lets the hosts that
//! were touched take a turn. Nothing in here reads a clock; the one instant taken at the start is
//! only an origin, since the library counts in instants. Arrivals at one time are handed over in
//! the order of their sending, so a run depends on nothing but scenario and seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::address::{self, Generation};
use crate::beside;
use crate::host::{Host, HostError, Outgoing};
use crate::identity::Identity;
use crate::mechanisms::Mechanisms;
use crate::packet::IP_UDP_HEADER_BYTES;
use crate::report::{CompetitorReport, RunReport, percentile, sorted};
use crate::scenario::{AddressChange, Direction, Scenario, ScenarioError};
use crate::seed::derive_seed;
use crate::wire::{Bulk, GAP_WINDOW, Wire};
use bytes::BytesMut;

/// Turns at one and the same time after which the run is given up as a live-lock.
const TURNS_AT_ONCE_MAX: u32 = 100_000;
/// Steps of time in one run, hours of work; a run that needs more is given up with an error.
const TURNS_MAX: u64 = 2_000_000_000;
/// From the loss of an address to the news of the next one.
const NEW_ADDRESS_AFTER: Duration = Duration::from_millis(80);

/// Bytes of a bulk flow beside an application: more than any run carries.
const BULK_BYTES: u64 = 1 << 40;

const CLIENT: usize = 0;
const SERVER: usize = 1;

struct Arrival {
    at: Duration,
    order: u64,
    to: usize,
    interface: usize,
    /// The client's addresses when it was sent.
    generation: Generation,
    payload: BytesMut,
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Arrival {}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

struct World {
    now: Duration,
    order: u64,
    under_way: BinaryHeap<Reverse<Arrival>>,
    /// By interface; to the server, to the client.
    wires: Vec<[Wire; 2]>,
    /// By interface: whose wires it goes through, and its own delays.
    through: Vec<(usize, [Duration; 2])>,
    /// By interface.
    generations: Vec<Generation>,
    /// By interface: when it has an address again.
    addressed_at: Vec<Duration>,
    /// The last one comes first.
    address_changes: Vec<(Duration, usize, AddressChange)>,
    /// Client and server of each connection in turn; the first pair is the measured one.
    hosts: Vec<Host>,
    /// Changes that are reported to the client: time, interface, up.
    announcements: Vec<(Duration, usize, bool)>,
    packets: u64,
    under_way_max: usize,
    /// Packets of other traffic: time, link and bytes; the last one comes first.
    others: Vec<(Duration, usize, u64)>,
    /// The link next to the server, in the direction to the client.
    trunk: Option<Wire>,
    /// The side that sends the data, and what the measured connection put on each link from there.
    sender: usize,
    carried_bytes: Vec<u64>,
    /// Bytes of the measured connection on each link: to the server, to the client.
    both_ways_bytes: Vec<[u64; 2]>,
}

fn is_client(host: usize) -> bool {
    host % 2 == CLIENT
}

/// Runs a scenario to its end.
pub fn run(
    scenario: &Scenario,
    identity: &Identity,
    mechanisms: Mechanisms,
) -> Result<RunReport, ScenarioError> {
    run_within(scenario, identity, mechanisms, TURNS_MAX)
}

/// The same for at most so many steps of time.
pub fn run_within(
    scenario: &Scenario,
    identity: &Identity,
    mechanisms: Mechanisms,
    turns_max: u64,
) -> Result<RunReport, ScenarioError> {
    scenario.check()?;
    let mut world = World::new(scenario, identity, mechanisms)?;
    let outcome = world.run(scenario, turns_max);
    let report = world.report(scenario, outcome);
    if std::env::var_os("BRAID_LAB_TRACE").is_some() {
        trace_bins(&report);
    }
    Ok(report)
}

/// For developers: kbit/s of each link by tenth of a second.
fn trace_bins(report: &RunReport) {
    for link in &report.links {
        let kbit = link.bins.iter().map(|bytes| bytes * 8 / 100);
        eprintln!("{} kbit/s {:?}", link.name, kbit.collect::<Vec<u64>>());
    }
}

impl World {
    fn new(
        scenario: &Scenario,
        identity: &Identity,
        mechanisms: Mechanisms,
    ) -> Result<Self, ScenarioError> {
        let start = Instant::now();
        let mut wires = Vec::new();
        let mut announcements = Vec::new();
        for (index, interface) in scenario.interfaces.iter().enumerate() {
            wires.push(Wire::pair(interface, scenario.seed, index)?);
            if interface.announced {
                let changes = interface.to_server.changes.iter();
                announcements
                    .extend(changes.map(|&(at_s, up)| (Duration::from_secs_f64(at_s), index, up)));
            }
        }
        let mut through = Vec::new();
        let mut address_changes = Vec::new();
        for (index, interface) in scenario.interfaces.iter().enumerate() {
            let delays = [&interface.to_server, &interface.to_client]
                .map(|half| Duration::from_secs_f64(half.delay_ms_min() / 1e3));
            through.push((interface.shares.unwrap_or(index), delays));
            for &(at_s, change) in &interface.address_changes {
                let at = Duration::from_secs_f64(at_s);
                address_changes.push((at, index, change));
                if change == AddressChange::Own {
                    announcements.push((at, index, false));
                    announcements.push((at + NEW_ADDRESS_AFTER, index, true));
                }
            }
        }
        address_changes.sort_by_key(|change| Reverse((change.0, change.1)));
        announcements.sort();
        announcements.reverse();
        let mut hosts = Vec::new();
        for (pair, controller) in std::iter::once(&scenario.controller)
            .chain(&scenario.competitors)
            .enumerate()
        {
            let mut own = scenario.clone();
            own.controller = *controller;
            if pair > 0 && own.mix.take().is_some() {
                own.bytes = BULK_BYTES;
            }
            let uses = |index: usize| pair == 0 || index == (pair - 1) % wires.len();
            for side in [CLIENT, SERVER] {
                let seed = derive_seed(scenario.seed, (pair * 1000 + side) as u64);
                let mut host = Host::new(side == CLIENT, &own, identity, mechanisms, start, seed);
                if side == CLIENT {
                    for (index, wires) in wires.iter().enumerate().filter(|(index, _)| uses(*index))
                    {
                        let up =
                            wires[0].is_up(Duration::ZERO) || !scenario.interfaces[index].announced;
                        host.add_interface(Duration::ZERO, index, up);
                    }
                }
                hosts.push(host);
            }
        }
        let sender = match scenario.direction {
            Direction::Upload => CLIENT,
            Direction::Download => SERVER,
        };
        Ok(Self {
            now: Duration::ZERO,
            order: 0,
            others: beside::other_packets(scenario, &wires, sender),
            sender,
            carried_bytes: vec![0; wires.len()],
            both_ways_bytes: vec![[0; 2]; wires.len()],
            trunk: beside::trunk(scenario)?,
            under_way: BinaryHeap::new(),
            generations: vec![Generation::default(); wires.len()],
            addressed_at: vec![Duration::ZERO; wires.len()],
            wires,
            through,
            address_changes,
            hosts,
            announcements,
            packets: 0,
            under_way_max: 0,
        })
    }

    fn run(&mut self, scenario: &Scenario, turns_max: u64) -> Result<(), HostError> {
        let limit = scenario.limit();
        let receiver = match scenario.direction {
            Direction::Upload => SERVER,
            Direction::Download => CLIENT,
        };
        let mut out = Vec::new();
        let mut touched: Vec<bool> = (0..self.hosts.len()).map(is_client).collect();
        let mut timers: Vec<Option<Duration>> = vec![None; self.hosts.len()];
        let mut turns_at_once = 0;
        let mut turns = 0;
        loop {
            turns += 1;
            if turns > turns_max {
                return Err(HostError::TooLong(self.now, turns_max));
            }
            for host in 0..self.hosts.len() {
                if touched[host] {
                    self.foretell(host);
                    let outcome = self.hosts[host].turn(self.now, &mut out);
                    self.transmit(host, &mut out);
                    let deadline = self.hosts[host].next_deadline();
                    let ahead = self.hosts[host].looks_ahead_at(self.now);
                    timers[host] = [deadline, ahead].into_iter().flatten().min();
                    if host <= SERVER {
                        outcome?;
                    } else if outcome.is_err() {
                        // A competitor that broke no longer competes.
                        timers[host] = None;
                    }
                }
            }
            // Chaos goes both ways.
            let both =
                scenario.chaos.is_none() || self.hosts[receiver ^ 1].application.is_complete();
            if both && self.hosts[receiver].application.is_complete() {
                return Ok(());
            }
            let arrival = self.under_way.peek().map(|Reverse(arrival)| arrival.at);
            let announced = self.announcements.last().map(|change| change.0);
            let timer = timers.iter().flatten().min().copied();
            let moved = self.address_changes.last().map(|change| change.0);
            let other = self.others.last().map(|packet| packet.0);
            let next = [arrival, timer, announced, moved, other];
            let next = next.into_iter().flatten();
            let Some(next) = next.min() else {
                return Ok(());
            };
            if next > limit {
                return Ok(());
            }
            if next > self.now {
                self.now = next;
                turns_at_once = 0;
            } else {
                turns_at_once += 1;
                if turns_at_once > TURNS_AT_ONCE_MAX {
                    let late = timers
                        .iter()
                        .position(|timer| timer.is_some_and(|at| at <= self.now));
                    let who = late.map_or("nobody", |host| self.hosts[host].who_is_due(self.now));
                    return Err(HostError::Standstill(self.now, who));
                }
            }
            for (touched, timer) in touched.iter_mut().zip(&timers) {
                *touched = timer.is_some_and(|at| at <= self.now);
            }
            self.pass_others();
            self.change_addresses();
            self.announce(&mut touched);
            self.deliver(&mut touched, &mut out);
        }
    }

    /// Packets of others that are due at the links.
    fn pass_others(&mut self) {
        while let Some(&(at, link, bytes)) = self.others.last()
            && at <= self.now
        {
            self.others.pop();
            self.wires[link][self.sender].pass_other(self.now, bytes);
        }
    }

    fn change_addresses(&mut self) {
        while let Some(&(at, interface, change)) = self.address_changes.last()
            && at <= self.now
        {
            self.address_changes.pop();
            let generation = &mut self.generations[interface];
            generation.public += 1;
            if change == AddressChange::Own {
                generation.own += 1;
                self.addressed_at[interface] = at + NEW_ADDRESS_AFTER;
            }
        }
    }

    /// Reports to the clients which links have come or gone.
    fn announce(&mut self, touched: &mut [bool]) {
        while let Some(&(at, interface, up)) = self.announcements.last()
            && at <= self.now
        {
            self.announcements.pop();
            for host in (0..self.hosts.len()).filter(|&host| is_client(host)) {
                self.hosts[host].link_changed(self.now, interface, up);
                touched[host] = true;
            }
        }
    }

    /// Packets that have arrived.
    fn deliver(&mut self, touched: &mut [bool], out: &mut Vec<Outgoing>) {
        while self
            .under_way
            .peek()
            .is_some_and(|Reverse(arrival)| arrival.at <= self.now)
        {
            let Some(Reverse(arrival)) = self.under_way.pop() else {
                break;
            };
            touched[arrival.to] = true;
            self.hosts[arrival.to].receive(
                self.now,
                arrival.interface,
                arrival.generation,
                arrival.payload,
                out,
            );
            self.transmit(arrival.to, out);
        }
    }

    /// Passes the room of its links to a host that foresees them.
    fn foretell(&mut self, host: usize) {
        let Some(oracle) = self.hosts[host].oracle() else {
            return;
        };
        for (interface, &(bottleneck, _)) in self.through.iter().enumerate() {
            let room = self.wires[bottleneck][host % 2].room_bytes(self.now);
            oracle.set_room(interface, room);
        }
    }

    fn transmit(&mut self, from: usize, out: &mut Vec<Outgoing>) {
        for Outgoing {
            interface,
            to,
            mut payload,
        } in out.drain(..)
        {
            let Some(&(bottleneck, delays)) = self.through.get(interface) else {
                continue;
            };
            let wire = &mut self.wires[bottleneck][from % 2];
            self.packets += 1;
            let bytes = payload.len() as u64 + IP_UDP_HEADER_BYTES;
            if let Some(both) = self
                .both_ways_bytes
                .get_mut(interface)
                .filter(|_| from <= SERVER)
            {
                both[from] += bytes;
            }
            if from == self.sender {
                self.carried_bytes[interface] += bytes;
            }
            let generation = self.generations[interface];
            let gone = |address| address != address::public(interface, generation);
            if self.now < self.addressed_at[interface] || to.is_some_and(gone) {
                continue;
            }
            let trunk = self.trunk.as_mut().filter(|_| !is_client(from));
            let through = match trunk {
                None => Some(self.now),
                Some(trunk) => {
                    let passed = trunk.pass(self.now, IP_UDP_HEADER_BYTES, &mut payload);
                    passed.map(|passed| passed.at)
                }
            };
            let passed = through.and_then(|at| wire.pass(at, IP_UDP_HEADER_BYTES, &mut payload));
            let Some(passed) = passed else {
                continue;
            };
            let at = passed.at - wire.delay() + delays[from % 2];
            let copy = passed.twice.then(|| payload.clone());
            for payload in std::iter::once(payload).chain(copy) {
                self.order += 1;
                self.under_way.push(Reverse(Arrival {
                    at,
                    order: self.order,
                    to: from ^ 1,
                    interface,
                    generation,
                    payload,
                }));
            }
        }
        self.under_way_max = self.under_way_max.max(self.under_way.len());
    }

    fn report(mut self, scenario: &Scenario, outcome: Result<(), HostError>) -> RunReport {
        let receiver = match scenario.direction {
            Direction::Upload => SERVER,
            Direction::Download => CLIENT,
        };
        let both = scenario.chaos.is_none() || self.hosts[receiver ^ 1].application.is_complete();
        let completed = outcome.is_ok() && both && self.hosts[receiver].application.is_complete();
        let timeline = std::mem::take(&mut self.hosts[receiver].application.timeline);
        let end = if completed {
            timeline.last().unwrap_or(self.now)
        } else {
            self.now
        };
        let opened = self.hosts[CLIENT].application.opened_at().unwrap_or(end);
        let lost = matches!(
            outcome,
            Err(HostError::Lost(_) | HostError::GaveUp(_) | HostError::Silent)
        );
        let waiting = [CLIENT, SERVER].map(|host| self.hosts[host].application.waits_for());
        let stuck = match waiting {
            [Some(client), Some(server)] if !completed => {
                Some(format!("stuck; client: {client}; server: {server}"))
            }
            _ => None,
        };
        let bulk = Bulk {
            completed,
            error: outcome.err().map(|error| error.to_string()).or(stuck),
            opened,
            end,
            timeline,
        };
        let bulk = bulk.report(scenario, &mut self.wires);
        let first_cut = bulk.first_cut;
        let competitors = scenario
            .competitors
            .iter()
            .enumerate()
            .map(|(index, controller)| {
                let timeline = std::mem::take(
                    &mut self.hosts[(index + 1) * 2 + receiver].application.timeline,
                );
                let delivered_bytes = timeline.bins.iter().sum();
                CompetitorReport {
                    controller: controller.name(),
                    delivered_bytes,
                    timeline,
                }
            })
            .collect();
        let sent = self.hosts[receiver ^ 1].sent();
        let server = &self.hosts[SERVER].application;
        let delays = server.vitals_delays();
        let vitals_ms = sorted(delays.iter().map(|delay| delay.1.as_secs_f64() * 1e3));
        let vitals_gap_ms = first_cut.filter(|_| scenario.vitals.is_some()).map(|cut| {
            let around = delays
                .iter()
                .filter(|delay| delay.0 > cut && delay.0 - delay.1 < cut + GAP_WINDOW);
            around
                .map(|delay| delay.1.as_secs_f64() * 1e3)
                .fold(0.0, f64::max)
        });
        let noted = self.hosts[receiver].application.noted();
        let noted = noted.cloned().unwrap_or_default();
        let report = RunReport {
            connection_lost: lost,
            vitals_gap_ms,
            vitals_ms_p50: percentile(&vitals_ms, 0.5),
            vitals_ms_p99: percentile(&vitals_ms, 0.99),
            vitals_lost: self.hosts[CLIENT]
                .application
                .vitals_sent()
                .saturating_sub(delays.len() as u64),
            competitors,
            paths_opened: self.hosts[CLIENT].paths_opened,
            paths_closed: self.hosts[CLIENT].paths_closed,
            packets: self.packets,
            coupled_share: self.hosts[receiver ^ 1].coupled_share(),
            lost_packets: sent.lost_packets,
            lost_bytes: sent.lost_bytes,
            sent_packets: sent.packets,
            carried_bytes: std::mem::take(&mut self.carried_bytes),
            both_ways_bytes: std::mem::take(&mut self.both_ways_bytes),
            under_way_max: self.under_way_max,
            ..bulk.report
        };
        report.with_noted(&noted)
    }
}
