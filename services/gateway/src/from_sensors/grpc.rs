//! `GatewayService.Record`: one answer per request, in order.
//!
//! Requests behind one that waits for an unknown device are stored meanwhile; only their answers
//! wait.

use std::{collections::VecDeque, net::IpAddr, sync::Arc};

use contracts::vitals::{
    AcknowledgeAlertRequest, AcknowledgeAlertResponse, FollowAlertsRequest, FollowAlertsResponse,
    RecordRequest, RecordResponse, Rejection, gateway_service_server::GatewayService,
};
use service_kit::Context;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    clock::Moment,
    from_carers::{Carers, LISTENERS_MAX, News, REVOKED, Refused},
    intake::{AcknowledgeError, Begun, Intake, Late, Patience, RecordError, Recorded},
    journal::Disk,
};

/// Answers that a sensor has not read yet; at the bound its next request waits.
const ANSWERS_MAX: usize = 16;
/// Requests of a stream that wait for an unknown device, or behind such a request for their answer.
/// At the bound the stream is not read until the wait is over.
const LATE_REQUESTS_MAX: usize = 256;

pub struct Recorder<D: Disk> {
    intake: Arc<Intake<D>>,
    carers: Arc<Carers<D>>,
    context: Context,
}

impl<D: Disk> Recorder<D> {
    pub fn new(intake: Arc<Intake<D>>, carers: Arc<Carers<D>>, context: Context) -> Self {
        Self {
            intake,
            carers,
            context,
        }
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
        let shutdown = self.context.shutdown().clone();
        self.context.tasks().spawn(async move {
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

    type FollowAlertsStream = ReceiverStream<Result<FollowAlertsResponse, Status>>;

    /// The list comes again while nothing changes. So a program notices a gateway that is gone.
    async fn follow_alerts(
        &self,
        _: Request<FollowAlertsRequest>,
    ) -> Result<Response<Self::FollowAlertsStream>, Status> {
        if self.intake.is_revoked() {
            return Err(Status::failed_precondition(REVOKED));
        }
        let again = self.intake.open_alerts().clone();
        let listening = self.carers.listeners.listen(move |news| {
            let alerts = match news {
                News::Alerts(alerts) => alerts,
                News::Nothing => again.list(Moment::now()),
            };
            Ok(FollowAlertsResponse { alerts })
        });
        let listening = listening.ok_or_else(|| {
            Status::resource_exhausted(format!("{LISTENERS_MAX} programs listen already"))
        })?;
        Ok(Response::new(ReceiverStream::new(listening)))
    }

    async fn acknowledge_alert(
        &self,
        request: Request<AcknowledgeAlertRequest>,
    ) -> Result<Response<AcknowledgeAlertResponse>, Status> {
        let AcknowledgeAlertRequest { id, by } = request.into_inner();
        let acknowledged = self.carers.acknowledge(&id, &by).await;
        let alert = acknowledged.map_err(|error| match &error {
            Refused::Name(_) => Status::invalid_argument(error.to_string()),
            Refused::Acknowledge(AcknowledgeError::Unknown(_)) => {
                Status::not_found(error.to_string())
            }
            Refused::Acknowledge(AcknowledgeError::Stored(_)) => {
                Status::unavailable(error.to_string())
            }
        })?;
        Ok(Response::new(AcknowledgeAlertResponse {
            alert: Some(alert),
        }))
    }
}

/// A request, in the order of the stream.
enum Waiting {
    Late(u64, Box<Late>),
    Answered(Result<RecordResponse, Status>),
}

async fn answer_all<D: Disk>(
    intake: &Intake<D>,
    mut requests: Streaming<RecordRequest>,
    answers: &mpsc::Sender<Result<RecordResponse, Status>>,
    from: Option<IpAddr>,
    parent: Option<&str>,
) {
    let mut waiting = VecDeque::new();
    let mut is_open = true;
    while is_open || !waiting.is_empty() {
        tokio::select! {
            request = requests.message(), if is_open && waiting.len() < LATE_REQUESTS_MAX => {
                match request {
                    Ok(Some(request)) => {
                        let begun = begin(intake, request, &waiting, from, parent).await;
                        waiting.push_back(begun);
                    }
                    Ok(None) => is_open = false,
                    Err(status) => {
                        tracing::debug!(%status, "a sensor's stream ended");
                        is_open = false;
                    }
                }
            }
            () = first_known(intake, &waiting), if !waiting.is_empty() => {
                if let Some(Waiting::Late(request, late)) = waiting.pop_front() {
                    let recorded = intake.finish(*late).await;
                    waiting.push_front(Waiting::Answered(answer(request, recorded)));
                }
            }
        }
        while let Some(Waiting::Answered(answer)) =
            waiting.pop_front_if(|first| matches!(first, Waiting::Answered(_)))
        {
            let ends = answer.is_err();
            if answers.send(answer).await.is_err() || ends {
                return;
            }
        }
    }
}

/// Stores what need not wait for an unknown device. Later samples of a device that waits do not
/// overtake the earlier ones.
async fn begin<D: Disk>(
    intake: &Intake<D>,
    request: RecordRequest,
    waiting: &VecDeque<Waiting>,
    from: Option<IpAddr>,
    parent: Option<&str>,
) -> Waiting {
    let is_late = |device: &str| {
        let mut late = waiting.iter();
        late.any(|it| matches!(it, Waiting::Late(_, late) if late.has(device)))
    };
    let (samples, number) = (request.samples, request.request);
    let begun = intake.begin(
        samples,
        Moment::now(),
        Patience::Wait,
        (from, parent),
        is_late,
    );
    match begun.await {
        Ok(Begun::Late(late)) => Waiting::Late(number, late),
        Ok(Begun::Done(recorded)) => Waiting::Answered(answer(number, Ok(recorded))),
        Err(error) => Waiting::Answered(answer(number, Err(error))),
    }
}

/// Returns when the first request need not wait any more.
async fn first_known<D: Disk>(intake: &Intake<D>, waiting: &VecDeque<Waiting>) {
    if let Some(Waiting::Late(_, late)) = waiting.front() {
        intake.until_known(late).await;
    }
}

fn answer(request: u64, recorded: Result<Recorded, RecordError>) -> Result<RecordResponse, Status> {
    let recorded = recorded.map_err(|error| status_of(&error))?;
    let rejections = recorded.refused.iter().map(|(index, refused)| Rejection {
        index: *index as u32,
        reason: refused.to_string(),
    });
    Ok(RecordResponse {
        request,
        accepted: recorded.accepted as u32,
        rejections: rejections.collect(),
    })
}

fn status_of(error: &RecordError) -> Status {
    match error {
        RecordError::TooMany(_) => Status::invalid_argument(error.to_string()),
        RecordError::Busy => Status::resource_exhausted(error.to_string()),
        RecordError::Alerts(_) | RecordError::Journal(_) | RecordError::Revoked => {
            Status::unavailable(error.to_string())
        }
    }
}
