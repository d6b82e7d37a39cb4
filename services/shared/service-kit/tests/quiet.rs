//! What is below the level that is logged costs nothing: no span of it is made, no line of it is asked about.

use service_kit::telemetry::{self, TelemetryConfig};
use tracing::level_filters::LevelFilter;

/// Alone in its process, for the log is set up once in each.
#[tokio::test]
async fn what_is_not_logged_is_not_built() {
    let config = TelemetryConfig::default();
    let guard = telemetry::init("quiet", &config);
    assert_eq!(LevelFilter::current(), LevelFilter::INFO);
    assert!(tracing::debug_span!(target: "noq", "drive").is_disabled());
    assert!(!tracing::info_span!("upload").is_disabled());
    drop(guard);
}
