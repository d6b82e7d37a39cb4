//! Settings of a gateway.

mod access_networks;

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use serde::Serialize;
use service_kit::{ConfigError, Secret, ServiceConfig, config::parse_address, tls::IdentityFiles};
use tunnel::AccessRule;

use crate::journal::{Limits, Overflow};
use crate::to_dashboard::CertificateClient;

/// Smallest journal: four segments, so that dropping one leaves room for the next.
const SEGMENTS_MIN: u64 = 4;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const GATHER_MS_MAX: u64 = 1_000;
const REPORT_INTERVAL_MS: RangeInclusive<u64> = 100..=60_000;
const TOKEN_BYTES_MIN: usize = 8;
/// What a SOCKS5 password can hold.
const TOKEN_BYTES_MAX: usize = 255;
/// Most connections of applications that may be allowed: of the 256 tunnels of a session, 64 are for flows of UDP, and the gateway's own
/// must never wait for one that ends. Each holds two buffers of 64 KiB and the windows of QUIC and TCP.
const APPLICATIONS_MAX: usize = 160;

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
    /// The proxy's address, `host:port`, UDP; TCP on the same port where UDP is blocked.
    #[arg(long, default_value = "127.0.0.1:4433")]
    pub proxy: String,
    /// Whether the gateway goes on by HTTP/2 over TLS over MPTCP (or TCP) while nothing answers by UDP.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true)]
    pub tcp_fallback: bool,
    /// Name that the proxy's certificate bears.
    #[arg(long, default_value = "proxy")]
    pub proxy_name: String,
    /// An access network; several make several paths. A device or a pattern of devices, which may come and go: `wlan0`, `wwan*`,
    /// `lte=wwan0/ipv6`; a fixed address: `wifi=192.168.1.7`, `wifi=192.168.1.7@wlan0`; or the device with an address of a network:
    /// `wifi=192.168.1.0/24`. None: whatever leads to the proxy.
    #[arg(
        long = "interface",
        value_name = "[NAME=]DEVICE[/FAMILY]|NAME=ADDRESS[@DEVICE]|NAME=NETWORK/PREFIX"
    )]
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
    /// Rules that raise alerts at the edge (JSON) for whom the core has handed out none; none: the built-in set.
    #[arg(long)]
    pub rules: Option<PathBuf>,
    /// Where applications reach the gateway as HTTP CONNECT and SOCKS5 proxy (TCP, and UDP by SOCKS5); none: nowhere. What they send
    /// goes after vitals.
    #[arg(long, value_name = "ADDRESS")]
    pub applications: Option<SocketAddr>,
    /// The same for applications that somebody waits for; what they send goes before the others', and beside vitals.
    #[arg(long, value_name = "ADDRESS")]
    pub applications_prompt: Option<SocketAddr>,
    /// Token that applications send as the proxy's password; required when one of their addresses is no loopback address.
    #[arg(long)]
    pub applications_token: Option<Secret>,
    /// Connections and UDP associations of applications at once; beyond it they are refused (503).
    #[arg(long, value_name = "COUNT", default_value_t = 128)]
    pub applications_connections_max: usize,
    /// An application's connection that carries nothing for so long is closed, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub applications_idle_timeout_s: u64,
    /// TUN device for programs that know no proxy, made if it is not there (NET_ADMIN): the proxy gives it an address, and takes packets to where it allows. None: no
    /// device.
    #[arg(long, value_name = "DEVICE")]
    pub tun: Option<String>,
    /// Whether the device gets routes to all that the proxy allows; otherwise whoever wants to reach something adds them. Takes access networks that are
    /// bound to devices, since the gateway's own packets would go there, too.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false, requires = "tun")]
    pub tun_routes: bool,
    /// Token of `braid gateways enrol`: gets the certificate when the file of --cert is not there, or when the dashboard renews it no
    /// more; and the authority of --ca.
    #[arg(long, value_name = "TOKEN")]
    pub enrol: Option<Secret>,
    /// The dashboard, as the gateway reaches it without the tunnel: gives and renews the certificate; empty: nobody does.
    #[arg(long, value_name = "URL", default_value = "")]
    pub enrol_url: String,
    /// Days before its end at which the certificate is renewed.
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub renew_before_days: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub identity: IdentityFiles,
}

impl Config {
    /// Where certificates come from.
    pub fn certificate_client(&self) -> CertificateClient {
        CertificateClient {
            url: self.enrol_url.clone(),
            files: self.identity.clone(),
        }
    }

    /// Files of an identity, or all it takes to get them.
    fn validate_identity(&self) -> Result<(), ConfigError> {
        let url = &self.enrol_url;
        let schemes: &[&str] = if url.starts_with("http://127.0.0.1:") {
            &["http"]
        } else {
            &["https"]
        };
        if !url.is_empty()
            && let Err(reason) = parse_address(url, schemes)
        {
            return Err(ConfigError::new(
                "enrol_url",
                format!("{url:?} {reason}"),
                "--enrol-url https://dashboard.example.org:8443",
            ));
        }
        if self.enrol.is_none() || self.identity.cert.exists() {
            return self.identity.validate();
        }
        if url.is_empty() {
            return Err(ConfigError::new(
                "enrol_url",
                "a token is given, and nobody to give it to",
                "--enrol-url https://dashboard.example.org:8443",
            ));
        }
        if !self.identity.is_set() {
            return Err(ConfigError::new(
                "cert",
                "the certificate, its key and the authority need places to be kept",
                "--cert gw-1.pem --key gw-1.key --ca ca.pem",
            ));
        }
        Ok(())
    }

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

    /// The addresses for applications, each with its flag.
    pub fn application_addresses(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        [
            ("applications", self.applications),
            ("applications_prompt", self.applications_prompt),
        ]
        .into_iter()
        .filter_map(|(field, address)| Some((field, address?)))
    }

    fn validate_applications(&self) -> Result<(), ConfigError> {
        const EXAMPLE: &str = "--applications-token \"$(openssl rand -hex 16)\"";
        let refuse = |field: &str, reason: String, example: &str| {
            Err(ConfigError::new(field, reason, example))
        };
        for (_, address) in self.application_addresses() {
            if self.applications_token.is_none() && !address.ip().is_loopback() {
                return refuse(
                    "applications_token",
                    format!("{address} is reachable by others, so applications need a token"),
                    EXAMPLE,
                );
            }
        }
        if let Some(token) = &self.applications_token
            && !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.expose().len())
        {
            return refuse(
                "applications_token",
                format!("has not {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters"),
                EXAMPLE,
            );
        }
        if !(1..=APPLICATIONS_MAX).contains(&self.applications_connections_max) {
            return refuse(
                "applications_connections_max",
                format!(
                    "{} is not within 1 to {APPLICATIONS_MAX}",
                    self.applications_connections_max
                ),
                "--applications-connections-max 128",
            );
        }
        if !(1..=86_400).contains(&self.applications_idle_timeout_s) {
            return refuse(
                "applications_idle_timeout_s",
                format!(
                    "{} is not within 1 to 86400",
                    self.applications_idle_timeout_s
                ),
                "--applications-idle-timeout-s 900",
            );
        }
        Ok(())
    }

    fn validate_tun(&self, rules: &[AccessRule]) -> Result<(), ConfigError> {
        let Some(tun) = &self.tun else {
            return Ok(());
        };
        if !tunnel::is_device(tun) {
            let reason = format!("{tun:?} is no name of a device");
            return Err(ConfigError::new("tun", reason, "--tun braid0"));
        }
        if rules.iter().any(|rule| rule.takes_device(tun)) {
            let reason = format!("{tun:?} would be an access network, too");
            return Err(ConfigError::new("tun", reason, "--tun braid0"));
        }
        let unbound = rules.iter().find(|rule| !rule.is_bound());
        if let (true, Some(unbound)) = (self.tun_routes, unbound) {
            return Err(ConfigError::new(
                "tun_routes",
                format!(
                    "the access network {:?} names no device, so its own packets would go to {tun:?}",
                    unbound.name()
                ),
                "--interface wlan0 --interface wifi=192.168.1.7@wlan0",
            ));
        }
        Ok(())
    }

    /// The rules by which access networks are taken.
    pub fn access_rules(&self) -> Result<Vec<AccessRule>, ConfigError> {
        access_networks::rules(&self.interface)
    }

    fn validate_sensors(&self) -> Result<(), ConfigError> {
        const EXAMPLE: &str = "--sensor-token \"$(openssl rand -hex 16)\"";
        let reason = match &self.sensor_token {
            None if !self.listen.ip().is_loopback() => format!(
                "{} is reachable by others, so sensors need a token",
                self.listen
            ),
            Some(token) if token.expose().len() < TOKEN_BYTES_MIN => {
                format!("is shorter than {TOKEN_BYTES_MIN} characters")
            }
            _ => return Ok(()),
        };
        Err(ConfigError::new("sensor_token", reason, EXAMPLE))
    }

    fn validate_journal(&self) -> Result<(), ConfigError> {
        let refuse = |field: &str, reason: String, example: &str| {
            Err(ConfigError::new(field, reason, example))
        };
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
        Ok(())
    }
}

impl ServiceConfig for Config {
    const NOUN: &'static str = "gateway";

    fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |field: &str, reason: String, example: &str| {
            Err(ConfigError::new(field, reason, example))
        };
        self.validate_sensors()?;
        self.validate_journal()?;
        if !REPORT_INTERVAL_MS.contains(&self.path_report_interval_ms) {
            return refuse(
                "path_report_interval_ms",
                format!("{} is outside 100 to 60000", self.path_report_interval_ms),
                "--path-report-interval-ms 1000",
            );
        }
        if self.proxy.rsplit_once(':').is_none_or(|(host, port)| {
            host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0)
        }) {
            return refuse(
                "proxy",
                format!("{:?} is not host:port", self.proxy),
                "--proxy proxy.example.org:4433",
            );
        }
        let rules = self.access_rules()?;
        for (field, url, example) in [
            ("ingest", &self.ingest, "--ingest https://ingest:7001"),
            (
                "path_telemetry",
                &self.path_telemetry,
                "--path-telemetry https://path-telemetry:7003",
            ),
        ] {
            let optional = field == "path_telemetry" && url.is_empty();
            if !optional && let Err(reason) = parse_address(url, &["https"]) {
                return refuse(field, format!("{url:?} {reason}"), example);
            }
        }
        self.validate_applications()?;
        self.validate_tun(&rules)?;
        self.validate_identity()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        config: Config,
    }

    /// The field that is refused.
    fn refused(flags: &[&str]) -> Option<String> {
        let line = ["gateway"].into_iter().chain(flags.iter().copied());
        let config = CommandLine::parse_from(line).config;
        config
            .validate_applications()
            .err()
            .map(|error| error.field)
    }

    #[test]
    fn an_address_with_a_port_that_is_none_is_refused() {
        let refused = |flag: &str| {
            let config = CommandLine::parse_from(["gateway", flag]).config;
            config.validate().err().map(|error| error.field)
        };
        for (flag, field) in [
            ("--ingest=https://host:99999", "ingest"),
            ("--ingest=ingest:7001", "ingest"),
            ("--path-telemetry=https://host:0", "path_telemetry"),
            ("--enrol-url=https://host:99999", "enrol_url"),
            ("--proxy=host:0", "proxy"),
        ] {
            assert_eq!(refused(flag).as_deref(), Some(field), "{flag}");
        }
    }

    #[test]
    fn applications_come_in_only_where_that_is_safe() {
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&["--applications", "127.0.0.1:1080"]), None);
        assert_eq!(refused(&["--applications-prompt", "[::1]:1080"]), None);
        let token = Some("applications_token".to_owned());
        assert_eq!(refused(&["--applications", "0.0.0.0:1080"]), token);
        assert_eq!(refused(&["--applications-prompt", "192.0.2.1:1080"]), token);
        let with = |token: &str| {
            refused(&[
                "--applications",
                "0.0.0.0:1080",
                "--applications-token",
                token,
            ])
        };
        assert_eq!(with("12345678"), None);
        assert_eq!(with("1234567"), token);
        assert_eq!(with(&"x".repeat(256)), token);
        for (flag, field) in [
            (
                "--applications-connections-max",
                "applications_connections_max",
            ),
            (
                "--applications-idle-timeout-s",
                "applications_idle_timeout_s",
            ),
        ] {
            assert_eq!(refused(&[flag, "0"]).as_deref(), Some(field));
            assert_eq!(refused(&[flag, "1000000"]).as_deref(), Some(field));
        }
    }

    #[test]
    fn a_tun_device_swallows_no_access_network() {
        let refused = |flags: &[&str]| {
            let line = ["gateway"].into_iter().chain(flags.iter().copied());
            let config = CommandLine::parse_from(line).config;
            let rules = config.access_rules().unwrap();
            config.validate_tun(&rules).err().map(|error| error.field)
        };
        assert_eq!(refused(&["--tun", "braid0"]), None);
        let with = |interface: &str| refused(&["--tun", "braid0", "--interface", interface]);
        let tun = Some("tun".to_owned());
        assert_eq!([with("wlan0"), with("wifi=192.0.2.7")], [None, None]);
        assert_eq!([with("braid0"), with("b*")], [tun.clone(), tun.clone()]);
        assert_eq!(refused(&["--tun", "tun%d"]), tun);
        let routed = |interface: &str| {
            refused(&["--tun", "braid0", "--tun-routes", "--interface", interface])
        };
        let routes = Some("tun_routes".to_owned());
        assert_eq!(refused(&["--tun", "braid0", "--tun-routes"]), routes);
        assert_eq!(routed("wifi=192.0.2.7"), routes);
        assert_eq!(
            [routed("wifi=192.0.2.7@wlan0"), routed("wwan*")],
            [None, None]
        );
        assert_eq!(routed("wifi=192.0.2.0/24"), None);
        assert!(CommandLine::try_parse_from(["gateway", "--tun-routes"]).is_err());
    }
}
