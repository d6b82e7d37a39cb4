//! Registers the access networks with the kernel's MPTCP, so that a connection has a subflow over
//! each. Open connections get a subflow over a later network as well.
//!
//! The kernel's path manager stores them as endpoints with the flag "subflow", for every MPTCP
//! connection of the network namespace. That needs the right to administer the network. Without it
//! an operator adds endpoints (`ip mptcp endpoint add`), or there is one subflow. Endpoints of this
//! process are removed with their network, and at the end.
//!
//! An endpoint with the flag "backup" carries data only while no other subflow lives. The kernel
//! says so to the peer (MP_PRIO of RFC 8684), so both directions obey. A change reaches one subflow
//! over the endpoint's address of each open connection, the first one included (Linux 6.0). So an
//! address must be registered before a connection begins over it: later, the kernel makes a second
//! subflow there, which changes do not reach.
//!
//! The protocol is generic netlink, family `mptcp_pm`, one request at a time: the kernel answers
//! before the sending call returns.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::IpAddr,
};

use rtnetlink::sys::{Socket, protocols::NETLINK_GENERIC};

use crate::netlink_wire::{self, Answer, NESTED, answers, attribute, attributes};

/// First of our ids, one for each place of a network; the kernel's own ids begin with 1.
const ID_FIRST: u8 = 200;

/// Datagrams read for one answer; the kernel sends at most two.
const ANSWERS_MAX: usize = 8;

const CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

const ADD_ADDRESS: u8 = 1;
const REMOVE_ADDRESS: u8 = 2;
const SET_FLAGS: u8 = 7;
const ADDRESS: u16 = 1 | NESTED;
const ADDRESS_FAMILY: u16 = 1;
const ADDRESS_ID: u16 = 2;
const ADDRESS_V4: u16 = 3;
const ADDRESS_V6: u16 = 4;
const ADDRESS_FLAGS: u16 = 6;
const ADDRESS_DEVICE: u16 = 7;

const FLAG_SUBFLOW: u32 = 1 << 1;
const FLAG_BACKUP: u32 = 1 << 2;

const FAMILY_V4: u16 = 2;
const FAMILY_V6: u16 = 10;

const GENERIC_HEADER_BYTES: usize = 4;
/// Request with acknowledgement.
const FLAGS: u16 = 1 | 4;

fn request(kind: u16, command: u8, sequence: u32, attributes: &[u8]) -> Vec<u8> {
    // Version 1, and two reserved bytes.
    let generic = [command, 1, 0, 0];
    netlink_wire::message(kind, FLAGS, sequence, &[&generic, attributes])
}

/// An endpoint in a request. The kernel finds the one to remove by its id, and the one to change by
/// its address.
#[derive(Debug, Clone, Copy)]
struct Endpoint {
    /// `None`: another process has added it.
    id: Option<u8>,
    local_ip: IpAddr,
    backup: bool,
}

impl Endpoint {
    fn attributes(&self, device: Option<u32>) -> Vec<u8> {
        let mut inner = match self.local_ip {
            IpAddr::V4(ip) => [
                attribute(ADDRESS_FAMILY, &FAMILY_V4.to_ne_bytes()),
                attribute(ADDRESS_V4, &ip.octets()),
            ],
            IpAddr::V6(ip) => [
                attribute(ADDRESS_FAMILY, &FAMILY_V6.to_ne_bytes()),
                attribute(ADDRESS_V6, &ip.octets()),
            ],
        }
        .concat();
        if let Some(id) = self.id {
            inner.extend(attribute(ADDRESS_ID, &[id]));
        }
        let backup = if self.backup { FLAG_BACKUP } else { 0 };
        let flags = FLAG_SUBFLOW | backup;
        inner.extend(attribute(ADDRESS_FLAGS, &flags.to_ne_bytes()));
        if let Some(device) = device {
            inner.extend(attribute(ADDRESS_DEVICE, &device.to_ne_bytes()));
        }
        attribute(ADDRESS, &inner)
    }
}

/// The family's number in the answer to its question.
fn family_of(payload: &[u8]) -> Option<u16> {
    let mut found = attributes(payload.get(GENERIC_HEADER_BYTES..)?);
    let (_, value) = found.find(|(kind, _)| *kind == CONTROL_FAMILY_ID)?;
    Some(u16::from_ne_bytes(*value.first_chunk()?))
}

/// The endpoints of this process.
pub struct Endpoints {
    socket: Socket,
    sequence: u32,
    family: u16,
    by_name: BTreeMap<String, Endpoint>,
}

impl Endpoints {
    /// Belongs to the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let mut this = Self {
            socket: netlink_wire::connect(NETLINK_GENERIC)?,
            sequence: 0,
            family: CONTROL,
            by_name: BTreeMap::new(),
        };
        let name = attribute(CONTROL_FAMILY_NAME, b"mptcp_pm\0");
        let found = this.ask(CONTROL_GET_FAMILY, &name)?;
        this.family = found
            .and_then(|payload| family_of(&payload))
            .ok_or(ErrorKind::NotFound)?;
        Ok(this)
    }

    /// Adds the address of the network of that name, on this device if the network is bound to one.
    /// With `backup` it carries only while no other lives.
    pub fn add(
        &mut self,
        name: &str,
        local_ip: IpAddr,
        device: Option<u32>,
        backup: bool,
    ) -> io::Result<()> {
        self.remove(name)?;
        // An unspecified address is no network, and every connection has a loopback subflow
        // already.
        if local_ip.is_unspecified() || local_ip.is_loopback() {
            return Ok(());
        }
        let taken: Vec<u8> = self.by_name.values().filter_map(|it| it.id).collect();
        let Some(id) = (ID_FIRST..=u8::MAX).find(|id| !taken.contains(id)) else {
            return Err(ErrorKind::OutOfMemory.into());
        };
        let mut endpoint = Endpoint {
            id: Some(id),
            local_ip,
            backup,
        };
        let wanted = endpoint.attributes(device);
        // A killed process may have left an endpoint with that id. Mostly there is none, so the
        // answer does not matter.
        let _ = self.ask(REMOVE_ADDRESS, &wanted);
        match self.ask(ADD_ADDRESS, &wanted) {
            Ok(_) => {}
            // Another process has added the endpoint.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => endpoint.id = None,
            Err(error) => return Err(error),
        }
        self.by_name.insert(name.to_owned(), endpoint);
        match endpoint.id {
            Some(_) => Ok(()),
            None => self.ask(SET_FLAGS, &endpoint.attributes(None)).map(|_| ()),
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Lets the network carry only while no other lives, or as the others; also in open
    /// connections.
    pub fn set_backup(&mut self, name: &str, backup: bool) -> io::Result<()> {
        let Some(endpoint) = self.by_name.get_mut(name) else {
            return Ok(());
        };
        if std::mem::replace(&mut endpoint.backup, backup) == backup {
            return Ok(());
        }
        let wanted = endpoint.attributes(None);
        self.ask(SET_FLAGS, &wanted).map(|_| ())
    }

    pub fn remove(&mut self, name: &str) -> io::Result<()> {
        let Some(gone) = self.by_name.remove(name) else {
            return Ok(());
        };
        let free = Endpoint {
            backup: false,
            ..gone
        };
        match gone.id {
            Some(_) => self.ask(REMOVE_ADDRESS, &free.attributes(None)).map(|_| ()),
            None => {
                // Its owner may have removed it.
                let _ = self.ask(SET_FLAGS, &free.attributes(None));
                Ok(())
            }
        }
    }

    /// Sends a request; returns the kernel's answers except the acknowledgement.
    fn ask(&mut self, command: u8, attributes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.family, command, self.sequence, attributes);
        self.socket.send(&request, 0)?;
        let mut data = None;
        for _ in 0..ANSWERS_MAX {
            let (datagram, _) = self.socket.recv_from_full()?;
            for answer in answers(&datagram, self.sequence) {
                match answer {
                    Answer::Ended(0) => return Ok(data),
                    Answer::Ended(code) => return Err(io::Error::from_raw_os_error(-code)),
                    Answer::Data(payload) => data = Some(payload.to_vec()),
                }
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        let names: Vec<String> = self.by_name.keys().cloned().collect();
        for name in names {
            if let Err(error) = self.remove(&name) {
                tracing::debug!(name, %error, "an MPTCP endpoint stays behind");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink_wire::{ERROR, HEADER_BYTES};

    #[test]
    fn a_change_of_the_flag_names_the_address() {
        let endpoint = Endpoint {
            id: Some(200),
            local_ip: IpAddr::from([192, 0, 2, 7]),
            backup: true,
        };
        let inner = |id: &[u8], flags: u8| {
            let bytes = [
                &[6, 0, 1, 0, 2, 0, 0, 0, 8, 0, 3, 0, 192, 0, 2, 7][..],
                id,
                &[8, 0, 6, 0, flags, 0, 0, 0],
            ];
            attribute(1 | NESTED, &bytes.concat())
        };
        let id = [5, 0, 2, 0, 200, 0, 0, 0];
        // "Subflow" is 2, and "backup" 4.
        if cfg!(target_endian = "little") {
            assert_eq!(endpoint.attributes(None), inner(&id, 6));
            let of_another = Endpoint {
                id: None,
                backup: false,
                ..endpoint
            };
            assert_eq!(of_another.attributes(None), inner(&[], 2));
        }
        let sent = request(28, SET_FLAGS, 1, &endpoint.attributes(None));
        assert_eq!(sent[HEADER_BYTES], 7);
    }

    #[test]
    fn answers_are_read_as_far_as_they_go() {
        let answer = |kind: u16, payload: &[u8]| {
            let mut bytes = request(kind, 0, 3, &[]);
            bytes.truncate(HEADER_BYTES);
            bytes.extend(payload);
            bytes[..4].copy_from_slice(&((HEADER_BYTES + payload.len()) as u32).to_ne_bytes());
            bytes
        };
        let payload = [
            vec![3, 1, 0, 0],
            attribute(2, b"mptcp_pm\0"),
            attribute(1, &28_u16.to_ne_bytes()),
        ]
        .concat();
        let mut datagram = answer(CONTROL, &payload);
        datagram.extend(answer(ERROR, &(-17_i32).to_ne_bytes()));
        let read = answers(&datagram, 3);
        assert_eq!(read, [Answer::Data(&payload), Answer::Ended(-17)]);
        assert_eq!(family_of(&payload), Some(28));
        assert_eq!(answers(&datagram, 4), []);
        for length in 0..datagram.len() {
            // Cut anywhere, only complete answers are read.
            assert!(answers(&datagram[..length], 3).len() < 2);
            let _ = family_of(&payload[..length.min(payload.len())]);
        }
    }
}
