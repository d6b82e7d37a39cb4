//! The caller of a request: its address, and its protocol.

use std::net::IpAddr;

use ::http::{HeaderMap, header};
use service_kit::grpc::Peer;

/// Address of the sender.
pub(super) fn sender(peer: Option<&Peer>) -> Option<IpAddr> {
    peer.map(|peer| service_kit::network(peer.address.ip()))
}

pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
