//! Observations for the hospital: ORU messages by MLLP over TLS, with the certificate of the feed.
//!
//! Every interval each monitored patient's newest values are sent, where they are newer than those
//! that the hospital has acknowledged. The store keeps every reading; the hospital gets one value
//! of each metric in an interval. While the hospital is away nothing is queued: its next message
//! has the newest values.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use contracts::patients::{Patient, PatientStatus};
use contracts::vitals::Metric;
use rustls_pki_types::ServerName;
use service_kit::{Context, Warning, WarningHandle};
use store::{LatestVital, Scope, Stays, Store, each_latest_vital};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::hl7::Message;
use crate::mllp::{Decoder, frame};
use crate::oru;

/// Longest connecting, with its handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait for the acknowledgement of one message.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 16 << 10;

/// Where observations go.
pub struct Destination {
    /// `HOST:PORT`.
    pub address: String,
    pub name: ServerName<'static>,
    pub tls: TlsConnector,
    pub every: Duration,
}

/// Why a round was not finished.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("the store: {0}")]
    Store(#[from] store::QueryError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Frame(#[from] crate::mllp::FrameError),
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the hospital ended the connection before its answer")]
    Ended,
}

pub struct Observations {
    store: Arc<dyn Store>,
    scope: Scope,
    to: Destination,
    context: Context,
    warning: WarningHandle,
    connection: Option<TlsStream<TcpStream>>,
    /// Times of the newest acknowledged value by patient and metric, of present patients only.
    sent: HashMap<(String, Metric), i64>,
    number: u64,
}

impl Observations {
    pub fn new(store: Arc<dyn Store>, tenant: &str, to: Destination, context: Context) -> Self {
        Self {
            store,
            scope: Scope::tenant(tenant),
            to,
            warning: context.health().warning("observations"),
            context,
            connection: None,
            sent: HashMap::new(),
            number: 0,
        }
    }

    pub async fn run(mut self) {
        let shutdown = self.context.shutdown().clone();
        let mut ticks = tokio::time::interval(self.to.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                _ = ticks.tick() => {}
            }
            let round = tokio::select! {
                () = shutdown.requested() => return,
                round = self.round() => round,
            };
            let wrong = round.err().map(|error| {
                self.connection = None;
                tracing::warn!(%error, to = self.to.address, "observations do not reach the hospital");
                Warning {
                    says: format!("observations do not reach {}: {error}", self.to.address),
                    to_do: "look at the hospital's interface engine, and at its certificate".into(),
                }
            });
            self.warning.set(wrong);
        }
    }

    async fn round(&mut self) -> Result<(), Failed> {
        let mut newest: HashMap<String, Vec<LatestVital>> = HashMap::new();
        let store = Arc::clone(&self.store);
        let catalogue = store::take_catalogue(&*store).await?;
        for damaged in catalogue.damaged {
            tracing::warn!("{damaged}");
        }
        each_latest_vital(&*store, &self.scope, |it| {
            newest.entry(it.patient.clone()).or_default().push(it);
        })
        .await?;
        let present = store.patient_records(&self.scope, Stays::Present).await?;
        let is_present = |id: &str| {
            present
                .binary_search_by(|it| it.id.as_str().cmp(id))
                .is_ok()
        };
        self.sent.retain(|(patient, _), _| is_present(patient));
        for patient in &present {
            if patient.status() == PatientStatus::Admitted
                && let Some(newest) = newest.remove(&patient.id)
            {
                self.send_newer(patient, newest).await?;
            }
        }
        Ok(())
    }

    async fn send_newer(
        &mut self,
        patient: &Patient,
        mut newest: Vec<LatestVital>,
    ) -> Result<(), Failed> {
        let key = |it: &LatestVital| (it.patient.clone(), it.metric);
        newest.retain(|it| {
            self.sent
                .get(&key(it))
                .is_none_or(|sent| *sent < it.device_time_us)
        });
        self.number += 1;
        let Some(message) = oru::report(patient, &newest, contracts::now_us(), self.number) else {
            return Ok(());
        };
        let asked = tokio::time::timeout(ANSWER_WITHIN, self.ask(&message)).await;
        let answer = asked.map_err(|_| Failed::Late(ANSWER_WITHIN))??;
        let code = answer.value("MSA", 1, 1).into_owned();
        let is_taken = matches!(code.as_str(), "AA" | "CA");
        let answer_label = if is_taken { "accepted" } else { "refused" };
        metrics::counter!("braid_exchange_observations_total", "answer" => answer_label)
            .increment(1);
        if !is_taken {
            // Again it would be refused again, so later values are sent.
            let reason = answer.value("ERR", 8, 1);
            tracing::warn!(patient = patient.id, code, %reason, "the hospital refuses observations");
        }
        self.sent
            .extend(newest.iter().map(|it| (key(it), it.device_time_us)));
        Ok(())
    }

    /// The acknowledgement of a message.
    async fn ask(&mut self, message: &str) -> Result<Message, Failed> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.write_all(&frame(message.as_bytes())).await?;
        connection.flush().await?;
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = connection.read(&mut buffer).await?;
            if count == 0 {
                return Err(Failed::Ended);
            }
            let answers = decoder.take(buffer.get(..count).unwrap_or_default())?;
            let answer = answers.iter().find_map(|it| Message::parse(it).ok());
            if let Some(answer) = answer {
                self.connection = Some(connection);
                return Ok(answer);
            }
        }
    }

    async fn connect(&self) -> Result<TlsStream<TcpStream>, Failed> {
        let connecting = async {
            let stream = TcpStream::connect(&self.to.address).await?;
            stream.set_nodelay(true)?;
            self.to.tls.connect(self.to.name.clone(), stream).await
        };
        let connected = tokio::time::timeout(CONNECT_WITHIN, connecting).await;
        Ok(connected.map_err(|_| Failed::Late(CONNECT_WITHIN))??)
    }
}
