//! A firewall between a gateway and its proxy: passes TCP, and UDP only while it is open.
#![allow(clippy::unwrap_used)]
#![allow(
    clippy::disallowed_methods,
    reason = "blocking sockets, in threads of their own"
)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Sockets of gateways; packets of further ones are lost.
const CLIENTS_MAX: usize = 64;
const BUFFER_BYTES: usize = 64 << 10;
/// Interval at which a thread checks whether the wall still exists.
const LOOK: Duration = Duration::from_millis(200);
/// Interval at which a closed port looks whether it may open.
const POLL: Duration = Duration::from_millis(20);

pub struct Wall {
    pub address: SocketAddr,
    open: Arc<AtomicBool>,
    /// The port is closed, so the kernel answers by ICMP.
    refuses: Arc<AtomicBool>,
    stands: Arc<AtomicBool>,
}

impl Wall {
    /// At `address`, closed to UDP, in front of `proxy`.
    pub fn build(address: SocketAddr, proxy: SocketAddr) -> Wall {
        let wall = Wall {
            address,
            open: Arc::new(AtomicBool::new(false)),
            refuses: Arc::new(AtomicBool::new(false)),
            stands: Arc::new(AtomicBool::new(true)),
        };
        let listener = TcpListener::bind(address).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(inner), Ok(outer)) = (stream, TcpStream::connect(proxy)) else {
                    continue;
                };
                let back = (outer.try_clone().unwrap(), inner.try_clone().unwrap());
                std::thread::spawn(move || pass(inner, outer));
                std::thread::spawn(move || pass(back.0, back.1));
            }
        });
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(LOOK)).unwrap();
        let (open, stands) = (wall.open.clone(), wall.stands.clone());
        let refuses = wall.refuses.clone();
        std::thread::spawn(move || {
            let mut front = Some(Arc::new(socket));
            while stands.load(Ordering::Relaxed) {
                if let Some(socket) = front.take() {
                    relay(&socket, proxy, &open, &refuses, &stands);
                }
                std::thread::sleep(POLL);
                if !refuses.load(Ordering::Relaxed)
                    && let Ok(socket) = UdpSocket::bind(address)
                {
                    socket.set_read_timeout(Some(LOOK)).unwrap();
                    front = Some(Arc::new(socket));
                }
            }
        });
        wall
    }

    /// Closes the port of UDP, or opens it again.
    pub fn refuse_udp(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    pub fn let_udp_pass(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }
}

impl Drop for Wall {
    fn drop(&mut self) {
        self.stands.store(false, Ordering::Relaxed);
    }
}

/// Runs until either end is gone; a half-closed direction stays so.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
        && to.write_all(&buffer[..count]).is_ok()
    {}
    let _ = to.shutdown(Shutdown::Write);
}

/// Each client has its own socket towards the proxy. Returns when UDP is to be refused; the front
/// closes with its owner.
fn relay(
    front: &Arc<UdpSocket>,
    proxy: SocketAddr,
    open: &Arc<AtomicBool>,
    refuses: &AtomicBool,
    stands: &Arc<AtomicBool>,
) {
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    while stands.load(Ordering::Relaxed) && !refuses.load(Ordering::Relaxed) {
        let Ok((count, client)) = front.recv_from(&mut buffer) else {
            continue;
        };
        if !open.load(Ordering::Relaxed)
            || clients.len() >= CLIENTS_MAX && !clients.contains_key(&client)
        {
            continue;
        }
        let back = clients.entry(client).or_insert_with(|| {
            let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
            socket.set_read_timeout(Some(LOOK)).unwrap();
            let (from, to) = (socket.clone(), Arc::downgrade(front));
            let (open, stands) = (open.clone(), stands.clone());
            std::thread::spawn(move || {
                let mut buffer = vec![0; BUFFER_BYTES];
                while stands.load(Ordering::Relaxed) {
                    if let Ok(count) = from.recv(&mut buffer)
                        && open.load(Ordering::Relaxed)
                    {
                        let Some(to) = to.upgrade() else {
                            return;
                        };
                        let _ = to.send_to(&buffer[..count], client);
                    }
                }
            });
            socket
        });
        let _ = back.send_to(&buffer[..count], proxy);
    }
}
