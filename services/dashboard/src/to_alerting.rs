//! Alerting, which the dashboard calls in the name of people: acknowledgements and documents, and
//! the question which alerts reach nobody.

use contracts::alerts::alerts_service_client::AlertsServiceClient;
use service_kit::grpc::{ChannelError, channel};
use service_kit::tls::Identity;
use tonic::transport::Channel;

pub(crate) mod untold;

/// Connects on first use and again after a loss; clones share the channel.
pub(crate) type Alerting = AlertsServiceClient<Channel>;

pub(crate) fn client(url: &str, identity: Option<&Identity>) -> Result<Alerting, ChannelError> {
    Ok(AlertsServiceClient::new(channel(url, identity)?))
}
