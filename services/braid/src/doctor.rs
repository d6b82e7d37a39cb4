//! `braid doctor`: checks an installation from outside and reports its state, with a remedy for
//! each fault. Changes nothing.

mod engines;
mod finding;
mod identity;
mod people;
mod progress;
mod services;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use service_kit::tls::IdentityFiles;

use self::finding::State;
use crate::engines::{EnginesConfig, default_url};
use crate::process::{self, Failure};

/// Time limit for an engine. The services themselves would wait longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

#[derive(Debug, clap::Args)]
#[command(
    mut_arg("store", |arg| arg.default_value(default_url())),
    mut_arg("bus", |arg| arg.default_value(default_url())),
    mut_arg("store_password", |arg| arg.env("BRAID_STORE_PASSWORD")),
    mut_arg("bus_password", |arg| arg.env("BRAID_BUS_PASSWORD")),
    after_help = "Examples:
  braid doctor
  braid doctor --bus kafka+tls://kafka:9093 --bus-ca ca.pem \\
      --store postgres://braid@timescaledb/braid --store-ca ca.pem \\
      --cert ingest.pem --key ingest.key --ca ca.pem \\
      --admin 127.0.0.1:9103 --admin 127.0.0.1:9104

Exit status: 0 when nothing failed (warnings are no failure), 1 otherwise."
)]
pub struct DoctorCommand {
    /// Data directory of the embedded engines.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    data: PathBuf,
    #[command(flatten)]
    engines: EnginesConfig,
    #[command(flatten)]
    identity: IdentityFiles,
    /// Admin address of a service; repeat it for each service.
    #[arg(long, value_name = "ADDRESS")]
    admin: Vec<SocketAddr>,
    /// Largest accepted difference between clocks.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    clock_max_ms: u32,
    /// Print a JSON array instead of lines.
    #[arg(long)]
    json: bool,
}

impl DoctorCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        process::block_on(async move {
            let clock_max = Duration::from_millis(u64::from(self.clock_max_ms));
            let mut findings = identity::look(&self.identity, std::time::SystemTime::now());
            // In this order, because a person reads the findings as they come.
            let EnginesConfig { store, bus } = &self.engines.in_directory(&self.data);
            findings.extend(engines::store(store, clock_max, ANSWER_WITHIN).await);
            findings.extend(engines::bus(bus, ANSWER_WITHIN).await);
            findings.extend(progress::look(store, bus, ANSWER_WITHIN).await);
            for address in self.admin {
                let asked = tokio::task::spawn_blocking(move || services::look(address));
                findings.extend(asked.await.map_err(Failure::other)?);
            }
            if self.json {
                process::json(&findings)?;
            } else {
                for finding in &findings {
                    process::print(&format!("{finding}\n"))?;
                }
            }
            let failed = findings.iter().any(|it| it.state == State::Failed);
            Ok(if failed {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            })
        })?
    }
}
