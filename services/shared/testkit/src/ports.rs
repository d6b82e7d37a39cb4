//! Ports for servers that are told theirs, and come back under the same one after a restart.
//!
//! A port that was asked of the kernel and given back may be anybody's a moment later, the kernel's own connections' too. These are below
//! those that the kernel gives away, and belong to this process by the lock of a file for each, which ends with the process.

use std::{
    fs::{self, File, OpenOptions},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    ops::Range,
};

use parking_lot::Mutex;

/// Below the range of `ip_local_port_range`, above what the services have by default.
const RANGE: Range<u16> = 10_000..31_000;
/// Tried until one is free; by then the machine has none.
const TRIED_MAX: usize = 1_000;

/// One file for each port of this process, locked until it ends.
static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// An address of this machine that is free by TCP and by UDP.
pub fn reserve() -> io::Result<SocketAddr> {
    let port = (0..TRIED_MAX)
        .map(|_| rand::random_range(RANGE))
        .find(|port| try_reserve(*port))
        .ok_or_else(|| io::Error::other("no port is free"))?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// False: somebody has it.
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

/// Another user's files cannot be opened: their ports are theirs.
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
        // Nobody listens there, and yet they are taken; a lock of another process is no other than one of another opening.
        assert!(ports.iter().all(|port| !try_reserve(*port)));
        let given = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = given.split_whitespace().next().unwrap().parse().unwrap();
        assert!(RANGE.end <= first, "{given}");
    }
}
