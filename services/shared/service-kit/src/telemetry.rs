//! Logs, metrics and traces of a process.
//!
//! A log level states what an operator must do. `error`: act now, because data or service is being
//! lost. `warn`: look within the day, because something is retried or degraded. `info`: nothing.
//! `debug` and `trace` are for readers of the source.

mod one_line;
mod seldom;
mod trace_context;

use std::io::IsTerminal;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

pub use trace_context::{continue_trace, inject_traceparent, traceparent, traceparent_of_headers};

/// Spans that wait for the collector; further spans are dropped.
const SPANS_QUEUED_MAX: usize = 4096;

/// Upper bounds of the buckets of every `_seconds` histogram, from a loopback call to a satellite
/// link's timeout.
const SECONDS_BUCKETS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Flags of every service; use with `#[command(flatten)]`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct TelemetryConfig {
    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Log level, or directives such as `info,tunnel=debug`.
    #[arg(long, value_name = "DIRECTIVES", default_value = "info")]
    pub log: String,
    /// OTLP collector for traces, by gRPC. Empty: no tracing.
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Share of new traces that is recorded, 0 to 1; a trace that began elsewhere keeps its
    /// decision.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub trace_share: f64,
}

impl Default for TelemetryConfig {
    fn default() -> TelemetryConfig {
        TelemetryConfig {
            log_format: LogFormat::Text,
            log: "info".to_owned(),
            otlp_endpoint: None,
            trace_share: 1.0,
        }
    }
}

impl TelemetryConfig {
    pub fn validate(&self) -> Result<(), crate::ConfigError> {
        if let Err(error) = self
            .log
            .parse::<tracing_subscriber::filter::targets::Targets>()
        {
            return Err(crate::ConfigError::new(
                "log",
                error.to_string(),
                "--log info,tunnel=debug",
            ));
        }
        if !(0.0..=1.0).contains(&self.trace_share) {
            return Err(crate::ConfigError::new(
                "trace_share",
                format!("{} is not between 0 and 1", self.trace_share),
                "--trace-share 0.1",
            ));
        }
        let Some(url) = &self.otlp_endpoint else {
            return Ok(());
        };
        crate::config::parse_address(url, &["http", "https"])
            .map(drop)
            .map_err(|reason| {
                crate::ConfigError::new(
                    "otlp_endpoint",
                    format!("{url:?} {reason}"),
                    "--otlp-endpoint http://localhost:4317",
                )
            })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("traces: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    #[error("log: {0}")]
    Subscriber(#[from] tracing_subscriber::util::TryInitError),
}

/// Guard of the exporter; its end flushes the queued traces.
#[must_use = "dropping the guard ends the export of traces"]
pub struct TelemetryGuard {
    provider: Option<SdkTracerProvider>,
}

impl TelemetryGuard {
    /// Blocks for at most a few seconds while the last spans are sent; call it outside of the event
    /// loop.
    pub fn shutdown(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        if let Some(provider) = self.provider.take()
            && let Err(error) = provider.shutdown()
        {
            eprintln!("the last traces were not sent: {error}");
        }
    }
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Sets up the process's log, metrics recorder and traces; `noun` becomes `service.name`. Must be
/// called within a tokio runtime.
pub fn init(
    noun: &'static str,
    config: &TelemetryConfig,
) -> Result<TelemetryGuard, TelemetryError> {
    metrics_handle();
    let provider = tracer_provider(noun, config)?;
    let seldom = seldom::Seldom::default();
    subscriber(config, provider.as_ref(), seldom.clone()).try_init()?;
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(seldom::INTERVAL);
        loop {
            tick.tick().await;
            if let Some(left_out) = seldom.turn() {
                tracing::warn!(left_out, "repeated warnings are omitted");
            }
        }
    });
    Ok(TelemetryGuard { provider })
}

/// The log and, with a provider, the traces. A list of layers instead of an `Option`: an empty
/// layer would enable every level. Then each span of the transport would be built for every
/// datagram.
fn subscriber(
    config: &TelemetryConfig,
    provider: Option<&SdkTracerProvider>,
    seldom: seldom::Seldom,
) -> impl tracing::Subscriber + Send + Sync {
    let filter = EnvFilter::builder().parse_lossy(&config.log);
    let log = tracing_subscriber::fmt::layer()
        .with_writer(|| one_line::OneLine(std::io::stderr()))
        .with_ansi(std::io::stderr().is_terminal());
    let log = match config.log_format {
        LogFormat::Text => log.boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    let traces = provider.map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("braid"))
            // The exporter's own calls must not create traces.
            .with_filter(EnvFilter::new(
                "info,h2=off,hyper=off,tonic=off,tower=off,noq=off,noq_proto=off",
            ))
            .boxed()
    });
    let log = log.with_filter(filter.and(seldom)).boxed();
    let layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> =
        [log].into_iter().chain(traces).collect();
    tracing_subscriber::registry().with(layers)
}

/// The provider behind [`init`]; separate for tests with several providers in a process.
pub fn tracer_provider(
    noun: &'static str,
    config: &TelemetryConfig,
) -> Result<Option<SdkTracerProvider>, TelemetryError> {
    use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler};
    let Some(endpoint) = &config.otlp_endpoint else {
        return Ok(None);
    };
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()?;
    let batch = BatchConfigBuilder::default()
        .with_max_queue_size(SPANS_QUEUED_MAX)
        .with_scheduled_delay(std::time::Duration::from_secs(1))
        .build();
    let processor = BatchSpanProcessor::builder(exporter)
        .with_batch_config(batch)
        .build();
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.trace_share)));
    let resource = Resource::builder().with_service_name(noun).build();
    Ok(Some(
        SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(sampler)
            .with_resource(resource)
            .build(),
    ))
}

/// The process's one metrics recorder, installed on first use.
pub fn metrics_handle() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let builder = match builder
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)
        {
            Ok(builder) => builder,
            // The builder refuses only an empty list of buckets.
            Err(_) => PrometheusBuilder::new(),
        };
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed; /metrics stays empty");
        }
        handle
    })
}
