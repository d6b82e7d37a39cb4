//! Why a gateway cannot run.

use std::io;

use host_network::TunError;
use service_kit::{
    ConfigError,
    grpc::ServeError,
    tls::{IdentityError, PeerId},
};
use tunnel::StartError;

use crate::{journal::recovery, to_dashboard};

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the gateway's certificate: {0}")]
    Identity(#[from] IdentityError),
    #[error("{0}")]
    Certificate(#[from] to_dashboard::CertificateError),
    #[error("the certificate names {0}, which is no gateway")]
    NotAGateway(PeerId),
    #[error("{path}: {source}")]
    Directory { path: String, source: io::Error },
    #[error(transparent)]
    Journal(#[from] recovery::OpenError),
    #[error("the proxy {proxy}: {source}")]
    Proxy { proxy: String, source: io::Error },
    #[error(transparent)]
    Tunnel(#[from] StartError),
    #[error("{0}")]
    Tun(#[from] TunError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}
