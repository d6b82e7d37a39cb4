//! Identifies the calling gateway by its certificate, and ends its call when the certificate is
//! revoked.

use service_kit::{
    grpc::{Peer, calls::CallEnd},
    tls::PeerId,
};
use store::CallGuard;
use tonic::{Extensions, Status};

use crate::admission::GatewayId;

/// The calling gateway, and a future that yields the reason when its call must end.
pub(crate) fn caller(
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
