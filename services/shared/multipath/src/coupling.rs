//! Detection of paths of one connection behind one bottleneck, which then count as one sender.
//!
//! Each path that follows Cubic takes the share of one sender, so two paths through one bottleneck
//! would take two shares. Their packets wait in one queue, so their round trips rise and fall
//! together by the same amount. The test is a simplification of RFC 8382. The round trips of each
//! path are averaged in bins of common time. Two paths share a bottleneck when their bins agree in
//! the concordance of their variations, `2 cov / (var + var)`, and one of them follows Cubic.
//! Unlike a correlation, this value is low for queues that move together by chance but differ in
//! depth.
//!
//! The members of a group follow one Cubic window, divided evenly: one growth, and one cut per
//! round trip, whichever path lost. An RTT probe of one member is a probe of all. Otherwise each
//! would take the queue of the others for cross-traffic. Cross-traffic that one member detects
//! counts for all.
//!
//! Invariant: groups are disjoint, have at least two members, and form only with cross-traffic.
//! Bounds: `BINS` bins a path, `SLOTS_MAX` paths; paths beyond are never coupled.

use std::time::{Duration, Instant};

use crate::cubic::CubicWindow;

/// Treatment of paths of one connection that may share a bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coupling {
    /// Each path is a sender of its own.
    Off,
    /// Paths whose queues agree are one sender.
    #[default]
    Detected,
    /// All paths that follow Cubic are one sender: the links are known to share a bottleneck.
    Always,
}

/// Maximum number of paths in the tables, one bit each.
pub(crate) const SLOTS_MAX: usize = 64;
const BIN: Duration = Duration::from_millis(100);
/// Bins compared: one or two periods of a Cubic window.
const BINS: usize = 80;
/// Bins with acknowledgements of both paths that a verdict needs.
const BINS_MIN: usize = 30;
const JUDGED_EVERY: Duration = Duration::from_secs(1);
/// Concordance at which two paths join, and below which they separate.
const JOIN: f64 = 0.7;
const PART: f64 = 0.3;
/// Variation that jitter alone explains, in squared seconds.
const VARIANCE_MIN_S2: f64 = 1e-6;
/// Time that a group outlives the cross-traffic that showed it.
const REMEMBERED: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    number: u64,
    sum_s: f64,
    count: u32,
}

#[derive(Debug, Clone)]
struct Series {
    bins: [Bin; BINS],
    /// The path itself detected cross-traffic and follows Cubic.
    found_cross_traffic: bool,
    window_packets: f64,
    /// Number of RTT probes that another member of the group started.
    group_probes: u64,
    group_probe_deep: bool,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            bins: [Bin::default(); BINS],
            found_cross_traffic: false,
            window_packets: 0.0,
            group_probes: 0,
            group_probe_deep: false,
        }
    }
}

#[derive(Debug)]
struct Group {
    /// One bit per slot.
    members: u64,
    cubic: CubicWindow,
    shown_at: Instant,
}

/// Queues of the paths of one scheduler.
#[derive(Debug, Default)]
pub(crate) struct Bottlenecks {
    origin: Option<Instant>,
    judged_at: Option<Instant>,
    series: Vec<Series>,
    groups: Vec<Group>,
}

fn bit(slot: usize) -> u64 {
    1 << slot
}

impl Bottlenecks {
    /// The slot has a new owner, or none.
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(series) = self.series.get_mut(slot) {
            *series = Series::default();
        }
        self.part(slot);
    }

    fn part(&mut self, slot: usize) {
        if slot < SLOTS_MAX {
            for group in &mut self.groups {
                group.members &= !bit(slot);
            }
            self.groups.retain(|group| group.members.count_ones() > 1);
        }
    }

    /// A round-trip sample of the path.
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        slot: usize,
        rtt: Duration,
        found_cross_traffic: bool,
        mode: Coupling,
    ) {
        if slot >= SLOTS_MAX || mode == Coupling::Off {
            return;
        }
        while self.series.len() <= slot {
            self.series.push(Series::default());
        }
        let number = self.bin_of(now);
        let series = &mut self.series[slot];
        series.found_cross_traffic = found_cross_traffic;
        let bin = &mut series.bins[(number % BINS as u64) as usize];
        if bin.number != number {
            *bin = Bin {
                number,
                ..Bin::default()
            };
        }
        bin.sum_s += rtt.as_secs_f64();
        bin.count += 1;
        if self.judged_at.is_none_or(|at| now >= at + JUDGED_EVERY) {
            self.judged_at = Some(now);
            self.judge(now, mode);
        }
    }

    fn bin_of(&mut self, now: Instant) -> u64 {
        let origin = *self.origin.get_or_insert(now);
        // Number zero marks an empty bin.
        1 + (now.saturating_duration_since(origin).as_nanos() / BIN.as_nanos()) as u64
    }

    /// Joins and separates paths.
    fn judge(&mut self, now: Instant, mode: Coupling) {
        let newest = self.bin_of(now);
        let count = self.series.len();
        for a in 0..count {
            for b in a + 1..count {
                if !self.series[a].found_cross_traffic && !self.series[b].found_cross_traffic {
                    continue;
                }
                let together = self
                    .groups
                    .iter()
                    .position(|group| group.members & bit(a) != 0 && group.members & bit(b) != 0);
                let agreement = match mode {
                    Coupling::Always => Some(1.0),
                    _ => concordance(&self.series[a], &self.series[b], newest),
                };
                match (agreement, together) {
                    (Some(agreement), Some(group)) if agreement >= JOIN => {
                        self.groups[group].shown_at = now;
                    }
                    (Some(agreement), Some(_)) if agreement < PART => self.part(b),
                    (Some(agreement), None) if agreement >= JOIN => self.join(now, a, b),
                    _ => {}
                }
            }
        }
        self.groups
            .retain(|group| now < group.shown_at + REMEMBERED);
    }

    fn join(&mut self, now: Instant, a: usize, b: usize) {
        let mut members = bit(a) | bit(b);
        let mut window = 0.0;
        self.groups.retain(|group| {
            let joins = group.members & members != 0;
            if joins {
                members |= group.members;
                window += group.cubic.window_packets();
            }
            !joins
        });
        if window == 0.0 {
            window = self.series[a].window_packets + self.series[b].window_packets;
        }
        let mut cubic = CubicWindow::new(now, window);
        // The excess share is returned as after a loss.
        cubic.on_loss(now, now + BIN);
        self.groups.push(Group {
            members,
            cubic,
            shown_at: now,
        });
    }

    fn group_of(&mut self, slot: usize) -> Option<&mut Group> {
        if slot >= SLOTS_MAX {
            return None;
        }
        self.groups
            .iter_mut()
            .find(|group| group.members & bit(slot) != 0)
    }

    pub(crate) fn is_coupled(&self, slot: usize) -> bool {
        slot < SLOTS_MAX
            && self
                .groups
                .iter()
                .any(|group| group.members & bit(slot) != 0)
    }

    /// An acknowledgement grows the path's window: its own, or its share of the group's.
    pub(crate) fn on_ack(&mut self, now: Instant, slot: usize, rtt_s: f64, own: &mut CubicWindow) {
        match self.group_of(slot) {
            Some(group) => {
                group.cubic.on_ack(now, rtt_s);
                own.follow(now, group.share_packets());
            }
            None => own.on_ack(now, rtt_s),
        }
        if let Some(series) = self.series.get_mut(slot) {
            series.window_packets = own.window_packets();
        }
    }

    /// The loss of a packet sent at `sent` cuts the path's window, or the group's.
    pub(crate) fn on_loss(
        &mut self,
        now: Instant,
        slot: usize,
        sent: Instant,
        own: &mut CubicWindow,
    ) {
        match self.group_of(slot) {
            Some(group) => {
                group.cubic.on_loss(now, sent);
                own.follow(now, group.share_packets());
            }
            None => own.on_loss(now, sent),
        }
    }

    /// Whether another path of the same bottleneck detected cross-traffic.
    pub(crate) fn others_report_cross_traffic(&self, slot: usize) -> bool {
        let of = |group: &&Group| slot < SLOTS_MAX && group.members & bit(slot) != 0;
        let members = self.groups.iter().find(of).map_or(0, |group| group.members);
        let mut series = self.series.iter().enumerate();
        series.any(|(other, series)| {
            other != slot && members & bit(other) != 0 && series.found_cross_traffic
        })
    }

    /// The path starts an RTT probe; its group follows.
    pub(crate) fn start_probe(&mut self, slot: usize, deep: bool) {
        let members = self.group_of(slot).map_or(0, |group| group.members);
        for (other, series) in self.series.iter_mut().enumerate() {
            if other != slot && members & bit(other) != 0 {
                series.group_probes += 1;
                series.group_probe_deep = deep;
            }
        }
    }

    /// Number of probes that others of the group started, and whether the last is a deep one.
    pub(crate) fn group_probes(&self, slot: usize) -> (u64, bool) {
        let series = self.series.get(slot);
        series.map_or((0, false), |series| {
            (series.group_probes, series.group_probe_deep)
        })
    }
}

impl Group {
    fn share_packets(&self) -> f64 {
        self.cubic.window_packets() / f64::from(self.members.count_ones())
    }
}

/// Concordance of two series, in -1..1; none without enough bins or variation.
fn concordance(a: &Series, b: &Series, newest: u64) -> Option<f64> {
    let oldest = newest.saturating_sub(BINS as u64 - 1).max(1);
    // The newest bin is incomplete.
    let pairs = (oldest..newest).filter_map(|number| {
        let index = (number % BINS as u64) as usize;
        let (x, y) = (a.bins[index], b.bins[index]);
        let known = x.number == number && y.number == number && x.count > 0 && y.count > 0;
        known.then(|| (x.sum_s / f64::from(x.count), y.sum_s / f64::from(y.count)))
    });
    let (mut n, mut sum_x, mut sum_y) = (0.0, 0.0, 0.0);
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, y) in pairs {
        n += 1.0;
        sum_x += x;
        sum_y += y;
        xx += x * x;
        yy += y * y;
        xy += x * y;
    }
    if n < BINS_MIN as f64 {
        return None;
    }
    let variance = |sum: f64, squares: f64| (squares / n - (sum / n).powi(2)).max(0.0);
    let both = variance(sum_x, xx) + variance(sum_y, yy);
    let together = xy / n - sum_x * sum_y / (n * n);
    (both > VARIANCE_MIN_S2).then(|| 2.0 * together / both)
}

#[cfg(test)]
#[path = "coupling_tests.rs"]
mod tests;
