//! The listeners for applications.

use service_kit::{Context, grpc::ServeError};
use tokio::net::TcpListener;
use tunnel::Urgency;

use super::{LISTENER, LISTENER_PROMPT};
use crate::{Config, RunError};

/// Binds and announces the listeners for applications, each with the urgency of its streams.
pub(crate) async fn bind(
    config: &Config,
    context: &Context,
) -> Result<Vec<(TcpListener, Urgency)>, RunError> {
    let mut listeners = Vec::new();
    for (field, address) in config.application_addresses() {
        let listener = service_kit::grpc::bind(address, field).await?;
        let (name, urgency) = match field {
            "applications" => (LISTENER, Urgency::Bulk),
            _ => (LISTENER_PROMPT, Urgency::Prompt),
        };
        let bound = listener.local_addr().map_err(ServeError::LocalAddress)?;
        context.listening(name, bound);
        listeners.push((listener, urgency));
    }
    Ok(listeners)
}
