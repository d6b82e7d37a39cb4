//! The connection beneath a session, QUIC or TCP: closing it, and waiting for its end.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{http::codes::NO_ERROR, http::transport::Transport};

/// Clones stand for the same connection.
#[derive(Clone)]
pub(crate) enum Carrier {
    Quic(noq::Connection),
    Tcp(TcpCarrier),
}

/// An HTTP/2 connection, seen from outside of the task that drives it.
#[derive(Debug, Clone)]
pub(crate) struct TcpCarrier {
    pub(crate) transport: Transport,
    /// Asks the driver to end the connection.
    end: CancellationToken,
    /// The driver has ended.
    closed: CancellationToken,
    reason: Arc<Mutex<Option<String>>>,
}

impl TcpCarrier {
    pub(crate) fn new(transport: Transport) -> Self {
        Self {
            transport,
            end: CancellationToken::new(),
            closed: CancellationToken::new(),
            reason: Arc::default(),
        }
    }

    /// Only the first reason counts.
    pub(crate) fn close(&self, reason: &str) {
        self.reason.lock().get_or_insert_with(|| reason.to_owned());
        self.end.cancel();
    }

    pub(crate) async fn ending(&self) {
        self.end.cancelled().await;
    }

    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Must be called by the driver as its last action.
    pub(crate) fn has_closed(&self, reason: impl fmt::Display) {
        self.reason.lock().get_or_insert_with(|| reason.to_string());
        self.closed.cancel();
    }
}

impl Carrier {
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Self::Quic(_) => Transport::Quic,
            Self::Tcp(tcp) => tcp.transport,
        }
    }

    pub(crate) fn close(&self, reason: &str) {
        match self {
            Self::Quic(connection) => {
                connection.close(noq::VarInt::from_u32(NO_ERROR), reason.as_bytes());
            }
            Self::Tcp(tcp) => tcp.close(reason),
        }
    }

    /// A connection that is closing counts as closed.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Quic(connection) => connection.close_reason().is_some(),
            Self::Tcp(tcp) => tcp.end.is_cancelled() || tcp.closed.is_cancelled(),
        }
    }

    pub(crate) fn close_reason(&self) -> Option<String> {
        match self {
            Self::Quic(connection) => connection.close_reason().map(|reason| reason.to_string()),
            Self::Tcp(tcp) => tcp.reason.lock().clone(),
        }
    }

    /// Returns once no new work should begin.
    pub(crate) async fn ending(&self) {
        match self {
            Self::Quic(_) => self.closed().await,
            Self::Tcp(tcp) => tokio::select! {
                () = tcp.ending() => {}
                () = tcp.closed() => {}
            },
        }
    }

    pub(crate) async fn closed(&self) {
        match self {
            Self::Quic(connection) => {
                connection.closed().await;
            }
            Self::Tcp(tcp) => tcp.closed().await,
        }
    }
}
