//! `braid health`: the health check of a container, which has no shell and no HTTP client but this program.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use crate::process::Failure;

/// A service answers from memory, on a thread of its own.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of an answer that are read: a line for each failing check is far less.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  braid health 127.0.0.1:9103")]
pub struct HealthCommand {
    /// The service's admin address.
    address: SocketAddr,
}

impl HealthCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let unreachable =
            |error: std::io::Error| Failure::other(format!("{}: {error}", self.address));
        let mut stream = TcpStream::connect_timeout(&self.address, TIMEOUT).map_err(unreachable)?;
        stream
            .set_read_timeout(Some(TIMEOUT))
            .map_err(unreachable)?;
        write!(
            stream,
            "GET /readyz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.address
        )
        .map_err(unreachable)?;
        let mut answer = String::new();
        stream
            .take(ANSWER_BYTES_MAX)
            .read_to_string(&mut answer)
            .map_err(unreachable)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        println!("{}", body.trim());
        Ok(match head.split(' ').nth(1) {
            Some("200") => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}
