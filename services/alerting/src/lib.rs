//! alerting
