//! A server's handling of a path whose datagrams arrive over another interface, because the
//! client's own interface is dead.
//!
//! The client uses the detour to learn of losses, and closes the path soon
//! ([`PathUpkeep::route_of`]). The library takes the detour for a migration. At the server the path
//! restarts as Available with a full initial window, which competes with the data of the other
//! path. Its data in flight at the close is retransmitted only after three probe time-outs, which
//! count from old round trips.
//!
//! A path that has moved to the address of another path therefore carries no more data, and is
//! pinged. The acknowledgements of a few pings reveal all earlier losses by packet threshold. A
//! path that the client has not closed by then becomes a normal path: it may be the only one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use noq_proto::{PathId, PathStatus};

use super::alive::REROUTE_MAX;
use super::{PathUpkeep, Side};

/// Pings after a migration: three reveal a loss by packet threshold, and one ping may be lost.
const PINGS: u32 = 4;
/// Between them.
const PING_GAP: Duration = Duration::from_millis(10);
/// The client closes the path sooner; half of this time is a margin.
const DETOUR_MAX: Duration = REROUTE_MAX.saturating_add(Duration::from_secs(1));

/// A path that moved to the address of another path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Detour {
    since: Instant,
    pings: u32,
    ping_at: Instant,
}

impl Detour {
    /// Next ping of the path, if one is due.
    pub(super) fn ping_at(&self) -> Option<Instant> {
        (self.pings < PINGS).then_some(self.ping_at)
    }

    pub(super) fn ends_at(&self) -> Instant {
        self.since + DETOUR_MAX
    }
}

impl PathUpkeep {
    /// The library's destination for the path changed to this address.
    pub(super) fn on_peer_address(&mut self, now: Instant, id: PathId, address: SocketAddr) {
        if self.config.side == Side::Client {
            return;
        }
        // Some paths of a shared address must carry data, so a path set aside does not count.
        let is_anothers = self.paths.iter().any(|(other, path)| {
            *other != id && path.established && path.detour.is_none() && path.peer == Some(address)
        });
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        let before = path.peer.replace(address);
        if !is_anothers {
            path.detour = None;
        }
        if before.is_none_or(|before| before == address) {
            return;
        }
        // The library has lost the status.
        path.status = PathStatus::Available;
        path.detour = is_anothers.then_some(Detour {
            since: now,
            pings: 0,
            ping_at: now,
        });
    }

    pub(super) fn end_detours(&mut self, now: Instant) {
        for path in self.paths.values_mut() {
            path.detour.take_if(|detour| now >= detour.ends_at());
        }
    }

    pub(super) fn poll_detour(&mut self, now: Instant) -> Option<PathId> {
        let (id, detour) = self.paths.iter_mut().find_map(|(id, path)| {
            let detour = path.detour.as_mut()?;
            (now >= detour.ping_at()?).then_some((*id, detour))
        })?;
        detour.pings += 1;
        detour.ping_at = now + PING_GAP;
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Command, Event, PathScheduler, PathState, UpkeepConfig};

    const MS: Duration = Duration::from_millis(1);
    const LTE: PathId = PathId::ZERO;

    fn address(last: u8) -> SocketAddr {
        (Ipv4Addr::new(192, 0, 2, last), 4433).into()
    }

    /// A server with two busy paths; the second one moves to this address.
    struct Server {
        steering: PathUpkeep,
        start: Instant,
        wifi: PathId,
        ticks: u32,
    }

    impl Server {
        fn new() -> Self {
            let start = Instant::now();
            let mut steering =
                PathUpkeep::new(UpkeepConfig::new(Side::Server), PathScheduler::new());
            steering.on_event(start, Event::Connected { interface: None });
            let wifi = PathId::from(1u32);
            steering.on_event(start, Event::Established { path: wifi });
            Self {
                steering,
                start,
                wifi,
                ticks: 0,
            }
        }

        /// Half a second with the second path at this address; returns its statuses and pings.
        fn run(&mut self, wifi_at: SocketAddr) -> (Vec<PathStatus>, usize) {
            let (mut statuses, mut pings) = (Vec::new(), 0);
            for _ in 0..100 {
                self.ticks += 1;
                let now = self.start + self.ticks * 5 * MS;
                for (path, address) in [(LTE, address(1)), (self.wifi, wifi_at)] {
                    let heard = Event::Received {
                        path,
                        datagrams: u64::from(self.ticks),
                        rtt: 40 * MS,
                    };
                    self.steering.on_event(now, heard);
                    self.steering
                        .on_event(now, Event::PeerAddress { path, address });
                    // With a backlog no path is set aside for its speed.
                    self.steering.on_event(now, Event::Backlog { bytes: 1 });
                }
                while let Some(command) = self.steering.poll(now) {
                    match command {
                        Command::SetStatus { path, status } => {
                            assert_eq!(path, self.wifi);
                            statuses.push(status);
                        }
                        Command::Ping { path } if path == self.wifi => pings += 1,
                        Command::Ping { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
                if let Some(at) = self.steering.next_deadline() {
                    assert!(at > now, "a deadline in the past");
                }
            }
            (statuses, pings)
        }

        fn state(&self) -> Option<PathState> {
            let now = self.start + self.ticks * 5 * MS;
            let known = self.steering.snapshot(now);
            let found = known.iter().find(|entry| entry.path == self.wifi);
            found.map(|entry| entry.state)
        }
    }

    #[test]
    fn a_path_on_a_detour_carries_no_data_and_is_pinged() {
        let mut server = Server::new();
        let (statuses, usual) = server.run(address(2));
        assert_eq!(statuses, []);
        let (statuses, pings) = server.run(address(1));
        assert_eq!(statuses, [PathStatus::Backup]);
        assert_eq!(server.state(), Some(PathState::Suspect));
        assert_eq!(pings, usual + PINGS as usize);
        // The path has its own route again.
        let (statuses, pings) = server.run(address(2));
        assert_eq!(statuses, []);
        assert_eq!(server.state(), Some(PathState::Available));
        assert_eq!(pings, usual);
    }

    #[test]
    fn a_path_that_is_left_alone_on_the_way_goes_on() {
        let mut server = Server::new();
        server.run(address(2));
        server.run(address(1));
        let now = server.start + server.ticks * 5 * MS;
        server
            .steering
            .on_event(now, Event::Abandoned { path: LTE });
        server.run(address(1));
        assert_eq!(server.state(), Some(PathState::Available));
    }

    #[test]
    fn a_path_that_is_not_closed_goes_on() {
        let mut server = Server::new();
        server.run(address(2));
        let mut back_after = None;
        for half_seconds in 1..10 {
            server.run(address(1));
            if server.state() == Some(PathState::Available) {
                back_after = Some(half_seconds * 500 * MS);
                break;
            }
        }
        assert_eq!(back_after, Some(DETOUR_MAX + 500 * MS));
    }

    #[test]
    fn a_path_with_a_new_address_of_its_own_goes_on() {
        let mut server = Server::new();
        let (_, usual) = server.run(address(2));
        assert_eq!(server.run(address(3)), (Vec::new(), usual));
        assert_eq!(server.state(), Some(PathState::Available));
    }
}
