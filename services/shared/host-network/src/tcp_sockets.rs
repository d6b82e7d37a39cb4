//! The counters of each TCP socket in the kernel, the subflows of MPTCP included.
//!
//! The protocol is `sock_diag`. It needs no right, and shows the sockets of the network namespace.
//! All subflows of a connection have the inode of its socket. A cookie names a socket for ever.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rtnetlink::sys::{Socket, protocols::NETLINK_SOCK_DIAG};

use crate::netlink_wire::{self, Answer, answers, attributes};

/// Datagrams read for one answer; each has a few dozen sockets.
const DATAGRAMS_MAX: usize = 64;
/// Sockets kept of one answer; a connection has at most nine subflows.
const SOCKETS_MAX: usize = 32;

const BY_FAMILY: u16 = 20;
/// Request for all that fit.
const FLAGS: u16 = 1 | 0x300;
const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 10;
const TCP: u8 = 6;
/// The extension with the counters of TCP, number 2.
const WITH_INFO: u8 = 1 << 1;

const ESTABLISHED: u8 = 1;
/// Established, and the states of an end in which data may still be under way.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

const MESSAGE_BYTES: usize = 72;
const INFO: u16 = 2;
const PROTOCOL_INFO: u16 = 19;
const PROTOCOL_INFO_MPTCP: u16 = 3;
const SUBFLOW_FLAGS: u16 = 8;
/// This end asked for it, or the peer.
const SUBFLOW_BACKUP: u32 = 1 << 5 | 1 << 4;

/// One socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSocket {
    /// No other socket of this boot has it.
    pub cookie: u64,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Index of the device that it is bound to; zero if to none.
    pub device: u32,
    pub established: bool,
    /// It is a subflow of MPTCP.
    pub mptcp: bool,
    /// A subflow that carries only while no other subflow lives.
    pub backup: bool,
    /// Timeouts in succession without an acknowledgement.
    pub timeouts: u8,
    pub rtt: Duration,
    pub rtt_min: Duration,
    /// Payload, with what was sent again.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Packets, wrapping, as the next two.
    pub sent_packets: u32,
    pub received_packets: u32,
    pub repeated_packets: u32,
    pub window_bytes: u64,
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    chunk(bytes, at).map(u32::from_ne_bytes)
}

fn address_at(bytes: &[u8], family: u8, at: usize) -> Option<IpAddr> {
    match family {
        FAMILY_V4 => chunk::<4>(bytes, at).map(IpAddr::from),
        FAMILY_V6 => chunk::<16>(bytes, at).map(IpAddr::from),
        _ => None,
    }
}

/// The socket of an answer, if it has counters, and its inode.
fn parse(payload: &[u8]) -> Option<(TcpSocket, u32)> {
    let (message, rest) = payload.split_at_checked(MESSAGE_BYTES)?;
    let family = message[0];
    let port = |at| chunk(message, at).map(u16::from_be_bytes);
    let info = attributes(rest).find(|(kind, _)| *kind == INFO)?.1;
    let subflow = attributes(rest)
        .find(|(kind, _)| *kind == PROTOCOL_INFO)
        .and_then(|(_, inner)| attributes(inner).find(|(kind, _)| *kind == PROTOCOL_INFO_MPTCP))
        .and_then(|(_, inner)| attributes(inner).find(|(kind, _)| *kind == SUBFLOW_FLAGS))
        .and_then(|(_, flags)| u32_at(flags, 0));
    let u64_at = |at| chunk(info, at).map(u64::from_ne_bytes);
    let micros = |at| u32_at(info, at).map(|us| Duration::from_micros(us.into()));
    let window = u64::from(u32_at(info, 80)?) * u64::from(u32_at(info, 16)?);
    let socket = TcpSocket {
        cookie: chunk(message, 44).map(u64::from_ne_bytes)?,
        local: SocketAddr::new(address_at(message, family, 8)?, port(4)?),
        remote: SocketAddr::new(address_at(message, family, 24)?, port(6)?),
        device: u32_at(message, 40)?,
        established: message[1] == ESTABLISHED,
        mptcp: subflow.is_some(),
        backup: subflow.is_some_and(|flags| flags & SUBFLOW_BACKUP != 0),
        timeouts: *info.get(2)?,
        rtt: micros(68)?,
        rtt_min: micros(148)?,
        sent_bytes: u64_at(200)?,
        received_bytes: u64_at(128)?,
        sent_packets: u32_at(info, 136)?,
        received_packets: u32_at(info, 140)?,
        repeated_packets: u32_at(info, 100)?,
        window_bytes: window,
    };
    Some((socket, u32_at(message, 68)?))
}

/// The question for all sockets to that port.
fn request(sequence: u32, remote: SocketAddr) -> Vec<u8> {
    let family = if remote.is_ipv6() {
        FAMILY_V6
    } else {
        FAMILY_V4
    };
    let mut body = vec![family, TCP, WITH_INFO, 0];
    body.extend(STATES.to_ne_bytes());
    // The local port, any; then both addresses, the device and the cookie, which the kernel does
    // not compare here.
    body.extend(0_u16.to_be_bytes());
    body.extend(remote.port().to_be_bytes());
    body.extend([0; 16 + 16 + 4 + 8]);
    netlink_wire::message(BY_FAMILY, FLAGS, sequence, &[&body])
}

/// A way to ask the kernel.
pub struct TcpSockets {
    socket: Socket,
    sequence: u32,
}

impl TcpSockets {
    /// Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            socket: netlink_wire::connect(NETLINK_SOCK_DIAG)?,
            sequence: 0,
        })
    }

    /// The sockets of a connection to `remote` whose own socket has this inode: one, or several of
    /// MPTCP.
    pub fn of(&mut self, inode: u32, remote: SocketAddr) -> io::Result<Vec<TcpSocket>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request(self.sequence, remote), 0)?;
        let mut found = Vec::new();
        for _ in 0..DATAGRAMS_MAX {
            let (datagram, _) = self.socket.recv_from_full()?;
            for answer in answers(&datagram, self.sequence) {
                match answer {
                    Answer::Ended(0) => return Ok(found),
                    Answer::Ended(code) => return Err(io::Error::from_raw_os_error(-code)),
                    Answer::Data(payload) => {
                        let socket = parse(payload).filter(|(_, its)| *its == inode);
                        found.extend(socket.map(|it| it.0).filter(|_| found.len() < SOCKETS_MAX));
                    }
                }
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        fs::File,
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::{fd::OwnedFd, unix::fs::MetadataExt},
    };

    use super::*;
    use crate::netlink_wire::{NESTED, attribute};

    #[test]
    fn the_kernel_counts_each_connection_by_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let mut streams: Vec<TcpStream> = Vec::new();
        for bytes in [70_000, 5] {
            let mut stream = TcpStream::connect(remote).unwrap();
            let mut accepted = listener.accept().unwrap().0;
            stream.write_all(&vec![7; bytes]).unwrap();
            accepted.read_exact(&mut vec![0; bytes]).unwrap();
            accepted.write_all(b"answer").unwrap();
            stream.read_exact(&mut [0; 6]).unwrap();
            streams.extend([stream, accepted]);
        }
        let mut sockets = TcpSockets::open().unwrap();
        for (stream, sent) in [(&streams[0], 70_000), (&streams[2], 5)] {
            let inode = File::from(OwnedFd::from(stream.try_clone().unwrap()))
                .metadata()
                .unwrap()
                .ino();
            let found = sockets.of(u32::try_from(inode).unwrap(), remote).unwrap();
            let [socket] = &found[..] else {
                panic!("{found:?}");
            };
            assert_eq!(socket.local, stream.local_addr().unwrap());
            assert_eq!(socket.remote, remote);
            assert_eq!((socket.sent_bytes, socket.received_bytes), (sent, 6));
            assert!(socket.established && !socket.backup && !socket.mptcp);
            assert!(socket.rtt > Duration::ZERO && socket.sent_packets > 1);
        }
        assert_eq!(sockets.of(1, remote).unwrap(), []);
    }

    #[test]
    fn subflows_are_read_as_far_as_they_go() {
        let mut message = vec![0; MESSAGE_BYTES];
        message[..2].copy_from_slice(&[FAMILY_V4, ESTABLISHED]);
        message[4..8].copy_from_slice(&[0x1f, 0x90, 0x11, 0x51]);
        message[8..12].copy_from_slice(&[10, 2, 0, 2]);
        message[24..28].copy_from_slice(&[10, 9, 0, 2]);
        message[40..44].copy_from_slice(&3_u32.to_ne_bytes());
        message[44..52].copy_from_slice(&99_u64.to_ne_bytes());
        message[68..72].copy_from_slice(&4_711_u32.to_ne_bytes());
        let mut info = vec![0; 232];
        info[2] = 2;
        info[68..72].copy_from_slice(&1_500_u32.to_ne_bytes());
        info[128..136].copy_from_slice(&5_000_u64.to_ne_bytes());
        info[200..208].copy_from_slice(&6_000_u64.to_ne_bytes());
        let flags = attribute(SUBFLOW_FLAGS, &(1_u32 << 5).to_ne_bytes());
        let subflow = [
            attribute(1, b"mptcp\0"),
            attribute(PROTOCOL_INFO_MPTCP, &flags),
        ]
        .concat();
        let payload = [
            message,
            attribute(INFO, &info),
            attribute(PROTOCOL_INFO | NESTED, &subflow),
        ]
        .concat();
        let (socket, inode) = parse(&payload).unwrap();
        assert_eq!(inode, 4_711);
        assert_eq!((socket.cookie, socket.device, socket.timeouts), (99, 3, 2));
        assert_eq!(socket.local, "10.2.0.2:8080".parse().unwrap());
        assert_eq!(socket.remote, "10.9.0.2:4433".parse().unwrap());
        assert_eq!((socket.sent_bytes, socket.received_bytes), (6_000, 5_000));
        assert_eq!(socket.rtt, Duration::from_micros(1_500));
        assert!(socket.mptcp && socket.backup && socket.established);
        for length in 0..payload.len() {
            // Cut anywhere: without its counters, a socket does not exist.
            let read = parse(&payload[..length]);
            assert_eq!(read.is_some(), length >= MESSAGE_BYTES + 4 + info.len());
        }
        // A kernel that counts less.
        let older = [&payload[..MESSAGE_BYTES], &attribute(INFO, &info[..104])].concat();
        assert_eq!(parse(&older), None);
    }
}
