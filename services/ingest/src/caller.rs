//! Which gateway calls, by its certificate, and until when it may.

use service_kit::{
    grpc::{Peer, calls::CallEnd},
    tls::PeerId,
};
use store::CallGuard;
use tonic::{Extensions, Status};

use crate::admission::GatewayId;

/// The gateway that calls, and why its call ends, once it has to.
pub fn caller(
    extensions: &Extensions,
    guard: &CallGuard,
) -> Result<(GatewayId, impl Future<Output = Status> + Send + use<>), Status> {
    let peer = extensions.get::<Peer>().cloned();
    let (id, certificate) = peer.map_or((None, None), |peer| (peer.id, peer.certificate));
    let Some(id) = id else {
        return Err(Status::unauthenticated("no client certificate"));
    };
    let gateway = match &id {
        PeerId::Gateway(gateway) => gateway.clone(),
        PeerId::Service { noun } => {
            return Err(Status::permission_denied(format!(
                "the certificate is that of the service {noun}; this needs a gateway's"
            )));
        }
    };
    let end = guard.enter(Some(id), certificate);
    let name = gateway.id.clone();
    let ended = async move {
        let end = end.await;
        if end == CallEnd::Revoked {
            metrics::counter!("braid_ingest_revoked_streams_total").increment(1);
            tracing::warn!(gateway = name, "stream of a revoked gateway ended");
        }
        end.into()
    };
    Ok((gateway, ended))
}
