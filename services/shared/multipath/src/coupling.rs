//! Paths of one connection behind one bottleneck: found out, and counted as one sender.
//!
//! Each path that competes as Cubic takes a sender's share of its bottleneck, so two paths through the same one would take two shares.
//! Their packets wait in one queue, so their round trips rise and fall together, and by the same amount. That is the test, in the spirit
//! of RFC 8382 but with less: the round trips of each path are averaged in bins of common time, and two paths of which one competes share a bottleneck
//! when their bins agree in the concordance of their variations, `2 cov / (var + var)`. Unlike a correlation it is low for queues that
//! merely move together by chance of phase but differ in depth.
//!
//! The members of a group follow one window of Cubic, divided evenly: one growth, one cut per round trip, whichever path lost. A drained round
//! of one member is a drained round of all, or each would take the other's queue for a stranger's.
//!
//! Where one member meets a stranger all have met it.
//!
//! Invariant: groups are disjoint, have at least two members, and form only where one of them competes: where no stranger is met, nothing
//! is coupled and nothing can be lost by it. Bounds: `BINS` bins per path, `SLOTS_MAX` paths; paths beyond are never coupled.

use std::time::{Duration, Instant};

use crate::compete::Compete;

/// How paths of one connection that may share a bottleneck are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Coupling {
    /// Each path is a sender of its own.
    Off,
    /// Paths whose queues agree are one sender together.
    #[default]
    Detected,
    /// All paths that compete are one sender together: the links are known to end in one.
    Always,
}

/// Paths that the tables hold: one bit each.
pub(crate) const SLOTS_MAX: usize = 64;
const BIN: Duration = Duration::from_millis(100);
/// Bins compared: a swing of Cubic's window or two.
const BINS: usize = 80;
/// Bins in which both paths had acknowledgements, before anything is said.
const BINS_MIN: usize = 30;
const JUDGED_EVERY: Duration = Duration::from_secs(1);
/// Concordance at which two paths join, and below which they part.
const JOIN: f64 = 0.7;
const PART: f64 = 0.3;
/// Variation that jitter alone may make, in squared seconds.
const VARIANCE_MIN_S2: f64 = 1e-6;
/// How long a group outlives the competition that showed it.
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
    /// The path competes, and found the stranger itself.
    met: bool,
    window_packets: f64,
    /// Counts the drained rounds that another member of the group began.
    drains: u64,
    drains_deep: bool,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            bins: [Bin::default(); BINS],
            met: false,
            window_packets: 0.0,
            drains: 0,
            drains_deep: false,
        }
    }
}

#[derive(Debug)]
struct Group {
    /// A bit per slot.
    members: u64,
    compete: Compete,
    shown_at: Instant,
}

/// What the gate knows of the queues of its paths.
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

    /// A round trip of the path.
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        slot: usize,
        rtt: Duration,
        met: bool,
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
        series.met = met;
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
        // Number zero is an empty bin's.
        1 + (now.saturating_duration_since(origin).as_nanos() / BIN.as_nanos()) as u64
    }

    /// Joins and parts paths.
    fn judge(&mut self, now: Instant, mode: Coupling) {
        let newest = self.bin_of(now);
        let count = self.series.len();
        for a in 0..count {
            for b in a + 1..count {
                if !self.series[a].met && !self.series[b].met {
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
                window += group.compete.window_packets();
            }
            !joins
        });
        if window == 0.0 {
            window = self.series[a].window_packets + self.series[b].window_packets;
        }
        let mut compete = Compete::new(now, window);
        // What was taken too much is given back as after a loss.
        compete.on_loss(now, now + BIN);
        self.groups.push(Group {
            members,
            compete,
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

    /// Lets the path's window grow by an acknowledgement: its own, or its part of the group's.
    pub(crate) fn on_ack(&mut self, now: Instant, slot: usize, rtt_s: f64, own: &mut Compete) {
        match self.group_of(slot) {
            Some(group) => {
                group.compete.on_ack(now, rtt_s);
                own.follow(now, group.part_packets());
            }
            None => own.on_ack(now, rtt_s),
        }
        if let Some(series) = self.series.get_mut(slot) {
            series.window_packets = own.window_packets();
        }
    }

    /// The loss of a packet sent at `sent` cuts the path's window, or the group's.
    pub(crate) fn on_loss(&mut self, now: Instant, slot: usize, sent: Instant, own: &mut Compete) {
        match self.group_of(slot) {
            Some(group) => {
                group.compete.on_loss(now, sent);
                own.follow(now, group.part_packets());
            }
            None => own.on_loss(now, sent),
        }
    }

    /// Whether another path of the same bottleneck has met a stranger there.
    pub(crate) fn others_met(&self, slot: usize) -> bool {
        let of = |group: &&Group| slot < SLOTS_MAX && group.members & bit(slot) != 0;
        let members = self.groups.iter().find(of).map_or(0, |group| group.members);
        let mut series = self.series.iter().enumerate();
        series.any(|(other, series)| other != slot && members & bit(other) != 0 && series.met)
    }

    /// The path begins a drained round, and so shall its group.
    pub(crate) fn drain(&mut self, slot: usize, deep: bool) {
        let members = self.group_of(slot).map_or(0, |group| group.members);
        for (other, series) in self.series.iter_mut().enumerate() {
            if other != slot && members & bit(other) != 0 {
                series.drains += 1;
                series.drains_deep = deep;
            }
        }
    }

    /// Drained rounds that others of the group have begun so far, and whether the last is a deep one.
    pub(crate) fn drains(&self, slot: usize) -> (u64, bool) {
        let series = self.series.get(slot);
        series.map_or((0, false), |series| (series.drains, series.drains_deep))
    }
}

impl Group {
    fn part_packets(&self) -> f64 {
        self.compete.window_packets() / f64::from(self.members.count_ones())
    }
}

/// How far two series vary alike, in -1..1; none where too little is known, or nothing varies.
fn concordance(a: &Series, b: &Series, newest: u64) -> Option<f64> {
    let oldest = newest.saturating_sub(BINS as u64 - 1).max(1);
    // The newest bin is not full yet.
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
