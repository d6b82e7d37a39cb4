//! The two services that the dashboard calls on people's behalf.

use contracts::alerts::alerts_service_client::AlertsServiceClient;
use contracts::paths::link_service_client::LinkServiceClient;
use service_kit::grpc::{ChannelError, channel};
use service_kit::tls::Identity;
use tonic::transport::Channel;

use crate::Config;

/// Channels connect on first use and again after a loss; clones share them.
#[derive(Clone)]
pub struct Clients {
    pub alerting: AlertsServiceClient<Channel>,
    /// `None`: no demonstration.
    pub links: Option<LinkServiceClient<Channel>>,
}

impl Clients {
    pub fn new(config: &Config, identity: Option<&Identity>) -> Result<Clients, ChannelError> {
        let links = match config.links_url.as_str() {
            "" => None,
            url => Some(LinkServiceClient::new(channel(url, identity)?)),
        };
        Ok(Clients {
            alerting: AlertsServiceClient::new(channel(&config.alerting_url, identity)?),
            links,
        })
    }
}
