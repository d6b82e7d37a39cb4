//! Connection ids that contain the server id, by QUIC-LB (draft-ietf-quic-load-balancers-21),
//! unencrypted. So a load balancer brings all paths of a connection to one server, whatever their
//! addresses.
//!
//! ```text
//!   octet 0                      server id        nonce
//!   configuration:3 length-1:5   1 to 8 octets    8 random octets
//! ```
//!
//! An observer can see the server of a connection, as it could by the server's address. The nonce
//! does not reveal which connection an id belongs to.

use std::{fmt, str::FromStr, time::Duration};

use noq::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// Bytes of a server id within a connection id.
const SERVER_ID_BYTES_MAX: usize = 8;
const NONCE_BYTES: usize = 8;

/// Largest configuration; 7 means an id without routing information.
const CONFIGURATION_MAX: u8 = 6;

/// A server id under one configuration of the load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerId {
    configuration: u8,
    id: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServerIdError {
    #[error("the server id does not have 2 to 16 hexadecimal digits, two for each byte")]
    Id,
    #[error("the configuration is not a number from 0 to {CONFIGURATION_MAX}")]
    Configuration,
}

/// `0a01`, or `2/0a01` if the number of the balancer's configuration is not 0.
impl FromStr for ServerId {
    type Err = ServerIdError;

    fn from_str(text: &str) -> Result<Self, ServerIdError> {
        let (configuration, digits) = text.split_once('/').unwrap_or(("0", text));
        let configuration = configuration
            .parse()
            .ok()
            .filter(|number| *number <= CONFIGURATION_MAX)
            .ok_or(ServerIdError::Configuration)?;
        let length = digits.len();
        if !digits.is_ascii()
            || length % 2 != 0
            || !(1..=SERVER_ID_BYTES_MAX).contains(&(length / 2))
        {
            return Err(ServerIdError::Id);
        }
        let bytes = (0..length).step_by(2).map(|at| {
            let pair = &digits[at..at + 2];
            let hexadecimal = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            u8::from_str_radix(pair, 16).ok().filter(|_| hexadecimal)
        });
        let id: Option<Vec<u8>> = bytes.collect();
        Ok(Self {
            configuration,
            id: id.ok_or(ServerIdError::Id)?,
        })
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.configuration)?;
        self.id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl ServerId {
    fn first_octet(&self) -> u8 {
        // At most 16, so it fits in five bits.
        let length = self.id.len() + NONCE_BYTES;
        self.configuration << 5 | length as u8
    }

    /// Whether a connection id may belong to this server.
    fn is_in(&self, cid: &[u8]) -> bool {
        cid.len() == self.cid_len()
            && cid[0] == self.first_octet()
            && cid[1..].starts_with(&self.id)
    }
}

impl ConnectionIdGenerator for ServerId {
    fn generate_cid(&mut self) -> ConnectionId {
        let nonce: [u8; NONCE_BYTES] = rand::random();
        let mut cid = vec![self.first_octet()];
        cid.extend(&self.id);
        cid.extend(nonce);
        ConnectionId::new(&cid)
    }

    /// A packet for another server was misrouted by the balancer, and is dropped.
    fn validate(&self, cid: ConnectionId) -> Result<(), InvalidCid> {
        match self.is_in(&cid) {
            true => Ok(()),
            false => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        1 + self.id.len() + NONCE_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn server_ids_are_parsed_or_refused() {
        let id: ServerId = "2/0a01".parse().unwrap();
        assert_eq!(id.to_string(), "2/0a01");
        assert_eq!("ff".parse::<ServerId>().unwrap().to_string(), "0/ff");
        for refused in [
            "",
            "0",
            "0a0",
            "zz",
            "+1",
            "00112233445566778",
            "001122334455667788",
            "\u{e4}",
        ] {
            assert_eq!(
                refused.parse::<ServerId>(),
                Err(ServerIdError::Id),
                "{refused:?}"
            );
        }
        for refused in ["7/0a01", "-1/0a01", "/0a01"] {
            assert_eq!(
                refused.parse::<ServerId>(),
                Err(ServerIdError::Configuration)
            );
        }
    }

    #[test]
    fn connection_ids_contain_the_server_id_and_a_nonce() {
        let mut ours: ServerId = "2/0a01".parse().unwrap();
        let theirs: ServerId = "2/0a02".parse().unwrap();
        let (one, other) = (ours.generate_cid(), ours.generate_cid());
        assert_eq!(one.len(), 11);
        // Configuration 2, ten octets after the first, the server id.
        assert_eq!(one[..3], [0b010_01010, 0x0a, 0x01]);
        assert_eq!(ours.cid_len(), 11);
        assert_ne!(one, other);
        assert!(ours.validate(one).is_ok() && theirs.validate(one).is_err());
        for foreign in [&one[..10], &[0; 11], &[]] {
            assert!(ours.validate(ConnectionId::new(foreign)).is_err());
        }
        let mut longest: ServerId = "6/0011223344556677".parse().unwrap();
        assert_eq!(longest.generate_cid().len(), 17);
    }
}
