//! Path reports of all sessions, once per interval, to path-telemetry by gRPC with the service's
//! identity.
//!
//! Measuring never waits for the network: reports go into the outbox, which drops the oldest while
//! path-telemetry is away.

use std::{sync::Arc, time::Duration};

use clocks::CheckedClock;
use contracts::paths::{
    ReportRequest, ReportResponse, path_telemetry_service_client::PathTelemetryServiceClient,
};
use service_kit::{Backoff, Shutdown};
use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};
use tunnel::SessionHandle;

use crate::{outbox::Outbox, path_reports::Reports, path_series::PathSeries, sessions::Sessions};

/// Reports in one message; further reports go into the next message.
const BATCH_MAX: usize = 500;

/// Messages handed to gRPC and not yet taken; further messages wait in the outbox.
const MESSAGES_MAX: usize = 4;

/// Longest time for the last reports after a shutdown was requested; then they are lost.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

pub(crate) struct ToPathTelemetry {
    pub(crate) channel: Channel,
    pub(crate) sessions: Arc<Sessions<SessionHandle>>,
    pub(crate) interval: Duration,
    pub(crate) clock: CheckedClock,
}

struct Stream {
    requests: mpsc::Sender<ReportRequest>,
    responses: Streaming<ReportResponse>,
}

impl ToPathTelemetry {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let mut measuring = Measuring::new(self.sessions.clone(), self.interval, self.clock);
        let mut backoff = Backoff::for_reconnect();
        loop {
            let connecting = open(self.channel.clone());
            let stream = tokio::select! {
                () = shutdown.requested() => return,
                stream = measuring.during(connecting) => stream,
            };
            let error = match stream {
                Ok(stream) => {
                    backoff.reset();
                    match measuring.stream(stream, &shutdown).await {
                        Ok(()) => return,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            metrics::counter!("braid_proxy_report_streams_broken_total").increment(1);
            tracing::debug!(%error, "path-telemetry is away");
            tokio::select! {
                () = shutdown.requested() => return,
                () = measuring.during(backoff.wait()) => {}
            }
        }
    }
}

async fn open(channel: Channel) -> Result<Stream, Status> {
    let (requests, receiver) = mpsc::channel(MESSAGES_MAX);
    let responses = PathTelemetryServiceClient::new(channel)
        .report(ReceiverStream::new(receiver))
        .await?
        .into_inner();
    Ok(Stream {
        requests,
        responses,
    })
}

struct Measuring {
    sessions: Arc<Sessions<SessionHandle>>,
    interval: Duration,
    clock: CheckedClock,
    ticks: tokio::time::Interval,
    reports: Reports,
    series: PathSeries,
    outbox: Outbox,
}

impl Measuring {
    fn new(
        sessions: Arc<Sessions<SessionHandle>>,
        interval: Duration,
        clock: CheckedClock,
    ) -> Self {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            sessions,
            interval,
            clock,
            ticks,
            reports: Reports::default(),
            series: PathSeries::default(),
            outbox: Outbox::default(),
        }
    }

    fn measure(&mut self) {
        let now_us = self.clock.now_us();
        let reports = self
            .reports
            .take(now_us, self.interval, &self.sessions.paths());
        self.series.count(&reports);
        let dropped = self.outbox.push(reports);
        if dropped > 0 {
            metrics::counter!("braid_proxy_reports_dropped_total").increment(dropped as u64);
        }
    }

    /// Continues to measure while another future is awaited.
    async fn during<T>(&mut self, other: impl Future<Output = T>) -> T {
        tokio::pin!(other);
        loop {
            tokio::select! {
                done = &mut other => return done,
                _ = self.ticks.tick() => self.measure(),
            }
        }
    }

    /// Sends until the stream breaks, or until the last reports before a shutdown are acknowledged.
    async fn stream(&mut self, mut stream: Stream, shutdown: &Shutdown) -> Result<(), Status> {
        self.outbox.restart();
        let mut leaving = false;
        let farewell = tokio::time::sleep(Duration::MAX);
        tokio::pin!(farewell);
        loop {
            if leaving && self.outbox.is_empty() {
                return Ok(());
            }
            tokio::select! {
                () = shutdown.requested(), if !leaving => {
                    leaving = true;
                    self.measure();
                    farewell.as_mut().reset(tokio::time::Instant::now() + FAREWELL_MAX);
                }
                () = &mut farewell, if leaving => return Ok(()),
                _ = self.ticks.tick(), if !leaving => self.measure(),
                response = stream.responses.message() => match response? {
                    Some(response) => self.outbox.acknowledge(response.accepted),
                    None => return Err(Status::unavailable("the stream was closed")),
                },
                permit = stream.requests.reserve(), if self.outbox.has_unsent() => {
                    let permit = permit.map_err(|_| Status::unavailable("the stream ended"))?;
                    let reports = self.outbox.next_batch(BATCH_MAX);
                    metrics::counter!("braid_proxy_reports_sent_total").increment(reports.len() as u64);
                    permit.send(ReportRequest {
                        reports,
                        // Services of the core share their time, so the proxy's clock needs no
                        // correction.
                        sent_time_us: 0,
                    });
                }
            }
        }
    }
}
