//! A TUN device that a privileged process creates for one without rights, and the kernel behind it.
//! The kernel translates packets of the pool on their way out, and back on their return. Skips on
//! hosts without namespaces.

#![allow(clippy::unwrap_used)]

use std::{net::IpAddr, time::Duration};

use host_network::{READ_BYTES_MAX, TunDevice, TunError, masquerade};
use ip_packets::IpPrefix;
use testkit::{netns::World, within};
use tokio::net::UdpSocket;

const TUN: &str = "braid0";
const PORT: u16 = 9_005;
/// Interval between two questions with the same packet; the first may be lost.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The pool, the client in it, the server, and the source address that the server sees.
const WAYS: [[&str; 4]; 2] = [
    ["10.64.0.0/16", "10.64.0.5", "10.8.0.2", "10.8.0.1"],
    ["fd00:64::/112", "fd00:64::5", "fd00:8::2", "fd00:8::1"],
];

async fn make() {
    let device = TunDevice::open(TUN).unwrap();
    device.keep().unwrap();
    device.set_up().await.unwrap();
    for [pool, ..] in WAYS {
        let pool: IpPrefix = pool.parse().unwrap();
        let own = pool.nth(1).unwrap();
        device.add_address(own, pool.length()).await.unwrap();
        masquerade(TUN, pool).unwrap();
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A UDP datagram.
fn packet(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let addresses = [octets(from), octets(to)].concat();
    let mut datagram = [PORT.to_be_bytes(), PORT.to_be_bytes()].concat();
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    let pseudo = [&addresses[..], &[0, 17], &length.to_be_bytes(), &datagram].concat();
    let check = sum(&pseudo);
    datagram[6..8].copy_from_slice(&check.to_be_bytes());
    let mut header = match from {
        IpAddr::V4(_) => {
            let mut header = vec![0x45, 0];
            header.extend((20 + length).to_be_bytes());
            header.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
            let check = sum(&[&header[..], &addresses].concat());
            header[10..12].copy_from_slice(&check.to_be_bytes());
            header
        }
        IpAddr::V6(_) => {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([17, 64]);
            header
        }
    };
    header.extend(addresses);
    header.extend(datagram);
    header
}

/// The payload of the first answer to this question.
async fn asked(device: &TunDevice, from: IpAddr, to: IpAddr) -> Vec<u8> {
    let question = packet(from, to, b"who am I?");
    let ends = [octets(to), octets(from)].concat();
    let mut buffer = vec![0; READ_BYTES_MAX];
    within(async {
        loop {
            device.send(&question);
            let heard = tokio::time::timeout(AGAIN_AFTER, device.receive(&mut buffer)).await;
            let Ok(mut heard) = heard.map(Result::unwrap) else {
                continue;
            };
            let Some(answer) = heard.next() else {
                continue;
            };
            // The kernel sends its own packets on a new device as well.
            if let Some(at) = answer.windows(ends.len()).position(|it| it == ends) {
                return answer[at + ends.len() + 8..].to_vec();
            }
        }
    })
    .await
}

#[test]
fn a_process_without_rights_uses_a_prepared_device_with_translation() {
    let Some(world) = World::new() else {
        return;
    };
    world.plug_far();
    let (ready, listens) = std::sync::mpsc::channel();
    world.spawn("far", || async move {
        for [_, _, at, _] in WAYS {
            let at: IpAddr = at.parse().unwrap();
            let socket = UdpSocket::bind((at, PORT)).await.unwrap();
            tokio::spawn(async move {
                let mut buffer = [0; 2_048];
                while let Ok((_, from)) = socket.recv_from(&mut buffer).await {
                    let name = from.ip().to_string();
                    let _ = socket.send_to(name.as_bytes(), from).await;
                }
            });
        }
        ready.send(()).unwrap();
        // Until the test's process ends.
        std::future::pending::<()>().await;
    });
    listens.recv().unwrap();

    let nothing = world.spawn_powerless("px", || async { TunDevice::open(TUN).err() });
    let refused = nothing.join().unwrap();
    assert!(
        matches!(refused, Some(TunError::Open { .. })),
        "{refused:?}"
    );
    // Created again, it is as before.
    for _ in 0..2 {
        world.spawn("px", make).join().unwrap();
    }
    let process = world.spawn_powerless("px", || async {
        let device = TunDevice::open(TUN).unwrap();
        device.set_up().await.unwrap();
        for [pool, from, to, name] in WAYS {
            let pool: IpPrefix = pool.parse().unwrap();
            assert!(masquerade(TUN, pool).is_err(), "that takes a right");
            let [from, to] = [from, to].map(|it| it.parse().unwrap());
            assert_eq!(asked(&device, from, to).await, name.as_bytes());
        }
    });
    process.join().unwrap();
}
