//! Ports for servers that need their port in advance, and that come back on the same port after a
//! restart.
//!
//! A port from the kernel may be taken by another connection as soon as it is given back. The ports
//! here lie below the kernel's ephemeral range. A lock file for each port marks the owner process,
//! and the lock ends with that process.

use std::{
    fs::{self, File, OpenOptions},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    ops::Range,
};

use parking_lot::Mutex;

/// Below `ip_local_port_range`, and above the default ports of the services.
const RANGE: Range<u16> = 10_000..31_000;
/// Ports tried before the search fails; a machine without a free port among them is full.
const TRIED_MAX: usize = 1_000;

/// A locked file for each port of this process, until the process ends.
static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// An address of this machine that is free for TCP and UDP.
pub fn reserve() -> io::Result<SocketAddr> {
    let port = (0..TRIED_MAX)
        .map(|_| rand::random_range(RANGE))
        .find(|port| try_reserve(*port))
        .ok_or_else(|| io::Error::other("no port is free"))?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// Returns false if the port is taken.
pub fn try_reserve(port: u16) -> bool {
    let Ok(file) = lock_file(port) else {
        return false;
    };
    let address = (Ipv4Addr::LOCALHOST, port);
    let is_free = file.try_lock().is_ok()
        && TcpListener::bind(address).is_ok()
        && UdpSocket::bind(address).is_ok();
    if is_free {
        RESERVED.lock().push(file);
    }
    is_free
}

/// Lock files of another user cannot be opened, so those ports count as taken.
fn lock_file(port: u16) -> io::Result<File> {
    let folder = std::env::temp_dir().join("braid-test-ports");
    fs::create_dir_all(&folder)?;
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join(port.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_port_is_given_to_one_and_never_by_the_kernel() {
        let ports: Vec<u16> = (0..200).map(|_| reserve().unwrap().port()).collect();
        let different: BTreeSet<u16> = ports.iter().copied().collect();
        assert_eq!(different.len(), ports.len());
        // No socket listens on them, and still they are taken. Locks exclude other openings of a
        // file, within a process as well.
        assert!(ports.iter().all(|port| !try_reserve(*port)));
        let given = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = given.split_whitespace().next().unwrap().parse().unwrap();
        assert!(RANGE.end <= first, "{given}");
    }
}
