//! The shared surroundings of every service:
//! - configuration that is refused before a port is bound,
//! - one identity per process with TLS 1.3,
//! - readiness and progress,
//! - metrics, logs, traces, and an orderly end.
//!
//! A service's `run(config, .., context)` gets one [`Context`]. It registers readiness checks,
//! announces its listeners and spawns on `context.tasks()`. It returns after `context.shutdown()`
//! was requested and its work has drained.

pub mod admin;
pub mod backoff;
pub mod config;
mod context;
pub mod grpc;
pub mod guesses;
mod health;
pub mod https;
pub mod labels;
pub mod names;
mod network;
pub mod own_clock;
pub mod path_table;
pub mod probe;
pub mod qlog;
pub mod quota;
mod secret;
mod shutdown;
pub mod telemetry;
pub mod tls;
pub mod wrong;

pub use backoff::Backoff;
pub use config::{ConfigError, ServiceConfig};
pub use context::{Context, DRAIN_LIMIT, LISTENER};
pub use health::{CheckHandle, Health, ProgressHandle, Warning, WarningHandle};
pub use network::network;
pub use secret::Secret;
pub use shutdown::Shutdown;

/// Why a gRPC service could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("identity: {0}")]
    Identity(#[from] tls::IdentityError),
    #[error(transparent)]
    Serve(#[from] grpc::ServeError),
}
