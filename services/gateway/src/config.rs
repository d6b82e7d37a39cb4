//! Settings of a gateway.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use serde::Serialize;
use service_kit::{ConfigError, Secret, ServiceConfig, tls::IdentityFiles};

use crate::journal::{Limits, Overflow};

/// Smallest journal: four segments, so that dropping one leaves room for the next.
const SEGMENTS_MIN: u64 = 4;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const GATHER_MS_MAX: u64 = 1_000;
const INTERFACES_MAX: usize = 8;

#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Config {
    /// Where sensors reach the gateway, HTTP and gRPC on one port.
    #[arg(long, default_value = "127.0.0.1:8090")]
    pub listen: SocketAddr,
    /// Token that sensors send as `authorization: Bearer ...`; required when `listen` is no loopback address.
    #[arg(long)]
    pub sensor_token: Option<Secret>,
    /// Directory of the journal and of rejected samples; one gateway each.
    #[arg(long, default_value = "data/gateway")]
    pub data_dir: PathBuf,
    /// Bound of the journal of vitals; beyond it the oldest segment is dropped and recorded as a gap.
    #[arg(long, default_value_t = 256 << 20)]
    pub journal_bytes_max: u64,
    /// Size at which a segment is closed; what is dropped or trimmed at once.
    #[arg(long, default_value_t = 4 << 20)]
    pub journal_segment_bytes: u64,
    /// Bound of the journal of alerts; beyond it what raises an alert is refused, for alerts are never dropped.
    #[arg(long, default_value_t = 32 << 20)]
    pub journal_alerts_bytes_max: u64,
    /// Wait for more writers before each fsync, in milliseconds. Every sample is synced before it is acknowledged in any case.
    #[arg(long, default_value_t = 0)]
    pub journal_gather_ms: u64,
    /// The proxy's address, `host:port`, UDP.
    #[arg(long, default_value = "127.0.0.1:4433")]
    pub proxy: String,
    /// Name that the proxy's certificate bears.
    #[arg(long, default_value = "proxy")]
    pub proxy_name: String,
    /// An access network, `name=local-address` or `name=local-address@device`; several make several paths. None: the one
    /// network that leads to the proxy.
    #[arg(long = "interface", value_name = "NAME=ADDRESS")]
    pub interface: Vec<String>,
    /// Ingest, as the proxy reaches it.
    #[arg(long, default_value = "https://ingest:7001")]
    pub ingest: String,
    /// Path-telemetry, as the proxy reaches it; empty: paths are not reported.
    #[arg(long, default_value = "https://path-telemetry:7003")]
    pub path_telemetry: String,
    /// Interval of path reports, in milliseconds.
    #[arg(long, default_value_t = 1_000)]
    pub path_report_interval_ms: u64,
    /// Rules that raise alerts at the edge (JSON); none: the built-in set.
    #[arg(long)]
    pub rules: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub identity: IdentityFiles,
}

/// One access network, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessNetwork {
    pub name: String,
    pub local_ip: IpAddr,
    pub device: Option<String>,
}

impl Config {
    pub fn vitals_limits(&self) -> Limits {
        Limits {
            bytes_max: self.journal_bytes_max,
            segment_bytes: self.journal_segment_bytes,
            overflow: Overflow::DropOldest,
        }
    }

    pub fn alerts_limits(&self) -> Limits {
        Limits {
            bytes_max: self.journal_alerts_bytes_max,
            segment_bytes: self
                .journal_segment_bytes
                .min(self.journal_alerts_bytes_max / SEGMENTS_MIN),
            overflow: Overflow::Refuse,
        }
    }

    pub fn gather(&self) -> Duration {
        Duration::from_millis(self.journal_gather_ms)
    }

    pub fn access_networks(&self) -> Result<Vec<AccessNetwork>, ConfigError> {
        self.interface
            .iter()
            .map(|text| parse_network(text))
            .collect()
    }
}

fn parse_network(text: &str) -> Result<AccessNetwork, ConfigError> {
    let refuse = |reason: String| {
        Err(ConfigError::new(
            "interface",
            reason,
            "--interface wifi=192.168.1.7@wlan0",
        ))
    };
    let Some((name, rest)) = text.split_once('=') else {
        return refuse(format!("{text:?} has no '='"));
    };
    let (address, device) = match rest.split_once('@') {
        Some((address, device)) => (address, Some(device.to_owned())),
        None => (rest, None),
    };
    match address.parse() {
        Ok(local_ip) if !name.is_empty() => Ok(AccessNetwork {
            name: name.to_owned(),
            local_ip,
            device,
        }),
        Ok(_) => refuse(format!("{text:?} has no name")),
        Err(_) => refuse(format!("{address:?} is not an IP address")),
    }
}

/// The local address that the routing table chooses towards the proxy. Sends nothing.
pub fn local_address_towards(proxy: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = if proxy.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(proxy)?;
    Ok(socket.local_addr()?.ip())
}

impl ServiceConfig for Config {
    const NOUN: &'static str = "gateway";

    fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |field: &str, reason: String, example: &str| {
            Err(ConfigError::new(field, reason, example))
        };
        match &self.sensor_token {
            None if !self.listen.ip().is_loopback() => {
                return refuse(
                    "sensor_token",
                    format!(
                        "{} is reachable by others, so sensors need a token",
                        self.listen
                    ),
                    "--sensor-token \"$(openssl rand -hex 16)\"",
                );
            }
            Some(token) if token.expose().len() < 8 => {
                return refuse(
                    "sensor_token",
                    "is shorter than 8 characters".to_owned(),
                    "--sensor-token \"$(openssl rand -hex 16)\"",
                );
            }
            _ => {}
        }
        if self.journal_segment_bytes < SEGMENT_BYTES_MIN {
            return refuse(
                "journal_segment_bytes",
                format!("is less than {SEGMENT_BYTES_MIN}"),
                "--journal-segment-bytes 4194304",
            );
        }
        if self.journal_bytes_max < SEGMENTS_MIN * self.journal_segment_bytes {
            return refuse(
                "journal_bytes_max",
                format!(
                    "is less than {SEGMENTS_MIN} segments of {} bytes",
                    self.journal_segment_bytes
                ),
                "--journal-bytes-max 268435456",
            );
        }
        if self.journal_alerts_bytes_max < SEGMENTS_MIN * SEGMENT_BYTES_MIN {
            return refuse(
                "journal_alerts_bytes_max",
                format!("is less than {}", SEGMENTS_MIN * SEGMENT_BYTES_MIN),
                "--journal-alerts-bytes-max 33554432",
            );
        }
        if self.journal_gather_ms > GATHER_MS_MAX {
            return refuse(
                "journal_gather_ms",
                format!("sensors would wait longer than {GATHER_MS_MAX} ms"),
                "--journal-gather-ms 5",
            );
        }
        if !(100..=60_000).contains(&self.path_report_interval_ms) {
            return refuse(
                "path_report_interval_ms",
                format!("{} is outside 100 to 60000", self.path_report_interval_ms),
                "--path-report-interval-ms 1000",
            );
        }
        if self
            .proxy
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        {
            return refuse(
                "proxy",
                format!("{:?} is not host:port", self.proxy),
                "--proxy proxy.example.org:4433",
            );
        }
        if self.interface.len() > INTERFACES_MAX {
            return refuse(
                "interface",
                format!("at most {INTERFACES_MAX} are taken"),
                "--interface wifi=192.168.1.7@wlan0",
            );
        }
        let networks = self.access_networks()?;
        for (n, network) in networks.iter().enumerate() {
            if networks[..n]
                .iter()
                .any(|other| other.name == network.name || other.local_ip == network.local_ip)
            {
                return refuse(
                    "interface",
                    format!("{} repeats a name or an address", network.name),
                    "--interface wifi=192.168.1.7 --interface lte=10.0.0.3",
                );
            }
        }
        for (field, url) in [
            ("ingest", &self.ingest),
            ("path_telemetry", &self.path_telemetry),
        ] {
            let optional = field == "path_telemetry" && url.is_empty();
            if !optional && !url.starts_with("https://") {
                return refuse(
                    field,
                    format!("{url:?} is not an https URL"),
                    "--ingest https://ingest:7001",
                );
            }
        }
        self.identity.validate()
    }
}
