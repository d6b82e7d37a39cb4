//! The list of revoked gateways, for proxies. A proxy has no store of its own.

use contracts::policy::{ListRevocationsRequest, ListRevocationsResponse, RevokedGateway};
use service_kit::{grpc::Peer, tls::PeerId};
use store::Followed;
use tonic::{Request, Status};

/// The list in force, or only its version if the proxy has that version already.
pub(crate) fn revocations(
    request: &Request<ListRevocationsRequest>,
    allow: &[String],
    followed: &Followed,
) -> Result<ListRevocationsResponse, Status> {
    let peer = request.extensions().get::<Peer>();
    match peer.and_then(|peer| peer.id.as_ref()) {
        Some(PeerId::Service { noun }) if allow.contains(noun) => {}
        Some(id) => {
            return Err(Status::permission_denied(format!(
                "{id} may not ask for the revoked gateways"
            )));
        }
        None => return Err(Status::unauthenticated("a client certificate is needed")),
    }
    if followed.version == 0 {
        // An empty answer would admit every revoked gateway.
        return Err(Status::unavailable("the store has not been read yet"));
    }
    let unchanged = followed.version == request.get_ref().version;
    let gateways = followed.revocations.iter().filter(|_| !unchanged);
    let gateways = gateways.filter_map(|(id, excepted)| match id {
        PeerId::Gateway(gateway) => Some(RevokedGateway {
            tenant: gateway.tenant.clone(),
            gateway: gateway.id.clone(),
            excepted: excepted.iter().map(ToString::to_string).collect(),
        }),
        PeerId::Service { .. } => None,
    });
    Ok(ListRevocationsResponse {
        version: followed.version,
        unchanged,
        gateways: gateways.collect(),
    })
}
