//! One link to ingest: uploads one way, answers the other.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use contracts::compact::Encoder;
use contracts::vitals::{
    UploadRequest, UploadResponse, ingest_service_client::IngestServiceClient,
};
use service_kit::grpc::ChannelError;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::Channel;
use tunnel::CopyNumber;

use super::sender::Generation;
use crate::{
    clock::{Clock, CoreClock},
    from_ingest::Follower,
    revocation::Revocation,
};

pub(super) struct Link {
    pub(super) generation: Generation,
    /// Uploads to send.
    pub(super) requests: mpsc::Sender<UploadRequest>,
    /// Which copy its next uploads are.
    pub(super) copy: CopyNumber,
    /// End of the alerts that it took although entries before them could not be read.
    pub(super) passed_by: u64,
    task: JoinHandle<()>,
}

pub(super) enum LinkEvent {
    Up(Generation),
    Lost(Generation, String),
    Answer(Generation, UploadResponse),
}

impl Link {
    /// Opens a link. Its fate is reported by `events`.
    pub(super) fn open(
        generation: Generation,
        in_flight_max: usize,
        (channel, copy): (Result<Channel, ChannelError>, CopyNumber),
        (clock, core, revocation): (Clock, Arc<CoreClock>, Revocation),
        rules: Option<Follower>,
        events: mpsc::Sender<LinkEvent>,
    ) -> Link {
        let (requests, queue) = mpsc::channel(in_flight_max);
        let task = tokio::spawn(async move {
            let reason = match channel {
                Ok(channel) => {
                    let client = IngestServiceClient::new(channel);
                    carry(
                        client,
                        queue,
                        (clock, &core, &revocation),
                        generation,
                        &events,
                        rules,
                    )
                    .await
                }
                Err(error) => error.to_string(),
            };
            // The courier that is gone needs no news.
            let _ = events.send(LinkEvent::Lost(generation, reason)).await;
        });
        Link {
            generation,
            requests,
            copy,
            passed_by: 0,
            task,
        }
    }

    pub(super) fn end(&self) {
        self.task.abort();
    }
}

/// Runs one link; returns why it ended.
async fn carry(
    mut client: IngestServiceClient<Channel>,
    queue: mpsc::Receiver<UploadRequest>,
    (clock, core, revocation): (Clock, &CoreClock, &Revocation),
    generation: Generation,
    events: &mpsc::Sender<LinkEvent>,
    rules: Option<Follower>,
) -> String {
    let link = client.clone();
    let takes_compact = Arc::new(AtomicBool::new(false));
    let compacts = Arc::clone(&takes_compact);
    let mut encoder = Encoder::default();
    // As late as possible, because time in the queue would count as an error of the clock.
    let requests = ReceiverStream::new(queue).map(move |request| {
        let mut request = clock().stamp(request);
        if compacts.load(Ordering::Relaxed) {
            encoder.compact(&mut request);
        }
        request
    });
    let mut answers = match client.upload(requests).await {
        Ok(response) => response.into_inner(),
        Err(status) => {
            revocation.on_status(&status);
            return status.to_string();
        }
    };
    if events.send(LinkEvent::Up(generation)).await.is_err() {
        return "the gateway is stopping".to_owned();
    }
    let uploading = async {
        loop {
            match answers.message().await {
                Ok(Some(answer)) => {
                    core.on_answer(answer.core_time_us, clock());
                    revocation.on_answer();
                    if answer.takes_compact {
                        takes_compact.store(true, Ordering::Relaxed);
                    }
                    if events
                        .send(LinkEvent::Answer(generation, answer))
                        .await
                        .is_err()
                    {
                        return "the gateway is stopping".to_owned();
                    }
                }
                Ok(None) => return "ingest ended the stream".to_owned(),
                Err(status) => {
                    revocation.on_status(&status);
                    return status.to_string();
                }
            }
        }
    };
    let following = async {
        if let Some(rules) = rules {
            rules.follow(link).await;
        }
        std::future::pending().await
    };
    tokio::select! {
        reason = uploading => reason,
        never = following => never,
    }
}
