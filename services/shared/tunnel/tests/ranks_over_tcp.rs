//! Steering rules where UDP is blocked, in network namespaces with two shaped access networks:
//!
//! - over MPTCP an access that stands by carries nothing in either direction, without a reconnect,
//! - it takes over when the active one is cut without notice,
//! - bytes count for the access that carried them,
//! - over plain TCP the session moves to the access that the rules prefer, and comes back to it.
//!
//! Skips on hosts without namespaces or MPTCP.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;
#[path = "support/beside_server.rs"]
mod beside_server;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bench::{Identities, authority};
use beside_server::{DEVICES, beside_server, config, follow};
use testkit::netns::World;
use testkit::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
    time::sleep,
};
use tunnel::{
    ConnectRequest, PathSnapshot, PathState, SessionHandle, Transport, Tunnel, Urgency,
    steering_rules::{PathSchedule, Rank, Schedule},
};

const RATE: &str = "20mbit";
const RATE_BYTES_PER_S: f64 = 2.5e6;

/// Time in which bulk leaves an access.
const LEAVES: Duration = Duration::from_secs(1);
/// Time for which its bytes are counted.
const LASTS: Duration = Duration::from_secs(2);
/// The kernel fills an access within this time after it had rested. A lost packet of the slow start
/// makes it slow.
const FILLS_WITHIN: Duration = Duration::from_secs(20);
/// Share that acknowledgements, pings and keepalives may have over the other access.
const ASIDE_MAX: f64 = 0.03;
/// Difference of the counted bytes and those of the device: ARP, Ethernet, and joined packets.
const COUNT_OFF_MAX: f64 = 0.05;
/// Share of a link that is used when bulk goes over it.
const USED_MIN: f64 = 0.7;
/// Times that a network comes again, because the kernel tries a subflow only once.
const ATTEMPTS_MAX: u32 = 5;

/// A period of the stream that no packet size divides.
const PERIOD: usize = 251;

fn pattern(position: u64, bytes: usize) -> Vec<u8> {
    let position = position as usize % PERIOD;
    (position..position + bytes)
        .map(|at| (at % PERIOD) as u8)
        .collect()
}

/// Sends the pattern for ever, or reads for ever, as the first byte says.
async fn endless(request: ConnectRequest, _: SessionHandle) {
    let Ok(mut stream) = request.accept().await else {
        return;
    };
    if stream.read_u8().await.is_ok_and(|mode| mode == b'd') {
        let mut sent = 0;
        while stream.write_all(&pattern(sent, 16_384)).await.is_ok() {
            sent += 16_384;
        }
    } else {
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}

/// Bulk in one direction until it is aborted, with the bytes that have arrived or left so far.
async fn bulk(tunnel: &Tunnel, down: bool) -> (JoinHandle<()>, Arc<AtomicU64>) {
    let to = authority();
    let mut stream = within(tunnel.open_tcp(&to, Urgency::Bulk)).await.unwrap();
    let moved = Arc::new(AtomicU64::new(0));
    let counter = moved.clone();
    let running = tokio::spawn(async move {
        stream
            .write_u8(if down { b'd' } else { b'u' })
            .await
            .unwrap();
        stream.flush().await.unwrap();
        let mut buffer = vec![0; 16_384];
        loop {
            let before = counter.load(Ordering::Relaxed);
            let count = match down {
                true => stream.read(&mut buffer).await.unwrap(),
                false => stream.write(&buffer).await.unwrap(),
            };
            assert!(count > 0, "the stream has ended");
            if down {
                assert!(buffer[..count] == pattern(before, count), "other bytes");
            }
            counter.fetch_add(count as u64, Ordering::Relaxed);
        }
    });
    (running, moved)
}

fn carried(world: &World) -> [u64; 2] {
    DEVICES.map(|(device, _)| world.received(device) + world.sent(device))
}

async fn carries(world: &World, lasts: Duration) -> [f64; 2] {
    let before = carried(world);
    sleep(lasts).await;
    let after = carried(world);
    [0, 1].map(|at| (after[at] - before[at]) as f64 / lasts.as_secs_f64())
}

fn only(active: usize) -> Schedule {
    let path = |place, rank| PathSchedule {
        place,
        rank: Some(rank),
        ..PathSchedule::FREE
    };
    let named = |at: usize, path| (DEVICES[at].0.to_owned(), path);
    Schedule {
        paths: vec![
            named(active, path(0, Rank::Active)),
            named(1 - active, path(1, Rank::Standby)),
        ],
        ..Schedule::default()
    }
}

/// Bulk uses one access and leaves the other.
async fn assert_over(world: &World, active: usize, what: &str) {
    let start = Instant::now();
    loop {
        let rates = carries(world, LASTS).await;
        println!("{what}, active {}: {rates:.0?} bytes/s", DEVICES[active].0);
        let aside = rates[1 - active] / (rates[0] + rates[1]);
        assert!(aside < ASIDE_MAX, "{what}: {aside:.3} of the bytes aside");
        if rates[active] > RATE_BYTES_PER_S * USED_MIN {
            return;
        }
        assert!(start.elapsed() < FILLS_WITHIN, "{what}: {rates:?}");
    }
}

async fn until(what: &str, lasts: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < lasts, "not so after {lasts:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
    start.elapsed()
}

fn row(paths: &[PathSnapshot], name: &str) -> Option<PathSnapshot> {
    paths.iter().find(|path| path.name == name).cloned()
}

/// The bytes that the access has carried, with headers.
fn counted(path: &PathSnapshot) -> f64 {
    let packets = path.sent_packets + path.received_datagrams;
    let headers = packets * (20 + u64::from(path.packet_header_bytes));
    (path.sent_bytes + path.received_bytes + headers) as f64
}

/// Each access has carried what its device has, since it had carried `at_first`.
fn assert_counted(world: &World, tunnel: &Tunnel, at_first: [u64; 2]) {
    let ((paths, _), carried) = (tunnel.paths_with_former(), carried(world));
    for (at, (device, _)) in DEVICES.iter().enumerate() {
        let its_own = paths.iter().filter(|path| path.name == *device);
        let sum: f64 = its_own.map(counted).sum();
        let really = (carried[at] - at_first[at]) as f64;
        let off = sum / really - 1.0;
        println!("{device}: {really:.0} bytes by the device, counted {off:+.3} more");
        assert!(off.abs() < COUNT_OFF_MAX, "{paths:?}");
    }
}

fn start(identities: &Identities) -> Tunnel {
    Tunnel::start(config(identities), Vec::new()).unwrap()
}

/// Runs a gateway's side against a server, with both networks.
fn with_server<F, W>(world: World, gateway: W)
where
    F: Future<Output = ()>,
    W: FnOnce(Arc<World>, Identities) -> F + Send + 'static,
{
    for (device, net) in DEVICES {
        world.plug(device, net, RATE);
        world.shape_upwards(device, RATE);
    }
    beside_server(world, endless, gateway);
}

/// Waits until the session has a subflow over each network.
async fn until_both(world: &World, tunnel: &Tunnel) {
    for attempt in 1..=ATTEMPTS_MAX {
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            let paths = tunnel.paths();
            let lives = |name: &str| {
                let state = row(&paths, name).map(|row| row.state);
                matches!(state, Some(PathState::Available | PathState::Backup))
            };
            let missing: Vec<_> = DEVICES
                .iter()
                .filter(|(device, _)| !lives(device))
                .collect();
            match missing[..] {
                [] => return,
                [(device, net)] if deadline - Instant::now() < Duration::from_secs(1) => {
                    println!("attempt {attempt}: {device} comes again");
                    world.ip("gw", &format!("link set {device} down"));
                    world.up(device, *net);
                    break;
                }
                _ => sleep(Duration::from_millis(20)).await,
            }
        }
    }
    panic!("a network has no subflow: {:?}", tunnel.paths());
}

#[test]
fn over_mptcp_an_access_that_stands_by_carries_nothing_until_the_other_is_cut() {
    let Some(world) = World::new() else {
        return;
    };
    if let Err(error) = world.mptcp_endpoints() {
        println!("SKIPPED: no MPTCP here ({error})");
        return;
    }
    // The session begins at once, as young as its networks.
    world.reject_udp();
    with_server(world, |world, identities| async move {
        let at_first = carried(&world);
        let tunnel = start(&identities);
        // The first subflow is over the second network, which becomes an endpoint last.
        tunnel.set_schedule(only(1));
        follow(&tunnel);
        within(tunnel.up()).await;
        assert_eq!(tunnel.transport(), Some(Transport::Mptcp));
        until_both(&world, &tunnel).await;
        // A second one over an address would not hear of changes.
        assert_eq!(world.tcp_connections(), DEVICES.len());
        let session = tunnel.paths()[0].session;
        for down in [true, false] {
            let what = if down { "down" } else { "up" };
            tunnel.set_schedule(Schedule::default());
            let (running, _) = bulk(&tunnel, down).await;
            sleep(LEAVES).await;
            let rates = carries(&world, LASTS).await;
            println!("{what}, without rules: {rates:.0?} bytes/s");
            assert!(
                rates.iter().all(|rate| *rate > RATE_BYTES_PER_S / 4.0),
                "{rates:?}"
            );
            // The first subflow is over one of them, so both cases are tried.
            for active in [0, 1, 0] {
                tunnel.set_schedule(only(active));
                sleep(LEAVES).await;
                assert_over(&world, active, what).await;
            }
            running.abort();
        }
        sleep(LEAVES).await;
        assert_counted(&world, &tunnel, at_first);
        let paths = tunnel.paths();
        let state = |at: usize| row(&paths, DEVICES[at].0).unwrap().state;
        assert_eq!(
            [state(0), state(1)],
            [PathState::Available, PathState::Backup]
        );
        assert_eq!(paths[0].session, session, "without a reconnect");

        let (running, moved) = bulk(&tunnel, true).await;
        sleep(LEAVES).await;
        let (device, net) = DEVICES[0];
        world.cut(device, net);
        let before = moved.load(Ordering::Relaxed);
        let took = until(
            "a megabyte over the standby",
            Duration::from_secs(10),
            || moved.load(Ordering::Relaxed) > before + 1_000_000,
        )
        .await;
        println!("{device} cut: a megabyte over the standby after {took:?}");
        running.abort();
        tunnel.close().await;
    });
}

#[test]
fn over_plain_tcp_the_session_moves_to_the_access_that_the_rules_prefer() {
    let Some(world) = World::new() else {
        return;
    };
    if world.mptcp_endpoints().is_ok() {
        world.without_mptcp();
    }
    world.block_udp();
    with_server(world, |world, identities| async move {
        let tunnel = start(&identities);
        tunnel.set_schedule(only(1));
        follow(&tunnel);
        within(tunnel.up()).await;
        assert_eq!(tunnel.transport(), Some(Transport::Tcp));
        // Both networks are there when it connects, or it moves at once.
        let over = |at: usize| {
            let paths = tunnel.paths();
            let open: Vec<_> = paths
                .iter()
                .filter(|it| it.state != PathState::Closed)
                .collect();
            matches!(open[..], [row] if row.name == DEVICES[at].0)
        };
        until("over the active", Duration::from_secs(3), || over(1)).await;
        let (running, moved) = bulk(&tunnel, true).await;
        sleep(LEAVES).await;
        assert_over(&world, 1, "down").await;
        tunnel.set_schedule(only(0));
        sleep(LEAVES).await;
        assert_over(&world, 0, "down").await;

        // The active one is cut without notice, and comes back.
        let (device, net) = DEVICES[0];
        world.cut(device, net);
        let before = moved.load(Ordering::Relaxed);
        let took = until(
            "a megabyte over the standby",
            Duration::from_secs(15),
            || moved.load(Ordering::Relaxed) > before + 1_000_000,
        )
        .await;
        println!("{device} cut: a megabyte over the standby after {took:?}");
        assert!(over(1));
        assert_eq!(
            tunnel.reachable(),
            Vec::<String>::new(),
            "it does not answer"
        );
        world.mend(net);
        let took = until("back over the active", Duration::from_secs(30), || over(0)).await;
        println!("{device} mended: over it again after {took:?}");
        sleep(LEAVES).await;
        assert_over(&world, 0, "down").await;
        running.abort();
        sleep(LEAVES).await;
        // Three sessions have ended meanwhile, and their bytes count.
        assert_counted(&world, &tunnel, [0; 2]);
        tunnel.close().await;
    });
}
