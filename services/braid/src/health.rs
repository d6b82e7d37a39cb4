//! `braid health`: the health check of a container without a shell or another HTTP client.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use crate::admin_address::AdminAddress;
use crate::process::{self, Failure};

/// Longest wait for an answer; a service answers from memory, on a separate thread.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of an answer that are read: a line for each failing check is far less.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid health                   `braid up` or a gateway on this machine\n  braid health 127.0.0.1:9103"
)]
pub struct HealthCommand {
    #[command(flatten)]
    at: AdminAddress,
}

impl HealthCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let at = self.at.get();
        let (ready, says) = readiness(at).map_err(|error| self.at.unanswered(at, &error))?;
        process::print(&format!("{}\n", says.trim()))?;
        Ok(if ready {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// Whether the service at this admin address is ready, and the text of its checks.
pub fn readiness(address: SocketAddr) -> io::Result<(bool, String)> {
    let (status, body) = get(address, "/readyz", ANSWER_BYTES_MAX)?;
    Ok((status == 200, body))
}

/// The status and body of a page of an admin listener.
pub fn get(address: SocketAddr, page: &str, bytes_max: u64) -> io::Result<(u16, String)> {
    ask(address, "GET", page, "", bytes_max)
}

/// The status and body of a request without a body. Each line of `headers` ends with CRLF.
pub fn ask(
    address: SocketAddr,
    method: &str,
    page: &str,
    headers: &str,
    bytes_max: u64,
) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "{method} {page} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n"
    )?;
    let mut answer = String::new();
    stream.take(bytes_max).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    Ok((status.unwrap_or(0), body.to_owned()))
}
