//! Endpoints that stand by: a connection that begins over one obeys as well, and a change reaches
//! each subflow. Skips on hosts without namespaces or MPTCP.

#![allow(clippy::unwrap_used)]

use std::{
    fs::File,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    time::{Duration, Instant},
};

use host_network::{Endpoints, TcpSocket, TcpSockets};
use socket2::{Domain, Protocol, Socket, Type};
use testkit::{
    DEADLINE,
    netns::{UNSHAPED, World, proxy},
};

const DEVICES: [(&str, u8); 2] = [("wlan0", 1), ("wwan0", 2)];

fn address(net: u8) -> IpAddr {
    IpAddr::from([10, net, 0, 2])
}

fn socket() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap()
}

/// Connects over the second network, and exchanges a few bytes.
fn connect() -> TcpStream {
    let (device, net) = DEVICES[1];
    let socket = socket();
    socket.bind_device(Some(device.as_bytes())).unwrap();
    socket
        .bind(&SocketAddr::new(address(net), 0).into())
        .unwrap();
    socket.connect(&proxy().into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    stream
}

/// Waits until the kernel shows the subflows so; returns them.
// Blocks the thread of one test.
#[allow(clippy::disallowed_methods)]
fn until(stream: &TcpStream, holds: impl Fn(&[TcpSocket]) -> bool) -> Vec<TcpSocket> {
    let copy = File::from(OwnedFd::from(stream.try_clone().unwrap()));
    let inode = u32::try_from(copy.metadata().unwrap().ino()).unwrap();
    let mut sockets = TcpSockets::open().unwrap();
    let start = Instant::now();
    loop {
        let shown = sockets.of(inode, proxy()).unwrap();
        if holds(&shown) {
            return shown;
        }
        assert!(start.elapsed() < DEADLINE, "{shown:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether all subflows of both networks exist, and those of `standby` stand by.
fn stands_by(shown: &[TcpSocket], standby: usize) -> bool {
    let of = |at: usize| {
        let (_, net) = DEVICES[at];
        shown
            .iter()
            .filter(move |socket| socket.established && socket.local.ip() == address(net))
    };
    let all = |at: usize, backup| of(at).count() > 0 && of(at).all(|it| it.backup == backup);
    all(standby, true) && all(1 - standby, false)
}

#[test]
fn subflows_obey_the_flag_of_their_endpoint_also_the_first() {
    let Some(world) = World::new() else {
        return;
    };
    if let Err(error) = world.mptcp_endpoints() {
        println!("SKIPPED: no MPTCP here ({error})");
        return;
    }
    for (device, net) in DEVICES {
        world.plug(device, net, UNSHAPED);
    }
    let (listening, is_listening) = std::sync::mpsc::channel();
    let server = world.spawn("px", || async move {
        let listener = socket();
        listener.bind(&proxy().into()).unwrap();
        listener.listen(4).unwrap();
        listening.send(()).unwrap();
        let mut stream = TcpStream::from(listener.accept().unwrap().0);
        let mut heard = [0; 5];
        while stream.read_exact(&mut heard).is_ok() {
            stream.write_all(&heard).unwrap();
        }
    });
    is_listening.recv().unwrap();
    let tested = world.spawn("gw", || async {
        let mut endpoints = Endpoints::open().unwrap();
        for (at, (device, net)) in DEVICES.iter().enumerate() {
            endpoints.add(device, address(*net), None, at == 1).unwrap();
        }
        let stream = connect();
        let first = stream.local_addr().unwrap();
        let shown = until(&stream, |shown| stands_by(shown, 1));
        assert!(shown.iter().any(|socket| socket.local == first));
        for standby in [0, 1] {
            endpoints.set_backup(DEVICES[1 - standby].0, false).unwrap();
            endpoints.set_backup(DEVICES[standby].0, true).unwrap();
            until(&stream, |shown| stands_by(shown, standby));
        }
        endpoints.remove(DEVICES[0].0).unwrap();
        until(&stream, |shown| {
            shown
                .iter()
                .all(|socket| socket.local.ip() == address(DEVICES[1].1))
        });
    });
    let tested = tested.join();
    server.join().unwrap();
    tested.unwrap();
}
