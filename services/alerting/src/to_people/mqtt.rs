//! MQTT 3.1.1: publishes each notice to `<prefix>/<tenant>/<patient>/<priority>` at QoS 1. A notice
//! counts as delivered when the broker has acknowledged it.
//!
//! The first notice opens a connection, and a failure closes it. The notice under way is published
//! again by the next connection, so no late acknowledgement counts for another notice.
//!
//! A heartbeat goes to `<prefix>/heartbeat` by a connection of its own. A receiver confirms it by
//! `{"confirmed": CHALLENGE}` at `<prefix>/heartbeat/confirmed`. The broker's acknowledgement alone
//! confirms nothing: there may be no subscriber.

mod connection;
mod packets;

use std::{path::Path, time::Duration};

use rustls_pki_types::ServerName;
use service_kit::{
    ConfigError, Secret,
    config::parse_address,
    https::{bare_host, believing, is_loopback},
};
use tokio::{sync::Mutex, time::Instant};

use connection::{Broker, Connection, ConnectionError};
use packets::Login;

use super::{
    heartbeat::{Heartbeat, confirms},
    message::{Message, Undelivered, priority},
};

/// Limit of each step of an attempt. The first step waits for its turn, the second one publishes.
/// Together they fit into the lease of a notice.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Least limit of publishing by the kept connection, which may be half open. A new connection has
/// the rest of [`CALL_LIMIT`], and the broker may get the notice twice, with one key.
const KEPT_LIMIT_MIN: Duration = Duration::from_secs(1);
/// A broker whose answers would need a longer limit gets a new connection for each notice.
const KEPT_LIMIT_MAX: Duration = Duration::from_secs(5);
/// A receiver's reply to a heartbeat, from the connection on.
const REPLY_LIMIT: Duration = Duration::from_secs(20);

pub(super) struct Mqtt {
    broker: Broker,
    prefix: String,
    kept: Mutex<Kept>,
}

/// The connection between two notices.
#[derive(Default)]
struct Kept {
    connection: Option<Connection>,
    /// How long the broker's answers take, at most lately.
    answers_in: Duration,
}

impl Kept {
    /// Limit of publishing by the connection: twice the time of the slowest answer lately, so that
    /// a slow broker does not get each notice twice. `None`: it is not kept.
    fn limit(&self) -> Option<Duration> {
        let limit = (2 * self.answers_in).max(KEPT_LIMIT_MIN);
        (limit <= KEPT_LIMIT_MAX).then_some(limit)
    }

    /// The broker has answered after this time. Faster answers lower the limit slowly.
    fn answered(&mut self, connection: Connection, took: Duration) {
        self.answers_in = took.max(self.answers_in * 7 / 8);
        self.connection = self.limit().map(|_| connection);
    }
}

pub(super) struct Settings<'a> {
    pub url: &'a str,
    pub user: Option<&'a str>,
    pub password: Option<&'a Secret>,
    pub ca: Option<&'a Path>,
    pub prefix: &'a str,
}

impl Mqtt {
    pub(super) fn new(settings: &Settings<'_>) -> Result<Mqtt, ConfigError> {
        let refused = |reason: &str| {
            ConfigError::new("mqtt", reason, "--mqtt mqtts://broker.example.org:8883")
        };
        let uri =
            parse_address(settings.url, &["mqtt", "mqtts"]).map_err(|reason| refused(&reason))?;
        let host = bare_host(uri.host().ok_or_else(|| refused("has no host"))?);
        let (default_port, tls) = match uri.scheme_str() {
            Some("mqtts") => {
                let ca = settings.ca.ok_or_else(|| {
                    ConfigError::new(
                        "mqtt_ca",
                        "mqtts needs a trusted certificate authority",
                        "--mqtt-ca /etc/ssl/certs/ca-certificates.crt",
                    )
                })?;
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| refused("has a host that no certificate can name"))?;
                (8883, Some((believing("mqtt_ca", ca)?, name)))
            }
            Some("mqtt") if is_loopback(&host) => (1883, None),
            Some("mqtt") => {
                return Err(refused(
                    "would send health data in the clear to another machine",
                ));
            }
            _ => return Err(refused("is neither mqtt nor mqtts")),
        };
        let prefix = settings.prefix.trim_matches('/');
        if prefix.is_empty() || prefix.contains(['+', '#']) || prefix.chars().any(char::is_control)
        {
            return Err(ConfigError::new(
                "mqtt_prefix",
                "is empty or has a wildcard",
                "--mqtt-prefix braid/alerts",
            ));
        }
        let login = match (settings.user, settings.password) {
            (Some(user), Some(password)) => Some(Login {
                user: user.to_owned(),
                password: password.clone(),
            }),
            (None, None) => None,
            _ => {
                return Err(ConfigError::new(
                    "mqtt_password",
                    "user and password go together",
                    "--mqtt-user braid --mqtt-password ...",
                ));
            }
        };
        let broker = Broker {
            port: uri.port_u16().unwrap_or(default_port),
            host,
            tls,
            client: format!(
                "braid-alerting-{}-{}",
                std::process::id(),
                contracts::now_us()
            ),
            login,
        };
        Ok(Mqtt {
            broker,
            prefix: prefix.to_owned(),
            kept: Mutex::default(),
        })
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<(), Undelivered> {
        self.send_within(CALL_LIMIT, message).await
    }

    /// Applies `limit` to each of the two steps.
    async fn send_within(&self, limit: Duration, message: &Message<'_>) -> Result<(), Undelivered> {
        let mut payload = message.json();
        payload["key"] = message.key().into();
        let payload = payload.to_string();
        let topic = self.topic(message);
        let late = || Undelivered {
            reason: format!("no answer within {} s", limit.as_secs()),
            is_retryable: true,
        };
        let turn = tokio::time::timeout(limit, self.kept.lock()).await;
        let mut kept = turn.map_err(|_| late())?;
        let begun = Instant::now();
        let idle = kept.connection.take();
        if let Some(connection) = idle.filter(Connection::is_usable)
            && let Some(kept_limit) = kept.limit()
        {
            let publishing = connection.publish(&topic, &payload);
            match tokio::time::timeout(kept_limit.min(limit), publishing).await {
                Ok(Ok(connection)) => {
                    kept.answered(connection, begun.elapsed());
                    return Ok(());
                }
                Ok(Err(_)) => {}
                // The broker may have it, and answer late.
                Err(_) => {
                    metrics::counter!("braid_alerting_mqtt_repeated_total").increment(1);
                }
            }
        }
        let opened = Instant::now();
        let rest = limit.saturating_sub(begun.elapsed());
        let published = tokio::time::timeout(rest, self.publish_anew(&topic, &payload)).await;
        let connection = published
            .map_err(|_| late())?
            .map_err(|error| Undelivered {
                is_retryable: error.is_retryable(),
                reason: error.to_string(),
            })?;
        kept.answered(connection, opened.elapsed());
        Ok(())
    }

    async fn publish_anew(
        &self,
        topic: &str,
        payload: &str,
    ) -> Result<Connection, ConnectionError> {
        let connection = Connection::open(&self.broker).await?;
        connection.publish(topic, payload).await
    }

    /// Whether a receiver confirms the heartbeat.
    pub(super) async fn prove(&self, heartbeat: &Heartbeat<'_>) -> Result<bool, Undelivered> {
        let mut is_published = false;
        let asked = self.ask(heartbeat, &mut is_published);
        match tokio::time::timeout(REPLY_LIMIT, asked).await {
            Ok(asked) => asked.map(|()| true).map_err(|error| Undelivered {
                is_retryable: error.is_retryable(),
                reason: error.to_string(),
            }),
            Err(_) if is_published => Ok(false),
            Err(_) => Err(Undelivered {
                reason: format!("no answer within {} s", REPLY_LIMIT.as_secs()),
                is_retryable: true,
            }),
        }
    }

    /// Returns when a receiver has replied. `is_published`: the broker has the heartbeat.
    async fn ask(
        &self,
        heartbeat: &Heartbeat<'_>,
        is_published: &mut bool,
    ) -> Result<(), ConnectionError> {
        let broker = self.broker.beside("heartbeat");
        let topic = format!("{}/heartbeat", self.prefix);
        let replies = format!("{topic}/confirmed");
        let payload = serde_json::json!({
            "kind": "heartbeat",
            "challenge": heartbeat.secret,
            "reply_to": replies,
            "confirm_url": heartbeat.link(),
        });
        let connection = Connection::open(&broker).await?;
        let is_reply = |reply: &[u8]| confirms(reply, heartbeat.secret);
        connection
            .ask_subscribers(
                &topic,
                &payload.to_string(),
                &replies,
                is_published,
                is_reply,
            )
            .await
    }

    fn topic(&self, message: &Message<'_>) -> String {
        let notice = message.first();
        let alert = notice.and_then(|notice| notice.alert.as_ref());
        let level = |text: &str, none: &str| {
            let clean: String = text
                .chars()
                .map(|c| {
                    if matches!(c, '/' | '+' | '#') || c.is_control() {
                        '_'
                    } else {
                        c
                    }
                })
                .collect();
            if clean.is_empty() {
                none.to_owned()
            } else {
                clean
            }
        };
        format!(
            "{}/{}/{}/{}",
            self.prefix,
            level(notice.map_or("", |notice| &notice.tenant), "unregistered"),
            level(alert.map_or("", |alert| &alert.patient), "none"),
            alert.map_or_else(String::new, priority)
        )
    }
}

#[cfg(test)]
#[path = "../../tests/support/mqtt_packet.rs"]
mod mqtt_packet;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use contracts::alerts::Notice;
    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    use mqtt_packet::packet;

    fn publisher(port: u16) -> Mqtt {
        let mqtt = Mqtt::new(&Settings {
            url: &format!("mqtt://127.0.0.1:{port}"),
            user: None,
            password: None,
            ca: None,
            prefix: "braid",
        });
        mqtt.unwrap_or_else(|error| panic!("{error}"))
    }

    #[tokio::test]
    async fn a_notice_is_not_waited_with_beyond_its_lease() {
        let mqtt = publisher(1);
        let _under_way = mqtt.kept.lock().await;
        let notice = Notice::default();
        let notices = [&notice];
        let message = Message::new(&notices, None);
        let sending = mqtt.send_within(Duration::from_millis(20), &message);
        let sent = tokio::time::timeout(Duration::from_secs(30), sending).await;
        assert!(sent.unwrap().is_err_and(|it| it.is_retryable));
    }

    /// Acknowledges the first publication of a connection.
    async fn acknowledge_one(stream: &mut TcpStream) -> std::io::Result<()> {
        loop {
            let (first, body) = packet(stream).await?;
            let kind = first >> 4;
            if kind == 1 {
                stream.write_all(&[0x20, 2, 0, 0]).await?;
            }
            if kind == 3 {
                let id = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                return stream.write_all(&[0x40, 2, body[id], body[id + 1]]).await;
            }
        }
    }

    #[tokio::test]
    async fn a_half_open_connection_is_replaced_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mqtt = publisher(listener.local_addr().unwrap().port());
        tokio::spawn(async move {
            // Each stays open behind its first publication, and nobody reads it.
            let mut half_open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                acknowledge_one(&mut stream).await.unwrap();
                half_open.push(stream);
            }
        });
        let notice = Notice::default();
        let notices = [&notice];
        let message = Message::new(&notices, None);
        assert!(mqtt.send(&message).await.is_ok());
        let again = tokio::time::timeout(3 * KEPT_LIMIT_MIN, mqtt.send(&message)).await;
        assert!(again.is_ok_and(|sent| sent.is_ok()));
    }

    #[tokio::test]
    async fn a_broker_that_always_answers_late_gets_each_notice_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mqtt = publisher(listener.local_addr().unwrap().port());
        let keys = Arc::<parking_lot::Mutex<Vec<String>>>::default();
        let received = Arc::clone(&keys);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let received = Arc::clone(&received);
                tokio::spawn(async move {
                    while let Ok((first, body)) = packet(&mut stream).await {
                        if first >> 4 == 1 {
                            stream.write_all(&[0x20, 2, 0, 0]).await.unwrap();
                        }
                        if first >> 4 != 3 {
                            continue;
                        }
                        let id = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                        let notice: serde_json::Value =
                            serde_json::from_slice(&body[id + 2..]).unwrap();
                        let key = notice["key"].as_str().unwrap().to_owned();
                        received.lock().push(key);
                        // The broker is slow: that is the case under test.
                        tokio::time::sleep(KEPT_LIMIT_MIN * 3 / 2).await;
                        let answer = [0x40, 2, body[id], body[id + 1]];
                        // The other end may have given up.
                        let _ = stream.write_all(&answer).await;
                    }
                });
            }
        });
        let ids = ["one", "two", "three"];
        for id in ids {
            let notice = Notice {
                id: id.to_owned(),
                ..Notice::default()
            };
            let notices = [&notice];
            let message = Message::new(&notices, None);
            assert!(mqtt.send(&message).await.is_ok(), "{id}");
        }
        let keys = keys.lock();
        let mut once = keys.clone();
        once.dedup();
        assert_eq!((keys.len(), once.len()), (ids.len(), ids.len()), "{keys:?}");
    }

    #[tokio::test]
    async fn a_failure_names_its_cause() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mqtt = publisher(listener.local_addr().unwrap().port());
        tokio::spawn(async move {
            for answer in [&[0x20, 2, 0, 5][..], &[0x30, 0], &[]] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let connect = packet(&mut stream).await.unwrap();
                assert_eq!(connect.0, 0x10);
                stream.write_all(answer).await.unwrap();
            }
        });
        let notice = Notice::default();
        let notices = [&notice];
        let message = Message::new(&notices, None);
        for cause in ["not authorized", "0x30", "closed", "cannot be reached"] {
            let failed = mqtt.send(&message).await.unwrap_err();
            assert!(failed.reason.contains(cause), "{cause}: {}", failed.reason);
            assert!(failed.is_retryable, "{cause}");
        }
        let long = "x".repeat(packets::PACKET_BYTES_MAX);
        let too_long = packets::publish(1, "topic", &long).unwrap_err();
        assert!(!ConnectionError::from(too_long).is_retryable());
    }

    #[test]
    fn a_broker_that_needs_most_of_a_call_gets_a_connection_for_each_notice() {
        let mut kept = Kept::default();
        assert_eq!(kept.limit(), Some(KEPT_LIMIT_MIN));
        let mut answered = |took| {
            kept.answers_in = took;
            kept.limit()
        };
        assert_eq!(answered(KEPT_LIMIT_MIN), Some(2 * KEPT_LIMIT_MIN));
        assert_eq!(answered(KEPT_LIMIT_MAX / 2), Some(KEPT_LIMIT_MAX));
        assert_eq!(answered(KEPT_LIMIT_MAX), None);
    }
}
