//! `braid gateways`: tokens for the certificates of gateways, and revocations. It works on the
//! store; services follow within seconds.

use std::path::PathBuf;

use contracts::identity::Gateway;
use dashboard::gateways::{self, Decision, VALID_HOURS_DEFAULT};
use serde_json::json;
use service_kit::tls::authority::LocalAuthority;
use store::Scope;

use crate::audit::Asker;
use crate::identity::FOLDER;
use crate::process::{self, Failure};
use crate::signed::Signed;
use crate::tenancy::Tenancy;

const HOUR_US: i64 = 3_600_000_000;

#[derive(Debug, clap::Subcommand)]
pub enum GatewaysCommand {
    /// Print a token with which a gateway gets its certificate, once.
    #[command(
        after_help = "Example:\n  braid gateways enrol gw-7 --by \"Eve Operator\" --reason \"for Ada's home\"\n  braid gateway --enrol TOKEN --enrol-url https://dashboard:8443 \\\n      --cert gw-7.pem --key gw-7.key --ca ca.pem"
    )]
    Enrol {
        /// The gateway's id.
        #[arg(value_name = "GATEWAY")]
        gateway: String,
        /// Hours for which the token is valid.
        #[arg(long, value_name = "HOURS", default_value_t = VALID_HOURS_DEFAULT)]
        hours: u32,
        /// Folder of the authority, shared with the dashboard. By default that of the data
        /// directory.
        #[arg(long, value_name = "DIR", env = "BRAID_AUTHORITY")]
        authority: Option<PathBuf>,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List the gateways of a tenant: validity of their certificates, and revocations with their
    /// reasons.
    List {
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Revoke every certificate of a gateway, within seconds; a new token admits it again.
    #[command(
        after_help = "Example:\n  braid gateways revoke gw-7 --by \"Eve Operator\" --reason \"stolen from the car\""
    )]
    Revoke {
        /// The gateway's id.
        #[arg(value_name = "GATEWAY")]
        gateway: String,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
}

fn decision<'a>(tenancy: &'a Tenancy, by: &'a str, signed: &'a Signed) -> Decision<'a> {
    Decision {
        tenant: &tenancy.tenant,
        by,
        reason: &signed.reason,
    }
}

impl GatewaysCommand {
    pub fn run(self) -> Result<(), Failure> {
        process::block_on(self.on_store())?
    }

    async fn on_store(self) -> Result<(), Failure> {
        match self {
            Self::Enrol {
                gateway,
                hours,
                authority,
                signed,
                tenancy,
            } => {
                let authority = authority.unwrap_or_else(|| tenancy.store.data().join(FOLDER));
                let authority = LocalAuthority::open(&authority).map_err(Failure::other)?;
                let fingerprint = authority.fingerprint().map_err(Failure::other)?;
                let store = tenancy.store.open().await?;
                let by = signed.by.who(&*store, &tenancy.tenant).await?;
                let decision = decision(&tenancy, &by, &signed);
                let token = gateways::enrol(&*store, fingerprint, &gateway, hours, &decision)
                    .await
                    .map_err(Failure::other)?;
                println!("{}", token.text.expose());
                eprintln!("for {gateway:?}, once, within {hours} h");
                Ok(())
            }
            Self::List {
                json,
                asker,
                tenancy,
            } => {
                let store = tenancy.store.open().await?;
                asker
                    .reads(&*store, &tenancy.tenant, "read gateways", "", String::new())
                    .await?;
                let listed = gateways::list(&*store, &Scope::Tenant(tenancy.tenant)).await;
                let listed = listed.map_err(Failure::other)?;
                if json {
                    return process::json(&listed.iter().map(as_json).collect::<Vec<_>>());
                }
                for gateway in listed {
                    println!("{}", line(gateway));
                }
                Ok(())
            }
            Self::Revoke {
                gateway,
                signed,
                tenancy,
            } => {
                let store = tenancy.store.open().await?;
                let by = signed.by.who(&*store, &tenancy.tenant).await?;
                gateways::revoke(&*store, &gateway, &decision(&tenancy, &by, &signed))
                    .await
                    .map_err(Failure::other)?;
                println!("{gateway} is revoked");
                Ok(())
            }
        }
    }
}

fn line(gateway: Gateway) -> String {
    let left_us = gateway.certificate_until_us - contracts::now_us();
    let mut line = match gateway.certificate_until_us {
        0 => format!("{}  no certificate by token", gateway.id),
        _ => format!("{}  for another {} h", gateway.id, left_us / HOUR_US),
    };
    if gateway.enrolling {
        line += "  a token is out";
    }
    if let Some(revoked) = gateway.revoked {
        let again = match revoked.let_in_again {
            true => ", let in again since",
            false => "",
        };
        line += &format!("  revoked by {}: {}{again}", revoked.by, revoked.reason);
    }
    line
}

/// Null: no certificate was issued by token, or the gateway is not revoked.
fn as_json(gateway: &Gateway) -> serde_json::Value {
    let until_us = gateway.certificate_until_us;
    let revoked = gateway.revoked.as_ref().map(|it| {
        json!({
            "at": process::when(it.at_us),
            "by": it.by,
            "reason": it.reason,
            "let_in_again": it.let_in_again,
        })
    });
    json!({
        "gateway": gateway.id,
        "certificate_until": (until_us != 0).then(|| process::when(until_us)),
        "enrolling": gateway.enrolling,
        "revoked": revoked,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        command: GatewaysCommand,
    }

    #[test]
    fn a_token_is_for_the_authority_of_the_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        LocalAuthority::open_or_create(&dir.path().join(FOLDER)).unwrap();
        let line = [
            "gateways", "enrol", "gw-7", "--by", "ada", "--reason", "new",
        ];
        let options = ["--data", dir.path().to_str().unwrap()];
        let line = Line::parse_from(line.iter().chain(&options));
        line.command.run().unwrap();
    }
}
