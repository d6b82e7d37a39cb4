//! The record of the paths of one connection: the transport's counters, the steering's judgement,
//! and the names of the access networks. Both ends keep it, and all reports on paths read it.

pub(crate) mod agreement_headers;
pub(crate) mod name;
pub(crate) mod names;
pub(crate) mod routes;
pub(crate) mod slots;
pub(crate) mod steer;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use multipath::{PathState, steering_rules::Schedule};
use noq::{PathId, PathStats, WeakPathHandle};
use parking_lot::Mutex;
use service_kit::path_table::PathRow;
use tokio::sync::watch;

use crate::{
    paths::{name::is_name, slots::Slots},
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

/// Names kept beside the open paths; at the bound the oldest name is dropped.
const NAMES_MAX: usize = 64;

/// One path at one moment. Counters begin with the path.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PathSnapshot {
    /// Distinguishes the successive connections of one process.
    pub session: u64,
    /// Unique within the session; a path that is opened again gets a new id.
    pub path_id: u64,
    /// Name of the access network; empty until the peer has sent it.
    pub name: String,
    pub state: PathState,
    pub rtt: Duration,
    pub rtt_min: Duration,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub sent_packets: u64,
    pub received_datagrams: u64,
    pub lost_packets: u64,
    pub congestion_window_bytes: u64,
    pub local_ip: Option<IpAddr>,
    pub remote_address: Option<SocketAddr>,
}

impl PathSnapshot {
    /// The row of `/paths` as far as the transport knows it.
    pub fn row(&self, gateway: &str) -> PathRow {
        PathRow {
            gateway: gateway.to_owned(),
            path: match self.name.is_empty() {
                true => format!("path-{}", self.path_id),
                false => self.name.clone(),
            },
            session: self.session,
            path_id: self.path_id,
            state: format!("{:?}", self.state).to_lowercase(),
            rtt_ms: self.rtt.as_secs_f64() * 1e3,
            rtt_min_ms: self.rtt_min.as_secs_f64() * 1e3,
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
            sent_packets: self.sent_packets,
            lost_packets: self.lost_packets,
            congestion_window_bytes: self.congestion_window_bytes,
            local_address: self.local_ip.map_or_else(String::new, |it| it.to_string()),
            remote_address: self
                .remote_address
                .map_or_else(String::new, |it| it.to_string()),
            ..PathRow::default()
        }
    }
}

#[derive(Debug)]
enum Source {
    Quic(WeakPathHandle),
    /// A whole TCP connection; only the kernel knows which of its bytes used which network.
    Tcp(Arc<Counts>),
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
    names: watch::Sender<Names>,
    /// At the proxy: the client's, for what the proxy sends.
    schedule: watch::Sender<Arc<Schedule>>,
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
            names: watch::Sender::default(),
            schedule: watch::Sender::default(),
            troubles: watch::Sender::default(),
        })
    }

    pub(crate) fn set_schedule(&self, schedule: Arc<Schedule>) {
        self.schedule.send_replace(schedule);
    }

    pub(crate) fn schedule(&self) -> Arc<Schedule> {
        self.schedule.borrow().clone()
    }

    pub(crate) fn watch_schedule(&self) -> watch::Receiver<Arc<Schedule>> {
        self.schedule.subscribe()
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

    /// The only path of a TCP connection.
    pub(crate) fn add_tcp(&self, counts: Arc<Counts>) {
        self.insert(
            PathId::ZERO,
            Record {
                state: PathState::Available,
                carries: true,
                rtt_min: None,
                last: None,
                local_ip: counts.local_ip,
                remote_address: counts.remote,
                source: Source::Tcp(counts),
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
                Source::Tcp(counts) => {
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
        let measured = skew(received.iter().filter_map(|reading| {
            let carries = state.records.get(&reading.path)?.carries;
            carries.then_some(reading.rtt)
        }));
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
            Source::Tcp(counts) => heard_at.max(counts.heard_at()),
            Source::Quic(_) => heard_at,
        });
        now.saturating_duration_since(heard_at)
    }

    pub(crate) fn snapshot(&self) -> Vec<PathSnapshot> {
        let state = self.state.lock();
        state
            .records
            .iter()
            .map(|(id, record)| {
                let stats = match (&record.last, &record.source) {
                    (Some(stats), _) => **stats,
                    (None, Source::Quic(handle)) => handle
                        .upgrade()
                        .map_or_else(PathStats::default, |path| path.stats()),
                    (None, Source::Tcp(counts)) => counts.stats(),
                };
                PathSnapshot {
                    session: self.session,
                    path_id: u64::from(number(*id)),
                    name: self
                        .name(*id)
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
                    local_ip: record.local_ip,
                    remote_address: record.remote_address,
                }
            })
            .collect()
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
