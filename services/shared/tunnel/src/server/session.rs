//! The session of one client, as the server accepts it.

use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;
use tokio::sync::mpsc;

use crate::server::{requests::ConnectRequest, session_handle::SessionHandle};

/// A client's connection.
pub struct ServerSession {
    pub(super) certificates: Vec<CertificateDer<'static>>,
    pub(super) remote: SocketAddr,
    pub(super) requests: mpsc::Receiver<ConnectRequest>,
    pub(super) handle: SessionHandle,
}

impl ServerSession {
    /// The client's verified certificate, if TLS asked for one.
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.certificates.first()
    }

    /// Source of the first path.
    pub fn remote_address(&self) -> SocketAddr {
        self.remote
    }

    /// The next CONNECT request; `None` once the session has ended.
    pub async fn accept(&mut self) -> Option<ConnectRequest> {
        self.requests.recv().await
    }

    pub fn handle(&self) -> &SessionHandle {
        &self.handle
    }
}
