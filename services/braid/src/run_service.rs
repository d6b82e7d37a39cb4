//! One service in a separate process.

use std::sync::Arc;
use std::time::Duration;

use bus::Bus;
use clap::{ArgMatches, Command, Subcommand};
use serde::Serialize;
use service_kit::config::ConfigFile;
use service_kit::{ConfigError, Context, ServiceConfig, config};
use store::Store;

use crate::engines::{Engines, EnginesConfig};
use crate::process::{self, Failure, ProcessConfig};
use crate::simulate::SwarmConfig;
use crate::up::UpConfig;

/// A service without bus and store.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Alone<C: ServiceConfig> {
    #[command(flatten)]
    pub service: C,
    #[command(flatten)]
    pub process: ProcessConfig,
}

/// A service with bus and store.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct OnEngines<C: ServiceConfig> {
    #[command(flatten)]
    pub service: C,
    #[command(flatten)]
    pub engines: EnginesConfig,
    #[command(flatten)]
    pub process: ProcessConfig,
}

impl<C: ServiceConfig> Alone<C> {
    fn run<E>(
        self,
        limit: Duration,
        service: impl AsyncFnOnce(C, Context) -> Result<(), E>,
    ) -> Result<(), Failure>
    where
        Failure: From<E>,
    {
        process::run(C::NOUN, self.process, limit, async |context, _| {
            Ok(service(self.service, context).await?)
        })
    }
}

impl<C: ServiceConfig> OnEngines<C> {
    fn run<E>(
        self,
        limit: Duration,
        service: impl AsyncFnOnce(C, Arc<dyn Bus>, Arc<dyn Store>, Context) -> Result<(), E>,
    ) -> Result<(), Failure>
    where
        Failure: From<E>,
    {
        process::run(C::NOUN, self.process, limit, async |context, _| {
            // `None`: the service was asked to end before the engines answered.
            let Some(Engines { bus, store }) = self.engines.open(&context).await? else {
                return Ok(());
            };
            Ok(service(self.service, bus, store, context).await?)
        })
    }
}

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Beside the sensors: journals samples, evaluates rules, and uploads over all access networks
    /// at once.
    #[command(after_help = GATEWAY_HELP)]
    Gateway {
        #[command(flatten)]
        alone: Box<Alone<gateway::Config>>,
        #[command(subcommand)]
        act: Option<GatewayAct>,
    },
    /// In the core: ends multipath QUIC and forwards to listed destinations.
    #[command(after_help = PROXY_HELP)]
    Proxy(Box<Alone<proxy::Config>>),
    /// Admits samples of gateways, publishes them and writes the store.
    #[command(after_help = INGEST_HELP)]
    Ingest(Box<OnEngines<ingest::Config>>),
    /// Raises alerts from vitals and accepts acknowledgements.
    #[command(after_help = ALERTING_HELP)]
    Alerting(Box<OnEngines<alerting::Config>>),
    /// Admits path reports from both ends of the tunnels.
    #[command(after_help = PATH_TELEMETRY_HELP)]
    PathTelemetry(Box<OnEngines<path_telemetry::Config>>),
    /// Takes the hospital's admissions, moves and discharges (HL7 v2).
    #[command(after_help = EXCHANGE_HELP)]
    Exchange(Box<OnEngines<exchange::Config>>),
    /// The web page.
    #[command(after_help = DASHBOARD_HELP)]
    Dashboard(Box<OnEngines<dashboard::Config>>),
    /// Simulated patients, whose sensors send to a gateway.
    #[command(after_help = SWARM_HELP)]
    Swarm(Box<Alone<SwarmConfig>>),
    /// All services in this process, with simulated patients behind emulated Wi-Fi and LTE.
    #[command(after_help = UP_HELP)]
    Up(Box<Alone<UpConfig>>),
}

const GATEWAY_HELP: &str = "Example:\n  braid identity issue gateway gw-1 --out ./gw-1\n  braid gateway --cert gw-1/gw-1.pem --key gw-1/gw-1.key --ca gw-1/ca.pem \\\n      --proxy proxy.example.org:4433";
const PROXY_HELP: &str = "Example:\n  braid identity issue service proxy --out ./identities\n  braid proxy --config braid.toml";
const INGEST_HELP: &str =
    "Example:\n  braid ingest --bus sqlite:./data --store sqlite:./data --config braid.toml";
const ALERTING_HELP: &str =
    "Example:\n  braid alerting --bus sqlite:./data --store sqlite:./data --config braid.toml";
const PATH_TELEMETRY_HELP: &str = "Example:\n  braid path-telemetry --bus sqlite:./data --store sqlite:./data \\\n      --config braid.toml";
const EXCHANGE_HELP: &str = "Example:\n  braid exchange --bus sqlite:./data --store sqlite:./data \\\n      --hospital-cert hospital.pem --hospital-key hospital.key \\\n      --hospital-ca interface-engine-ca.pem";
const DASHBOARD_HELP: &str =
    "Example:\n  braid dashboard --bus sqlite:./data --store sqlite:./data --config braid.toml";
const SWARM_HELP: &str =
    "Example:\n  braid swarm --to http://gateway:8090 --sensor-token TOKEN --patients 3";
const UP_HELP: &str = "Examples:\n  braid up\n  braid up --patients 8 --data /tmp/ward --listen 0.0.0.0:8080\n  braid link cut wifi";

/// Commands for what a gateway keeps on its disk. The gateway's flags come before the word.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum GatewayAct {
    /// Destroy the key of the journal and what the gateway keeps of people, with the gateway
    /// stopped. Say what was destroyed, and how many readings had not been sent.
    #[command(after_help = "Example:\n  braid gateway --data-dir /var/lib/braid wipe --yes")]
    Wipe {
        /// Destroy. Without it the command only says what it would destroy.
        #[arg(long)]
        yes: bool,
    },
    /// Print the samples that ingest refused, one JSON object a line, for `braid quarantine
    /// readmit`.
    #[command(
        after_help = "Example:\n  braid gateway --data-dir /var/lib/braid rejected > rejected.jsonl"
    )]
    Rejected,
}

impl GatewayAct {
    fn run(self, config: &gateway::Config) -> Result<(), Failure> {
        match self {
            GatewayAct::Wipe { yes } => {
                let wiped = gateway::wipe(config, yes)?;
                process::print(&wiped.to_string())?;
                match yes {
                    true => Ok(()),
                    false => Err(Failure::other("nothing is destroyed: add --yes")),
                }
            }
            GatewayAct::Rejected => {
                let (lines, damaged) = gateway::rejected(config)?;
                lines.lines().try_for_each(process::json_text)?;
                match damaged {
                    0 => Ok(()),
                    lines => Err(Failure::other(format!("{lines} lines are damaged"))),
                }
            }
        }
    }
}

impl ServiceCommand {
    /// Refuses a bad configuration before any port is bound.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            // A command needs no certificate.
            ServiceCommand::Gateway { act: Some(_), .. } => Ok(()),
            ServiceCommand::Gateway { alone, act: None } => alone.service.validate(),
            ServiceCommand::Proxy(it) => it.service.validate(),
            ServiceCommand::Ingest(it) => it.service.validate(),
            ServiceCommand::Alerting(it) => it.service.validate(),
            ServiceCommand::PathTelemetry(it) => it.service.validate(),
            ServiceCommand::Exchange(it) => it.service.validate(),
            ServiceCommand::Dashboard(it) => it.service.validate(),
            ServiceCommand::Swarm(it) => it.service.validate(),
            ServiceCommand::Up(it) => it.service.validate(),
        }
    }

    /// How long the process waits for the service after it was asked to end.
    pub fn exit_limit(&self) -> Duration {
        process::exit_limit(match self {
            ServiceCommand::Proxy(it) => Duration::from_millis(it.service.drain_ms),
            _ => Duration::ZERO,
        })
    }

    pub fn run(self) -> Result<(), Failure> {
        self.validate()?;
        let limit = self.exit_limit();
        match self {
            ServiceCommand::Gateway {
                alone,
                act: Some(act),
            } => act.run(&alone.service),
            ServiceCommand::Gateway { alone, act: None } => alone
                .run(limit, async |config, context| {
                    gateway::run(config, None, context).await
                }),
            ServiceCommand::Proxy(it) => it.run(limit, proxy::run),
            ServiceCommand::Ingest(it) => it.run(limit, ingest::run),
            ServiceCommand::Alerting(it) => it.run(limit, alerting::run),
            ServiceCommand::PathTelemetry(it) => it.run(limit, path_telemetry::run),
            ServiceCommand::Exchange(it) => it.run(limit, exchange::run),
            ServiceCommand::Dashboard(it) => it.run(limit, dashboard::run),
            ServiceCommand::Swarm(it) => it.run(limit, crate::simulate::run),
            ServiceCommand::Up(it) => {
                let Alone { service, process } = *it;
                process::run("up", process, limit, async |context, admin| {
                    crate::up::run(service, admin, context).await
                })
            }
        }
    }

    /// `braid config`: the effective configuration as TOML.
    pub fn render(
        &self,
        matches: &ArgMatches,
        file: Option<&ConfigFile>,
        command: &Command,
    ) -> Result<String, Failure> {
        let text = match self {
            ServiceCommand::Gateway { alone, .. } => {
                config::render(alone, matches, "gateway", file, command)
            }
            ServiceCommand::Proxy(it) => config::render(it, matches, "proxy", file, command),
            ServiceCommand::Ingest(it) => config::render(it, matches, "ingest", file, command),
            ServiceCommand::Alerting(it) => config::render(it, matches, "alerting", file, command),
            ServiceCommand::PathTelemetry(it) => {
                config::render(it, matches, "path-telemetry", file, command)
            }
            ServiceCommand::Exchange(it) => config::render(it, matches, "exchange", file, command),
            ServiceCommand::Dashboard(it) => {
                config::render(it, matches, "dashboard", file, command)
            }
            ServiceCommand::Swarm(it) => config::render(it, matches, "swarm", file, command),
            ServiceCommand::Up(it) => config::render(it, matches, "up", file, command),
        };
        text.map_err(Failure::other)
    }
}

/// Distinguishes a service's refusal of its configuration, such as a port in use, from other
/// failures.
macro_rules! refusals_of {
    ($($service:ident),*) => {$(
        impl From<$service::RunError> for Failure {
            fn from(error: $service::RunError) -> Failure {
                match error {
                    $service::RunError::Config(error) => Failure::Config(error),
                    other => Failure::Other(other.to_string()),
                }
            }
        }
    )*};
}

refusals_of!(gateway, service_kit, dashboard);

impl From<proxy::RunError> for Failure {
    fn from(error: proxy::RunError) -> Failure {
        match error {
            proxy::RunError::Config(error) => Failure::Config(error),
            proxy::RunError::Bind(error) => Failure::Config(ConfigError::new(
                "listen",
                error.to_string(),
                "--listen 0.0.0.0:14433",
            )),
            other => Failure::Other(other.to_string()),
        }
    }
}
