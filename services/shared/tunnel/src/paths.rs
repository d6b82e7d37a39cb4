//! The record of the paths of one connection: the transport's counters, the upkeep's judgement,
//! and the names of the access networks. Both ends keep it, and all reports on paths read it.

pub(crate) mod agreement_headers;
pub(crate) mod from_kernel;
pub(crate) mod name;
pub(crate) mod names;
pub(crate) mod orders;
pub(crate) mod routes;
pub(crate) mod slots;
pub(crate) mod snapshot;
mod subflows;
pub(crate) mod upkeep;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use multipath::PathState;
use noq::{PathId, PathStats, WeakPathHandle};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    paths::{
        from_kernel::FromKernel, name::is_name, orders::Orders, slots::Slots,
        snapshot::PathSnapshot,
    },
    sockets::counted::Counts,
};

/// Time for which a path's trouble counts as the cause of a silence.
pub(crate) const TROUBLE_LASTS: Duration = Duration::from_secs(10);

/// Time for which a skew of the paths holds after a smaller one was measured. Packets of a queue
/// that has drained may still be under way.
const SKEW_LASTS: Duration = Duration::from_secs(1);

/// Closed paths on record, so that their last bytes are reported; at the bound the oldest is
/// dropped.
const CLOSED_KEPT_MAX: usize = 8;

/// The header of UDP.
const UDP_HEADER_BYTES: u8 = 8;

/// Names kept beside the open paths; at the bound the oldest name is dropped.
const NAMES_MAX: usize = 64;

#[derive(Debug)]
enum Source {
    Quic(WeakPathHandle),
    /// A whole TCP connection. At the client the kernel says which of its bytes used which network.
    Tcp(Arc<Counts>, Option<Box<FromKernel>>),
}

#[derive(Debug)]
struct Record {
    source: Source,
    state: PathState,
    /// Data uses this path, or did until it was silent or closed. A standby path loses no data.
    carries: bool,
    rtt_min: Option<Duration>,
    /// Final counters that the transport reported with the path's end.
    last: Option<Box<PathStats>>,
    local_ip: Option<IpAddr>,
    remote_address: Option<SocketAddr>,
}

#[derive(Debug)]
struct State {
    records: BTreeMap<PathId, Record>,
    received_datagrams: u64,
    /// Largest skew of the last `SKEW_LASTS`, and its time.
    skew: Option<(Duration, Instant)>,
    heard_at: Instant,
    /// No answer is awaited, so silence means nothing.
    calm: bool,
    /// Time at which a path was last silent or closed.
    troubled_at: Option<Instant>,
}

type Names = Arc<BTreeMap<u32, Arc<str>>>;

/// The transport shows the number of a path only as text.
pub(crate) fn number(id: PathId) -> u32 {
    id.to_string().parse().unwrap_or(u32::MAX)
}

/// The value of a skew that does not exist.
const NO_SKEW: u64 = u64::MAX;

/// Half the difference of the longest and the shortest round trip; `None` for fewer than two.
fn skew(rtts: impl Iterator<Item = Duration> + Clone) -> Option<Duration> {
    let (least, most) = (rtts.clone().min()?, rtts.clone().max()?);
    (rtts.count() > 1).then(|| (most - least) / 2)
}

/// The figures of an open path that each turn reads.
#[derive(Debug)]
pub(crate) struct Reading {
    pub path: PathId,
    /// Received so far.
    pub datagrams: u64,
    pub rtt: Duration,
    /// Destination of its packets.
    pub peer: Option<SocketAddr>,
}

/// The record of one connection's paths.
#[derive(Debug)]
pub(crate) struct Paths {
    session: u64,
    /// At the client: the table that resolves the transport's labels for local addresses.
    slots: Option<Arc<Slots>>,
    state: Mutex<State>,
    /// Read for each packet, so beside the lock.
    skew_us: AtomicU64,
    /// Likewise.
    rtt_us: AtomicU64,
    names: watch::Sender<Names>,
    pub(crate) orders: Orders,
    /// Counts events of a path becoming silent or closed.
    troubles: watch::Sender<u64>,
}

impl Paths {
    pub(crate) fn new(session: u64, slots: Option<Arc<Slots>>, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            session,
            slots,
            state: Mutex::new(State {
                records: BTreeMap::new(),
                received_datagrams: 0,
                skew: None,
                heard_at: now,
                calm: false,
                troubled_at: None,
            }),
            skew_us: AtomicU64::new(NO_SKEW),
            rtt_us: AtomicU64::default(),
            names: watch::Sender::default(),
            orders: Orders::default(),
            troubles: watch::Sender::default(),
        })
    }

    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    pub(crate) fn add(&self, path: &noq::Path) {
        self.insert(
            path.id(),
            Record {
                source: Source::Quic(path.weak_handle()),
                state: PathState::Validating,
                carries: false,
                rtt_min: None,
                last: None,
                local_ip: None,
                remote_address: None,
            },
        );
    }

    /// The only path of a TCP connection, whose rows by access come from the kernel where it shows
    /// them.
    pub(crate) fn add_tcp(&self, counts: Arc<Counts>, from_kernel: Option<FromKernel>) {
        self.insert(
            PathId::ZERO,
            Record {
                state: PathState::Available,
                carries: true,
                rtt_min: None,
                last: None,
                local_ip: counts.local_ip,
                remote_address: counts.remote,
                source: Source::Tcp(counts, from_kernel.map(Box::new)),
            },
        );
    }

    fn insert(&self, id: PathId, record: Record) {
        self.state.lock().records.insert(id, record);
    }

    pub(crate) fn add_unless_known(&self, path: &noq::Path) {
        if !self.state.lock().records.contains_key(&path.id()) {
            self.add(path);
        }
    }

    pub(crate) fn open_ids(&self) -> Vec<PathId> {
        let state = self.state.lock();
        let open = state
            .records
            .iter()
            .filter(|(_, record)| record.state != PathState::Closed);
        open.map(|(id, _)| *id).collect()
    }

    /// Changes whenever a path becomes silent or closed.
    pub(crate) fn troubles(&self) -> watch::Receiver<u64> {
        let mut troubles = self.troubles.subscribe();
        troubles.mark_unchanged();
        troubles
    }

    /// Returns after `pause` if a path was silent or closed within the last `TROUBLE_LASTS`;
    /// otherwise it waits for such an event first.
    pub(crate) async fn troubled(&self, pause: Duration) {
        loop {
            tokio::time::sleep(pause).await;
            let troubled_at = self.state.lock().troubled_at;
            if troubled_at.is_some_and(|at| at.elapsed() < TROUBLE_LASTS) {
                return;
            }
        }
    }

    /// Returns the state before, and whether the path carries data. Closed is final.
    pub(crate) fn set_state(&self, id: PathId, to: PathState) -> Option<(PathState, bool)> {
        let state = &mut *self.state.lock();
        let record = state.records.get_mut(&id)?;
        if record.state == PathState::Closed {
            return None;
        }
        let before = std::mem::replace(&mut record.state, to);
        match to {
            PathState::Available => record.carries = true,
            PathState::Validating | PathState::Backup => record.carries = false,
            PathState::Suspect | PathState::Closed => {}
        }
        let carries = record.carries;
        if matches!(to, PathState::Suspect | PathState::Closed) {
            state.troubled_at = Some(Instant::now());
        }
        if matches!(before, PathState::Available | PathState::Backup)
            && matches!(to, PathState::Suspect | PathState::Closed)
        {
            self.troubles.send_modify(|count| *count += 1);
        }
        if to == PathState::Closed {
            let closed: Vec<PathId> = state
                .records
                .iter()
                .filter(|(_, record)| record.state == PathState::Closed)
                .map(|(id, _)| *id)
                .collect();
            for id in closed.iter().rev().skip(CLOSED_KEPT_MAX) {
                state.records.remove(id);
            }
        }
        Some((before, carries))
    }

    pub(crate) fn set_last(&self, id: PathId, stats: Box<PathStats>) {
        if let Some(record) = self.state.lock().records.get_mut(&id) {
            record.last = Some(stats);
        }
    }

    pub(crate) fn set_name(&self, id: u32, name: &str) {
        if !is_name(name) {
            return;
        }
        self.names.send_modify(|names| {
            let names = Arc::make_mut(names);
            names.insert(id, name.into());
            while names.len() > NAMES_MAX {
                names.pop_first();
            }
        });
    }

    pub(crate) fn name(&self, id: PathId) -> Option<Arc<str>> {
        self.names.borrow().get(&number(id)).cloned()
    }

    pub(crate) fn watch_names(&self) -> watch::Receiver<Names> {
        self.names.subscribe()
    }

    /// Reads the counters of the open paths.
    pub(crate) fn refresh(&self, now: Instant) -> Vec<Reading> {
        let state = &mut *self.state.lock();
        let mut received = Vec::with_capacity(state.records.len());
        for (id, record) in &mut state.records {
            if record.state == PathState::Closed {
                continue;
            }
            let path = match &record.source {
                Source::Quic(handle) => handle.upgrade(),
                Source::Tcp(counts, _) => {
                    let rtt = counts.stats().rtt;
                    record.rtt_min = Some(record.rtt_min.map_or(rtt, |min| min.min(rtt)));
                    continue;
                }
            };
            let Some(path) = path else {
                continue;
            };
            let stats = path.stats();
            if stats.udp_rx.datagrams > 0 {
                record.rtt_min = Some(record.rtt_min.map_or(stats.rtt, |min| min.min(stats.rtt)));
            }
            if let Ok(tuple) = path.network_path() {
                let local_ip = tuple.local_ip();
                record.local_ip = match &self.slots {
                    // The address of a network that is away stays on record.
                    Some(slots) => local_ip
                        .and_then(|ip| slots.address(ip))
                        .or(record.local_ip),
                    None => local_ip,
                };
                record.remote_address = Some(multipath::unmapped(tuple.remote()));
            }
            received.push(Reading {
                path: *id,
                datagrams: stats.udp_rx.datagrams,
                rtt: stats.rtt,
                peer: record.remote_address,
            });
        }
        let carrying = received.iter().filter_map(|reading| {
            let carries = state.records.get(&reading.path)?.carries;
            carries.then_some(reading.rtt)
        });
        if let Some(rtt) = carrying.clone().max() {
            self.rtt_us.store(rtt.as_micros() as u64, Ordering::Relaxed);
        }
        let measured = skew(carrying);
        let lasts = |(_, at): &(Duration, Instant)| now.saturating_duration_since(*at) < SKEW_LASTS;
        let before = state.skew.filter(lasts);
        state.skew = match (measured, before) {
            (Some(measured), Some((before, at))) if measured < before => Some((before, at)),
            (Some(measured), _) => Some((measured, now)),
            (None, before) => before,
        };
        let us = state
            .skew
            .map_or(NO_SKEW, |(skew, _)| skew.as_micros() as u64);
        self.skew_us.store(us, Ordering::Relaxed);
        let sum = received.iter().map(|reading| reading.datagrams).sum();
        if sum > state.received_datagrams {
            state.heard_at = now;
        }
        // A path that closed takes its share out of the sum.
        state.received_datagrams = sum;
        received
    }

    /// How much later than on the fastest path a packet arrives on the slowest; `None` while one
    /// path carries all. As of the last `refresh`.
    pub(crate) fn skew(&self) -> Option<Duration> {
        let us = self.skew_us.load(Ordering::Relaxed);
        (us != NO_SKEW).then(|| Duration::from_micros(us))
    }

    /// The longest round trip of the paths that carry data: the library chooses the path of an
    /// answer. As of the last `refresh`, zero before.
    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_us.load(Ordering::Relaxed))
    }

    /// A calm connection is never silent. Silence counts from the end of the calm.
    pub(crate) fn set_calm(&self, calm: bool, now: Instant) {
        let state = &mut *self.state.lock();
        if std::mem::replace(&mut state.calm, calm) {
            state.heard_at = now;
        }
    }

    /// Time since the last packet on any path, or since the connection was last calm.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        let state = self.state.lock();
        if state.calm {
            return Duration::ZERO;
        }
        let sources = state.records.values().map(|record| &record.source);
        let heard_at = sources.fold(state.heard_at, |heard_at, source| match source {
            Source::Tcp(counts, _) => heard_at.max(counts.heard_at()),
            Source::Quic(_) => heard_at,
        });
        now.saturating_duration_since(heard_at)
    }

    /// Reads the counters of a TCP connection before one of its sockets closes.
    pub(crate) fn look_last(&self) {
        self.look(true);
    }

    fn look(&self, last: bool) {
        let state = &mut *self.state.lock();
        // A closed one has no sockets any more.
        let open = |record: &&mut Record| last || record.state != PathState::Closed;
        for record in state.records.values_mut().filter(open) {
            if let Source::Tcp(_, Some(from_kernel)) = &mut record.source {
                from_kernel.refresh(Instant::now(), last);
            }
        }
    }

    /// The accesses over which a TCP connection has a socket; empty if the kernel does not show
    /// them.
    pub(crate) fn held_by_tcp(&self) -> Vec<Arc<str>> {
        self.look(false);
        let state = self.state.lock();
        let records = state.records.values();
        let held = records.filter_map(|record| match &record.source {
            Source::Tcp(_, Some(from_kernel)) => Some(from_kernel.held()),
            Source::Tcp(_, None) | Source::Quic(_) => None,
        });
        held.flatten().collect()
    }

    pub(crate) fn snapshot(&self) -> Vec<PathSnapshot> {
        self.look(false);
        let state = self.state.lock();
        let records = state.records.iter();
        records
            .flat_map(|(id, record)| match &record.source {
                Source::Tcp(_, Some(from_kernel)) => from_kernel.rows(self.session, record.state),
                Source::Tcp(_, None) | Source::Quic(_) => vec![self.row(*id, record)],
            })
            .collect()
    }

    fn row(&self, id: PathId, record: &Record) -> PathSnapshot {
        let stats = match (&record.last, &record.source) {
            (Some(stats), _) => **stats,
            (None, Source::Quic(handle)) => handle
                .upgrade()
                .map_or_else(PathStats::default, |path| path.stats()),
            (None, Source::Tcp(counts, _)) => counts.stats(),
        };
        PathSnapshot {
            session: self.session,
            path_id: u64::from(number(id)),
            name: self
                .name(id)
                .map_or_else(String::new, |name| name.to_string()),
            state: record.state,
            rtt: stats.rtt,
            rtt_min: record.rtt_min.unwrap_or(stats.rtt),
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            sent_packets: stats.sent_packets,
            received_datagrams: stats.udp_rx.datagrams,
            lost_packets: stats.lost_packets,
            congestion_window_bytes: stats.cwnd,
            packet_header_bytes: UDP_HEADER_BYTES,
            local_ip: record.local_ip,
            remote_address: record.remote_address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_end_of_the_calm() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let paths = Paths::new(1, None, start);
        assert_eq!(paths.silence(at(2)), Duration::from_secs(2));
        paths.set_calm(true, at(2));
        assert_eq!(paths.silence(at(60)), Duration::ZERO);
        paths.set_calm(false, at(60));
        paths.set_calm(false, at(61));
        assert_eq!(paths.silence(at(63)), Duration::from_secs(3));
    }
}
