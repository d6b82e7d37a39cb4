//! `braid episode`: lets a simulated patient of a running `braid up` fall ill.
//!
//! The two exchange one line each over a Unix socket in the data directory; the permissions of the
//! directory protect it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use swarm::Episode;

use crate::process::Failure;

/// Name of the socket within the data directory.
pub const SOCKET: &str = "up.sock";
/// Answer to a request that was executed; any other answer is the reason of a failure.
pub const DONE: &str = "done";
/// Longest wait for the answer; then the command fails.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  braid episode patient-1 tachycardia")]
pub struct EpisodeCommand {
    /// The patient's id, such as patient-1.
    patient: String,
    /// tachycardia, desaturation, fever or fall.
    episode: Episode,
    /// Data directory of the running `braid up`.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    data: PathBuf,
}

impl EpisodeCommand {
    pub fn run(self) -> Result<(), Failure> {
        let path = self.data.join(SOCKET);
        let answer = UnixStream::connect(&path).and_then(|mut stream| {
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            writeln!(stream, "{} {}", self.patient, self.episode.name())?;
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer)?;
            Ok(answer)
        });
        match answer {
            Ok(answer) if answer.trim() == DONE => Ok(()),
            Ok(answer) => Err(Failure::other(answer.trim().to_owned())),
            Err(error) => Err(Failure::other(format!(
                "{}: {error}\n  is `braid up` running on this data directory? (--data or BRAID_DATA)",
                path.display()
            ))),
        }
    }
}
