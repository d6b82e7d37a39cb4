//! The MTU of the TUN devices follows the paths, also one that joins later with a smaller MTU. A
//! packet that is too large for them is answered. Skips on hosts without namespaces.

#![allow(clippy::unwrap_used)]

#[path = "tun/stage.rs"]
mod stage;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    process::Command,
};

use stage::{LISTED, PORT, Stage, TUN, mtu, own, ping, until};
use testkit::netns::World;

const RATE: &str = "100mbit";

/// The path that joins later.
const LATER: &str = "wwan0";

/// Headers of IPv4 and UDP.
const HEADERS_BYTES: usize = 28;

/// The MTUs of both ends, once both are above `more` and at most `most`.
fn settled(world: &World, more: usize, most: usize) -> [usize; 2] {
    until(|| {
        let mtus = ["gw", "px"].map(|side| mtu(world, side));
        let fit = |mtu: &usize| *mtu > more && *mtu <= most;
        mtus.iter().all(fit).then_some(mtus)
    })
}

/// Sends packets of that many bytes, which no router may cut, until the kernel has learned that the
/// way takes less; returns what it takes.
fn told(side: &str, stage: &Stage, [from, to]: [Ipv4Addr; 2], bytes: usize) -> usize {
    let namespace = stage.world.name(side);
    let asking = stage.run(side, move || {
        // Linux sets "don't fragment" unless it is told otherwise.
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.connect((to, PORT)).unwrap();
        until(|| {
            let _ = socket.send(&vec![7; bytes - HEADERS_BYTES]);
            let shown = Command::new("ip")
                .args(["-n", &namespace, "route", "get", &to.to_string()])
                .output()
                .unwrap();
            let text = String::from_utf8(shown.stdout).unwrap();
            let after = text.split(" mtu ").nth(1)?;
            Some(after.split_whitespace().next()?.parse().unwrap())
        })
    });
    asking.join().unwrap()
}

/// Sends packets of that many bytes until one has arrived whole.
fn arrives(stage: &Stage, sides: [&str; 2], [from, to]: [Ipv4Addr; 2], bytes: usize) {
    let ear = stage.run(sides[1], move || UdpSocket::bind((to, PORT)).unwrap());
    let ear = ear.join().unwrap();
    ear.set_read_timeout(Some(stage::SILENCE)).unwrap();
    let bound = stage.run(sides[0], move || UdpSocket::bind((from, 0)).unwrap());
    let socket = bound.join().unwrap();
    socket.connect((to, PORT)).unwrap();
    let mut buffer = vec![0; 2_048];
    until(|| {
        socket.send(&vec![7; bytes - HEADERS_BYTES]).unwrap();
        match ear.recv(&mut buffer) {
            Ok(length) => {
                assert_eq!(length, bytes - HEADERS_BYTES);
                Some(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn packets_are_as_large_as_every_path_carries() {
    let Some(stage) = Stage::start_without(LATER, RATE, "--tun-routes") else {
        return;
    };
    let world = stage.world.clone();
    let answered = stage.run("gw", || until(|| ping(IpAddr::from(LISTED), 1)));
    answered.join().unwrap();
    let wide = settled(&world, 1_380, 1_452);
    let ends = [own(&world), LISTED];
    let both_ways = |mtus: [usize; 2]| {
        arrives(&stage, ["gw", "far"], ends, mtus[0]);
        arrives(&stage, ["far", "gw"], [ends[1], ends[0]], mtus[1]);
    };
    both_ways(wide);

    world.ip("gw", &format!("link set {LATER} mtu 1400"));
    world.ip("rt", &format!("link set m-{LATER} mtu 1400"));
    world.up(LATER, 2);
    let narrow = settled(&world, 1_280, 1_344);
    both_ways(narrow);
    println!("one path of 1,500: {wide:?}; a path of 1,400 joined: {narrow:?}");

    // A device whose MTU somebody else has set: the tunnel's ends answer.
    for side in ["gw", "px"] {
        world.ip(side, &format!("link set {TUN} mtu 1500"));
    }
    let takes = [
        told("gw", &stage, ends, 1_450),
        told("far", &stage, [ends[1], ends[0]], 1_450),
    ];
    assert_eq!(takes, narrow);
    stage.stop();
}
