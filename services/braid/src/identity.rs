//! `braid identity`: certificates from the authority of a data directory, for services and gateways
//! in separate processes.

use std::path::PathBuf;

use clap::Subcommand;
use service_kit::tls::PeerId;
use service_kit::tls::authority::LocalAuthority;

use crate::process::Failure;

/// Folder of the authority and of the issued identities within a data directory.
pub const FOLDER: &str = "identities";

#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// Issue a certificate and its key; makes the authority on first use.
    #[command(subcommand)]
    Issue(Whose),
}

#[derive(Debug, Subcommand)]
pub enum Whose {
    /// A gateway's identity, for a client only.
    #[command(after_help = "Example:\n  braid identity issue gateway gw-1 --out ./gw-1")]
    Gateway {
        /// Name of the gateway.
        id: String,
        /// Tenant it belongs to.
        #[arg(long, default_value = store::DEFAULT_TENANT)]
        tenant: String,
        #[command(flatten)]
        folders: AuthorityFolders,
    },
    /// A service's identity, for its host names as a server and for its calls as a client.
    #[command(
        after_help = "Example:\n  braid identity issue service ingest --host ingest.example.org --host 10.0.0.7"
    )]
    Service {
        /// Noun of the service: proxy, ingest, alerting, path-telemetry, dashboard, or envoy in
        /// front of them.
        noun: String,
        /// Further names and addresses of the service, besides its noun and localhost.
        #[arg(long = "host", value_name = "NAME")]
        hosts: Vec<String>,
        #[command(flatten)]
        folders: AuthorityFolders,
    },
}

#[derive(Debug, clap::Args)]
pub struct AuthorityFolders {
    /// Data directory of the authority.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    data: PathBuf,
    /// Folder for the files; by default that of the authority.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl IdentityCommand {
    pub fn run(self) -> Result<(), Failure> {
        let IdentityCommand::Issue(whose) = self;
        let (id, hosts, folders) = match whose {
            Whose::Gateway {
                id,
                tenant,
                folders,
            } => (PeerId::gateway(tenant, id), Vec::new(), folders),
            Whose::Service {
                noun,
                hosts,
                folders,
            } => (PeerId::service(noun), hosts, folders),
        };
        // An id that cannot be read back as an identity must not be issued.
        let id: PeerId = id
            .to_string()
            .parse()
            .map_err(|error: service_kit::tls::PeerIdError| Failure::other(error.to_string()))?;
        let refused =
            |error: service_kit::tls::authority::AuthorityError| Failure::other(error.to_string());
        let folder = folders.data.join(FOLDER);
        let authority = LocalAuthority::open_or_create(&folder).map_err(refused)?;
        let out = folders.out.unwrap_or(folder);
        let files = authority.issue_in(&out, &id, &hosts).map_err(refused)?;
        println!("{id}");
        println!(
            "--cert {} --key {} --ca {}",
            files.cert.display(),
            files.key.display(),
            files.ca.display()
        );
        Ok(())
    }
}
