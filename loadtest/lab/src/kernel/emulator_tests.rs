//! One emulated network of four paths, each with a property of its own, in real namespaces. Needs
//! root; without it the test says so and passes.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::bed::{Bed, KernelReport};
use super::namespace::{Namespace, permitted};
use super::network::{SERVER_IP, client_ip, device_name};
use super::priority::{self, Role};
use crate::packet::IP_UDP_HEADER_BYTES;
use crate::scenario::{Controller, Direction, Interface, LossSpec, Scenario};
use crate::wire::{Bulk, Wire};

const DELAY: usize = 0;
const RATE: usize = 1;
const LOSS: usize = 2;
const CUT: usize = 3;

const PAYLOAD_BYTES: usize = 1000;
const PACKET_BYTES: u64 = PAYLOAD_BYTES as u64 + IP_UDP_HEADER_BYTES;
const LENGTH: Duration = Duration::from_millis(1200);
const INTERVAL: Duration = Duration::from_millis(2);
const CUT_S: (f64, f64) = (0.3, 0.7);
const RATE_MBIT: f64 = 2.0;
const LOSS_SHARE: f64 = 0.2;
/// How much later than the model says a packet may be seen when the machine keeps up: writing,
/// waking the receiver, reading.
const TOLERANCE: Duration = Duration::from_millis(5);
/// With everything sent, a receiver that hears nothing for this long has heard all.
const QUIET: Duration = Duration::from_millis(500);
/// Half a second of packets for a receiver that does not come to run; the kernel gives what it
/// allows.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
const ATTEMPTS_MAX: u32 = 5;

fn scenario() -> Scenario {
    let plain = Interface::symmetric("wan", 100.0, 40.0, 0.0);
    let mut interfaces = vec![plain; 4];
    interfaces[RATE] = Interface::symmetric("rate", RATE_MBIT, 40.0, 0.0);
    interfaces[LOSS].to_server.loss = LossSpec::Random(LOSS_SHARE);
    interfaces[CUT] = interfaces[CUT]
        .clone()
        .with_changes(&[(CUT_S.0, false), (CUT_S.1, true)]);
    Scenario::transfer(
        "emulator",
        3,
        Direction::Upload,
        1,
        Controller::Ours,
        5.0,
        interfaces,
    )
}

/// Number of a packet, when it was sent and when it arrived.
type Seen = (u64, Duration, Duration);

fn sender(namespace: &Namespace, path: usize) -> UdpSocket {
    namespace
        .run(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            socket
                .bind_device(Some(device_name(path).as_bytes()))
                .unwrap();
            socket
                .bind(&SocketAddr::new(IpAddr::V4(client_ip(path)), 0).into())
                .unwrap();
            socket.connect(&receiver_address(path).into()).unwrap();
            UdpSocket::from(socket)
        })
        .unwrap()
}

fn receiver(namespace: &Namespace, path: usize) -> UdpSocket {
    let bind = || UdpSocket::bind(receiver_address(path)).unwrap();
    let socket = Socket::from(namespace.run(bind).unwrap());
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
    socket.set_read_timeout(Some(QUIET)).unwrap();
    UdpSocket::from(socket)
}

fn receiver_address(path: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(SERVER_IP), 7000 + path as u16)
}

fn nanos(bytes: &[u8]) -> Duration {
    Duration::from_nanos(u64::from_be_bytes(bytes.try_into().unwrap()))
}

/// Sends a numbered packet over every path at each interval (four at once where the rate is tried)
/// and collects what arrives.
fn exchange() -> (KernelReport, Vec<Vec<Seen>>, Vec<u64>) {
    let scenario = scenario();
    let bed = Bed::new(&scenario).unwrap();
    let origin = bed.origin;
    let receivers: Vec<UdpSocket> = (0..4)
        .map(|path| receiver(&bed.network.server, path))
        .collect();
    let senders: Vec<UdpSocket> = (0..4)
        .map(|path| sender(&bed.network.client, path))
        .collect();
    let all_sent = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let collecting: Vec<_> = receivers
            .iter()
            .map(|socket| {
                let all_sent = &all_sent;
                scope.spawn(move || {
                    priority::raise(Role::Endpoint);
                    let mut seen: Vec<Seen> = Vec::new();
                    let mut buffer = [0; 2048];
                    loop {
                        let sent_before = all_sent.load(Ordering::Acquire);
                        if let Ok(bytes) = socket.recv(&mut buffer) {
                            assert_eq!(bytes, PAYLOAD_BYTES);
                            let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
                            seen.push((number, nanos(&buffer[8..16]), origin.elapsed()));
                        } else if sent_before {
                            break;
                        }
                    }
                    seen
                })
            })
            .collect();
        let sent = bed.client.spawn(async move {
            let mut sent = vec![0u64; 4];
            let mut at = origin + INTERVAL;
            while at < origin + LENGTH {
                tokio::time::sleep_until(at.into()).await;
                at += INTERVAL;
                for (path, socket) in senders.iter().enumerate() {
                    for _ in 0..if path == RATE { 4 } else { 1 } {
                        let mut packet = [0; PAYLOAD_BYTES];
                        packet[..8].copy_from_slice(&sent[path].to_be_bytes());
                        let now = origin.elapsed().as_nanos() as u64;
                        packet[8..16].copy_from_slice(&now.to_be_bytes());
                        socket.send(&packet).unwrap();
                        sent[path] += 1;
                    }
                }
            }
            sent
        });
        let sent = bed.client.block_on(sent);
        // Before a panic of the sender is passed on: the receivers have to end.
        all_sent.store(true, Ordering::Release);
        let sent = sent.unwrap();
        let seen: Vec<Vec<Seen>> = collecting
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        (seen, sent)
    });
    let bulk = Bulk {
        completed: true,
        error: None,
        opened: Duration::ZERO,
        end: LENGTH,
        timeline: Default::default(),
    };
    (bed.finish(&scenario, bulk).unwrap(), seen.0, seen.1)
}

#[test]
fn delay_rate_loss_and_cuts_are_those_of_the_model() {
    if let Err(why) = permitted() {
        eprintln!("skipped: {why}");
        return;
    }
    let mut attempt = 1;
    let (report, seen, sent) = loop {
        let (report, seen, sent) = exchange();
        if report.kept.up || attempt == ATTEMPTS_MAX {
            break (report, seen, sent);
        }
        attempt += 1;
    };
    let delay = Duration::from_millis(20);
    // Under any load of the machine, each packet that is seen was delivered by the model. None is
    // out of order or early.
    for (path, seen) in seen.iter().enumerate() {
        let delivered = report.report.links[path].delivered_bytes / PACKET_BYTES;
        assert!(seen.len() as u64 <= delivered, "path {path}");
        assert!(seen.is_sorted_by(|one, next| one.0 < next.0), "path {path}");
        assert!(seen.iter().all(|(_, sent, seen)| *seen >= *sent + delay));
    }
    if !report.kept.up {
        eprintln!("not judged further: the machine did not keep up, {ATTEMPTS_MAX} times");
        return;
    }
    for (path, seen) in seen.iter().enumerate() {
        let delivered = report.report.links[path].delivered_bytes / PACKET_BYTES;
        assert_eq!(seen.len() as u64, delivered, "path {path}");
    }
    assert_eq!(seen[DELAY].len() as u64, sent[DELAY]);

    // Losses fall on the very packets on which they fall in virtual time.
    let [mut wire, _] = Wire::pair(&scenario().interfaces[LOSS], 3, LOSS).unwrap();
    let expected: Vec<u64> = (0..sent[LOSS])
        .filter(|number| {
            let at = INTERVAL * (*number as u32 + 1);
            wire.pass(at, 0, &mut [0; PACKET_BYTES as usize]).is_some()
        })
        .collect();
    let survived: Vec<u64> = seen[LOSS].iter().map(|packet| packet.0).collect();
    assert_eq!(survived, expected);
    assert!(expected.len() < sent[LOSS] as usize);

    let (down, up) = (
        Duration::from_secs_f64(CUT_S.0),
        Duration::from_secs_f64(CUT_S.1),
    );
    for (_, sent, seen) in &seen[CUT] {
        assert!(*seen <= down + TOLERANCE || *sent >= up.saturating_sub(TOLERANCE));
    }
    let capacity = RATE_MBIT * 1e6 / 8.0;
    let first = seen[RATE].first().unwrap().2;
    for (index, (_, _, at)) in seen[RATE].iter().enumerate() {
        // Never faster than the rate, but for what was late and bunched.
        let most = capacity * (*at - first + TOLERANCE).as_secs_f64() / PACKET_BYTES as f64 + 1.0;
        assert!(index as f64 <= most || !report.kept.up, "{index} by {at:?}");
    }

    if !report.kept.up {
        eprintln!(
            "the machine did not keep up: {:?}; upper bounds not looked at",
            report.kept
        );
        return;
    }
    let mut late: Vec<Duration> = seen[DELAY]
        .iter()
        .map(|(_, sent, seen)| *seen - *sent - delay)
        .collect();
    late.sort();
    assert!(late[late.len() / 2] < TOLERANCE, "{late:?}");
    let last = seen[RATE].last().unwrap().2;
    let served = (seen[RATE].len() - 1) as f64 * PACKET_BYTES as f64;
    let share = served / (capacity * (last - first).as_secs_f64());
    assert!((0.97..1.03).contains(&share), "{share}");
    let returned = seen[CUT]
        .iter()
        .find(|packet| packet.2 > down + TOLERANCE * 2);
    let returned = returned.unwrap().2;
    assert!(returned >= up + delay && returned < up + delay + INTERVAL + TOLERANCE * 2);
}

#[test]
fn a_namespace_of_a_dead_process_is_removed_and_ours_goes_with_us() {
    if let Err(why) = permitted() {
        eprintln!("skipped: {why}");
        return;
    }
    // No process has this number: it is above the kernel's bound. Another test that makes a
    // namespace of its own may remove this one while it is being made: then it is made again.
    let dead = "braidlab-4194999-0-client";
    let made = || super::namespace::ip(&["netns", "add", dead]).is_ok();
    assert!((0..ATTEMPTS_MAX).any(|_| made()));
    let own = Namespace::new("test").unwrap();
    let names = || std::fs::read_dir("/run/netns").unwrap().flatten();
    let has = |name: &str| names().any(|entry| entry.file_name() == *name);
    let name = own.name().to_owned();
    assert!(has(&name));
    assert!(!has(dead));
    let here = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let inside = own.run(here).unwrap();
    assert_ne!(inside, here());
    // Every thread of the runtime lives inside, those for blocking work included.
    let runtime = own.runtime().unwrap();
    let worker = runtime.spawn(async move { (here(), tokio::task::spawn_blocking(here).await) });
    let (worker, blocking) = runtime.block_on(worker).unwrap();
    assert_eq!((worker, blocking.unwrap()), (inside.clone(), inside));
    drop(runtime);
    drop(own);
    assert!(!has(&name));
}
