//! Options of a Kafka bus: addresses, credentials, and the required properties of its topics.

use std::{fmt, path::PathBuf, time::Duration};

use rdkafka::ClientConfig;

use crate::{RECORD_BYTES_MAX, Topic};

/// A record at its limit in a batch of its own, with the bytes that Kafka adds.
pub const MESSAGE_BYTES_MAX: usize = RECORD_BYTES_MAX + (64 << 10);
/// Longest wait of a broker for further records of a group that gathers.
const GATHER_WITHIN: Duration = Duration::from_millis(100);
/// Bytes of records that end this wait.
const GATHER_BYTES: usize = 256 << 10;

#[derive(Debug, Clone)]
pub struct KafkaOptions {
    /// `host:port` of some brokers; they name the others.
    pub brokers: Vec<String>,
    /// Prefix of the names of topics and groups, so that several installations can share a cluster.
    pub prefix: String,
    pub tls: Option<Tls>,
    pub sasl: Option<Sasl>,
    /// Create topics that are missing.
    pub create_topics: bool,
    /// Copies of each record; a topic with fewer is refused.
    pub replication: u16,
    /// Copies that must be written before a record counts as published; a topic that asks for fewer
    /// is refused.
    pub in_sync_min: u16,
    /// Minimum retention of vitals, alerts and paths. Dead letters are kept [`DEAD_LETTERS_KEPT`]
    /// or longer.
    pub retention: Duration,
    /// Groups that take records together, a moment after they came: a store, where each
    /// transaction costs about the same, whatever it writes. Others get each record at once.
    pub gathering: Vec<&'static str>,
    /// A member that the cluster does not hear from for this long is replaced.
    pub session: Duration,
    /// A member that does not call `next` for this long loses its partitions until it does. At
    /// least `session`.
    pub poll_within: Duration,
    /// How long `publish` waits for room in the queue.
    pub room_within: Duration,
    /// How long `publish` waits for all in-sync copies. Above the 9 s that a cluster needs to
    /// replace a dead leader.
    pub deliver_within: Duration,
}

/// Long enough for a person to return from holidays and look.
pub const DEAD_LETTERS_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

impl KafkaOptions {
    /// Defaults for a cluster of three brokers.
    pub fn new(brokers: Vec<String>) -> KafkaOptions {
        KafkaOptions {
            brokers,
            prefix: String::new(),
            tls: None,
            sasl: None,
            create_topics: true,
            replication: 3,
            in_sync_min: 2,
            retention: Duration::from_secs(7 * 24 * 3600),
            gathering: Vec::new(),
            session: Duration::from_secs(6),
            poll_within: Duration::from_secs(60),
            room_within: Duration::from_secs(10),
            deliver_within: Duration::from_secs(20),
        }
    }

    pub fn bootstrap(&self) -> String {
        self.brokers.join(",")
    }

    pub fn topic(&self, topic: Topic) -> String {
        format!("{}{topic}", self.prefix)
    }

    /// Written by `ready`; no consumer reads it.
    pub fn readiness_topic(&self) -> String {
        format!("{}readiness", self.prefix)
    }

    pub fn group(&self, group: &str) -> String {
        format!("{}{group}", self.prefix)
    }

    /// Settings that producer, consumer and administration share.
    pub(super) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.bootstrap())
            .set("client.id", "braid")
            .set("message.max.bytes", MESSAGE_BYTES_MAX.to_string())
            // A broker that hangs is replaced by another before the library's limit of a minute.
            .set("socket.timeout.ms", "10000")
            .set("socket.keepalive.enable", "true")
            .set("socket.nagle.disable", "true")
            // Brokers that return after an outage are used within a second.
            .set("reconnect.backoff.max.ms", "1000")
            .set("topic.metadata.refresh.interval.ms", "60000");
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(tls) = &self.tls {
            for (name, file) in [
                ("ssl.ca.location", &tls.ca),
                ("ssl.certificate.location", &tls.cert),
                ("ssl.key.location", &tls.key),
            ] {
                if let Some(file) = file {
                    config.set(name, file.display().to_string());
                }
            }
        }
        if let Some(sasl) = &self.sasl {
            config
                .set("sasl.mechanism", sasl.mechanism.name())
                .set("sasl.username", &sasl.user)
                .set("sasl.password", &sasl.password.0);
        }
        config
    }

    pub(super) fn producer(&self) -> ClientConfig {
        let mut config = self.client();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("compression.type", "lz4")
            // Callers hand over many records in one call; a longer pause would only delay an alert.
            .set("linger.ms", "1")
            .set("batch.size", "1000000")
            // `Publisher` counts the bytes in flight and waits; the library's own limits must not
            // apply first.
            .set("queue.buffering.max.messages", "0")
            .set(
                "queue.buffering.max.kbytes",
                (crate::IN_FLIGHT_BYTES_MAX / 1024 * 2).to_string(),
            )
            // Only a record whose caller has gone lives so long; see `Publisher`.
            .set(
                "message.timeout.ms",
                (self.deliver_within * 3).as_millis().to_string(),
            );
        config
    }

    fn consumer(&self) -> ClientConfig {
        let mut config = self.client();
        config
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("fetch.error.backoff.ms", "100")
            // Bytes fetched ahead of the service, besides one answer of each broker.
            .set("queued.max.messages.kbytes", "16384")
            .set("queued.min.messages", "20000")
            .set("fetch.queue.backoff.ms", "20");
        config
    }

    /// Reads partitions of its own choice. The library requires the name of a group even so, which
    /// is neither joined nor written to.
    pub(super) fn reader(&self) -> ClientConfig {
        let mut config = self.consumer();
        config.set("group.id", self.group("readers"));
        config
    }

    /// Cooperative: only partitions that move are interrupted, so alerting keeps its rule states of
    /// the other partitions.
    pub(super) fn member(&self, group: &str) -> ClientConfig {
        let mut config = self.consumer();
        config
            .set("group.id", self.group(group))
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", self.session.as_millis().to_string())
            .set(
                "heartbeat.interval.ms",
                (self.session / 5).as_millis().to_string(),
            )
            .set(
                "max.poll.interval.ms",
                self.poll_within.max(self.session).as_millis().to_string(),
            );
        if self.gathering.contains(&group) {
            config
                .set("fetch.wait.max.ms", GATHER_WITHIN.as_millis().to_string())
                .set("fetch.min.bytes", GATHER_BYTES.to_string());
        }
        config
    }
}

/// TLS to the brokers, 1.3 where they have it; names are checked.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// PEM file of authorities; the system's when absent.
    pub ca: Option<PathBuf>,
    /// PEM files of the client's own certificate and key, for brokers that require one.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub struct Sasl {
    pub mechanism: SaslMechanism,
    pub user: String,
    pub password: Password,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslMechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

impl SaslMechanism {
    pub const fn name(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Not shown by `Debug`.
#[derive(Clone)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn options() -> KafkaOptions {
        let mut options = KafkaOptions::new(vec!["a:1".into(), "b:2".into()]);
        options.prefix = "ward-".into();
        options.tls = Some(Tls {
            ca: Some("ca.pem".into()),
            ..Tls::default()
        });
        options.sasl = Some(Sasl {
            mechanism: SaslMechanism::ScramSha512,
            user: "braid".into(),
            password: Password("hunter2".into()),
        });
        options
    }

    #[test]
    fn a_producer_is_idempotent_and_waits_for_all_copies() {
        let config = options().producer();
        for (name, value) in [
            ("enable.idempotence", "true"),
            ("acks", "all"),
            ("bootstrap.servers", "a:1,b:2"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("ssl.ca.location", "ca.pem"),
        ] {
            assert_eq!(config.get(name), Some(value), "{name}");
        }
    }

    #[test]
    fn a_member_is_asked_to_live_longer_than_its_session() {
        let mut options = options();
        options.poll_within = Duration::from_secs(1);
        let config = options.member("ingest-store");
        assert_eq!(config.get("group.id"), Some("ward-ingest-store"));
        assert_eq!(config.get("max.poll.interval.ms"), Some("6000"));
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
    }

    #[test]
    fn only_a_group_that_gathers_lets_records_wait() {
        let mut options = options();
        options.gathering = vec!["ingest-store"];
        let config = options.member("ingest-store");
        assert_eq!(config.get("fetch.wait.max.ms"), Some("100"));
        assert_eq!(config.get("fetch.min.bytes"), Some("262144"));
        assert_eq!(options.member("alerting").get("fetch.min.bytes"), None);
    }

    #[test]
    fn the_password_is_not_shown() {
        assert!(!format!("{:?}", options()).contains("hunter2"));
    }
}
