//! Connections to the core without a tunnel.

use service_kit::{
    grpc::{ChannelError, channel},
    tls::Identity,
};
use tokio::sync::broadcast;
use tonic::transport::Channel;
use tunnel::{CopyNumber, PathSnapshot, TunnelEvent, Urgency};

use crate::to_proxy::Uplink;

/// Over plain TCP; path events are the test's to send.
pub struct Direct {
    pub identity: Option<Identity>,
    pub events: broadcast::Sender<TunnelEvent>,
}

impl Uplink for Direct {
    fn channel(
        &self,
        url: &str,
        _: Urgency,
        _: Option<&CopyNumber>,
    ) -> Result<Channel, ChannelError> {
        channel(url, self.identity.as_ref())
    }

    fn events(&self) -> broadcast::Receiver<TunnelEvent> {
        self.events.subscribe()
    }

    fn paths(&self) -> Vec<PathSnapshot> {
        Vec::new()
    }
}
