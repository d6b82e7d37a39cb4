//! The emulated links of the demonstration, which the page cuts and restores.

use contracts::paths::link_service_client::LinkServiceClient;
use service_kit::grpc::{ChannelError, channel};
use service_kit::tls::Identity;
use tonic::transport::Channel;

/// Connects on first use and again after a loss; clones share the channel.
pub(crate) type LinksClient = LinkServiceClient<Channel>;

/// `None`: the address is empty, so there is no demonstration.
pub(crate) fn client(
    url: &str,
    identity: Option<&Identity>,
) -> Result<Option<LinksClient>, ChannelError> {
    if url.is_empty() {
        return Ok(None);
    }
    Ok(Some(LinkServiceClient::new(channel(url, identity)?)))
}
