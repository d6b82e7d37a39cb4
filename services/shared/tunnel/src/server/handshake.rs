//! A handshake within its time and its place.

use std::{fmt, net::SocketAddr, time::Duration};

use super::ServerSession;
use crate::places::Place;

/// A handshake may take so long.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// None where it comes to nothing, which is said.
pub(super) async fn shake<E: fmt::Display>(
    place: &Place,
    remote: SocketAddr,
    by: &'static str,
    shaking: impl Future<Output = Result<ServerSession, E>>,
) -> Option<ServerSession> {
    let error = match place
        .hold(tokio::time::timeout(HANDSHAKE_MAX, shaking))
        .await
    {
        Some(Ok(Ok(session))) => return Some(session),
        Some(Ok(Err(error))) => error.to_string(),
        Some(Err(_)) => "it took too long".to_owned(),
        None => "it gave way to a newer one".to_owned(),
    };
    metrics::counter!("braid_tunnel_handshakes_failed_total").increment(1);
    tracing::info!(%remote, by, error, "handshake failed");
    None
}
