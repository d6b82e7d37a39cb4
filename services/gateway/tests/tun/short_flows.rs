//! Programs that carry short flows of every kind through a gateway, and their servers.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use super::stage::{LISTED, PORT, SILENCE};

/// Less than one access carries.
const BITS_PER_S: f64 = 15e6;
const PAYLOAD_BYTES: usize = 1_200;
pub const FLOW_BYTES: usize = 1_000_000;
pub const PROXY_FOR_PROGRAMS: &str = "127.0.0.1:9002";

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Socks,
    Connect,
    Tun,
    SocksUdp,
    TunUdp,
}

pub const KINDS: [Kind; 5] = [
    Kind::Socks,
    Kind::Connect,
    Kind::Tun,
    Kind::SocksUdp,
    Kind::TunUdp,
];

/// Sends what a program asks for, or reads what it sends; one program after the other.
pub fn serve_streams() {
    let listener = TcpListener::bind((LISTED, PORT)).unwrap();
    while let Ok((mut stream, _)) = listener.accept() {
        let mut first = [0];
        if stream.read_exact(&mut first).is_err() {
            continue;
        }
        let _ = match first[0] {
            b'l' => std::io::copy(&mut std::io::repeat(7), &mut stream).map(drop),
            b'd' => stream.write_all(&vec![7; FLOW_BYTES]),
            _ => std::io::copy(&mut stream, &mut std::io::sink())
                .and_then(|_| stream.write_all(b"k")),
        };
    }
}

/// The same by datagrams: each that begins with a `d` asks for all of them.
pub fn serve_datagrams() {
    let socket = UdpSocket::bind((LISTED, PORT)).unwrap();
    let mut buffer = [0; 1_500];
    while let Ok((_, from)) = socket.recv_from(&mut buffer) {
        if buffer[0] == b'd' {
            pace(|| drop(socket.send_to(&[7; PAYLOAD_BYTES], from)));
        }
    }
}

// Blocks the thread of one program.
#[allow(clippy::disallowed_methods)]
fn pace(mut send: impl FnMut()) {
    let interval = Duration::from_secs_f64(PAYLOAD_BYTES as f64 * 8.0 / BITS_PER_S);
    let start = Instant::now();
    for number in 0..(FLOW_BYTES / PAYLOAD_BYTES) as u32 {
        let due = start + interval * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        send();
    }
}

const TARGET: [u8; 7] = [1, 10, 8, 0, 2, (PORT >> 8) as u8, PORT as u8];

pub fn ask_socks(command: u8) -> (TcpStream, [u8; 10]) {
    let mut stream = TcpStream::connect(PROXY_FOR_PROGRAMS).unwrap();
    stream.write_all(&[5, 1, 0, 5, command, 0]).unwrap();
    let nowhere = [1, 0, 0, 0, 0, 0, 0];
    let target = if command == 1 { TARGET } else { nowhere };
    stream.write_all(&target).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..4], [5, 0, 5, 0], "{answer:?}");
    (stream, answer[2..].try_into().unwrap())
}

fn carry_stream(mut stream: TcpStream, up: bool) {
    let mut heard = Vec::new();
    match up {
        true => {
            stream.write_all(b"u").unwrap();
            stream.write_all(&vec![7; FLOW_BYTES]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(heard, b"k");
        }
        false => {
            stream.write_all(b"d").unwrap();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(heard.len(), FLOW_BYTES);
        }
    }
}

/// Every datagram has this header.
fn carry_datagrams(socket: &UdpSocket, header: &[u8], up: bool) {
    socket.set_read_timeout(Some(SILENCE / 4)).unwrap();
    let payload = |first| [header, &[first; PAYLOAD_BYTES]].concat();
    match up {
        true => pace(|| drop(socket.send(&payload(b'u')))),
        false => {
            socket.send(&payload(b'd')).unwrap();
            let mut buffer = [0; 1_500];
            let heard = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count();
            assert!(heard > FLOW_BYTES / PAYLOAD_BYTES / 2, "{heard} datagrams");
        }
    }
}

pub fn one_flow(kind: Kind, up: bool) {
    match kind {
        Kind::Socks => carry_stream(ask_socks(1).0, up),
        Kind::Connect => {
            let mut stream = TcpStream::connect(PROXY_FOR_PROGRAMS).unwrap();
            let request = format!("CONNECT {LISTED}:{PORT} HTTP/1.1\r\nhost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                answer.extend(byte);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "{answer:?}");
            carry_stream(stream, up);
        }
        Kind::Tun => carry_stream(TcpStream::connect((LISTED, PORT)).unwrap(), up),
        Kind::SocksUdp => {
            let (_association, answer) = ask_socks(3);
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = u16::from_be_bytes([answer[8], answer[9]]);
            socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            carry_datagrams(&socket, &[&[0, 0, 0], &TARGET[..]].concat(), up);
        }
        Kind::TunUdp => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((LISTED, PORT)).unwrap();
            carry_datagrams(&socket, &[], up);
        }
    }
}
