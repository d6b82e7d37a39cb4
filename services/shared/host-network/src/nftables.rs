//! nftables over netlink: transactions that replace a table of ours, and the expressions of rules.
//!
//! The image has no `nft`. A transaction is taken by the kernel as a whole or not at all.

use std::io::{self, ErrorKind};

use rtnetlink::sys::{Socket, protocols::NETLINK_NETFILTER};

use crate::netlink_wire::{self, Answer, NESTED, answers, attribute};

/// Bound on the answers read for one transaction: one for each of its messages.
const ANSWERS_MAX: usize = 64;

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

pub(crate) const FAMILY_V4: u8 = 2;
pub(crate) const FAMILY_V6: u8 = 10;

const TABLE_FLAGS: u16 = 2;
/// No other socket may change the table, and the table ends with the socket that made it.
const TABLE_OWNED: u32 = 2;

const REGISTER: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const KEY_DEVICE_OUT: u32 = 7;
const KEY_PROTOCOL: u32 = 16;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
/// The kernel compares the whole field.
const DEVICE_NAME_BYTES: usize = 16;
/// `fib daddr oifname`: the device to which the routes send the packet.
const FIB_RESULT_DEVICE_NAME: u32 = 2;
const FIB_DESTINATION: u32 = 2;

/// A chain of type `nat`, and its rules.
pub(crate) struct NatChain {
    pub(crate) name: &'static [u8],
    pub(crate) hook: u32,
    pub(crate) priority: i32,
    /// The concatenated expressions of each.
    pub(crate) rules: Vec<Vec<u8>>,
}

/// A table of this process. The kernel removes it when the process ends, however that ends; before
/// Linux 5.12 only dropping removes it.
#[derive(Debug)]
pub(crate) struct OwnTable {
    /// The kernel knows the owner by this socket.
    socket: Socket,
    family: u8,
    /// With its final zero.
    name: &'static [u8],
}

impl OwnTable {
    /// Puts these chains in the place of those before, in one transaction.
    pub(crate) fn replace(&self, chains: &[NatChain]) -> io::Result<()> {
        let owned = number(TABLE_FLAGS, TABLE_OWNED);
        let replaced = transact(&self.socket, self.family, self.name, &owned, chains);
        match replaced {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidInput | ErrorKind::Unsupported
                ) =>
            {
                transact(&self.socket, self.family, self.name, &[], chains)
            }
            replaced => replaced,
        }
    }

    /// A table without chains yet, in the network namespace of the calling thread.
    pub(crate) fn open(family: u8, name: &'static [u8]) -> io::Result<Self> {
        let socket = open()?;
        Ok(Self {
            socket,
            family,
            name,
        })
    }
}

impl Drop for OwnTable {
    fn drop(&mut self) {
        if let Err(error) = transact(&self.socket, self.family, self.name, &[], &[]) {
            let table = String::from_utf8_lossy(&self.name[..self.name.len() - 1]);
            tracing::warn!(%error, "the table {table} of nftables was not removed");
        }
    }
}

/// A netlink socket for transactions, in the network namespace of the calling thread.
pub(crate) fn open() -> io::Result<Socket> {
    netlink_wire::connect(NETLINK_NETFILTER)
}

/// Replaces the table of this name (with its final zero). The table outlives the process.
pub(crate) fn replace_table(
    socket: &Socket,
    family: u8,
    table: &[u8],
    chains: &[NatChain],
) -> io::Result<()> {
    transact(socket, family, table, &[], chains)
}

/// Replaces the table in one transaction. Without chains the table is removed.
fn transact(
    socket: &Socket,
    family: u8,
    table: &[u8],
    table_attributes: &[u8],
    chains: &[NatChain],
) -> io::Result<()> {
    let named = attribute(1, table);
    // A table must exist to be removed.
    let mut messages = vec![
        (NEW_TABLE, CREATE, named.clone()),
        (DELETE_TABLE, 0, named.clone()),
    ];
    if !chains.is_empty() {
        messages.push((NEW_TABLE, CREATE, [&named, table_attributes].concat()));
    }
    for chain in chains {
        let hook = [
            attribute(1, &chain.hook.to_be_bytes()),
            attribute(2, &chain.priority.to_be_bytes()),
        ]
        .concat();
        let attributes = [
            named.clone(),
            attribute(3, chain.name),
            attribute(4 | NESTED, &hook),
            attribute(7, b"nat\0"),
        ];
        messages.push((NEW_CHAIN, CREATE, attributes.concat()));
        for rule in &chain.rules {
            let attributes = [
                named.clone(),
                attribute(2, chain.name),
                attribute(4 | NESTED, rule),
            ];
            messages.push((NEW_RULE, CREATE | APPEND, attributes.concat()));
        }
    }
    let mut batch = message(BATCH_BEGIN, REQUEST, 0, 0, NFTABLES, &[]);
    let mut sequence = 0;
    for (kind, flags, attributes) in messages {
        sequence += 1;
        let flags = flags | REQUEST | ACKNOWLEDGE;
        batch.extend(message(kind, flags, sequence, family, 0, &attributes));
    }
    batch.extend(message(BATCH_END, REQUEST, sequence + 1, 0, NFTABLES, &[]));
    ask(socket, &batch, sequence)
}

/// The kernel answers before the sending call returns.
fn ask(socket: &Socket, batch: &[u8], last: u32) -> io::Result<()> {
    // Answers that were left unread when the transaction before was refused.
    while socket.recv_from_full().is_ok() {}
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

fn message(
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
    attributes: &[u8],
) -> Vec<u8> {
    let resource = resource.to_be_bytes();
    let parts = [&[family, 0][..], &resource, attributes];
    netlink_wire::message(kind, flags, sequence, &parts)
}

fn expression(name: &[u8], settings: &[u8]) -> Vec<u8> {
    let named = [attribute(1, name), attribute(2 | NESTED, settings)].concat();
    attribute(1 | NESTED, &named)
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn data(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, &attribute(1, value))
}

fn compare(how: u32, with: &[u8]) -> Vec<u8> {
    let settings = [number(1, REGISTER), number(2, how), data(3, with)].concat();
    expression(b"cmp\0", &settings)
}

fn device_name(device: &str) -> Vec<u8> {
    let mut name = device.as_bytes().to_vec();
    name.resize(DEVICE_NAME_BYTES, 0);
    name
}

fn load_device_out() -> Vec<u8> {
    let settings = [number(1, REGISTER), number(2, KEY_DEVICE_OUT)].concat();
    expression(b"meta\0", &settings)
}

/// `oifname "DEVICE"`
pub(crate) fn leaves_by(device: &str) -> Vec<u8> {
    [load_device_out(), compare(EQUAL, &device_name(device))].concat()
}

/// `oifname != "DEVICE"`
pub(crate) fn leaves_by_another_than(device: &str) -> Vec<u8> {
    [load_device_out(), compare(UNEQUAL, &device_name(device))].concat()
}

/// `fib daddr oifname "DEVICE"`
pub(crate) fn routed_to(device: &str) -> Vec<u8> {
    let settings = [
        number(1, REGISTER),
        number(2, FIB_RESULT_DEVICE_NAME),
        number(3, FIB_DESTINATION),
    ]
    .concat();
    [
        expression(b"fib\0", &settings),
        compare(EQUAL, &device_name(device)),
    ]
    .concat()
}

/// `meta l4proto PROTOCOL`
pub(crate) fn is_protocol(protocol: u8) -> Vec<u8> {
    let settings = [number(1, REGISTER), number(2, KEY_PROTOCOL)].concat();
    [
        expression(b"meta\0", &settings),
        compare(EQUAL, &[protocol]),
    ]
    .concat()
}

/// `th dport PORT`
pub(crate) fn is_to_port(port: u16) -> Vec<u8> {
    const PORT_OFFSET: u32 = 2;
    let port = port.to_be_bytes();
    let payload = [
        number(1, REGISTER),
        number(2, TRANSPORT_HEADER),
        number(3, PORT_OFFSET),
        number(4, port.len() as u32),
    ]
    .concat();
    [expression(b"payload\0", &payload), compare(EQUAL, &port)].concat()
}

/// The bytes of the network header from `offset` on, under `mask`, equal `network`.
pub(crate) fn header_matches(offset: u32, mask: &[u8], network: &[u8]) -> Vec<u8> {
    let size = network.len() as u32;
    let payload = [
        number(1, REGISTER),
        number(2, NETWORK_HEADER),
        number(3, offset),
        number(4, size),
    ]
    .concat();
    let bitwise = [
        number(1, REGISTER),
        number(2, REGISTER),
        number(3, size),
        data(4, mask),
        data(5, &vec![0; network.len()]),
    ]
    .concat();
    [
        expression(b"payload\0", &payload),
        expression(b"bitwise\0", &bitwise),
        compare(EQUAL, network),
    ]
    .concat()
}

/// `masquerade`
pub(crate) fn masquerades() -> Vec<u8> {
    expression(b"masq\0", &[])
}

/// `redirect to :PORT`
pub(crate) fn redirects_to(port: u16) -> Vec<u8> {
    let immediate = [number(1, REGISTER), data(2, &port.to_be_bytes())].concat();
    [
        expression(b"immediate\0", &immediate),
        expression(b"redir\0", &number(1, REGISTER)),
    ]
    .concat()
}
