//! path-telemetry
