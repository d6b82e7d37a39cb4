//! Settings of a proxy.

use std::{io::Read, net::SocketAddr, path::PathBuf, time::Duration};

use service_kit::{ConfigError, ServiceConfig, config::parse_address, tls::IdentityFiles};

use ip_packets::IpPrefix;
use tunnel::{ResumeLimits, ServerId, ServerIdError};

use crate::{
    destinations::Destinations,
    ip_destinations::IpDestinations,
    leases::Leases,
    policy::{FILE_BYTES_MAX, Policy},
    to_upstream::ip::IpSettings,
};

const POOL_EXAMPLE: &str = "--ip-pool 10.64.0.0/16 --ip-pool fd00:64::/112";
const TUN_EXAMPLE: &str = "--tun braid0";

/// Upper limit of the flags that bound sessions.
const SESSIONS_MAX: usize = 100_000;
/// Upper limit of `--connect-timeout-ms`.
const CONNECT_TIMEOUT_MS_MAX: u64 = 60_000;
/// Upper limit of `--drain-ms`.
const DRAIN_MS_MAX: u64 = 600_000;
/// Upper limit of the memory for tunnels that may be resumed.
const RESUME_MIB_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct Config {
    /// Address that gateways reach (UDP, multipath QUIC).
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:4433")]
    pub listen: SocketAddr,
    /// Accept gateways on the TCP port of the same number as well, for networks that block UDP. The
    /// requests are the same, as HTTP/2 over TLS over MPTCP.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true)]
    pub tcp_fallback: bool,
    /// Server id for a load balancer that speaks QUIC-LB: 2 to 16 hexadecimal digits, after
    /// `NUMBER/` if the number of its configuration is not 0. Every connection id contains it, so
    /// all paths of a gateway reach this proxy. Empty: connection ids contain no server id.
    #[arg(long, value_name = "[NUMBER/]HEX")]
    pub server_id: Option<String>,
    /// A destination that gateways may reach, `host:port` or `tenant@host:port`. The host may be
    /// `*.suffix` or `*`, the port `*`. A name must not resolve to a private or loopback address;
    /// an address that is listed literally may be private. `*` and `*.suffix` never match addresses
    /// of this machine.
    #[arg(long = "allow", value_name = "DESTINATION", value_delimiter = ',')]
    pub allow: Vec<String>,
    /// The same for names that may resolve to private and loopback addresses: services of the same
    /// network.
    #[arg(
        long = "allow-private",
        value_name = "DESTINATION",
        value_delimiter = ','
    )]
    pub allow_private: Vec<String>,
    /// Addresses for gateways that ask for IP (CONNECT-IP), at most one prefix of each version. The
    /// first address of each prefix is the proxy's own. Empty: IP is not offered.
    #[arg(long = "ip-pool", value_name = "PREFIX", value_delimiter = ',')]
    pub ip_pool: Vec<String>,
    /// TUN device for these packets. If the device does not exist it is created, which needs
    /// NET_ADMIN.
    #[arg(long, value_name = "DEVICE")]
    pub tun: Option<String>,
    /// Where these packets may go, `prefix` or `tenant@prefix`. Private and other special ranges,
    /// and the pool, need an entry that lies within them.
    #[arg(
        long = "allow-ip",
        value_name = "[TENANT@]PREFIX",
        value_delimiter = ','
    )]
    pub allow_ip: Vec<String>,
    /// TOML file with further destinations of groups of gateways (`[[group]]`), and with the
    /// gateways that certificates of other makes stand for (`[[identity]]`). It is read again when
    /// it changes. Empty: there is none.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// gRPC address of path-telemetry. Empty: paths are not reported, and no gateway counts as
    /// revoked.
    #[arg(
        long,
        value_name = "URL",
        default_value = "https://path-telemetry:7003"
    )]
    pub path_telemetry: String,
    /// Folder for the list of revoked gateways, for a start while path-telemetry does not answer.
    /// It also holds what `braid qlog` records. Empty: the list is not kept, and nothing can be
    /// recorded.
    #[arg(long, value_name = "FOLDER")]
    pub data_dir: Option<PathBuf>,
    /// Time in milliseconds that gateways wait after a start for path-telemetry's list of revoked
    /// gateways. Then the list in `--data-dir` is in force. Without that list every gateway is
    /// refused until path-telemetry answers.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub revocations_wait_ms: u64,
    /// Admit every gateway if no list of revoked gateways is known after that wait; ingest still
    /// refuses revoked gateways.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    pub admit_unheard: bool,
    /// Interval of path reports, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    pub report_interval_ms: u64,
    /// Sessions of all gateways together; at the bound new sessions are closed at once.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub sessions_max: usize,
    /// Sessions of one gateway; at the bound the oldest session is closed, since it is most likely
    /// dead.
    #[arg(
        long,
        alias = "sessions-per-device-max",
        value_name = "COUNT",
        default_value_t = 4
    )]
    pub sessions_per_gateway_max: usize,
    /// Tunnels of one gateway, an eighth of them not for bulk; at the bound requests are answered
    /// with 429.
    #[arg(
        long,
        alias = "tunnels-per-device-max",
        value_name = "COUNT",
        default_value_t = 512
    )]
    pub tunnels_per_gateway_max: usize,
    /// Tunnels over TCP of one gateway that are not resumable, a third of them not for bulk. Each
    /// may hold 2.3 MB that its destination does not read. At the bound requests are answered with
    /// 429. Clients without resumption need a higher bound.
    #[arg(
        long,
        alias = "plain-tunnels-per-device-max",
        value_name = "COUNT",
        default_value_t = 48
    )]
    pub plain_tunnels_per_gateway_max: usize,
    /// Requests of one gateway per second, four seconds' worth at once (bulk: three). Further
    /// requests wait up to 5 s, then they are answered with 429.
    #[arg(long, value_name = "COUNT", default_value_t = 250)]
    pub requests_per_second_max: u32,
    /// Longest wait in milliseconds for a name's addresses and for the destination to accept; then
    /// 504.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub connect_timeout_ms: u64,
    /// Time in seconds after which a tunnel without traffic is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub idle_timeout_s: u64,
    /// Time in seconds for which a resumable tunnel is kept without its gateway; then the
    /// destination gets a reset. 0: tunnels are not resumable.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub resume_within_s: u64,
    /// MiB that the resumable tunnels of one gateway hold, beyond 64 KiB each; at the bound they
    /// read nothing more.
    #[arg(
        long,
        alias = "resume-mib-per-device-max",
        value_name = "MIB",
        default_value_t = 64
    )]
    pub resume_mib_per_gateway_max: usize,
    /// The same for all gateways together.
    #[arg(long, value_name = "MIB", default_value_t = 1_024)]
    pub resume_mib_max: usize,
    /// Time in milliseconds that open tunnels get after a shutdown was requested.
    #[arg(long, value_name = "MS", default_value_t = 3_000)]
    pub drain_ms: u64,
    #[command(flatten)]
    pub identity: IdentityFiles,
}

impl Config {
    /// The flags together with the text of the policy's file.
    pub(crate) fn policy(&self, text: &str) -> Result<Policy, ConfigError> {
        let destinations = Destinations::parse(&self.allow, &self.allow_private)?;
        // Invalid pools are refused by `ip`.
        let pools = self.ip_pool.iter().map(|text| text.trim().parse());
        let pools: Vec<IpPrefix> = pools.filter_map(Result::ok).collect();
        let ip = IpDestinations::parse(&self.allow_ip, pools.clone())?;
        Policy::parse(destinations, ip, &pools, text)
    }

    fn has_policy(&self) -> bool {
        (self.policy.as_ref()).is_some_and(|path| !path.as_os_str().is_empty())
    }

    /// The settings of IP, or `None` where IP is not offered.
    pub(crate) fn ip(&self) -> Result<Option<IpSettings>, ConfigError> {
        let refuse = |field: &str, reason: String, example: &str| {
            Err(ConfigError::new(field, reason, example))
        };
        let given = self.ip_pool.iter().map(|text| text.trim());
        let given = given.filter(|text| !text.is_empty());
        let mut pools: Vec<Leases> = Vec::new();
        for text in given {
            let pool = match text.parse::<IpPrefix>() {
                Ok(pool) => pool,
                Err(error) => {
                    return refuse("ip_pool", format!("{text:?} {error}"), POOL_EXAMPLE);
                }
            };
            let is_v4 = pool.network().is_ipv4();
            if pools
                .iter()
                .any(|other| other.pool().network().is_ipv4() == is_v4)
            {
                let reason = format!("{text:?} is the second of its version");
                return refuse("ip_pool", reason, POOL_EXAMPLE);
            }
            let Some(leases) = Leases::new(pool) else {
                let reason = format!("{text:?} has no address to give");
                return refuse("ip_pool", reason, POOL_EXAMPLE);
            };
            pools.push(leases);
        }
        let prefixes = pools.iter().map(Leases::pool).collect();
        let destinations = IpDestinations::parse(&self.allow_ip, prefixes)?;
        // The file may bring destinations at any time.
        let none = destinations.is_empty() && !(self.has_policy() && self.tun.is_some());
        match (&self.tun, pools.is_empty(), none) {
            (None, true, true) => Ok(None),
            (Some(tun), ..) if !host_network::is_device(tun) => refuse(
                "tun",
                format!("{tun:?} is not a valid device name"),
                TUN_EXAMPLE,
            ),
            (Some(tun), false, false) => Ok(Some(IpSettings {
                tun: tun.clone(),
                pools,
            })),
            (_, true, _) => {
                let reason = "IP also needs addresses for gateways".to_owned();
                refuse("ip_pool", reason, POOL_EXAMPLE)
            }
            (None, ..) => {
                let reason = "IP also needs a device for packets".to_owned();
                refuse("tun", reason, TUN_EXAMPLE)
            }
            (.., true) => {
                let reason = "nothing would be allowed".to_owned();
                refuse("allow_ip", reason, "--allow-ip 0.0.0.0/0")
            }
        }
    }

    pub(crate) fn server_id(&self) -> Result<Option<ServerId>, ConfigError> {
        let refused = |error: ServerIdError| {
            ConfigError::new("server_id", error.to_string(), "--server-id 0a01")
        };
        let text = self.server_id.as_deref();
        text.map(|text| text.parse().map_err(refused)).transpose()
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        Duration::from_secs(self.idle_timeout_s)
    }

    pub(crate) fn resume(&self) -> ResumeLimits {
        ResumeLimits {
            detached_max: Duration::from_secs(self.resume_within_s),
            tunnels_per_peer_max: self.tunnels_per_gateway_max,
            detached_per_peer_max: self.tunnels_per_gateway_max,
            bytes_per_peer_max: self.resume_mib_per_gateway_max << 20,
            bytes_all_max: self.resume_mib_max << 20,
            ..ResumeLimits::default()
        }
    }

    pub(crate) fn revocations_wait(&self) -> Duration {
        Duration::from_millis(self.revocations_wait_ms)
    }

    pub(crate) fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    pub(crate) fn report_interval(&self) -> Duration {
        Duration::from_millis(self.report_interval_ms)
    }
}

impl ServiceConfig for Config {
    const NOUN: &'static str = "proxy";

    fn validate(&self) -> Result<(), ConfigError> {
        self.identity.validate()?;
        self.policy(&read_policy(self.policy.as_ref())?)?;
        self.server_id()?;
        self.ip()?;
        let url = &self.path_telemetry;
        if !url.is_empty()
            && let Err(reason) = parse_address(url, &["https", "http"])
        {
            return Err(ConfigError::new(
                "path_telemetry",
                format!("{url:?} {reason}"),
                "--path-telemetry https://path-telemetry:7003",
            ));
        }
        within(
            "sessions_max",
            self.sessions_max as u64,
            1,
            SESSIONS_MAX as u64,
        )?;
        within(
            "sessions_per_gateway_max",
            self.sessions_per_gateway_max as u64,
            1,
            64,
        )?;
        within(
            "tunnels_per_gateway_max",
            self.tunnels_per_gateway_max as u64,
            1,
            4_096,
        )?;
        within(
            "plain_tunnels_per_gateway_max",
            self.plain_tunnels_per_gateway_max as u64,
            1,
            4_096,
        )?;
        within(
            "requests_per_second_max",
            self.requests_per_second_max.into(),
            1,
            10_000,
        )?;
        within(
            "connect_timeout_ms",
            self.connect_timeout_ms,
            1,
            CONNECT_TIMEOUT_MS_MAX,
        )?;
        within("idle_timeout_s", self.idle_timeout_s, 1, 86_400)?;
        within("resume_within_s", self.resume_within_s, 0, 3_600)?;
        within(
            "resume_mib_per_gateway_max",
            self.resume_mib_per_gateway_max as u64,
            1,
            RESUME_MIB_MAX,
        )?;
        within(
            "resume_mib_max",
            self.resume_mib_max as u64,
            1,
            RESUME_MIB_MAX,
        )?;
        within("revocations_wait_ms", self.revocations_wait_ms, 0, 60_000)?;
        within("report_interval_ms", self.report_interval_ms, 100, 60_000)?;
        within("drain_ms", self.drain_ms, 0, DRAIN_MS_MAX)
    }
}

fn within(field: &str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::new(
        field,
        format!("{value} is not within {min} to {max}"),
        format!("--{} {min}", field.replace('_', "-")),
    ))
}

/// The text of the policy's file; the empty text without a file.
pub(crate) fn read_policy(path: Option<&PathBuf>) -> Result<String, ConfigError> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(String::new());
    };
    let refuse = |reason: String| {
        let reason = format!("{}: {reason}", path.display());
        ConfigError::new("policy", reason, "--policy policy.toml")
    };
    let file = std::fs::File::open(path).map_err(|error| refuse(error.to_string()))?;
    let mut text = String::new();
    let mut bounded = file.take(FILE_BYTES_MAX + 1);
    (bounded.read_to_string(&mut text)).map_err(|error| refuse(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
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

    /// Whether IP is offered, or the field that is refused.
    fn ip(flags: &str) -> Result<bool, String> {
        let line = ["proxy"].into_iter().chain(flags.split_whitespace());
        let ip = CommandLine::parse_from(line).config.ip();
        ip.map(|ip| ip.is_some()).map_err(|error| error.field)
    }

    #[test]
    fn ip_needs_all_its_settings() {
        let (pool, tun, allow) = (
            "--ip-pool 10.64.0.0/16",
            "--tun braid0",
            "--allow-ip 0.0.0.0/0",
        );
        let refused = |field: &str| Err(field.to_owned());
        assert_eq!(ip(""), Ok(false));
        assert_eq!(ip(&[pool, tun, allow].join(" ")), Ok(true));
        let both = "--ip-pool 10.64.0.0/16,fd00:64::/112";
        assert_eq!(ip(&[both, tun, allow].join(" ")), Ok(true));
        assert_eq!(ip(&[tun, allow].join(" ")), refused("ip_pool"));
        assert_eq!(ip(&[pool, allow].join(" ")), refused("tun"));
        assert_eq!(ip(&[pool, tun].join(" ")), refused("allow_ip"));
        assert_eq!(ip(allow), refused("ip_pool"));
        for bad in [
            "10.64.0.1/16",
            "10.64.0.0",
            "10.64.0.0/31",
            "10.64.0.0/16,10.65.0.0/16",
        ] {
            let pool = format!("--ip-pool {bad}");
            assert_eq!(
                ip(&[&pool, tun, allow].join(" ")),
                refused("ip_pool"),
                "{bad}"
            );
        }
        let long = "--tun a-name-of-a-device";
        assert_eq!(ip(&[pool, long, allow].join(" ")), refused("tun"));
    }
}
