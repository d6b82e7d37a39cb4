//! Why a Kafka cluster cannot be used.

use thiserror::Error;

use super::topics::WrongSetting;

#[derive(Debug, Error)]
pub enum OpenError {
    #[error("{0}")]
    Options(String),
    /// The brokers know another password, or no such user.
    #[error("Kafka at {brokers} refuses the credentials of {user}: {reason}")]
    Credentials {
        brokers: String,
        user: String,
        reason: String,
    },
    #[error("no TLS with Kafka at {brokers}: {reason}")]
    Tls { brokers: String, reason: String },
    #[error("Kafka at {brokers} forbids {user} to {what}: {reason}")]
    Forbidden {
        brokers: String,
        user: String,
        what: String,
        reason: String,
    },
    #[error("topic {topic} is missing\n  to fix: {fix}")]
    Missing { topic: String, fix: String },
    #[error(
        "topic {topic} cannot have {wanted} copies on {brokers} broker(s)\n  to fix: start more brokers, or accept fewer copies with --bus-replication {brokers} --bus-in-sync-min {brokers}"
    )]
    Replication {
        topic: String,
        wanted: u16,
        brokers: usize,
    },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Settings(Vec<WrongSetting>),
    #[error("topic {topic}: {reason}")]
    Topic { topic: String, reason: String },
}
