//! Source translation: packets from the pool of gateways leave every device but the TUN device with
//! an address of this machine. So no other host needs a route to the pool.
//!
//! ```text
//! table ip braid { chain out { type nat hook postrouting priority srcnat;
//!     oifname != "braid0" ip saddr 10.64.0.0/16 masquerade } }
//! ```

use ip_packets::IpPrefix;
use std::{io, net::IpAddr};

use crate::nftables::{self, FAMILY_V4, FAMILY_V6, NatChain};

const TABLE: &[u8] = b"braid\0";
const CHAIN: &[u8] = b"out\0";
const HOOK_POSTROUTING: u32 = 4;
const PRIORITY_OF_SOURCES: i32 = 100;
/// Offset of the source address in the header.
const SOURCE_V4: u32 = 12;
const SOURCE_V6: u32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum MasqueradeError {
    #[error("no netlink socket: {0}")]
    Socket(io::Error),
    #[error("the kernel does not translate {pool}: {source}")]
    Refused { pool: IpPrefix, source: io::Error },
}

/// Translates in the network namespace of the calling thread, until the table `braid` is removed.
/// Needs NET_ADMIN.
pub fn masquerade(device: &str, pool: IpPrefix) -> Result<(), MasqueradeError> {
    let socket = nftables::open().map_err(MasqueradeError::Socket)?;
    let (family, offset, network) = match pool.network() {
        IpAddr::V4(network) => (FAMILY_V4, SOURCE_V4, network.octets().to_vec()),
        IpAddr::V6(network) => (FAMILY_V6, SOURCE_V6, network.octets().to_vec()),
    };
    let mask = mask(network.len(), pool.length());
    let chain = NatChain {
        name: CHAIN,
        hook: HOOK_POSTROUTING,
        priority: PRIORITY_OF_SOURCES,
        rules: vec![
            [
                nftables::leaves_by_another_than(device),
                nftables::header_matches(offset, &mask, &network),
                nftables::masquerades(),
            ]
            .concat(),
        ],
    };
    nftables::replace_table(&socket, family, TABLE, &[chain])
        .map_err(|source| MasqueradeError::Refused { pool, source })
}

/// A mask of this number of bytes with the first `length` bits set.
fn mask(bytes: usize, length: u8) -> Vec<u8> {
    let of_byte = |at: usize| {
        let left = usize::from(length).saturating_sub(8 * at).min(8);
        // A shift by all eight bits leaves none.
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
