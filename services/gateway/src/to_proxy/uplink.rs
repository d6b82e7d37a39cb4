//! How connections to the core come about.

use std::io;

use http::uri::Authority;
use service_kit::{
    grpc::{ChannelError, channel_over},
    tls::Identity,
};
use tokio::sync::broadcast;
use tonic::transport::Channel;
use tunnel::{CopyNumber, PathSnapshot, Tunnel, TunnelEvent, Urgency};

pub trait Uplink: Send + Sync + 'static {
    /// A fresh connection to `url`, never one that an earlier call returned. `copy`: it carries the
    /// copies with this number.
    fn channel(
        &self,
        url: &str,
        urgency: Urgency,
        copy: Option<&CopyNumber>,
    ) -> Result<Channel, ChannelError>;
    fn events(&self) -> broadcast::Receiver<TunnelEvent>;
    fn paths(&self) -> Vec<PathSnapshot>;
}

/// Connects through CONNECT streams of a tunnel, with TLS of the gateway's certificate inside. The
/// tunnels are not resumable. A courier whose path died opens a fresh one and replays from its
/// journal. A resumed tunnel would repeat its old bytes before the next alert.
pub struct Through {
    pub tunnel: Tunnel,
    pub identity: Identity,
}

impl Uplink for Through {
    fn channel(
        &self,
        url: &str,
        urgency: Urgency,
        copy: Option<&CopyNumber>,
    ) -> Result<Channel, ChannelError> {
        let tunnel = self.tunnel.clone();
        let copy = copy.cloned();
        channel_over(url, Some(&self.identity), move |host, port| {
            let (tunnel, copy) = (tunnel.clone(), copy.clone());
            async move {
                let authority: Authority = format!("{host}:{port}")
                    .parse()
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                let opened = match &copy {
                    Some(copy) => tunnel.open_copied_tcp(&authority, urgency, copy).await,
                    None => tunnel.open_plain_tcp(&authority, urgency).await,
                };
                opened.map_err(io::Error::from)
            }
        })
    }

    fn events(&self) -> broadcast::Receiver<TunnelEvent> {
        self.tunnel.events()
    }

    fn paths(&self) -> Vec<PathSnapshot> {
        self.tunnel.paths()
    }
}
