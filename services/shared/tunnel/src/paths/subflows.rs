//! The bytes of a connection over TCP by access. Sans-IO.
//!
//! Each look adds to the access of a subflow what its socket has counted since the last look. So an
//! access keeps the bytes of subflows that have closed. Bytes between the last look and an end
//! that comes by itself are lost.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use host_network::TcpSocket;
use multipath::PathState;

use crate::paths::snapshot::PathSnapshot;

/// Accesses of one connection; subflows over further ones are not counted.
const ACCESSES_MAX: usize = 64;

/// Timeouts in succession after which a subflow is suspect: one may be a burst of losses.
const TIMEOUTS_SUSPECT: u8 = 2;

/// TCP's header with timestamps.
const HEADER_BYTES: u8 = 20 + 12;
/// MPTCP's option with an acknowledgement and sequence numbers.
const MPTCP_BYTES: u8 = 20;

/// One access of the connection.
#[derive(Debug)]
struct Carried {
    name: Arc<str>,
    state: PathState,
    rtt: Duration,
    rtt_min: Duration,
    sent_bytes: u64,
    received_bytes: u64,
    sent_packets: u64,
    received_packets: u64,
    repeated_packets: u64,
    window_bytes: u64,
    mptcp: bool,
    local_ip: IpAddr,
    remote: SocketAddr,
}

/// The accesses of one connection, in the order in which they were first seen.
#[derive(Debug, Default)]
pub(crate) struct Subflows {
    accesses: Vec<Carried>,
    /// The last look at each socket, by cookie, and its access.
    seen: HashMap<u64, (TcpSocket, Arc<str>)>,
}

/// The judgement of a subflow.
fn state_of(socket: &TcpSocket) -> PathState {
    match socket.established {
        false => PathState::Closed,
        true if socket.timeouts >= TIMEOUTS_SUSPECT => PathState::Suspect,
        true if socket.backup => PathState::Backup,
        true => PathState::Available,
    }
}

/// An access is as good as the best of its subflows.
fn better(state: PathState, than: PathState) -> bool {
    let rank = |state| match state {
        PathState::Available => 0,
        PathState::Backup => 1,
        PathState::Suspect => 2,
        PathState::Validating => 3,
        PathState::Closed => 4,
    };
    rank(state) < rank(than)
}

impl Subflows {
    /// Learns all sockets that exist. `name_of` is the access of a socket, which keeps it also when
    /// the access has gone.
    pub(crate) fn learn(
        &mut self,
        sockets: Vec<TcpSocket>,
        name_of: impl Fn(&TcpSocket) -> Arc<str>,
    ) {
        for access in &mut self.accesses {
            access.state = PathState::Closed;
        }
        let mut seen = HashMap::with_capacity(sockets.len());
        for socket in sockets {
            let before = self.seen.get(&socket.cookie);
            let name = before.map_or_else(|| name_of(&socket), |(_, name)| name.clone());
            if let Some(access) = Self::of(&mut self.accesses, name.clone(), &socket) {
                access.add(&socket, before.map(|(socket, _)| socket));
            }
            seen.insert(socket.cookie, (socket, name));
        }
        self.seen = seen;
    }

    fn of<'a>(
        accesses: &'a mut Vec<Carried>,
        name: Arc<str>,
        socket: &TcpSocket,
    ) -> Option<&'a mut Carried> {
        let index = match accesses.iter().position(|access| access.name == name) {
            Some(index) => index,
            None if accesses.len() < ACCESSES_MAX => {
                accesses.push(Carried {
                    name,
                    state: PathState::Closed,
                    rtt: Duration::ZERO,
                    rtt_min: Duration::MAX,
                    sent_bytes: 0,
                    received_bytes: 0,
                    sent_packets: 0,
                    received_packets: 0,
                    repeated_packets: 0,
                    window_bytes: 0,
                    mptcp: socket.mptcp,
                    local_ip: socket.local.ip().to_canonical(),
                    remote: socket.remote,
                });
                accesses.len() - 1
            }
            None => return None,
        };
        accesses.get_mut(index)
    }

    /// Accesses with an open subflow, whether it answers or not.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Arc<str>> {
        let open = self.accesses.iter();
        open.filter(|access| access.state != PathState::Closed)
            .map(|access| &access.name)
    }

    /// One row for each access; none before the first look. `whole` is the state of the connection.
    pub(crate) fn rows(&self, session: u64, whole: PathState) -> Vec<PathSnapshot> {
        let rows = self.accesses.iter().enumerate();
        rows.map(|(place, access)| PathSnapshot {
            session,
            path_id: place as u64,
            name: access.name.to_string(),
            state: match better(access.state, whole) {
                true => whole,
                false => access.state,
            },
            rtt: access.rtt,
            rtt_min: access.rtt_min.min(access.rtt),
            sent_bytes: access.sent_bytes,
            received_bytes: access.received_bytes,
            sent_packets: access.sent_packets,
            received_datagrams: access.received_packets,
            lost_packets: access.repeated_packets,
            congestion_window_bytes: access.window_bytes,
            packet_header_bytes: match access.mptcp {
                true => HEADER_BYTES + MPTCP_BYTES,
                false => HEADER_BYTES,
            },
            local_ip: Some(access.local_ip),
            remote_address: Some(access.remote),
        })
        .collect()
    }
}

impl Carried {
    fn add(&mut self, socket: &TcpSocket, before: Option<&TcpSocket>) {
        let long = |of: fn(&TcpSocket) -> u64| of(socket).saturating_sub(before.map_or(0, of));
        let short = |of: fn(&TcpSocket) -> u32| of(socket).wrapping_sub(before.map_or(0, of));
        self.sent_bytes += long(|it| it.sent_bytes);
        self.received_bytes += long(|it| it.received_bytes);
        self.sent_packets += u64::from(short(|it| it.sent_packets));
        self.received_packets += u64::from(short(|it| it.received_packets));
        self.repeated_packets += u64::from(short(|it| it.repeated_packets));
        self.rtt_min = self.rtt_min.min(socket.rtt_min);
        let state = state_of(socket);
        if better(state, self.state) {
            self.state = state;
            self.rtt = socket.rtt;
            self.window_bytes = socket.window_bytes;
            self.local_ip = socket.local.ip().to_canonical();
            self.remote = socket.remote;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn socket(cookie: u64, net: u8, received_bytes: u64) -> TcpSocket {
        TcpSocket {
            cookie,
            local: SocketAddr::from(([10, net, 0, 2], 40_000)),
            remote: SocketAddr::from(([10, 9, 0, 2], 4_433)),
            device: 0,
            established: true,
            mptcp: true,
            backup: false,
            timeouts: 0,
            rtt: Duration::from_millis(20),
            rtt_min: Duration::from_millis(10),
            sent_bytes: 10,
            received_bytes,
            sent_packets: 2,
            received_packets: 3,
            repeated_packets: 0,
            window_bytes: 14_480,
        }
    }

    fn look(subflows: &mut Subflows, sockets: Vec<TcpSocket>) -> Vec<(String, PathState, u64)> {
        subflows.learn(sockets, |socket| match socket.local.ip() {
            IpAddr::V4(ip) if ip.octets()[1] == 1 => "wifi".into(),
            _ => "lte".into(),
        });
        let rows = subflows.rows(7, PathState::Available).into_iter();
        rows.map(|row| (row.name, row.state, row.received_bytes))
            .collect()
    }

    #[test]
    fn an_access_keeps_the_bytes_of_its_closed_subflows() {
        let mut subflows = Subflows::default();
        assert_eq!(look(&mut subflows, Vec::new()), []);
        let rows = look(&mut subflows, vec![socket(1, 1, 100), socket(2, 2, 5)]);
        let row = |name: &str, state, bytes| (name.to_owned(), state, bytes);
        let up = PathState::Available;
        assert_eq!(rows, [row("wifi", up, 100), row("lte", up, 5)]);
        let rows = look(&mut subflows, vec![socket(2, 2, 8)]);
        assert_eq!(
            rows,
            [row("wifi", PathState::Closed, 100), row("lte", up, 8)]
        );
        // It comes back with another socket, and has two over the other access.
        let again = vec![socket(3, 1, 40), socket(2, 2, 8), socket(4, 2, 1)];
        let rows = look(&mut subflows, again);
        assert_eq!(rows, [row("wifi", up, 140), row("lte", up, 9)]);
        let held: Vec<&str> = subflows.held().map(|name| &**name).collect();
        assert_eq!(held, ["wifi", "lte"]);
    }

    #[test]
    fn packets_that_wrap_count_on() {
        let mut subflows = Subflows::default();
        let with = |sent_packets| TcpSocket {
            sent_packets,
            ..socket(1, 1, 0)
        };
        look(&mut subflows, vec![with(u32::MAX)]);
        look(&mut subflows, vec![with(4)]);
        let sent = subflows.rows(7, PathState::Available)[0].sent_packets;
        assert_eq!(sent, u64::from(u32::MAX) + 5);
    }

    #[test]
    fn a_row_is_no_better_than_its_best_subflow_and_the_connection() {
        let mut subflows = Subflows::default();
        let silent = TcpSocket {
            timeouts: TIMEOUTS_SUSPECT,
            ..socket(1, 1, 0)
        };
        let standby = TcpSocket {
            backup: true,
            ..socket(2, 2, 0)
        };
        let rows = look(&mut subflows, vec![silent.clone(), standby.clone()]);
        let states: Vec<PathState> = rows.iter().map(|row| row.1).collect();
        assert_eq!(states, [PathState::Suspect, PathState::Backup]);
        let rows = look(&mut subflows, vec![silent, standby, socket(3, 1, 0)]);
        assert_eq!(rows[0].1, PathState::Available);
        for whole in [PathState::Suspect, PathState::Closed] {
            let rows = subflows.rows(7, whole);
            assert!(rows.iter().all(|row| row.state == whole));
        }
    }
}
