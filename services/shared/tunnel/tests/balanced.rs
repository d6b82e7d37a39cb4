//! Two servers behind a load balancer that knows only QUIC-LB's connection ids: all paths of a
//! client reach one server, whatever their addresses.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bench::{Bench, Identities, authority, echo, listen_anywhere, serve};
use emulated_link::link::LinkConfig;
use testkit::{noise, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
};
use tunnel::{ServerId, TunnelServer, Urgency};

/// Server ids of configuration 1, one octet each.
const IDS: [(&str, u8); 2] = [("1/0a", 0x0a), ("1/0b", 0x0b)];

/// Configuration 1, nine octets after the first.
const FIRST_OCTET: u8 = 0b001_01001;
const CID_BYTES: usize = 10;

const DATAGRAM_BYTES_MAX: usize = 2_048;

/// The server whose id is in a datagram.
fn named(datagram: &[u8]) -> Option<usize> {
    let cid = match datagram.first()? & 0x80 {
        0 => datagram.get(1..)?,
        _ => {
            let length = usize::from(*datagram.get(5)?);
            datagram.get(6..6 + length)?
        }
    };
    if cid.len() < CID_BYTES || cid[0] != FIRST_OCTET {
        return None;
    }
    IDS.iter().position(|(_, id)| *id == cid[1])
}

/// Forwards by connection id. Without a server id, the parity of the client's network decides, so
/// that a client's paths would part.
async fn balance(front: Arc<UdpSocket>, servers: [SocketAddr; 2]) {
    let mut sockets: HashMap<(SocketAddr, usize), Arc<UdpSocket>> = HashMap::new();
    let mut datagram = [0; DATAGRAM_BYTES_MAX];
    loop {
        let (count, client) = front.recv_from(&mut datagram).await.unwrap();
        let SocketAddr::V4(v4) = client else {
            panic!("{client} is not of IPv4");
        };
        let by_network = usize::from(v4.ip().octets()[2] % 2);
        let server = named(&datagram[..count]).unwrap_or(by_network);
        if let Entry::Vacant(place) = sockets.entry((client, server)) {
            let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
            let (back, to) = (socket.clone(), front.clone());
            tokio::spawn(async move {
                let mut datagram = [0; DATAGRAM_BYTES_MAX];
                while let Ok(count) = back.recv(&mut datagram).await {
                    let _ = to.send_to(&datagram[..count], client).await;
                }
            });
            socket.connect(servers[server]).await.unwrap();
            place.insert(socket);
        }
        let _ = sockets[&(client, server)].send(&datagram[..count]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_paths_of_a_client_meet_one_server() {
    let identities = Identities::new();
    let servers = IDS.map(|(id, _)| {
        let mut config = identities.server_config(listen_anywhere());
        config.server_id = Some(id.parse::<ServerId>().unwrap());
        Arc::new(TunnelServer::bind(config).unwrap())
    });
    for server in &servers {
        serve(server.clone(), echo);
    }
    let front = Arc::new(UdpSocket::bind(listen_anywhere()).await.unwrap());
    let address = front.local_addr().unwrap();
    let balancing = tokio::spawn(balance(front, servers.each_ref().map(|it| it.local_addr())));
    let link = LinkConfig::new(20e6, Duration::from_millis(5));
    let bench = Bench::start(identities, address, &link, &[]);
    bench.both_up().await;
    let to = authority();
    let opened = bench.tunnel.open_tcp(&to, Urgency::Bulk);
    let mut stream = within(opened).await.unwrap();
    let sent = noise(2_000_000, 1);
    let mut back = vec![0; sent.len()];
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let both = async {
        let writing = async {
            write.write_all(&sent).await.unwrap();
            write.flush().await.unwrap();
        };
        tokio::join!(writing, read.read_exact(&mut back)).1.unwrap();
    };
    within(both).await;
    assert!(back == sent, "bytes differ");
    let paths = bench.tunnel.paths();
    for name in bench::NAMES {
        let of_name = paths.iter().filter(|path| path.name == name);
        let carried: u64 = of_name.map(|path| path.sent_bytes).sum();
        assert!(carried > 100_000, "{name} carried {carried} bytes");
    }
    bench.tunnel.close().await;
    balancing.abort();
    for server in &servers {
        server.close().await;
    }
}
