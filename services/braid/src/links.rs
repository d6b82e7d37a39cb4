//! `braid link`: the emulated links of a running `braid up`, from the command line.

use std::path::PathBuf;

use clap::Subcommand;
use contracts::paths::link_service_client::LinkServiceClient;
use contracts::paths::{Link, ListLinksRequest, SetLinkRequest};
use service_kit::grpc;
use service_kit::tls::{Identity, IdentityFiles};
use tonic::transport::Channel;

use crate::identity::FOLDER;
use crate::process::{self, Failure};
use crate::up::{Addresses, OPERATOR};

#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// Print every link.
    List {
        #[command(flatten)]
        directory: DataDirectory,
    },
    /// Take a link down; packets under way are lost.
    #[command(after_help = "Examples:\n  braid link cut wifi\n  braid link cut lte --gateway gw-2")]
    Cut {
        #[command(flatten)]
        which: Which,
    },
    /// Bring a link up again.
    #[command(after_help = "Example:\n  braid link restore wifi")]
    Restore {
        #[command(flatten)]
        which: Which,
    },
    /// Change a link's rate, delay or loss, in both directions.
    #[command(after_help = "Example:\n  braid link set lte --loss 0.05 --delay-ms 120")]
    Set {
        #[command(flatten)]
        which: Which,
        /// Bits per second.
        #[arg(long)]
        rate_bits_per_s: Option<u64>,
        /// One-way delay.
        #[arg(long)]
        delay_ms: Option<u32>,
        /// Random loss, 0 to 1.
        #[arg(long)]
        loss: Option<f64>,
    },
}

#[derive(Debug, clap::Args)]
pub struct DataDirectory {
    /// Data directory of the running `braid up`.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    data: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct Which {
    /// Name of the access network: wifi or lte.
    name: String,
    /// Only this gateway's links; by default those of every gateway.
    #[arg(long, value_name = "ID", default_value = "")]
    gateway: String,
    #[command(flatten)]
    directory: DataDirectory,
}

impl Which {
    fn change(&self) -> SetLinkRequest {
        SetLinkRequest {
            gateway: self.gateway.clone(),
            name: self.name.clone(),
            ..SetLinkRequest::default()
        }
    }
}

impl LinkCommand {
    pub fn run(self) -> Result<(), Failure> {
        let (directory, change) = match self {
            LinkCommand::List { directory } => (directory, None),
            LinkCommand::Cut { which } => {
                let up = Some(false);
                let change = SetLinkRequest {
                    up,
                    ..which.change()
                };
                (which.directory, Some(change))
            }
            LinkCommand::Restore { which } => {
                let up = Some(true);
                let change = SetLinkRequest {
                    up,
                    ..which.change()
                };
                (which.directory, Some(change))
            }
            LinkCommand::Set {
                which,
                rate_bits_per_s,
                delay_ms,
                loss,
            } => {
                let change = SetLinkRequest {
                    rate_bits_per_s,
                    delay_ms,
                    loss,
                    ..which.change()
                };
                (which.directory, Some(change))
            }
        };
        process::block_on(async move {
            let mut client = connect(&directory)?;
            let links = match change {
                None => client
                    .list_links(ListLinksRequest {})
                    .await
                    .map(|answer| answer.into_inner().links),
                Some(change) => client
                    .set_link(change)
                    .await
                    .map(|answer| answer.into_inner().links),
            };
            let links = links.map_err(|status| Failure::other(status.message().to_owned()))?;
            print(&links);
            Ok(())
        })?
    }
}

fn connect(directory: &DataDirectory) -> Result<LinkServiceClient<Channel>, Failure> {
    let addresses = Addresses::read(&directory.data)?;
    let files = IdentityFiles::in_dir(&directory.data.join(FOLDER), OPERATOR);
    let identity = Identity::load(&files).map_err(Failure::other)?;
    let channel = grpc::channel(&format!("https://{}", addresses.links), Some(&identity))
        .map_err(Failure::other)?;
    Ok(LinkServiceClient::new(channel))
}

fn print(links: &[Link]) {
    println!(
        "{:<12} {:<6} {:<5} {:>10} {:>9} {:>7}",
        "gateway", "link", "state", "Mbit/s", "delay ms", "loss %"
    );
    for link in links {
        println!(
            "{:<12} {:<6} {:<5} {:>10.1} {:>9} {:>7.1}",
            link.gateway,
            link.name,
            if link.up { "up" } else { "down" },
            link.rate_bits_per_s as f64 / 1e6,
            link.delay_ms,
            link.loss * 100.0,
        );
    }
}
