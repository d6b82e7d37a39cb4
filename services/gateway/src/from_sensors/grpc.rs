//! `GatewayService.Record`: one answer per request, in order.

use std::{net::IpAddr, sync::Arc};

use contracts::vitals::{
    RecordRequest, RecordResponse, Rejection, gateway_service_server::GatewayService,
};
use service_kit::Shutdown;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    clock::Moment,
    intake::{Intake, Patience, RecordError},
    journal::Disk,
};

/// Answers that a sensor has not read yet; at the bound its next request waits.
const ANSWERS_MAX: usize = 16;

pub struct Recorder<D: Disk> {
    intake: Arc<Intake<D>>,
    shutdown: Shutdown,
}

impl<D: Disk> Recorder<D> {
    pub fn new(intake: Arc<Intake<D>>, shutdown: Shutdown) -> Self {
        Self { intake, shutdown }
    }
}

#[tonic::async_trait]
impl<D: Disk> GatewayService for Recorder<D> {
    type RecordStream = ReceiverStream<Result<RecordResponse, Status>>;

    async fn record(
        &self,
        request: Request<Streaming<RecordRequest>>,
    ) -> Result<Response<Self::RecordStream>, Status> {
        let parent = request
            .metadata()
            .get("traceparent")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let from = super::caller::sender(request.extensions().get());
        let requests = request.into_inner();
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let intake = Arc::clone(&self.intake);
        let shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = answer_all(&intake, requests, &answers, from, parent.as_deref()) => {}
                () = shutdown.requested() => {
                    // A sensor that is gone does not get the status.
                    let _ = answers.try_send(Err(Status::unavailable("the gateway is stopping; reconnect")));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

async fn answer_all<D: Disk>(
    intake: &Intake<D>,
    mut requests: Streaming<RecordRequest>,
    answers: &mpsc::Sender<Result<RecordResponse, Status>>,
    from: Option<IpAddr>,
    parent: Option<&str>,
) {
    loop {
        let request = match requests.message().await {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(%status, "a sensor's stream ended");
                return;
            }
        };
        let answer = match intake
            .record(request.samples, Moment::now(), Patience::Wait, from, parent)
            .await
        {
            Ok(recorded) => Ok(RecordResponse {
                request: request.request,
                accepted: recorded.accepted as u32,
                rejections: recorded
                    .refused
                    .iter()
                    .map(|(index, refused)| Rejection {
                        index: *index as u32,
                        reason: refused.to_string(),
                    })
                    .collect(),
            }),
            Err(error) => Err(status_of(&error)),
        };
        let ends = answer.is_err();
        if answers.send(answer).await.is_err() || ends {
            return;
        }
    }
}

fn status_of(error: &RecordError) -> Status {
    match error {
        RecordError::TooMany(_) => Status::invalid_argument(error.to_string()),
        RecordError::Busy => Status::resource_exhausted(error.to_string()),
        RecordError::Alerts(_) | RecordError::Journal(_) => Status::unavailable(error.to_string()),
    }
}
