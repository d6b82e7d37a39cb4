//! The required properties of topics, and the texts for a topic without them.

use std::{collections::BTreeMap, fmt};

use super::options::{DEAD_LETTERS_KEPT, KafkaOptions, MESSAGE_BYTES_MAX};
use crate::Topic;

/// Kept only as long as a person may want to look.
const READINESS_KEPT_MS: u128 = 60 * 60 * 1000;
/// Codecs that this build of librdkafka can read.
const COMPRESSIONS: [&str; 4] = ["producer", "lz4", "snappy", "uncompressed"];

/// A topic as required.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    pub partitions: u32,
    pub replication: u16,
    pub in_sync_min: u16,
    pub retention_ms: u128,
}

/// A topic as the cluster has it.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub partitions: u32,
    /// The number of the partition with the fewest copies.
    pub replication: u16,
    pub config: BTreeMap<String, String>,
}

impl Wanted {
    pub fn all(options: &KafkaOptions) -> Vec<Wanted> {
        let wanted = |name: String, partitions, retention_ms| Wanted {
            name,
            partitions,
            replication: options.replication,
            in_sync_min: options.in_sync_min,
            retention_ms,
        };
        let kept = |topic| match topic {
            Topic::DeadLetters => DEAD_LETTERS_KEPT.max(options.retention).as_millis(),
            Topic::Vitals | Topic::Alerts | Topic::Paths => options.retention.as_millis(),
        };
        let mut all: Vec<Wanted> = Topic::ALL
            .into_iter()
            .map(|topic| {
                wanted(
                    options.topic(topic),
                    topic.default_partitions(),
                    kept(topic),
                )
            })
            .collect();
        // As many partitions as vitals, so that the probes try about the same brokers.
        all.push(wanted(
            options.readiness_topic(),
            Topic::Vitals.default_partitions(),
            READINESS_KEPT_MS,
        ));
        all
    }

    /// Settings of a topic that is created.
    pub fn config(&self) -> Vec<(&'static str, String)> {
        vec![
            ("min.insync.replicas", self.in_sync_min.to_string()),
            ("retention.ms", self.retention_ms.to_string()),
            ("cleanup.policy", "delete".to_owned()),
            ("max.message.bytes", MESSAGE_BYTES_MAX.to_string()),
            ("compression.type", "producer".to_owned()),
            // The bus's clock, not the publisher's: retention must not depend on a wrong clock.
            ("message.timestamp.type", "LogAppendTime".to_owned()),
            // A copy that missed records never becomes the leader.
            ("unclean.leader.election.enable", "false".to_owned()),
        ]
    }

    /// Every property that is wrong; empty when the topic is suitable.
    pub fn wrong(&self, found: &Found, bootstrap: &str) -> Vec<WrongSetting> {
        let mut wrong = self.wrong_layout(found, bootstrap);
        wrong.extend(self.wrong_config(found, bootstrap));
        wrong
    }

    fn wrong_setting(&self, setting: &str, is: String, must: String, fix: String) -> WrongSetting {
        WrongSetting {
            topic: self.name.clone(),
            setting: setting.to_owned(),
            is,
            must,
            fix,
        }
    }

    fn wrong_layout(&self, found: &Found, bootstrap: &str) -> Vec<WrongSetting> {
        let mut wrong = Vec::new();
        let topic = &self.name;
        if found.partitions < self.partitions {
            wrong.push(self.wrong_setting(
                "partitions",
                found.partitions.to_string(),
                format!("{} or more", self.partitions),
                format!(
                    "kafka-topics.sh --bootstrap-server {bootstrap} --alter --topic {topic} --partitions {} (while all services are stopped and have read everything: keys move to other partitions)",
                    self.partitions
                ),
            ));
        }
        if found.replication < self.replication {
            wrong.push(self.wrong_setting(
                "replication",
                found.replication.to_string(),
                format!("{} or more", self.replication),
                format!(
                    "kafka-reassign-partitions.sh --bootstrap-server {bootstrap} with {} replicas for {topic}, or start with --bus-replication {}",
                    self.replication, found.replication
                ),
            ));
        }
        wrong
    }

    fn wrong_config(&self, found: &Found, bootstrap: &str) -> Vec<WrongSetting> {
        let mut wrong = Vec::new();
        let topic = &self.name;
        let set = |name: &str, value: &str| {
            format!(
                "kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics --entity-name {topic} --add-config {name}={value}"
            )
        };
        let number = |name: &str| {
            found
                .config
                .get(name)
                .and_then(|text| text.parse::<i128>().ok())
        };
        if let Some(is) = number("min.insync.replicas") {
            let (min, max) = (i128::from(self.in_sync_min), i128::from(found.replication));
            if is < min || is > max {
                let must = if is < min {
                    format!("{min} or more")
                } else {
                    format!("{max} or less, the topic's replication")
                };
                wrong.push(self.wrong_setting(
                    "min.insync.replicas",
                    is.to_string(),
                    must,
                    set("min.insync.replicas", &min.to_string()),
                ));
            }
        }
        let retention_ms = i128::try_from(self.retention_ms).unwrap_or(i128::MAX);
        if let Some(is) = number("retention.ms").filter(|is| (0..retention_ms).contains(is)) {
            wrong.push(self.wrong_setting(
                "retention.ms",
                is.to_string(),
                format!("{retention_ms} or more, or -1"),
                set("retention.ms", &retention_ms.to_string()),
            ));
        }
        let bytes_min = MESSAGE_BYTES_MAX as i128;
        if let Some(is) = number("max.message.bytes").filter(|is| *is < bytes_min) {
            wrong.push(self.wrong_setting(
                "max.message.bytes",
                is.to_string(),
                format!("{bytes_min} or more"),
                set("max.message.bytes", &bytes_min.to_string()),
            ));
        }
        if let Some(is) = found
            .config
            .get("cleanup.policy")
            .filter(|is| *is != "delete")
        {
            wrong.push(self.wrong_setting(
                "cleanup.policy",
                is.clone(),
                "delete: compaction would keep one record a patient".to_owned(),
                set("cleanup.policy", "delete"),
            ));
        }
        if let Some(is) = found
            .config
            .get("compression.type")
            .filter(|is| !COMPRESSIONS.contains(&is.as_str()))
        {
            wrong.push(self.wrong_setting(
                "compression.type",
                is.clone(),
                format!("one of {}", COMPRESSIONS.join(", ")),
                set("compression.type", "producer"),
            ));
        }
        wrong
    }

    /// The command that creates the topic, for clusters where Braid has no right to.
    pub fn create_command(&self, bootstrap: &str) -> String {
        let config: String = self
            .config()
            .iter()
            .map(|(name, value)| format!(" --config {name}={value}"))
            .collect();
        format!(
            "kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {} --partitions {} --replication-factor {}{config}",
            self.name, self.partitions, self.replication
        )
    }
}

/// The present value, the required value, and the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongSetting {
    pub topic: String,
    pub setting: String,
    pub is: String,
    pub must: String,
    pub fix: String,
}

impl fmt::Display for WrongSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongSetting {
            topic,
            setting,
            is,
            must,
            fix,
        } = self;
        write!(
            f,
            "topic {topic}: {setting} is {is}, must be {must}\n  to fix: {fix}"
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn vitals() -> Wanted {
        Wanted::all(&KafkaOptions::new(vec!["b:1".into()])).remove(0)
    }

    fn as_created(wanted: &Wanted) -> Found {
        Found {
            partitions: wanted.partitions,
            replication: wanted.replication,
            config: wanted
                .config()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }
    }

    #[test]
    fn what_is_created_is_accepted_and_more_is_too() {
        for wanted in Wanted::all(&KafkaOptions::new(vec!["b:1".into()])) {
            assert_eq!(wanted.wrong(&as_created(&wanted), "b:1"), []);
        }
        let wanted = vitals();
        let mut found = as_created(&wanted);
        found.partitions += 4;
        found.config.insert("retention.ms".into(), "-1".into());
        found.config.insert("compression.type".into(), "lz4".into());
        assert_eq!(wanted.wrong(&found, "b:1"), []);
    }

    #[test]
    fn each_wrong_setting_is_named_with_its_fix() {
        let wanted = vitals();
        let cases = [
            ("min.insync.replicas", "1"),
            ("min.insync.replicas", "4"),
            ("retention.ms", "1000"),
            ("max.message.bytes", "1048588"),
            ("cleanup.policy", "compact"),
            ("compression.type", "zstd"),
        ];
        for (setting, is) in cases {
            let mut found = as_created(&wanted);
            found.config.insert(setting.into(), is.into());
            let wrong = wanted.wrong(&found, "b:1");
            assert_eq!(wrong.len(), 1, "{setting}={is}: {wrong:?}");
            assert_eq!(
                (wrong[0].setting.as_str(), wrong[0].is.as_str()),
                (setting, is)
            );
            assert!(
                wrong[0]
                    .fix
                    .contains(&format!("--entity-name vitals --add-config {setting}="))
            );
        }
        let mut found = as_created(&wanted);
        (found.partitions, found.replication) = (2, 1);
        let settings: Vec<String> = wanted
            .wrong(&found, "b:1")
            .into_iter()
            .map(|wrong| wrong.setting)
            .collect();
        // With one copy, two in sync are never possible.
        assert_eq!(
            settings,
            ["partitions", "replication", "min.insync.replicas"]
        );
    }
}
