//! Names through the tunnel: programs on the gateway and a host behind it ask name servers. Only
//! the proxy reaches these, or they do not exist. Skips on hosts without namespaces.

#![allow(clippy::unwrap_used)]

#[path = "tun/stage.rs"]
mod stage;

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::Arc,
    time::Duration,
};

use stage::{LISTED, Stage, own, until};
use testkit::DEADLINE;

const RATE: &str = "20mbit";

/// The address of every name.
const FOUND: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 77);

/// Records of the answer to a name that begins with "long": more than UDP carries.
const LONG_RECORDS: u16 = 200;

/// A name server that nobody runs; its address is routed to the TUN device.
const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 99);

fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// A small resolver (TCP): an address for each name, by IPv4.
fn resolve_all(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        std::thread::spawn(move || resolve(stream));
    }
}

fn resolve(mut stream: TcpStream) -> Option<()> {
    loop {
        let asked = receive(&mut stream)?;
        // The question ends with an empty label, a type and a class.
        let end = 12 + asked[12..].iter().position(|byte| *byte == 0)? + 5;
        let is_v4 = asked[end - 3] == 1;
        let records = match (is_v4, asked[13..].starts_with(b"long")) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => LONG_RECORDS,
        };
        let mut answer = asked[..end].to_vec();
        answer[2..4].copy_from_slice(&[0x81, 0x80]);
        answer[6..8].copy_from_slice(&records.to_be_bytes());
        answer[8..12].fill(0);
        for _ in 0..records {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(FOUND.octets());
        }
        send(&mut stream, &answer);
    }
}

fn receive(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).ok()?;
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message).ok()?;
    Some(message)
}

fn send(stream: &mut TcpStream, message: &[u8]) {
    let length = (message.len() as u16).to_be_bytes();
    stream.write_all(&[&length, message].concat()).unwrap();
}

fn ask_by_udp(server: IpAddr, name: &str) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(6)))
        .unwrap();
    // Connected: only an answer from the address that was asked arrives.
    socket.connect((server, 53)).ok()?;
    socket.send(&query(0x4242, name)).ok()?;
    let mut buffer = [0; 2_048];
    let length = socket.recv(&mut buffer).ok()?;
    let answer = buffer[..length].to_vec();
    assert_eq!(answer[..2], [0x42, 0x42]);
    Some(answer)
}

fn ask_by_tcp(server: IpAddr, name: &str) -> Option<Vec<u8>> {
    let at = SocketAddr::new(server, 53);
    let mut stream = TcpStream::connect_timeout(&at, DEADLINE).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    send(&mut stream, &query(0x4242, name));
    receive(&mut stream)
}

/// Whether it is an answer with so many addresses.
fn has(answer: &[u8], records: u16) -> bool {
    answer[3] & 0xf == 0
        && answer[2] & 2 == 0
        && answer[6..8] == records.to_be_bytes()
        && answer.ends_with(&FOUND.octets())
}

/// The system's own resolver in a namespace, with this name server and no file of hosts.
fn getent(namespace: &str, server: IpAddr, name: &str) -> String {
    let dir = std::path::PathBuf::from("/etc/netns").join(namespace);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("resolv.conf"), format!("nameserver {server}\n")).unwrap();
    std::fs::write(dir.join("nsswitch.conf"), "hosts: dns\n").unwrap();
    let output = Command::new("ip")
        .args(["netns", "exec", namespace, "getent", "ahostsv4", name])
        .output()
        .unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn names_resolve_through_the_tunnel_alone() {
    let flags = format!("--tun-routes --tun-dns {LISTED}");
    let Some(stage) = Stage::start(RATE, &flags) else {
        return;
    };
    let world = stage.world.clone();
    world.plug_host();
    let resolver = stage.run("far", || TcpListener::bind((LISTED, 53)).unwrap());
    let resolver = resolver.join().unwrap();
    std::thread::spawn(move || resolve_all(resolver));
    let resolver = IpAddr::from(LISTED);
    let program = stage.run("gw", {
        let world = Arc::clone(&world);
        move || {
            until(|| ask_by_udp(resolver, "first.example").filter(|answer| has(answer, 1)));
            let own = IpAddr::from(own(&world));
            println!("the TUN device has {own}");
            for server in [resolver, NOBODY.into(), own] {
                let answer = ask_by_udp(server, "a.example").unwrap();
                assert!(has(&answer, 1), "{server}: {answer:x?}");
                let answer = ask_by_tcp(server, "b.example").unwrap();
                assert!(has(&answer, 1), "{server}: {answer:x?}");
                // Too long for UDP: the whole answer comes by TCP.
                let short = ask_by_udp(server, "long.example").unwrap();
                assert!(short[2] & 2 != 0 && short.len() < 512, "{short:x?}");
                let whole = ask_by_tcp(server, "long.example").unwrap();
                assert!(has(&whole, LONG_RECORDS), "{server}");
            }
            own
        }
    });
    let own = program.join().unwrap();
    let host = stage.run("host", move || {
        for server in [NOBODY.into(), own, resolver] {
            let answer = ask_by_udp(server, "c.example").unwrap();
            assert!(has(&answer, 1), "{server}: {answer:x?}");
            let whole = ask_by_tcp(server, "long.example").unwrap();
            assert!(has(&whole, LONG_RECORDS), "{server}");
        }
    });
    host.join().unwrap();
    for side in ["gw", "host"] {
        for server in [resolver, own] {
            for name in ["d.example", "long.example"] {
                let found = getent(&world.name(side), server, name);
                assert!(
                    found.starts_with(&FOUND.to_string()),
                    "{side} {name}: {found}"
                );
            }
        }
    }
    assert_eq!(stage.warn_of("tun-dns"), [false, false]);
    stage.stop();
}

#[test]
fn a_resolver_that_does_not_answer_fails_queries_and_warns() {
    let Some(stage) = Stage::start(RATE, &format!("--tun-routes --tun-dns {LISTED}")) else {
        return;
    };
    let resolver = IpAddr::from(LISTED);
    let program = stage.run("gw", move || {
        // No process listens at the resolver's address.
        let failed = until(|| ask_by_udp(resolver, "a.example"));
        assert_eq!(failed[3] & 0xf, 2);
    });
    program.join().unwrap();
    until(|| (stage.warn_of("tun-dns") == [true, false]).then_some(()));
    // It comes, and names resolve without a restart.
    let resolver_at = stage.run("far", || TcpListener::bind((LISTED, 53)).unwrap());
    let listener = resolver_at.join().unwrap();
    std::thread::spawn(move || resolve_all(listener));
    let program = stage.run("gw", move || {
        until(|| ask_by_udp(resolver, "a.example").filter(|answer| has(answer, 1)));
    });
    program.join().unwrap();
    assert_eq!(stage.warn_of("tun-dns"), [false, false]);
    stage.stop();
}
