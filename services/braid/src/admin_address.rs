//! The admin address that a command asks: the named one, that of a running `braid up`, or that of
//! a gateway on this machine.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use crate::process::Failure;
use crate::up::Addresses;

/// Where `braid gateway` answers by default.
const OF_GATEWAY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9101);
/// Longest wait for a process of this machine.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct AdminAddress {
    /// The service's admin address. Default: that of a running `braid up` on --data, else
    /// 127.0.0.1:9101, which is a gateway's.
    #[arg(value_name = "ADDRESS")]
    address: Option<SocketAddr>,
    /// Data directory of a running `braid up`; it is not read where an ADDRESS is given.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    data: PathBuf,
}

impl AdminAddress {
    pub fn get(&self) -> SocketAddr {
        let of_up = || {
            let address = Addresses::read(&self.data).ok()?.admin?;
            // A killed `braid up` leaves its file behind.
            let connected = TcpStream::connect_timeout(&address, CONNECT_WITHIN);
            connected.is_ok().then_some(address)
        };
        self.address.or_else(of_up).unwrap_or(OF_GATEWAY)
    }

    /// Why nobody answers at `at`, and where to look.
    pub fn unanswered(&self, at: SocketAddr, error: &io::Error) -> Failure {
        let hint = match self.address {
            Some(_) => "the address is that of the service's --admin".to_owned(),
            None => format!(
                "no `braid up` is running on {}, and no gateway: start one, or name the folder by \
                 --data or the service's --admin address, such as 127.0.0.1:9100 of `braid up` \
                 and 127.0.0.1:9102 of a proxy",
                self.data.display()
            ),
        };
        Failure::other(format!("{at}: {error}\n  {hint}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_running_up_is_found_by_its_folder_and_a_killed_one_is_not() {
        let data = tempfile::tempdir().unwrap();
        let mut asked = AdminAddress {
            address: None,
            data: data.path().to_owned(),
        };
        assert_eq!(asked.get(), OF_GATEWAY);
        let up = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = up.local_addr().unwrap();
        let file = format!(
            "{{\"page\":\"127.0.0.1:1\",\"links\":\"127.0.0.1:2\",\"sensors\":null,\
             \"admin\":\"{admin}\",\"process\":7}}"
        );
        std::fs::write(data.path().join("up.json"), file).unwrap();
        assert_eq!(asked.get(), admin);
        drop(up);
        assert_eq!(asked.get(), OF_GATEWAY);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let says = asked.unanswered(OF_GATEWAY, &refused).to_string();
        assert!(
            says.contains("127.0.0.1:9100") && says.contains("--data"),
            "{says}"
        );
        asked.address = Some(admin);
        assert_eq!(asked.get(), admin, "a named address is asked whatever runs");
    }
}
