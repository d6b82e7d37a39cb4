//! The access networks of a gateway, between it and the proxy: UDP through an emulated link, TCP
//! while the link is up.
//!
//! A packet belongs to the link of its source address. Everything runs in user space, so no
//! privileges are needed.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use emulated_link::link::{Link, LinkConfig, Loss, Verdict};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Semaphore, mpsc, watch},
    time::{Instant, timeout},
};

use crate::scenario::LINKS;

const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// Bytes of IPv4 and UDP headers; the link counts IP packets.
const HEADER_BYTES: u64 = 28;
/// Datagrams under way in each direction of one socket; further ones are lost.
const UNDER_WAY_MAX: usize = 4_096;
/// Sockets of a gateway, including those of its earlier starts; datagrams of further ones are lost.
const CLIENTS_MAX: usize = 512;
/// Time after which a quiet socket is forgotten.
const CLIENT_IDLE: Duration = Duration::from_secs(90);
/// Concurrent TCP connections of a gateway; further ones wait.
const CONNECTIONS_MAX: usize = 128;
const CHUNK_BYTES: usize = 16 << 10;

struct Access {
    /// Number of faults that cut the link now; at zero it is up.
    cuts: Mutex<usize>,
    uplink: Mutex<Link>,
    downlink: Mutex<Link>,
    is_up: watch::Sender<bool>,
}

/// Both links of one gateway.
pub(super) struct Accesses {
    began: Instant,
    links: Vec<Access>,
}

struct Datagram {
    offered: Duration,
    due: Duration,
    bytes: Vec<u8>,
}

impl Accesses {
    pub fn new(seed: u64) -> Accesses {
        let configs = [
            LinkConfig::new(20e6, Duration::from_millis(5)),
            LinkConfig::new(8e6, Duration::from_millis(25)).with_loss(Loss::Bernoulli(0.005)),
        ];
        let links = configs
            .into_iter()
            .map(|config| Access {
                cuts: Mutex::new(0),
                uplink: Mutex::new(Link::new(config.clone(), seed)),
                downlink: Mutex::new(Link::new(config, !seed)),
                is_up: watch::channel(true).0,
            })
            .collect();
        Accesses {
            began: Instant::now(),
            links,
        }
    }

    /// A fault that cuts the link begins or ends.
    pub fn cut(&self, link: usize, is_begin: bool) {
        let now = self.began.elapsed();
        let access = &self.links[link];
        let mut cuts = access.cuts.lock();
        *cuts = if is_begin { *cuts + 1 } else { *cuts - 1 };
        let up = *cuts == 0;
        access.uplink.lock().set_up(now, up);
        access.downlink.lock().set_up(now, up);
        access.is_up.send_replace(up);
    }

    /// Accepts packets at `address` and passes them to the proxy, until the runtime ends.
    pub async fn serve(self: Arc<Self>, address: SocketAddr, proxy: SocketAddr) -> io::Result<()> {
        let front = Arc::new(UdpSocket::bind(address).await?);
        let listener = TcpListener::bind(address).await?;
        tokio::spawn(Arc::clone(&self).relay(front, proxy));
        tokio::spawn(self.accept(listener, proxy));
        Ok(())
    }

    async fn relay(self: Arc<Self>, front: Arc<UdpSocket>, proxy: SocketAddr) {
        let mut clients: HashMap<SocketAddr, mpsc::Sender<Datagram>> = HashMap::new();
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            let Ok((count, client)) = front.recv_from(&mut buffer).await else {
                continue;
            };
            let Some(link) = link_of(client.ip()) else {
                continue;
            };
            clients.retain(|_, sender| !sender.is_closed());
            if !clients.contains_key(&client) {
                if clients.len() >= CLIENTS_MAX {
                    continue;
                }
                let Ok(sender) = Arc::clone(&self)
                    .client(link, client, Arc::clone(&front), proxy)
                    .await
                else {
                    continue;
                };
                clients.insert(client, sender);
            }
            let datagram = self.offer(&self.links[link].uplink, &buffer[..count]);
            if let (Some(datagram), Some(sender)) = (datagram, clients.get(&client)) {
                // A full queue loses the datagram, as a link does.
                let _ = sender.try_send(datagram);
            }
        }
    }

    /// One socket towards the proxy for each socket of the gateway.
    async fn client(
        self: Arc<Self>,
        link: usize,
        client: SocketAddr,
        front: Arc<UdpSocket>,
        proxy: SocketAddr,
    ) -> io::Result<mpsc::Sender<Datagram>> {
        let back = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
        back.connect(proxy).await?;
        let (up, mut sent) = mpsc::channel::<Datagram>(UNDER_WAY_MAX);
        let (down, mut answered) = mpsc::channel::<Datagram>(UNDER_WAY_MAX);
        let uplink = Arc::clone(&self);
        let out = Arc::clone(&back);
        tokio::spawn(async move {
            while let Ok(Some(datagram)) = timeout(CLIENT_IDLE, sent.recv()).await {
                if uplink.arrives(&uplink.links[link].uplink, &datagram).await {
                    // Refused while the proxy is away: lost.
                    let _ = out.send(&datagram.bytes).await;
                }
            }
        });
        let downlink = Arc::clone(&self);
        tokio::spawn(async move {
            while let Some(datagram) = answered.recv().await {
                if downlink
                    .arrives(&downlink.links[link].downlink, &datagram)
                    .await
                {
                    let _ = front.send_to(&datagram.bytes, client).await;
                }
            }
        });
        let quiet = up.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
            while !quiet.is_closed() {
                match timeout(CLIENT_IDLE, back.recv(&mut buffer)).await {
                    Ok(Ok(count)) => {
                        if let Some(datagram) =
                            self.offer(&self.links[link].downlink, &buffer[..count])
                        {
                            let _ = down.try_send(datagram);
                        }
                    }
                    // The proxy is away; the error belongs to an earlier datagram.
                    Ok(Err(_)) => {}
                    Err(_) => return,
                }
            }
        });
        Ok(up)
    }

    fn offer(&self, link: &Mutex<Link>, bytes: &[u8]) -> Option<Datagram> {
        let offered = self.began.elapsed();
        match link
            .lock()
            .offer(offered, bytes.len() as u64 + HEADER_BYTES)
        {
            Verdict::DeliverAt(due) => Some(Datagram {
                offered,
                due,
                bytes: bytes.to_vec(),
            }),
            Verdict::Dropped(_) => None,
        }
    }

    /// Waits until the datagram has passed the link; returns false if a cut lost it.
    async fn arrives(&self, link: &Mutex<Link>, datagram: &Datagram) -> bool {
        tokio::time::sleep_until(self.began + datagram.due).await;
        !link.lock().was_cut(datagram.offered, datagram.due)
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, proxy: SocketAddr) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let Ok((inner, client)) = listener.accept().await else {
                continue;
            };
            let Some(link) = link_of(client.ip()) else {
                continue;
            };
            let is_up = self.links[link].is_up.subscribe();
            tokio::spawn(async move {
                // Gateway and proxy handle the end of a connection.
                let _ = connect(inner, proxy, is_up).await;
                drop(place);
            });
        }
    }
}

fn link_of(address: IpAddr) -> Option<usize> {
    LINKS
        .iter()
        .position(|(_, own)| own.parse::<IpAddr>().is_ok_and(|own| own == address))
}

async fn connect(
    inner: TcpStream,
    proxy: SocketAddr,
    mut is_up: watch::Receiver<bool>,
) -> io::Result<()> {
    wait_up(&mut is_up).await?;
    let outer = TcpStream::connect(proxy).await?;
    let (from_gateway, to_gateway) = inner.into_split();
    let (from_proxy, to_proxy) = outer.into_split();
    let up = pass(from_gateway, to_proxy, is_up.clone());
    let down = pass(from_proxy, to_gateway, is_up);
    tokio::try_join!(up, down).map(drop)
}

/// Data waits while the link is down, as TCP does.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut is_up: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        wait_up(&mut is_up).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}

async fn wait_up(is_up: &mut watch::Receiver<bool>) -> io::Result<()> {
    is_up
        .wait_for(|up| *up)
        .await
        .map(drop)
        .map_err(io::Error::other)
}
