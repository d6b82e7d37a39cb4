//! Events below the log level cost nothing: no span is built, and no line is evaluated.

use service_kit::telemetry::{self, TelemetryConfig};
use tracing::level_filters::LevelFilter;

/// Alone in its process, because the log is set up once per process.
#[tokio::test]
async fn events_below_the_log_level_are_not_built() {
    let config = TelemetryConfig::default();
    let guard = telemetry::init("quiet", &config);
    assert_eq!(LevelFilter::current(), LevelFilter::INFO);
    assert!(tracing::debug_span!(target: "noq", "drive").is_disabled());
    assert!(!tracing::info_span!("upload").is_disabled());
    drop(guard);
}
