//! An application's datagrams (SOCKS5 UDP ASSOCIATE): one socket beside its connection, and one
//! flow, which is a UDP tunnel, for each destination.
//!
//! The next datagram reopens a flow that has ended, for example with its session. A new destination
//! takes the place of the flow that is quiet for longest, but of none that was used within
//! `QUIET_MIN`. So an application with ever new destinations uses up neither the proxy's places nor
//! its requests per second, which vitals and alerts need. Datagrams without a place are dropped.

mod flow;

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    net::{TcpStream, UdpSocket},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tunnel::{Tunnel, Urgency};

use super::socks5::datagram::{self, Datagram};
pub(super) use flow::Steered;
use flow::{Flow, Touched, count_dropped};

/// Flows of all associations together, an eighth of a gateway's tunnels at the proxy; at the bound
/// an association gives up one of its own.
pub(super) const FLOWS_MAX: usize = 64;

/// Flows of one association; at the bound the flow that is quiet for longest gives way.
const FLOWS_PER_ASSOCIATION_MAX: usize = 32;

/// Time after its last datagram for which a flow keeps its place.
const QUIET_MIN: Duration = Duration::from_secs(5);

/// Largest datagram of a socket.
const DATAGRAM_BYTES_MAX: usize = 65_535;

pub(super) struct Association {
    socket: Arc<UdpSocket>,
    application: Application,
}

/// The sender whose datagrams are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Application {
    ip: IpAddr,
    /// `None`: the port of the first datagram.
    port: Option<u16>,
}

impl Application {
    /// Whether a datagram comes from the application; the first one sets its port.
    fn admits(&mut self, from: SocketAddr) -> bool {
        from.ip().to_canonical() == self.ip && *self.port.get_or_insert(from.port()) == from.port()
    }
}

impl Association {
    /// Binds a socket at the address that the application reached.
    pub(super) async fn bind(connection: &TcpStream, port: u16) -> io::Result<Self> {
        let mut local = connection.local_addr()?;
        // A listener of both versions reports IPv4 as mapped, and an IPv4 application cannot use
        // such an address.
        local.set_ip(local.ip().to_canonical());
        local.set_port(0);
        let socket = UdpSocket::bind(local).await?;
        tunnel::enlarge_buffers(&socket);
        Ok(Self {
            socket: Arc::new(socket),
            application: Application {
                ip: connection.peer_addr()?.ip().to_canonical(),
                port: (port != 0).then_some(port),
            },
        })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Runs until no datagram has passed for `idle_max`; dropping it ends all flows.
    pub(super) async fn run(
        mut self,
        (tunnel, steered): (&Tunnel, Steered),
        urgency: Urgency,
        places: &Arc<Semaphore>,
        idle_max: Duration,
    ) -> io::Result<()> {
        let mut flows = Flows::default();
        let touched = Touched::new(Instant::now());
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            let (length, from) = tokio::select! {
                received = self.socket.recv_from(&mut buffer) => match received {
                    Ok(received) => received,
                    // ICMP refused an answer to the application.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                    Err(error) => return Err(error),
                },
                () = touched.quiet_for(idle_max) => return Ok(()),
            };
            if !self.application.admits(from) {
                count_dropped("stranger");
                continue;
            }
            let datagram = match datagram::parse(&buffer[..length]) {
                Ok(datagram) => datagram,
                Err(unfit) => {
                    count_dropped(unfit.label());
                    continue;
                }
            };
            let Datagram {
                authority,
                header,
                payload,
            } = datagram;
            touched.touch(Instant::now());
            if flows.find(header).is_none() {
                let Some(place) = flows.place(places, Instant::now()) else {
                    count_dropped("no_place");
                    continue;
                };
                let header = Bytes::copy_from_slice(header);
                let way = flow::Way {
                    tunnel: tunnel.clone(),
                    steered: steered.clone(),
                    authority,
                    urgency,
                    header: header.clone(),
                    socket: self.socket.clone(),
                    application: from,
                    association: touched.clone(),
                };
                flows.flows.insert(header, Flow::start(way, place));
            }
            if let Some(flow) = flows.find(header) {
                flow.send(payload);
            }
        }
    }
}

/// By the header of their datagrams.
#[derive(Default)]
struct Flows {
    flows: HashMap<Bytes, Flow>,
}

impl Flows {
    fn find(&self, header: &[u8]) -> Option<&Flow> {
        self.flows.get(header).filter(|flow| !flow.is_over())
    }

    /// A place for one more flow; `None` if no flow has been quiet for long enough.
    fn place(&mut self, places: &Arc<Semaphore>, now: Instant) -> Option<OwnedSemaphorePermit> {
        self.flows.retain(|_, flow| !flow.is_over());
        let free = match self.flows.len() < FLOWS_PER_ASSOCIATION_MAX {
            true => places.clone().try_acquire_owned().ok(),
            false => None,
        };
        free.or_else(|| {
            let last = |(header, flow): (&Bytes, &Flow)| (flow.touched(), header.clone());
            let (touched, header) = self.flows.iter().map(last).min()?;
            if now.duration_since(touched) < QUIET_MIN {
                return None;
            }
            Some(self.flows.remove(&header)?.into_place())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_ipv4_application_gets_an_ipv4_address() {
        // For both versions, like a gateway that serves a network.
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (_application, accepted) = tokio::join!(
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)),
            listener.accept()
        );
        let association = Association::bind(&accepted.unwrap().0, 0).await.unwrap();
        let relay = association.address().unwrap();
        assert_eq!(relay.ip(), Ipv4Addr::LOCALHOST);
        let application = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        application.send_to(b"heard", relay).await.unwrap();
        let mut buffer = [0; 5];
        let (length, from) = association.socket.recv_from(&mut buffer).await.unwrap();
        assert_eq!(
            (&buffer[..length], from.port()),
            (&b"heard"[..], application.local_addr().unwrap().port())
        );
    }
}
