//! Settings of a gateway.

mod access_networks;
mod carers;
mod sealing;

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use serde::Serialize;
use service_kit::{ConfigError, Secret, ServiceConfig, config::parse_address, tls::IdentityFiles};
use tunnel::AccessRule;

use crate::from_applications;
use crate::journal::{Limits, Overflow};
use crate::to_dashboard::CertificateClient;
use crate::to_ingest::{self, Options};

/// Segments of the smallest journal, so that dropping one leaves room for the next; a smaller
/// journal is refused.
const SEGMENTS_MIN: u64 = 4;
/// Bytes of the smallest segment of a journal.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Longest time that the journal gathers before it syncs, in milliseconds: sensors wait for it.
const GATHER_MS_MAX: u64 = 1_000;
/// Longest age of readings at their upload, in milliseconds; zero: nothing waits.
const FRESHNESS_MS_MAX: u64 = 60_000;
const REPORT_INTERVAL_MS: RangeInclusive<u64> = 100..=60_000;
/// Path-telemetry refuses reports over more than an hour.
const REPORT_BEAT_S: RangeInclusive<u64> = 1..=3_600;
const TOKEN_BYTES_MIN: usize = 8;
/// Bytes of a SOCKS5 password (RFC 1929); a longer token is refused.
const TOKEN_BYTES_MAX: usize = 255;
/// Largest number of application connections that may be configured. A session has 512 tunnels: up
/// to 256 for redirected connections and 64 for UDP flows. The gateway's own tunnels must never
/// wait. Each connection holds two buffers of 64 KiB and the windows of QUIC and TCP.
const APPLICATIONS_MAX: usize = 160;

/// How TCP connections to the TUN device travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TunTcp {
    Streams,
    Packets,
}

#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct Config {
    /// Address for sensors, HTTP and gRPC on one port.
    #[arg(long, default_value = "127.0.0.1:8090")]
    pub listen: SocketAddr,
    /// Token that sensors send as `authorization: Bearer ...`; required when `listen` is no
    /// loopback address.
    #[arg(long)]
    pub sensor_token: Option<Secret>,
    /// Token of the people beside the gateway, for its page, `GET /v1/alerts` and acknowledgements.
    /// It cannot write readings. Without it they use the sensor token.
    #[arg(long)]
    pub carer_token: Option<Secret>,
    /// Program that is run when an alert is raised, acknowledged or over, for a lamp or a buzzer.
    /// It gets the alert as JSON on its standard input and has 10 s. It is run again after a
    /// failure. Empty: none.
    #[arg(long, value_name = "PROGRAM")]
    pub alarm_command: Option<PathBuf>,
    /// Address in the local network that is called with the same JSON: `https`, or `http` at a
    /// private address. Empty: none.
    #[arg(long, value_name = "URL")]
    pub alarm_webhook: Option<Secret>,
    /// Certificate authority that --alarm-webhook trusts, for an `https` address.
    #[arg(long, value_name = "FILE")]
    pub alarm_webhook_ca: Option<PathBuf>,
    /// Directory of the journal and of rejected samples, for one gateway.
    #[arg(long, default_value = "data/gateway")]
    pub data_dir: PathBuf,
    /// Bound of the journal of vitals in bytes; at the bound the oldest segment is dropped and
    /// recorded as a gap.
    #[arg(long, default_value_t = 256 << 20)]
    pub journal_bytes_max: u64,
    /// Bytes at which a segment is closed; segments are dropped and trimmed as a whole.
    #[arg(long, default_value_t = 4 << 20)]
    pub journal_segment_bytes: u64,
    /// Bound of the journal of alerts in bytes. Alerts are never dropped: at the bound a sample
    /// that raises an alert is refused.
    #[arg(long, default_value_t = 32 << 20)]
    pub journal_alerts_bytes_max: u64,
    /// File with the key of what the gateway keeps of people, made at the first start. Empty:
    /// `journal.key` in --data-dir. A systemd credential `braid-gateway-journal-key` is a second
    /// part of the key.
    #[arg(long, value_name = "FILE")]
    pub journal_key: Option<PathBuf>,
    /// Encrypt what the gateway writes of people. The gateway reads what is encrypted in any case.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true)]
    pub journal_encrypted: bool,
    /// Wait for more writers before each fsync, in milliseconds. Every sample is synced before it
    /// is acknowledged in any case.
    #[arg(long, default_value_t = 0)]
    pub journal_gather_ms: u64,
    /// Age that readings may have when they are uploaded, in milliseconds: those of so long travel
    /// together, which saves data. Alerts never wait, nor do the readings that raise them.
    #[arg(long, default_value_t = 1_000)]
    pub freshness_ms: u64,
    /// The proxy's address, `host:port`, UDP; TCP on the same port where UDP is blocked.
    #[arg(long, default_value = "127.0.0.1:4433")]
    pub proxy: String,
    /// Continue over HTTP/2 over TLS over MPTCP (or TCP) while UDP gets no answer.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true)]
    pub tcp_fallback: bool,
    /// Name in the proxy's certificate.
    #[arg(long, default_value = "proxy")]
    pub proxy_name: String,
    /// An access network; several make several paths. A device or a pattern of devices, which may
    /// come and go: `wlan0`, `wwan*`, `lte=wwan0/ipv6`. A fixed address: `wifi=192.168.1.7`,
    /// `wifi=192.168.1.7@wlan0`. The device with an address in a network: `wifi=192.168.1.0/24`.
    /// Without any: the kernel's route to the proxy.
    #[arg(
        long = "interface",
        value_name = "[NAME=]DEVICE[/FAMILY]|NAME=ADDRESS[@DEVICE]|NAME=NETWORK/PREFIX"
    )]
    pub interface: Vec<String>,
    /// Ingest, as the proxy reaches it. Empty: the gateway takes no sensors, and carries only
    /// applications and the TUN device.
    #[arg(long, default_value = "https://ingest:7001")]
    pub ingest: String,
    /// Path-telemetry, as the proxy reaches it; empty: paths are not reported.
    #[arg(long, default_value = "https://path-telemetry:7003")]
    pub path_telemetry: String,
    /// Interval at which paths are looked at, in milliseconds; what changes is reported at once.
    #[arg(long, default_value_t = 1_000)]
    pub path_report_interval_ms: u64,
    /// Seconds between two reports of paths that do not change.
    #[arg(long, default_value_t = 300)]
    pub path_report_beat_s: u64,
    /// Rules (JSON) that raise alerts at the edge for patients without rules from the core. Without
    /// a file: the built-in rules.
    #[arg(long)]
    pub rules: Option<PathBuf>,
    /// Steering document (TOML or JSON): which traffic takes which access, in which mode. It holds
    /// until path-telemetry hands one out. None: every access is used.
    #[arg(long, value_name = "FILE")]
    pub steering: Option<PathBuf>,
    /// Address for applications as HTTP CONNECT and SOCKS5 proxy (TCP, and UDP with SOCKS5). Their
    /// traffic goes after vitals. Empty: none.
    #[arg(long, value_name = "ADDRESS")]
    pub applications: Option<SocketAddr>,
    /// The same for interactive applications: their traffic goes before that of other applications,
    /// and beside vitals.
    #[arg(long, value_name = "ADDRESS")]
    pub applications_prompt: Option<SocketAddr>,
    /// Token that applications send as the proxy's password; required if one of their addresses is
    /// no loopback address.
    #[arg(long)]
    pub applications_token: Option<Secret>,
    /// Connections and UDP associations of applications. Further ones wait up to 5 s, then they are
    /// refused (503).
    #[arg(long, value_name = "COUNT", default_value_t = 128)]
    pub applications_connections_max: usize,
    /// Seconds without traffic after which an application's connection is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub applications_idle_timeout_s: u64,
    /// TUN device for programs without proxy support, created if it does not exist (NET_ADMIN). The
    /// proxy assigns its address, and forwards packets to permitted destinations. Empty: no device.
    #[arg(long, value_name = "DEVICE")]
    pub tun: Option<String>,
    /// Set routes on the device to every destination that the proxy permits; otherwise users add
    /// routes. Needs access networks that are bound to devices, since the gateway's own packets
    /// would use these routes as well.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false, requires = "tun")]
    pub tun_routes: bool,
    /// How TCP connections to the TUN device travel. `streams` end at the gateway and use all paths
    /// at once (NET_ADMIN, nftables). `packets` show the device's address to the destination, but
    /// one connection has the rate of one path.
    #[arg(long, value_enum, default_value_t = TunTcp::Streams)]
    pub tun_tcp: TunTcp,
    /// Resolver for names, as the proxy reaches it: an address, with or without a port. The kernel
    /// redirects queries to port 53 that are routed to the TUN device, or ask its address or the
    /// resolver's (NET_ADMIN, nftables). Empty: names are not touched.
    #[arg(long, value_name = "ADDRESS", requires = "tun")]
    pub tun_dns: Option<String>,
    /// Token of `braid gateways enrol`. It gets the certificate and the authority (--ca) if the
    /// file of --cert does not exist. It also gets the certificate if the dashboard does not renew
    /// it any more.
    #[arg(long, value_name = "TOKEN")]
    pub enrol: Option<Secret>,
    /// The dashboard, reached without the tunnel, which issues and renews the certificate. Empty:
    /// no renewal.
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
    /// The client for certificates.
    pub fn certificate_client(&self) -> CertificateClient {
        CertificateClient {
            url: self.enrol_url.clone(),
            files: self.identity.clone(),
        }
    }

    /// Requires the files of an identity, or the settings to get them.
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
                "a token is given without the dashboard's address",
                "--enrol-url https://dashboard.example.org:8443",
            ));
        }
        if !self.identity.is_set() {
            return Err(ConfigError::new(
                "cert",
                "the certificate, its key and the authority need file names",
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

    /// How vitals are uploaded.
    pub fn vitals_options(&self) -> Options {
        let limits = to_ingest::Limits {
            freshness: Duration::from_millis(self.freshness_ms),
            ..Options::VITALS.limits
        };
        Options {
            limits,
            ..Options::VITALS
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
                format!("does not have {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters"),
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
        if !host_network::is_device(tun) {
            let reason = format!("{tun:?} is not a valid device name");
            return Err(ConfigError::new("tun", reason, "--tun braid0"));
        }
        if rules.iter().any(|rule| rule.takes_device(tun)) {
            let reason = format!("{tun:?} would also be an access network");
            return Err(ConfigError::new("tun", reason, "--tun braid0"));
        }
        if let Some(text) = &self.tun_dns
            && !text.is_empty()
            && from_applications::resolver(text).is_none()
        {
            let reason = format!("{text:?} is no address of a resolver");
            return Err(ConfigError::new("tun_dns", reason, "--tun-dns 9.9.9.9"));
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

    /// The resolver for names that are asked through the tunnel.
    pub fn resolver(&self) -> Option<SocketAddr> {
        self.tun_dns
            .as_deref()
            .and_then(from_applications::resolver)
    }

    /// The rules for access networks.
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
            _ => return self.validate_carers(),
        };
        Err(ConfigError::new("sensor_token", reason, EXAMPLE))
    }

    fn validate_journal(&self) -> Result<(), ConfigError> {
        self.validate_key()?;
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
        self.local_alarms()?;
        if !REPORT_BEAT_S.contains(&self.path_report_beat_s) {
            return refuse(
                "path_report_beat_s",
                format!("{} is outside 1 to 3600", self.path_report_beat_s),
                "--path-report-beat-s 300",
            );
        }
        if self.freshness_ms > FRESHNESS_MS_MAX {
            return refuse(
                "freshness_ms",
                format!("{} is more than {FRESHNESS_MS_MAX}", self.freshness_ms),
                "--freshness-ms 1000",
            );
        }
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
        let carries = self.tun.is_some() || self.application_addresses().next().is_some();
        if self.ingest.is_empty() && !carries {
            return refuse(
                "ingest",
                "without ingest, applications and a TUN device the gateway has nothing to carry"
                    .to_owned(),
                "--ingest \"\" --applications 127.0.0.1:1080",
            );
        }
        for (field, url, example) in [
            ("ingest", &self.ingest, "--ingest https://ingest:7001"),
            (
                "path_telemetry",
                &self.path_telemetry,
                "--path-telemetry https://path-telemetry:7003",
            ),
        ] {
            if !url.is_empty()
                && let Err(reason) = parse_address(url, &["https"])
            {
                return refuse(field, format!("{url:?} {reason}"), example);
            }
        }
        self.validate_applications()?;
        self.validate_tun(&rules)?;
        self.validate_identity()
    }
}

#[cfg(test)]
pub(crate) use tests::CommandLine;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    /// For all tests of the gateway.
    #[derive(Parser)]
    pub(crate) struct CommandLine {
        #[command(flatten)]
        pub(crate) config: Config,
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
    fn an_address_with_an_invalid_port_is_refused() {
        let refused = |flag: &str| {
            let config = CommandLine::parse_from(["gateway", flag]).config;
            config.validate().err().map(|error| error.field)
        };
        for (flag, field) in [
            ("--ingest=https://host:99999", "ingest"),
            ("--ingest=ingest:7001", "ingest"),
            ("--ingest=", "ingest"),
            ("--path-telemetry=https://host:0", "path_telemetry"),
            ("--enrol-url=https://host:99999", "enrol_url"),
            ("--proxy=host:0", "proxy"),
        ] {
            assert_eq!(refused(flag).as_deref(), Some(field), "{flag}");
        }
    }

    #[test]
    fn applications_need_a_token_beyond_loopback() {
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
    fn a_tun_device_needs_access_networks_bound_to_devices() {
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
        let dns = |address: &str| refused(&["--tun", "braid0", "--tun-dns", address]);
        assert_eq!([dns("9.9.9.9"), dns("[fd00::1]:5353")], [None, None]);
        assert_eq!(dns(""), None);
        assert_eq!(dns("dns.example.org"), Some("tun_dns".to_owned()));
        assert!(CommandLine::try_parse_from(["gateway", "--tun-dns", "9.9.9.9"]).is_err());
        assert!(CommandLine::try_parse_from(["gateway", "--tun-routes"]).is_err());
    }
}
