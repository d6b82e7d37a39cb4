//! ADT messages of the hospital: MLLP over TLS. Both ends have certificates.
//!
//! A message is acknowledged when the store has it (AA), or when the dead letters have it (AE, AR).
//! While the store or the bus is away there is no answer: the connection ends, and the sender keeps
//! the message and sends it again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bus::{Bus, Record, Topic, dead_letter};
use service_kit::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::ack::{Answer, acknowledgement};
use crate::adt::Adt;
use crate::hl7::{self, Message};
use crate::mllp::{Decoder, frame};
use crate::to_store::{NotStored, Patients};

/// Connections at once. An interface engine has one for each feed.
pub const CONNECTIONS_MAX: usize = 64;
/// Longest handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Longest time for the store's and the bus's answers to one message.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Name of the consumer, and of the origin, in the headers of a dead letter.
pub const CONSUMER: &str = "exchange";
pub const ORIGIN: &str = "hospital";
/// The header with the tenant.
pub const TENANT: &str = "tenant";
const READ_BYTES: usize = 16 << 10;

pub struct Door {
    pub patients: Patients,
    pub tenant: String,
    pub bus: Arc<dyn Bus>,
    pub context: Context,
    numbers: AtomicU64,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Frame(#[from] crate::mllp::FrameError),
    #[error("no answer to a message, which the sender keeps: {0}")]
    Unanswered(String),
    #[error("the peer ended within a message")]
    Within,
}

impl Door {
    pub fn new(patients: Patients, tenant: &str, bus: Arc<dyn Bus>, context: Context) -> Door {
        Door {
            patients,
            tenant: tenant.to_owned(),
            bus,
            context,
            numbers: AtomicU64::new(0),
        }
    }

    /// Ends when shutdown is requested, after the answers to messages in progress.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tls: TlsAcceptor) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let shutdown = self.context.shutdown().clone();
        loop {
            let accepted = tokio::select! {
                () = shutdown.requested() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, from)) = accepted else {
                // No descriptor is free, or the peer has gone.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                tracing::warn!(%from, "a connection of the hospital is refused: {CONNECTIONS_MAX} are open");
                continue;
            };
            let (door, tls) = (Arc::clone(&self), tls.clone());
            self.context.tasks().spawn(async move {
                door.connection(stream, from, tls).await;
                drop(place);
            });
        }
    }

    async fn connection(&self, stream: TcpStream, from: SocketAddr, tls: TlsAcceptor) {
        let _ = stream.set_nodelay(true);
        let stream = match tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::warn!(%from, %error, "a connection of the hospital is refused");
                return;
            }
            Err(_) => {
                tracing::warn!(%from, "no TLS handshake of the hospital");
                return;
            }
        };
        tracing::info!(%from, "the hospital is connected");
        match self.messages(stream).await {
            Ok(()) => tracing::info!(%from, "the hospital has ended its connection"),
            Err(error) => tracing::warn!(%from, %error, "a connection of the hospital has ended"),
        }
    }

    async fn messages(&self, mut stream: TlsStream<TcpStream>) -> Result<(), Ended> {
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = tokio::select! {
                () = self.context.shutdown().requested() => return Ok(()),
                count = stream.read(&mut buffer) => count?,
            };
            if count == 0 && decoder.is_inside() {
                return Err(Ended::Within);
            }
            if count == 0 {
                return Ok(());
            }
            for bytes in decoder.take(buffer.get(..count).unwrap_or_default())? {
                let answered = tokio::time::timeout(ANSWER_WITHIN, self.answer(&bytes)).await;
                let late = |_| Ended::Unanswered("the engines do not answer".to_owned());
                let answer = answered.map_err(late)??;
                stream.write_all(&frame(answer.as_bytes())).await?;
                stream.flush().await?;
            }
        }
    }

    /// The acknowledgement of one message.
    async fn answer(&self, bytes: &[u8]) -> Result<String, Ended> {
        let message = Message::parse(bytes);
        let answer = match &message {
            Ok(message) => match take(&self.patients, message).await {
                Ok(changes) => {
                    tracing::info!(message = %named(message), changes, "the hospital's message is stored");
                    Answer::Accepted
                }
                Err(Taken::NotUnderstood(reason)) => Answer::Rejected(reason),
                Err(Taken::Refused(reason)) => Answer::Refused(reason),
                Err(Taken::Unavailable(reason)) => return Err(Ended::Unanswered(reason)),
            },
            Err(error) => Answer::Rejected(error.to_string()),
        };
        metrics::counter!("braid_exchange_messages_total", "answer" => answer.code()).increment(1);
        if answer != Answer::Accepted {
            self.keep(bytes, answer.reason()).await?;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let now = hl7::time(contracts::now_us());
        Ok(acknowledgement(
            message.as_ref().ok(),
            &answer,
            &now,
            number,
        ))
    }

    /// The message in the dead letters, for a person who corrects the cause and replays it.
    async fn keep(&self, bytes: &[u8], reason: &str) -> Result<(), Ended> {
        tracing::error!(reason, "a message of the hospital goes to the dead letters");
        metrics::counter!("braid_bus_dead_letters_total", "consumer" => CONSUMER).increment(1);
        let record = Record::new(ORIGIN, bytes.to_vec())
            .header(dead_letter::REASON, reason.to_owned())
            .header(dead_letter::CONSUMER, CONSUMER)
            .header(dead_letter::TOPIC, ORIGIN)
            .header(TENANT, self.tenant.clone());
        let kept = self.bus.publish(Topic::DeadLetters, vec![record]).await;
        kept.map_err(|error| Ended::Unanswered(error.to_string()))
    }
}

/// Why a message is not stored.
#[derive(Debug, thiserror::Error)]
pub enum Taken {
    #[error("{0}")]
    NotUnderstood(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Unavailable(String),
}

/// Stores a message. Returns the number of changes; a message that comes again makes none.
pub async fn take(patients: &Patients, message: &Message) -> Result<usize, Taken> {
    let adt = Adt::read(message).map_err(|error| Taken::NotUnderstood(error.to_string()))?;
    match patients.take(&adt, &named(message)).await {
        Ok(changes) => Ok(changes),
        Err(NotStored::Refused(reason)) => Err(Taken::Refused(reason)),
        Err(NotStored::Unavailable(reason)) => Err(Taken::Unavailable(reason)),
    }
}

/// The message in logs and in the audit log: event, sender and control id, no health data.
fn named(message: &Message) -> String {
    let value = |field: usize, component: usize| message.value("MSH", field, component);
    let text = format!(
        "ADT {} {} of {} {}",
        value(9, 2),
        value(10, 1),
        value(3, 1),
        value(4, 1)
    );
    text.chars()
        .filter(|it| !it.is_control())
        .take(120)
        .collect()
}
