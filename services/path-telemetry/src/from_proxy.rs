//! Calls of proxies: their path reports, and the question for revoked gateways. A proxy reports on
//! every gateway that it serves, and has no store of its own.

use contracts::paths::PathReport;
use contracts::policy::{ListRevocationsRequest, ListRevocationsResponse, RevokedGateway};
use service_kit::{
    grpc::Peer,
    tls::{GatewayId, PeerId},
};
use store::Followed;
use tonic::{Request, Status};

use crate::owners::Owners;

/// Leaves out reports on a gateway whose name belongs to another tenant in the register. The proxy
/// serves every gateway with a valid certificate, so such a report is not the proxy's fault. The
/// other reports of its request are kept.
pub(crate) fn leave_out_namesakes(reports: &mut Vec<PathReport>, owners: &Owners) {
    let count = reports.len();
    reports.retain(|report| {
        let gateway = GatewayId::new(report.tenant.as_str(), report.gateway.as_str());
        // A proxy of an older release sends no tenant.
        gateway.tenant.is_empty() || !owners.is_anothers(&gateway)
    });
    let left_out = (count - reports.len()) as u64;
    metrics::counter!("braid_path_telemetry_refused_total", "end" => "proxy").increment(left_out);
}

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
