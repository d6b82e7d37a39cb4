//! `--bus`: the embedded bus in a directory, or a Kafka cluster.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bus::kafka::{OpenError, Password, Sasl, SaslMechanism, Tls};
use bus::{Bus, EmbeddedBus, EmbeddedOptions, KafkaBus, KafkaOptions};
use clap::ValueEnum;
use consumer_health::duty;
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use service_kit::{CheckHandle, ConfigError, Context, Secret};

const CHOICE: &str =
    "write sqlite:DIRECTORY or kafka+tls://USER@HOST:PORT,HOST:PORT/PREFIX (kafka:// without TLS)";
const EXAMPLE: &str = "--bus kafka+tls://braid@kafka-1:9093,kafka-2:9093";

/// `sqlite:DIR` or `kafka[+tls]://[USER@]HOST:PORT[,HOST:PORT...][/PREFIX]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusUrl {
    Embedded(PathBuf),
    Kafka(KafkaUrl),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaUrl {
    pub tls: bool,
    pub user: Option<String>,
    /// `host:port`, at least one.
    pub brokers: Vec<String>,
    /// Prefix of the names of topics and groups.
    pub prefix: String,
}

impl FromStr for BusUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<BusUrl, String> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(format!("names no engine: {CHOICE}"));
        };
        match scheme {
            "sqlite" if !rest.is_empty() => Ok(BusUrl::Embedded(rest.into())),
            "sqlite" => Err(format!("names no directory: {CHOICE}")),
            "kafka" | "kafka+tls" => rest
                .strip_prefix("//")
                .ok_or("has no // after its scheme")
                .and_then(|rest| KafkaUrl::parse(scheme == "kafka+tls", rest))
                .map(BusUrl::Kafka)
                .map_err(|reason| format!("{reason}: {CHOICE}")),
            other => Err(format!("{other} is no engine: {CHOICE}")),
        }
    }
}

impl KafkaUrl {
    /// The reason of a refusal never repeats the text, which may contain a password.
    fn parse(tls: bool, rest: &str) -> Result<KafkaUrl, &'static str> {
        let (rest, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match rest.rsplit_once('@') {
            Some((user, _)) if user.contains(':') => {
                return Err("contains a password, which belongs in --bus-password");
            }
            Some(("", _)) => return Err("names no user before the @"),
            Some((user, hosts)) => (Some(user.to_owned()), hosts),
            None => (None, rest),
        };
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !prefix.chars().all(legal) {
            return Err("has a prefix of other than letters, digits, `-`, `_` and `.`");
        }
        let brokers: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        let is_broker = |broker: &String| {
            let parts = broker.rsplit_once(':');
            parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if !brokers.iter().all(is_broker) {
            return Err("has a broker without HOST:PORT");
        }
        Ok(KafkaUrl {
            tls,
            user,
            brokers,
            prefix: prefix.to_owned(),
        })
    }

    fn is_on_this_machine(&self) -> bool {
        let hosts = self.brokers.iter().filter_map(|b| b.rsplit_once(':'));
        hosts.map(|(host, _)| host).all(|host| {
            let address = host.trim_start_matches('[').trim_end_matches(']');
            host == "localhost" || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        })
    }
}

impl fmt::Display for BusUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = match self {
            BusUrl::Embedded(dir) => return write!(f, "sqlite:{}", dir.display()),
            BusUrl::Kafka(url) => url,
        };
        f.write_str(if url.tls { "kafka+tls://" } else { "kafka://" })?;
        if let Some(user) = &url.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&url.brokers.join(","))?;
        if !url.prefix.is_empty() {
            write!(f, "/{}", url.prefix)?;
        }
        Ok(())
    }
}

impl Serialize for BusUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusSasl {
    Plain,
    #[value(name = "scram-sha-256")]
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    #[value(name = "scram-sha-512")]
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

/// Flags of every command with a bus; use with `#[command(flatten)]`.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct BusConfig {
    /// Bus to publish to and to consume from: sqlite:DIRECTORY or
    /// kafka+tls://USER@HOST:PORT,HOST:PORT/PREFIX. kafka:// is without TLS; the prefix is for
    /// clusters that several installations share.
    #[arg(long, value_name = "URL", default_value = "sqlite:./data")]
    pub bus: BusUrl,
    /// Password of the URL's user.
    #[arg(long, value_name = "PASSWORD", default_value = "")]
    pub bus_password: Secret,
    /// Mechanism with which the URL's user signs in.
    #[arg(long, value_name = "MECHANISM", default_value = "scram-sha-512")]
    pub bus_sasl: BusSasl,
    /// PEM file of the authorities for the brokers' certificates; those of the system by default.
    #[arg(long, value_name = "FILE")]
    pub bus_ca: Option<PathBuf>,
    /// PEM file of this service's certificate, for brokers that ask for one.
    #[arg(long, value_name = "FILE", requires = "bus_key")]
    pub bus_cert: Option<PathBuf>,
    /// PEM file of its key.
    #[arg(long, value_name = "FILE", requires = "bus_cert")]
    pub bus_key: Option<PathBuf>,
    /// Copies of each record that Kafka keeps; topics with fewer are refused.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub bus_replication: u16,
    /// Copies that must be written before a record counts as published; topics with a lower minimum
    /// are refused.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub bus_in_sync_min: u16,
    /// Create no topics and refuse to start without them, for a user who may not create topics.
    #[arg(long)]
    pub bus_no_create_topics: bool,
}

impl BusConfig {
    /// Waits for a cluster that does not answer and reports why; `None` if the service is asked to
    /// end before it does.
    pub async fn open(&self, context: &Context) -> Result<Option<Arc<dyn Bus>>, ConfigError> {
        let options = match &self.bus {
            BusUrl::Embedded(dir) => return open_embedded(dir).map(Some),
            BusUrl::Kafka(url) => self.options(url)?,
        };
        // Only a service that had to wait shows the check.
        let check: Mutex<Option<CheckHandle>> = Mutex::new(None);
        let waiting = |reason: &str| {
            tracing::warn!("{reason}");
            let mut check = check.lock();
            check
                .get_or_insert_with(|| context.health().check("kafka"))
                .failing(reason.to_owned());
        };
        let opened = tokio::select! {
            opened = KafkaBus::open(options, waiting) => opened.map_err(|e| refused(&e))?,
            () = context.shutdown().requested() => return Ok(None),
        };
        if let Some(check) = check.lock().as_ref() {
            check.ok();
        }
        Ok(Some(Arc::new(opened)))
    }

    /// The same for a command of a person, who sees what it waits for.
    pub async fn open_for_a_person(&self) -> Result<Arc<dyn Bus>, ConfigError> {
        let options = match &self.bus {
            BusUrl::Embedded(dir) => return open_embedded(dir),
            BusUrl::Kafka(url) => self.options(url)?,
        };
        let bus = KafkaBus::open(options, |reason| eprintln!("{reason}")).await;
        Ok(Arc::new(bus.map_err(|error| refused(&error))?))
    }

    /// The same for a reader: it creates nothing, and waits no longer than this.
    pub async fn examine(&self, within: Duration) -> Result<Arc<dyn Bus>, ConfigError> {
        let options = match &self.bus {
            BusUrl::Embedded(dir) if !dir.join("bus.db").exists() => {
                let reason = format!("there is no bus in {}", dir.display());
                let example = "--bus sqlite:DIRECTORY of a running installation";
                return Err(ConfigError::new("bus", reason, example));
            }
            BusUrl::Embedded(dir) => return open_embedded(dir),
            BusUrl::Kafka(url) => KafkaOptions {
                create_topics: false,
                ..self.options(url)?
            },
        };
        let last = Mutex::new(String::new());
        let opening = KafkaBus::open(options, |reason| *last.lock() = reason.to_owned());
        match tokio::time::timeout(within, opening).await {
            Ok(opened) => Ok(Arc::new(opened.map_err(|error| refused(&error))?)),
            Err(_) => {
                let reason = format!("after {within:?}: {}", last.lock());
                Err(ConfigError::new("bus", reason, EXAMPLE))
            }
        }
    }

    fn options(&self, url: &KafkaUrl) -> Result<KafkaOptions, ConfigError> {
        for (field, file) in [
            ("bus_ca", &self.bus_ca),
            ("bus_cert", &self.bus_cert),
            ("bus_key", &self.bus_key),
        ] {
            let Some(file) = file else { continue };
            let flag = field.replace('_', "-");
            if !url.tls {
                let reason = "kafka:// is without TLS: write kafka+tls://";
                return Err(ConfigError::new(field, reason, EXAMPLE));
            }
            if let Err(error) = std::fs::File::open(file) {
                let reason = format!("{}: {error}", file.display());
                return Err(ConfigError::new(
                    field,
                    reason,
                    format!("--{flag} {flag}.pem"),
                ));
            }
        }
        let sasl = match &url.user {
            None => None,
            Some(_) if !url.tls && !url.is_on_this_machine() => {
                return Err(ConfigError::new(
                    "bus",
                    "the password would be sent unencrypted: write kafka+tls://",
                    EXAMPLE,
                ));
            }
            Some(user) => Some(Sasl {
                mechanism: match self.bus_sasl {
                    BusSasl::Plain => SaslMechanism::Plain,
                    BusSasl::ScramSha256 => SaslMechanism::ScramSha256,
                    BusSasl::ScramSha512 => SaslMechanism::ScramSha512,
                },
                user: user.clone(),
                password: Password(self.bus_password.expose().to_owned()),
            }),
        };
        let (copies, in_sync) = (self.bus_replication, self.bus_in_sync_min);
        if copies == 0 || in_sync == 0 || in_sync > copies {
            return Err(ConfigError::new(
                "bus_in_sync_min",
                format!("{in_sync} of {copies} copies: wanted are 1 to --bus-replication"),
                "--bus-replication 3 --bus-in-sync-min 2",
            ));
        }
        Ok(KafkaOptions {
            prefix: url.prefix.clone(),
            tls: url.tls.then(|| Tls {
                ca: self.bus_ca.clone(),
                cert: self.bus_cert.clone(),
                key: self.bus_key.clone(),
            }),
            sasl,
            create_topics: !self.bus_no_create_topics,
            replication: copies,
            in_sync_min: in_sync,
            gathering: vec![duty::STORING_VITALS.group, duty::STORING_PATHS.group],
            ..KafkaOptions::new(url.brokers.clone())
        })
    }
}

/// Flags of commands for people: the bus in the data directory, or that of `--bus`; use with
/// `#[command(flatten)]`.
#[derive(Clone, Debug, clap::Args)]
pub struct BusChoice {
    /// Data directory of the embedded engines.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    pub(super) data: PathBuf,
    /// Another bus: sqlite:DIRECTORY or kafka+tls://USER@HOST:PORT,HOST:PORT/PREFIX.
    #[arg(long, value_name = "URL", env = "BRAID_BUS")]
    bus: Option<BusUrl>,
    /// Password of the URL's user.
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "BRAID_BUS_PASSWORD",
        default_value = ""
    )]
    bus_password: Secret,
    /// Mechanism with which the URL's user signs in.
    #[arg(
        long,
        value_name = "MECHANISM",
        env = "BRAID_BUS_SASL",
        default_value = "scram-sha-512"
    )]
    bus_sasl: BusSasl,
    /// PEM file of the authorities for the brokers' certificates.
    #[arg(long, value_name = "FILE", env = "BRAID_BUS_CA")]
    bus_ca: Option<PathBuf>,
    /// PEM file of a certificate that the brokers accept, such as a service's.
    #[arg(
        long,
        value_name = "FILE",
        env = "BRAID_BUS_CERT",
        requires = "bus_key"
    )]
    bus_cert: Option<PathBuf>,
    /// PEM file of its key.
    #[arg(
        long,
        value_name = "FILE",
        env = "BRAID_BUS_KEY",
        requires = "bus_cert"
    )]
    bus_key: Option<PathBuf>,
}

impl BusChoice {
    pub async fn open(&self) -> Result<Arc<dyn Bus>, ConfigError> {
        let config = BusConfig {
            bus: self
                .bus
                .clone()
                .unwrap_or_else(|| BusUrl::Embedded(self.data.clone())),
            bus_password: self.bus_password.clone(),
            bus_sasl: self.bus_sasl,
            bus_ca: self.bus_ca.clone(),
            bus_cert: self.bus_cert.clone(),
            bus_key: self.bus_key.clone(),
            // Reading a topic must not fail for its number of copies, and creates no topic.
            bus_replication: 1,
            bus_in_sync_min: 1,
            bus_no_create_topics: true,
        };
        config.open_for_a_person().await
    }
}

pub fn open_embedded(dir: &Path) -> Result<Arc<dyn Bus>, ConfigError> {
    let bus = EmbeddedBus::open(dir, EmbeddedOptions::default()).map_err(|error| {
        ConfigError::new(
            "bus",
            format!("{}: {error}", dir.display()),
            "--bus sqlite:./data",
        )
    })?;
    Ok(Arc::new(bus))
}

fn refused(error: &OpenError) -> ConfigError {
    let (field, example) = match error {
        OpenError::Credentials { .. } => ("bus_password", "BRAID_INGEST_BUS_PASSWORD=..."),
        OpenError::Tls { .. } => ("bus_ca", "--bus-ca ca.pem"),
        OpenError::Replication { .. } => ("bus_replication", "--bus-replication 3"),
        _ => ("bus", EXAMPLE),
    };
    ConfigError::new(field, error.to_string(), example)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_engines_are_named_by_their_urls() {
        for text in [
            "sqlite:/a/b",
            "kafka://localhost:9092",
            "kafka+tls://braid@kafka-1:9093,kafka-2:9093/ward-",
        ] {
            let url: BusUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
        }
        for text in [
            "",
            "/a/b",
            "sqlite:",
            "kafka:b:9092",
            "kafka://b",
            "kafka://b:9092,",
            "kafka://b:port",
            "kafka://@b:9092",
            "kafka://b:9092/with space",
            "kafka+tls://u:secret@h:1",
            "mysql:x",
        ] {
            let refused = text.parse::<BusUrl>();
            assert!(
                refused
                    .as_ref()
                    .is_err_and(|reason| reason.contains("sqlite:")),
                "{text}"
            );
            assert!(!format!("{refused:?}").contains("secret"));
        }
    }

    fn config(args: &[&str]) -> BusConfig {
        let command = BusConfig::augment_args(clap::Command::new("test").no_binary_name(true));
        let matches = command.try_get_matches_from(args).unwrap();
        clap::FromArgMatches::from_arg_matches(&matches).unwrap()
    }

    fn options(args: &[&str]) -> Result<KafkaOptions, ConfigError> {
        let config = config(args);
        match &config.bus {
            BusUrl::Kafka(url) => config.options(url),
            BusUrl::Embedded(_) => panic!("not Kafka"),
        }
    }

    use clap::Args;

    #[test]
    fn passwords_and_files_without_effect_are_refused() {
        let field = |args: &[&str]| options(args).map(|_| ()).unwrap_err().field;
        assert_eq!(field(&["--bus=kafka://u@far:9092"]), "bus");
        assert!(options(&["--bus=kafka://u@127.0.0.1:9092"]).is_ok());
        assert_eq!(field(&["--bus=kafka://b:1", "--bus-ca=ca.pem"]), "bus_ca");
        assert_eq!(
            field(&["--bus=kafka+tls://b:1", "--bus-ca=/no/such/file"]),
            "bus_ca"
        );
        assert_eq!(
            field(&["--bus=kafka://b:1", "--bus-replication=1"]),
            "bus_in_sync_min"
        );
    }

    #[test]
    fn the_password_is_masked() {
        let config = config(&["--bus=kafka+tls://u@b:1", "--bus-password=hunter2"]);
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(!toml::to_string(&config).unwrap().contains("hunter2"));
        let options = options(&["--bus=kafka+tls://u@b:1", "--bus-password=hunter2"]).unwrap();
        assert!(!format!("{options:?}").contains("hunter2"));
        assert_eq!(options.sasl.unwrap().password.0, "hunter2");
    }
}
