//! Sends the samples of patients to a gateway like a real sensor. Unacknowledged samples are sent
//! again after a reconnect; `sensor_sequence` identifies repeated ones.

use std::{collections::VecDeque, time::Duration};

use contracts::vitals::{
    RecordRequest, RecordResponse, Sample, gateway_service_client::GatewayServiceClient,
};
use service_kit::{Backoff, CheckHandle, Secret, Shutdown, grpc::ChannelError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, metadata::MetadataValue};

use crate::patient::{Episode, Patient};

/// Patients whose samples are due within this time share a request.
const TICK: Duration = Duration::from_millis(10);
/// Wait of a feed without patients.
const IDLE: Duration = Duration::from_secs(1);
/// Unacknowledged requests; at the bound samples gather.
const IN_FLIGHT_MAX: usize = 8;
const SAMPLES_PER_REQUEST_MAX: usize = 1_000;
/// Samples kept while the gateway is away, a quarter of an hour of one patient; at the bound the
/// oldest are dropped.
const WAITING_MAX: usize = 8_192;

/// One connection to a gateway, fed by any number of patients.
pub struct Feed {
    /// `http://127.0.0.1:8090`.
    pub url: String,
    pub token: Option<Secret>,
    pub patients: Vec<Patient>,
    /// Episodes to begin, by the patient's device.
    pub triggers: mpsc::Receiver<(String, Episode)>,
    /// Set to whether the gateway accepts samples.
    pub health: Option<CheckHandle>,
}

struct Connection {
    requests: mpsc::Sender<RecordRequest>,
    answers: Streaming<RecordResponse>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Sample>,
    in_flight: VecDeque<RecordRequest>,
    requests: u64,
    rejected: u64,
    dropped: u64,
}

impl Queue {
    fn push(&mut self, samples: Vec<Sample>) {
        self.waiting.extend(samples);
        while self.waiting.len() > WAITING_MAX {
            self.waiting.pop_front();
            self.dropped += 1;
        }
    }

    fn next_request(&mut self) -> Option<RecordRequest> {
        if self.in_flight.len() >= IN_FLIGHT_MAX || self.waiting.is_empty() {
            return None;
        }
        let count = self.waiting.len().min(SAMPLES_PER_REQUEST_MAX);
        self.requests += 1;
        let request = RecordRequest {
            request: self.requests,
            samples: self.waiting.drain(..count).collect(),
        };
        self.in_flight.push_back(request.clone());
        Some(request)
    }

    fn on_answer(&mut self, answer: &RecordResponse) {
        metrics::counter!("braid_swarm_accepted_samples_total").increment(answer.accepted.into());
        metrics::counter!("braid_swarm_rejected_samples_total")
            .increment(answer.rejections.len() as u64);
        self.rejected += answer.rejections.len() as u64;
        if let Some(rejection) = answer.rejections.first() {
            tracing::warn!(
                rejected = answer.rejections.len(),
                reason = rejection.reason,
                "the gateway refused samples"
            );
        }
        while self
            .in_flight
            .front()
            .is_some_and(|request| request.request <= answer.request)
        {
            self.in_flight.pop_front();
        }
    }

    /// It is unknown which samples the gateway has: all of them are sent again, in their old order.
    fn on_loss(&mut self) {
        while let Some(request) = self.in_flight.pop_back() {
            for sample in request.samples.into_iter().rev() {
                self.waiting.push_front(sample);
            }
        }
        self.push(Vec::new());
    }
}

impl Feed {
    /// Feeds until shutdown is requested.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<(), ChannelError> {
        let channel = service_kit::grpc::channel(&self.url, None)?;
        let mut client = GatewayServiceClient::new(channel);
        let mut queue = Queue::default();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        while !shutdown.is_requested() {
            let connected = tokio::select! {
                connected = self.connect(&mut client) => connected,
                () = shutdown.requested() => break,
            };
            let status = match connected {
                Ok(connection) => {
                    backoff.reset();
                    tokio::select! {
                        status = self.feed(connection, &mut queue) => status,
                        () = shutdown.requested() => break,
                    }
                }
                Err(status) => status,
            };
            tracing::debug!(%status, "no connection to the gateway");
            if let Some(health) = &self.health {
                health.failing(status.to_string());
            }
            queue.on_loss();
            tokio::select! {
                () = backoff.wait() => {}
                () = shutdown.requested() => break,
            }
        }
        if queue.dropped > 0 || queue.rejected > 0 {
            tracing::warn!(
                dropped = queue.dropped,
                rejected = queue.rejected,
                "samples were not delivered to the gateway"
            );
        }
        Ok(())
    }

    async fn connect(
        &self,
        client: &mut GatewayServiceClient<tonic::transport::Channel>,
    ) -> Result<Connection, Status> {
        let (requests, stream) = mpsc::channel(IN_FLIGHT_MAX);
        let mut request = Request::new(ReceiverStream::new(stream));
        if let Some(token) = &self.token {
            let value: MetadataValue<_> =
                format!("Bearer {}", token.expose()).parse().map_err(|_| {
                    Status::invalid_argument("the sensor token is not a valid header value")
                })?;
            request.metadata_mut().insert("authorization", value);
        }
        let answers = client.record(request).await?.into_inner();
        Ok(Connection { requests, answers })
    }

    /// Returns why the connection ended.
    async fn feed(&mut self, mut connection: Connection, queue: &mut Queue) -> Status {
        let mut triggers_open = true;
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.until_due(contracts::now_us())) => {
                    let now_us = contracts::now_us();
                    for patient in &mut self.patients {
                        queue.push(patient.next(now_us));
                    }
                }
                answer = connection.answers.message() => match answer {
                    Ok(Some(answer)) => {
                        queue.on_answer(&answer);
                        if let Some(health) = &self.health {
                            health.ok();
                        }
                    }
                    Ok(None) => return Status::unavailable("the gateway ended the stream"),
                    Err(status) => return status,
                },
                trigger = self.triggers.recv(), if triggers_open => match trigger {
                    Some((device, episode)) => self.trigger(&device, episode),
                    None => triggers_open = false,
                },
            }
            while let Some(request) = queue.next_request() {
                // The channel has room for the largest number of requests in flight.
                if connection.requests.send(request).await.is_err() {
                    return Status::unavailable("the gateway accepts no more requests");
                }
            }
        }
    }

    fn until_due(&self, now_us: i64) -> Duration {
        let due_us = self.patients.iter().map(Patient::due_us).min();
        let wait_us = due_us.map(|due_us| u64::try_from(due_us - now_us).unwrap_or(0));
        wait_us.map_or(IDLE, |us| Duration::from_micros(us).max(TICK))
    }

    fn trigger(&mut self, device: &str, episode: Episode) {
        let patient = self
            .patients
            .iter_mut()
            .find(|patient| patient.profile().device == device);
        match patient {
            Some(patient) => {
                let begun = patient.trigger(episode);
                tracing::info!(device, episode = episode.name(), begun, "episode triggered");
            }
            None => tracing::warn!(device, "no patient wears this device"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u64) -> Sample {
        Sample {
            sensor_sequence: Some(number),
            ..Sample::default()
        }
    }

    fn numbers<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<u64> {
        samples
            .into_iter()
            .filter_map(|sample| sample.sensor_sequence)
            .collect()
    }

    #[test]
    fn unacknowledged_samples_are_sent_again_in_order() {
        let mut queue = Queue::default();
        queue.push((1..=3).map(sample).collect());
        let first = queue.next_request();
        queue.push((4..=5).map(sample).collect());
        let second = queue.next_request();
        assert!(first.is_some() && second.is_some());
        queue.on_answer(&RecordResponse {
            request: 1,
            accepted: 3,
            rejections: Vec::new(),
        });
        queue.push(vec![sample(6)]);
        queue.on_loss();
        assert_eq!(numbers(&queue.waiting), [4, 5, 6]);
        assert_eq!(queue.in_flight.len(), 0);
    }

    #[test]
    fn the_queue_is_bounded_and_keeps_the_newest() {
        let mut queue = Queue::default();
        queue.push((0..WAITING_MAX as u64 + 5).map(sample).collect());
        assert_eq!(queue.waiting.len(), WAITING_MAX);
        assert_eq!(numbers(&queue.waiting).first(), Some(&5));
        let mut requests = 0;
        while queue.next_request().is_some() {
            requests += 1;
        }
        assert_eq!(requests, IN_FLIGHT_MAX);
    }
}
