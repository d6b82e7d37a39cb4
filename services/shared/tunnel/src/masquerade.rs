//! Lets the kernel translate packets of gateways: packets from a pool leave every device except the
//! TUN device with this machine's address. So no other host needs a route to the pool.
//!
//! The rules are set with nftables over netlink, since an image without a shell has no `nft`. Each
//! IP version has its own table. One transaction builds it, which the kernel applies completely or
//! not at all.
//!
//! ```text
//! table ip braid { chain out { type nat hook postrouting priority srcnat;
//!   oifname != "braid0" ip saddr 10.64.0.0/16 masquerade } }
//! ```

use std::{
    io::{self, ErrorKind},
    net::IpAddr,
};

use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use crate::{
    ip::IpPrefix,
    netlink_wire::{Answer, HEADER_BYTES, NESTED, answers, attribute},
};

/// Answers read for one transaction: one for each message of at most two pools.
const ANSWERS_MAX: usize = 16;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFTABLES: u16 = 10;
const NEW_TABLE: u16 = NFTABLES << 8;
const DELETE_TABLE: u16 = NFTABLES << 8 | 2;
const NEW_CHAIN: u16 = NFTABLES << 8 | 3;
const NEW_RULE: u16 = NFTABLES << 8 | 6;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 10;

const TABLE: &[u8] = b"braid\0";
const CHAIN: &[u8] = b"out\0";
const HOOK_POSTROUTING: u32 = 4;
const PRIORITY_OF_SOURCES: u32 = 100;
const REGISTER: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const KEY_DEVICE_OUT: u32 = 7;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
/// Bytes of a device name; the kernel compares the whole field.
const DEVICE_NAME_BYTES: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum MasqueradeError {
    #[error("no netlink socket: {0}")]
    Socket(io::Error),
    #[error("the kernel does not translate {pool}: {source}")]
    Refused { pool: IpPrefix, source: io::Error },
}

/// Takes effect at once in the network namespace of the calling thread, until its table `braid` is
/// removed. Needs NET_ADMIN.
pub fn masquerade(device: &str, pool: IpPrefix) -> Result<(), MasqueradeError> {
    let mut socket = Socket::new(NETLINK_NETFILTER).map_err(MasqueradeError::Socket)?;
    let opened = socket
        .bind_auto()
        .and_then(|_| socket.connect(&SocketAddr::new(0, 0)))
        .and_then(|()| socket.set_non_blocking(true));
    opened.map_err(MasqueradeError::Socket)?;
    let (batch, last) = transaction(device, pool);
    ask(&socket, &batch, last).map_err(|source| MasqueradeError::Refused { pool, source })
}

/// The kernel answers before the sending call returns.
fn ask(socket: &Socket, batch: &[u8], last: u32) -> io::Result<()> {
    socket.send(batch, 0)?;
    for _ in 0..ANSWERS_MAX {
        let (datagram, _) = socket.recv_from_full()?;
        for sequence in 0..=last {
            for answer in answers(&datagram, sequence) {
                match answer {
                    Answer::Ended(0) if sequence == last => return Ok(()),
                    Answer::Ended(0) | Answer::Data(_) => {}
                    Answer::Ended(code) => return Err(io::Error::from_raw_os_error(-code)),
                }
            }
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// The messages, and the number of the last one with an acknowledgement.
fn transaction(device: &str, pool: IpPrefix) -> (Vec<u8>, u32) {
    let family = match pool.network() {
        IpAddr::V4(_) => FAMILY_V4,
        IpAddr::V6(_) => FAMILY_V6,
    };
    let table = attribute(1, TABLE);
    let hook = [
        attribute(1, &HOOK_POSTROUTING.to_be_bytes()),
        attribute(2, &PRIORITY_OF_SOURCES.to_be_bytes()),
    ]
    .concat();
    let chain = [
        attribute(1, TABLE),
        attribute(3, CHAIN),
        attribute(4 | NESTED, &hook),
        attribute(7, b"nat\0"),
    ]
    .concat();
    let rule = [
        attribute(1, TABLE),
        attribute(2, CHAIN),
        attribute(4 | NESTED, &expressions(device, pool)),
    ]
    .concat();
    // A table must exist to be removed, so it is created first.
    let asked: [(u16, u16, &[u8]); 5] = [
        (NEW_TABLE, CREATE, &table),
        (DELETE_TABLE, 0, &table),
        (NEW_TABLE, CREATE, &table),
        (NEW_CHAIN, CREATE, &chain),
        (NEW_RULE, CREATE | APPEND, &rule),
    ];
    let mut batch = message(BATCH_BEGIN, REQUEST, 0, 0, NFTABLES, &[]);
    let mut sequence = 0;
    for (kind, flags, attributes) in asked {
        sequence += 1;
        let flags = flags | REQUEST | ACKNOWLEDGE;
        batch.extend(message(kind, flags, sequence, family, 0, attributes));
    }
    batch.extend(message(BATCH_END, REQUEST, sequence + 1, 0, NFTABLES, &[]));
    (batch, sequence)
}

fn message(
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
    attributes: &[u8],
) -> Vec<u8> {
    let length = (HEADER_BYTES + 4 + attributes.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
    bytes.extend(sequence.to_ne_bytes());
    // The sender: the kernel fills it in.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

/// The steps of a rule; each may end it.
fn expressions(device: &str, pool: IpPrefix) -> Vec<u8> {
    let mut name = device.as_bytes().to_vec();
    name.resize(DEVICE_NAME_BYTES, 0);
    // Offset of the source address in the header.
    let (offset, network) = match pool.network() {
        IpAddr::V4(network) => (12, network.octets().to_vec()),
        IpAddr::V6(network) => (8, network.octets().to_vec()),
    };
    let mask = mask(network.len(), pool.length());
    let number = |kind: u16, value: u32| attribute(kind, &value.to_be_bytes());
    let data = |kind: u16, value: &[u8]| attribute(kind | NESTED, &attribute(1, value));
    let compare = |how: u32, with: &[u8]| [number(1, REGISTER), number(2, how), data(3, with)];
    let size = network.len() as u32;
    let steps: [(&[u8], Vec<u8>); 6] = [
        (
            b"meta\0",
            [number(1, REGISTER), number(2, KEY_DEVICE_OUT)].concat(),
        ),
        (b"cmp\0", compare(UNEQUAL, &name).concat()),
        (
            b"payload\0",
            [
                number(1, REGISTER),
                number(2, NETWORK_HEADER),
                number(3, offset),
                number(4, size),
            ]
            .concat(),
        ),
        (
            b"bitwise\0",
            [
                number(1, REGISTER),
                number(2, REGISTER),
                number(3, size),
                data(4, &mask),
                data(5, &vec![0; network.len()]),
            ]
            .concat(),
        ),
        (b"cmp\0", compare(EQUAL, &network).concat()),
        (b"masq\0", Vec::new()),
    ];
    let step = |(name, settings): &(&[u8], Vec<u8>)| {
        let named = [attribute(1, name), attribute(2 | NESTED, settings)].concat();
        attribute(1 | NESTED, &named)
    };
    steps.iter().flat_map(step).collect()
}

/// The first `length` bits of this many bytes.
fn mask(bytes: usize, length: u8) -> Vec<u8> {
    let of_byte = |at: usize| {
        let left = usize::from(length).saturating_sub(8 * at).min(8);
        // A shift by all eight bits gives a byte of zeros.
        (0xff00_u16 >> left) as u8
    };
    (0..bytes).map(of_byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_end_anywhere() {
        assert_eq!(mask(4, 0), [0; 4]);
        assert_eq!(mask(4, 10), [0xff, 0xc0, 0, 0]);
        assert_eq!(mask(4, 16), [0xff, 0xff, 0, 0]);
        assert_eq!(mask(4, 32), [0xff; 4]);
        assert_eq!(mask(16, 112)[12..], [0xff, 0xff, 0, 0]);
    }
}
