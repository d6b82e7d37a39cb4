//! Clients that begin a handshake and then are silent, over UDP and TCP, keep no other client out.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::bench::{Identities, listen_anywhere};
use noq::crypto::rustls::QuicClientConfig;
use parking_lot::Mutex;
use testkit::within;
use tokio::{
    net::{TcpStream, UdpSocket},
    task::JoinSet,
};
use tunnel::TunnelServer;

/// Concurrent handshakes of the server.
const HANDSHAKES_MAX: usize = 8;

/// Time after which the server drops a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

const NAME: &str = "localhost";

fn server(identities: &Identities) -> TunnelServer {
    let mut config = identities.server_config(listen_anywhere());
    config.fallback = true;
    config.handshakes_max = HANDSHAKES_MAX;
    TunnelServer::bind(config).unwrap()
}

#[tokio::test]
async fn silent_clients_give_way_over_tcp() {
    let identities = Identities::new();
    let server = server(&identities);
    let mut silent = Vec::new();
    for _ in 0..HANDSHAKES_MAX {
        silent.push(TcpStream::connect(server.local_addr()).await.unwrap());
    }
    let tls = identities.client.client_config(&[b"h2"]);
    let stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(tls);
    let shaking = connector.connect(NAME.try_into().unwrap(), stream);
    within(shaking).await.unwrap();
    // Before their time was over; newer handshakes are still within theirs.
    let newest = silent.last().unwrap();
    let nothing = newest.try_read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(nothing, Err(std::io::ErrorKind::WouldBlock));
}

/// Relays packets of a client to the server and none back, and stores the connection ids that the
/// server has answered.
async fn one_way(server: SocketAddr, answered: Arc<Mutex<HashSet<Vec<u8>>>>) -> SocketAddr {
    let heard = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let said = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    said.connect(server).await.unwrap();
    let address = heard.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut up, mut down) = (vec![0; 2_000], vec![0; 2_000]);
        loop {
            tokio::select! {
                length = heard.recv(&mut up) => drop(said.send(&up[..length.unwrap()]).await),
                length = said.recv(&mut down) => {
                    // RFC 9000, 17.2: flags, version, the length of the destination's id, and the
                    // id.
                    let id = &down[6..6 + usize::from(down[5])];
                    let is_long = length.is_ok() && down[0] & 0x80 != 0;
                    is_long.then(|| answered.lock().insert(id.to_vec()));
                }
            }
        }
    });
    address
}

#[tokio::test]
async fn silent_clients_give_way_over_quic() {
    let identities = Identities::new();
    let server = server(&identities);
    let answered = Arc::new(Mutex::new(HashSet::new()));
    let mute = one_way(server.local_addr(), answered.clone()).await;
    let tls = identities.client.client_config(&[tunnel::ALPN]);
    let crypto = QuicClientConfig::try_from(tls).unwrap();
    let config = noq::ClientConfig::new(Arc::new(crypto));
    let endpoint = noq::Endpoint::client(listen_anywhere()).unwrap();
    let connect = |to| endpoint.connect_with(config.clone(), to, NAME).unwrap();

    let began = Instant::now();
    let mut silent = JoinSet::new();
    for _ in 0..HANDSHAKES_MAX {
        let connecting = connect(mute);
        silent.spawn(async move { connecting.await.is_ok() });
    }
    within(async {
        while answered.lock().len() < HANDSHAKES_MAX {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    within(connect(server.local_addr())).await.unwrap();
    assert!(began.elapsed() < HANDSHAKE_MAX, "their time was over");
}
