//! One trace follows a sample over process borders: a collector gets spans of the sensor's trace
//! from every service that reads samples. Proxy and path-telemetry send none, since the proxy
//! cannot read the data that it forwards.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/separate.rs"]
mod separate;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use program::{eventually, http};
use separate::Separate;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

/// The hops of a sample, from the sensor's request to the page.
const HOPS: [&str; 4] = ["gateway", "ingest", "alerting", "dashboard"];
/// Interval at which a further reading is sent.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

struct Collector(mpsc::Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0
            .send(request.into_inner())
            .await
            .map_err(|_| Status::unavailable("the test has ended"))?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The services that sent spans of the trace.
fn services_of(request: ExportTraceServiceRequest) -> BTreeSet<String> {
    let mut services = BTreeSet::new();
    for spans in request.resource_spans {
        let of_trace = spans
            .scope_spans
            .iter()
            .flat_map(|scope| &scope.spans)
            .any(|span| hex(&span.trace_id) == TRACE_ID);
        let attributes = spans.resource.unwrap_or_default().attributes;
        let name = attributes
            .into_iter()
            .find(|attribute| attribute.key == "service.name")
            .and_then(|attribute| attribute.value?.value);
        if let (true, Some(Value::StringValue(name))) = (of_trace, name) {
            services.insert(name);
        }
    }
    services
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sensors_trace_continues_in_every_service_that_reads_samples() {
    let (sender, mut exported) = mpsc::channel(64);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("--otlp-endpoint=http://{}", listener.local_addr().unwrap());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(Collector(sender)))
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
    );

    let dir = tempfile::tempdir().unwrap();
    let mut separate = Separate::prepare(dir.path(), &["sensor-1".to_owned()], &[&endpoint]);
    for noun in [
        "path-telemetry",
        "alerting",
        "ingest",
        "dashboard",
        "proxy",
        "gateway",
    ] {
        separate.start(noun);
    }
    let sensors = separate.sensors();
    let send = move || {
        let traceparent = format!("traceparent: 00-{TRACE_ID}-b7ad6b7169203331-01\r\n");
        let line = "{\"device\":\"sensor-1\",\"metric\":\"heart-rate\",\"value\":72}";
        http(sensors, "POST", "/v1/samples", &traceparent, line)
            .is_ok_and(|(status, _)| status == 200)
    };
    tokio::task::spawn_blocking(move || eventually("the gateway's answer", send))
        .await
        .unwrap();

    let mut seen = BTreeSet::new();
    let started = Instant::now();
    let mut sent_at = started;
    while !HOPS.iter().all(|hop| seen.contains(*hop)) {
        let waited = started.elapsed();
        assert!(waited < program::PATIENCE, "spans came from {seen:?} only");
        if let Ok(request) = tokio::time::timeout(AGAIN_AFTER, exported.recv()).await {
            seen.extend(services_of(request.unwrap()));
        }
        // A dashboard that began after a reading shows the next one.
        if sent_at.elapsed() >= AGAIN_AFTER {
            tokio::task::spawn_blocking(send).await.unwrap();
            sent_at = Instant::now();
        }
    }
}
