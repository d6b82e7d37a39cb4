//! The output of `braid up`: for people on standard output, for the command line in a file of the
//! data directory.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use service_kit::Secret;

use crate::demonstration_ward::DemonstrationWard;
use crate::process::Failure;

const FILE: &str = "up.json";

pub struct Report {
    pub page: SocketAddr,
    pub scheme: &'static str,
    pub sensors: Option<SocketAddr>,
    pub links: SocketAddr,
    pub admin: SocketAddr,
    pub sign_in_code: Secret,
    /// `None`: the account has another one.
    pub password: Option<Secret>,
}

/// Addresses of a running `braid up`. A killed one leaves the file behind, so a refused connection
/// means "not running".
#[derive(Debug, Serialize, Deserialize)]
pub struct Addresses {
    pub page: SocketAddr,
    pub links: SocketAddr,
    pub sensors: Option<SocketAddr>,
    /// Serves /healthz, /readyz, /metrics, /paths and /qlog; absent in a file of an older version.
    #[serde(default)]
    pub admin: Option<SocketAddr>,
    pub process: u32,
}

impl Addresses {
    pub fn read(data: &Path) -> Result<Addresses, Failure> {
        let path = data.join(FILE);
        let text = fs::read_to_string(&path).map_err(|error| {
            Failure::other(format!(
                "{}: {error}\n  is `braid up` running on this data directory? (--data or BRAID_DATA)",
                path.display()
            ))
        })?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::other(format!("{}: {error}", path.display())))
    }
}

impl Report {
    pub fn publish(&self, data: &Path) -> Result<(), Failure> {
        let addresses = Addresses {
            page: self.page,
            links: self.links,
            sensors: self.sensors,
            admin: Some(self.admin),
            process: std::process::id(),
        };
        let path = data.join(FILE);
        let beside = data.join("up.json.new");
        serde_json::to_string_pretty(&addresses)
            .map_err(std::io::Error::other)
            .and_then(|text| fs::write(&beside, text))
            .and_then(|()| fs::rename(&beside, &path))
            .map_err(|error| Failure::other(format!("{}: {error}", path.display())))
    }

    pub fn print(&self, data: &Path, ward: &DemonstrationWard) {
        let page = format!("{}://{}", self.scheme, self.page);
        println!(
            "Braid is up; its data is in {}. Ctrl-C ends it, and a restart continues.",
            data.display()
        );
        println!();
        println!("  page      {page}/?code={}", self.sign_in_code.expose());
        match &self.password {
            Some(password) => println!(
                "            {page}  sign in as admin with {}",
                password.expose()
            ),
            None => println!("            {page}  admin has a password of its own"),
        }
        if let Some(sensors) = self.sensors {
            println!("  beside    http://{sensors}/  for the person beside the first gateway");
        }
        if let (Some(sensors), Some(device)) = (self.sensors, ward.own_device()) {
            println!("  send      {}", curl(sensors, device));
        }
        println!("  links     braid link list | cut wifi | restore wifi");
        println!();
    }
}

/// A command that sends one sample; the gateway sets its sequence.
fn curl(sensors: SocketAddr, device: &str) -> String {
    format!(
        "curl -sS http://{sensors}/v1/samples -d '{{\"device\":\"{device}\",\"metric\":\"heart-rate\",\"value\":72}}'"
    )
}
