//! One trace over two services, from a collector's view.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use service_kit::telemetry::{self, TelemetryConfig};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};
use tracing_subscriber::layer::SubscriberExt;

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

/// The traces of a process, set up as by `telemetry::init`, but for this thread only.
fn subscriber(
    noun: &'static str,
    endpoint: &str,
) -> (
    tracing::Dispatch,
    opentelemetry_sdk::trace::SdkTracerProvider,
) {
    let config = TelemetryConfig {
        otlp_endpoint: Some(endpoint.to_owned()),
        ..TelemetryConfig::default()
    };
    let provider = telemetry::tracer_provider(noun, &config).unwrap().unwrap();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("braid"));
    let subscriber = tracing_subscriber::registry().with(layer);
    (tracing::Dispatch::new(subscriber), provider)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_continues_in_the_next_service() {
    let (sender, mut exported) = mpsc::channel(64);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(Collector(sender)))
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
    );

    let (gateway, gateway_provider) = subscriber("gateway", &endpoint);
    let (ingest, ingest_provider) = subscriber("ingest", &endpoint);
    let carried = tracing::dispatcher::with_default(&gateway, || {
        let span = tracing::info_span!("record");
        let _entered = span.enter();
        telemetry::traceparent(&span).unwrap()
    });
    tracing::dispatcher::with_default(&ingest, || {
        let span = tracing::info_span!("upload");
        telemetry::continue_trace(&span, &carried);
        span.in_scope(|| {});
    });
    let providers = Arc::new((gateway_provider, ingest_provider));
    tokio::task::spawn_blocking(move || {
        providers.0.shutdown().unwrap();
        providers.1.shutdown().unwrap();
    })
    .await
    .unwrap();

    // Trace ids that each `service.name` sent.
    let mut traces: HashMap<String, HashSet<Vec<u8>>> = HashMap::new();
    while traces.len() < 2 {
        let request = tokio::time::timeout(Duration::from_secs(20), exported.recv())
            .await
            .unwrap()
            .unwrap();
        for spans in request.resource_spans {
            let name = spans
                .resource
                .unwrap()
                .attributes
                .into_iter()
                .find(|attribute| attribute.key == "service.name")
                .and_then(|attribute| attribute.value?.value);
            let Some(Value::StringValue(name)) = name else {
                panic!("spans without service.name");
            };
            let ids = spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
            traces
                .entry(name)
                .or_default()
                .extend(ids.map(|span| span.trace_id));
        }
    }
    assert_eq!(traces["gateway"].len(), 1);
    assert_eq!(traces["gateway"], traces["ingest"]);
    assert!(carried.contains(&hex(traces["gateway"].iter().next().unwrap())));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
