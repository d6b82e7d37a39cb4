//! `braid qlog`: recordings of a gateway's paths as qlog files, at the gateway or at its proxy.

use service_kit::admin::OPERATOR_HEADER;
use service_kit::qlog::{Recording, Recordings};

use crate::admin_address::AdminAddress;
use crate::health;
use crate::process::{Failure, say};

/// Bytes of an answer that are read; a list of recordings has far fewer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, clap::Subcommand)]
pub enum QlogCommand {
    /// Begin a recording on a running connection. It ends by itself.
    #[command(
        after_help = "Examples:\n  braid qlog start                   `braid up` or a gateway of this host\n  braid qlog start 127.0.0.1:9102 --gateway gw-7 --minutes 10\n\nThe files are below qlog/GATEWAY in the service's data folder, in JSON text sequences\n(.sqlog). Only a program of the same machine or container may record. The oldest is deleted when there are more than --files."
    )]
    Start {
        #[command(flatten)]
        at: At,
        /// Files that are kept of the gateway, 1 to 16.
        #[arg(long, value_name = "N", default_value_t = 4)]
        files: u64,
        /// Megabytes (2^20 bytes) of one file, 1 to 64.
        #[arg(long, value_name = "MB", default_value_t = 8)]
        file_mb: u64,
        /// Minutes after which it ends, 1 to 1,440.
        #[arg(long, value_name = "MINUTES", default_value_t = 60)]
        minutes: u64,
    },
    /// End the recording of a gateway, or all of the service.
    #[command(after_help = "Example:\n  braid qlog stop 127.0.0.1:9102 --gateway gw-7")]
    Stop {
        #[command(flatten)]
        at: At,
    },
    /// List the recordings that are open.
    #[command(after_help = "Example:\n  braid qlog list 127.0.0.1:9102")]
    List {
        #[command(flatten)]
        at: At,
    },
}

#[derive(Debug, clap::Args)]
pub struct At {
    #[command(flatten)]
    admin: AdminAddress,
    /// Which gateway; not needed where there is only one.
    #[arg(long, value_name = "GATEWAY")]
    gateway: Option<String>,
}

impl QlogCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self {
            Self::Start {
                at,
                files,
                file_mb,
                minutes,
            } => {
                let (bytes, seconds) =
                    (file_mb.saturating_mul(1 << 20), minutes.saturating_mul(60));
                let limits = format!("files={files}&file_bytes={bytes}&seconds={seconds}");
                let page = format!("/qlog?{limits}{}", at.query("&")?);
                let begun = at.ask("POST", &page)?;
                for it in begun.recordings {
                    let (gateway, folder) = (&it.gateway, it.folder.display());
                    say(&format!(
                        "{gateway} is recorded in {folder} for {minutes} min"
                    ))?;
                }
            }
            Self::Stop { at } => {
                let page = format!("/qlog{}", at.query("?")?);
                let ended = at.ask("DELETE", &page)?;
                if ended.recordings.is_empty() {
                    return say("nothing was recorded");
                }
                for it in ended.recordings {
                    say(&line(&it))?;
                }
            }
            Self::List { at } => {
                let only = at.gateway.clone();
                at.query("?")?;
                let mut listed = at.ask("GET", "/qlog")?.recordings;
                listed.retain(|it| only.as_ref().is_none_or(|only| *only == it.gateway));
                if listed.is_empty() {
                    return say("nothing is recorded");
                }
                for it in listed {
                    say(&line(&it))?;
                }
            }
        }
        Ok(())
    }
}

fn line(recording: &Recording) -> String {
    let Recording {
        service, gateway, ..
    } = recording;
    let bytes = recording.written_bytes;
    let folder = recording.folder.display();
    let state = match (&recording.failed, recording.seconds_left) {
        (Some(reason), _) => format!("ended early: {reason}"),
        (None, 0) => "ended".to_owned(),
        (None, seconds) => format!("{seconds} s left"),
    };
    format!("{gateway} at its {service}: {bytes} bytes written to {folder}, {state}")
}

impl At {
    /// The gateway as a part of a query.
    fn query(&self, before: &str) -> Result<String, Failure> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        match &self.gateway {
            None => Ok(String::new()),
            Some(name) if !name.is_empty() && name.bytes().all(is_plain) => {
                Ok(format!("{before}gateway={name}"))
            }
            Some(name) => Err(Failure::other(format!(
                "--gateway: {name:?} is no name of a gateway; for example: --gateway gw-7"
            ))),
        }
    }

    fn ask(&self, method: &str, page: &str) -> Result<Recordings, Failure> {
        let at = self.admin.get();
        let header = format!("{OPERATOR_HEADER}: braid\r\n");
        let answer = health::ask(at, method, page, &header, ANSWER_BYTES_MAX);
        let (status, body) = answer.map_err(|error| self.admin.unanswered(at, &error))?;
        match status {
            200 => serde_json::from_str(&body)
                .map_err(|error| Failure::other(format!("{at}: no recordings: {error}"))),
            404 => Err(Failure::other(format!(
                "{at}: no gateway or proxy with a data folder answers there"
            ))),
            403 => Err(Failure::other(format!(
                "{at}: only a program on the same machine or in the same container may do that"
            ))),
            400 | 409 => Err(Failure::other(format!("{at}: {}", body.trim()))),
            other => Err(Failure::other(format!("{at}: status {other}"))),
        }
    }
}
