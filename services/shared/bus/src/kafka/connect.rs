//! The start: the cluster must answer, accept the credentials, and have suitable topics.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication},
    config::FromClientConfigAndContext,
    error::KafkaError,
    types::RDKafkaErrorCode,
};

use super::{
    open_error::OpenError,
    options::KafkaOptions,
    publisher::Publisher,
    topics::{Found, Wanted},
    trouble::{Complaint, Listener, Trouble},
};

/// Limit of one question to the cluster; the first contains the connection and its handshakes.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// First pause between questions to the cluster; each pause doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause between questions to the cluster.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A failed TLS handshake may be a broker that is just ending; so many in a row are an error.
const TLS_FAILURES_MAX: u32 = 3;
/// Questions until a created topic must exist with all its leaders.
const CREATED_WITHIN_ROUNDS: u32 = 20;

/// A cluster as its brokers describe it.
struct Described {
    brokers: usize,
    /// Partitions with a leader, partitions, fewest copies; by name.
    topics: BTreeMap<String, (u32, u32, u16)>,
}

/// Waits until the cluster answers, possibly without end; `waiting` is called with the reason once
/// for each attempt. Returns the partitions of each topic by name.
pub async fn prepare(
    options: &KafkaOptions,
    publisher: &Publisher,
    trouble: &Arc<Trouble>,
    waiting: &(dyn Fn(&str) + Send + Sync),
) -> Result<BTreeMap<String, u32>, OpenError> {
    let user = options
        .sasl
        .as_ref()
        .map_or("an unnamed user", |sasl| sasl.user.as_str());
    let forbidden = |what: &str, error: String| OpenError::Forbidden {
        brokers: options.bootstrap(),
        user: user.to_owned(),
        what: what.to_owned(),
        reason: error,
    };
    let wanted = Wanted::all(options);
    let mut tls_failures = 0;
    let mut rounds_after_creation = 0;
    let mut pause = PAUSE_MIN;
    let mut admin = None;
    loop {
        let described = match describe(publisher).await {
            Ok(described) => described,
            Err(error) => {
                let complaint = trouble.last();
                if let Some(refused) = refusal(options, user, complaint.as_ref(), &mut tls_failures)
                {
                    return Err(refused);
                }
                waiting(&trouble.explain(&format!(
                    "waiting for Kafka at {}: {error}",
                    options.bootstrap()
                )));
                rest(&mut pause).await;
                continue;
            }
        };
        trouble.over();
        let admin = match &mut admin {
            Some(admin) => admin,
            none => none.insert(
                AdminClient::from_config_and_context(&options.client(), Listener(trouble.clone()))
                    .map_err(|error| OpenError::Options(error.to_string()))?,
            ),
        };
        let missing: Vec<&Wanted> = wanted
            .iter()
            .filter(|wanted| !described.topics.contains_key(&wanted.name))
            .collect();
        if let Some(first) = missing.first() {
            if !options.create_topics {
                return Err(OpenError::Missing {
                    topic: first.name.clone(),
                    fix: first.create_command(&options.bootstrap()),
                });
            }
            rounds_after_creation += 1;
            if rounds_after_creation > CREATED_WITHIN_ROUNDS {
                return Err(OpenError::Topic {
                    topic: first.name.clone(),
                    reason: "it was created and has not appeared".into(),
                });
            }
            if let Err(error) = create(admin, &missing, described.brokers, &forbidden).await? {
                waiting(&format!("waiting for Kafka to create topics: {error}"));
            }
            rest(&mut pause).await;
            continue;
        }
        let leaderless = wanted.iter().find(|wanted| {
            let topic = described.topics.get(&wanted.name);
            topic.is_some_and(|(led, partitions, _)| led < partitions)
        });
        if let Some(topic) = leaderless {
            waiting(&format!(
                "waiting for Kafka: topic {} has partitions without a leader",
                topic.name
            ));
            rest(&mut pause).await;
            continue;
        }
        let config = match configuration(admin, &wanted).await {
            Ok(config) => config,
            Err(error) if is_forbidden(&error) => {
                return Err(forbidden("read the topics' settings", error.to_string()));
            }
            Err(error) => {
                waiting(&format!(
                    "waiting for Kafka to show its topics' settings: {error}"
                ));
                rest(&mut pause).await;
                continue;
            }
        };
        return check(options, &wanted, &described, config);
    }
}

fn check(
    options: &KafkaOptions,
    wanted: &[Wanted],
    described: &Described,
    mut config: BTreeMap<String, BTreeMap<String, String>>,
) -> Result<BTreeMap<String, u32>, OpenError> {
    let mut wrong = Vec::new();
    let mut partitions_of = BTreeMap::new();
    for wanted in wanted {
        let (_, partitions, replication) = described
            .topics
            .get(&wanted.name)
            .copied()
            .unwrap_or_default();
        let found = Found {
            partitions,
            replication,
            config: config.remove(&wanted.name).unwrap_or_default(),
        };
        wrong.extend(wanted.wrong(&found, &options.bootstrap()));
        partitions_of.insert(wanted.name.clone(), partitions);
    }
    if wrong.is_empty() {
        Ok(partitions_of)
    } else {
        Err(OpenError::Settings(wrong))
    }
}

/// A condition that waiting will not heal.
fn refusal(
    options: &KafkaOptions,
    user: &str,
    complaint: Option<&Complaint>,
    tls_failures: &mut u32,
) -> Option<OpenError> {
    let complaint = complaint?;
    let (brokers, reason) = (options.bootstrap(), complaint.reason.clone());
    match complaint.code {
        RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => {
            Some(OpenError::Credentials {
                brokers,
                user: user.to_owned(),
                reason,
            })
        }
        code if code == RDKafkaErrorCode::SSL || refuses_certificate(&reason) => {
            *tls_failures += 1;
            (*tls_failures >= TLS_FAILURES_MAX).then_some(OpenError::Tls { brokers, reason })
        }
        _ => {
            *tls_failures = 0;
            None
        }
    }
}

/// In TLS 1.3 a client has finished its handshake before the broker has checked its certificate.
/// The refusal comes as an alert on an open connection, and the library reports a lost connection.
fn refuses_certificate(reason: &str) -> bool {
    reason.contains("alert") && (reason.contains("certificate") || reason.contains("unknown ca"))
}

async fn rest(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(PAUSE_MAX);
}

async fn describe(publisher: &Publisher) -> Result<Described, KafkaError> {
    let metadata = publisher.metadata(ANSWER_WITHIN).await?;
    let topics = metadata
        .topics()
        .iter()
        .filter(|topic| topic.error().is_none())
        .map(|topic| {
            let partitions = topic.partitions();
            let led = partitions.iter().filter(|p| p.leader() >= 0).count();
            let copies = partitions.iter().map(|p| p.replicas().len()).min();
            (
                topic.name().to_owned(),
                (
                    u32::try_from(led).unwrap_or(u32::MAX),
                    u32::try_from(partitions.len()).unwrap_or(u32::MAX),
                    u16::try_from(copies.unwrap_or(0)).unwrap_or(u16::MAX),
                ),
            )
        })
        .collect();
    Ok(Described {
        brokers: metadata.brokers().len(),
        topics,
    })
}

/// The inner error may pass.
async fn create(
    admin: &AdminClient<Listener>,
    missing: &[&Wanted],
    brokers: usize,
    forbidden: &(dyn Fn(&str, String) -> OpenError + Sync),
) -> Result<Result<(), String>, OpenError> {
    let configs: Vec<Vec<(&'static str, String)>> =
        missing.iter().map(|wanted| wanted.config()).collect();
    let topics: Vec<NewTopic<'_>> = missing
        .iter()
        .zip(&configs)
        .map(|(wanted, config)| {
            let topic = NewTopic::new(
                &wanted.name,
                i32::try_from(wanted.partitions).unwrap_or(i32::MAX),
                TopicReplication::Fixed(i32::from(wanted.replication)),
            );
            config
                .iter()
                .fold(topic, |topic, (name, value)| topic.set(name, value))
        })
        .collect();
    let created = admin
        .create_topics(&topics, &admin_options())
        .await
        .map_err(|error| error.to_string());
    let created = match created {
        Ok(created) => created,
        Err(error) => return Ok(Err(error)),
    };
    for (result, wanted) in created.into_iter().zip(missing) {
        match result {
            Ok(topic) => tracing::info!(topic, "created"),
            // Another service created the topic first.
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, RDKafkaErrorCode::InvalidReplicationFactor)) => {
                return Err(OpenError::Replication {
                    topic,
                    wanted: wanted.replication,
                    brokers,
                });
            }
            Err((topic, code)) if is_forbidden_code(code) => {
                return Err(forbidden(
                    &format!("create topic {topic}"),
                    format!(
                        "{code}\n  to fix: grant it, or create the topics and start with --bus-no-create-topics"
                    ),
                ));
            }
            Err((
                topic,
                code @ (RDKafkaErrorCode::PolicyViolation
                | RDKafkaErrorCode::InvalidConfig
                | RDKafkaErrorCode::InvalidTopic
                | RDKafkaErrorCode::InvalidPartitions),
            )) => {
                return Err(OpenError::Topic {
                    topic,
                    reason: format!("it cannot be created: {code}"),
                });
            }
            Err((topic, code)) => return Ok(Err(format!("{topic}: {code}"))),
        }
    }
    Ok(Ok(()))
}

async fn configuration(
    admin: &AdminClient<Listener>,
    wanted: &[Wanted],
) -> Result<BTreeMap<String, BTreeMap<String, String>>, KafkaError> {
    let resources: Vec<ResourceSpecifier<'_>> = wanted
        .iter()
        .map(|wanted| ResourceSpecifier::Topic(&wanted.name))
        .collect();
    let answers = admin.describe_configs(&resources, &admin_options()).await?;
    let mut all = BTreeMap::new();
    // Answers come in the order of the questions.
    for (answer, wanted) in answers.into_iter().zip(wanted) {
        let entries = answer.map_err(KafkaError::AdminOp)?.entries;
        let settings = entries
            .into_iter()
            .filter_map(|entry| Some((entry.name, entry.value?)))
            .collect();
        all.insert(wanted.name.clone(), settings);
    }
    Ok(all)
}

fn admin_options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(ANSWER_WITHIN))
        .operation_timeout(Some(ANSWER_WITHIN))
}

fn is_forbidden(error: &KafkaError) -> bool {
    matches!(error, KafkaError::AdminOp(code) if is_forbidden_code(*code))
}

fn is_forbidden_code(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_certificate_is_told_from_a_lost_connection() {
        assert!(refuses_certificate(
            "ssl://127.0.0.1:9093/bootstrap: Disconnected: SSL alert number 42: bad certificate"
        ));
        assert!(refuses_certificate("tlsv1 alert unknown ca"));
        assert!(!refuses_certificate(
            "127.0.0.1:9093/bootstrap: Connect to ipv4#127.0.0.1:9093 failed: Connection refused"
        ));
    }
}
