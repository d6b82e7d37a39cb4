//! Reports of gateways: a gateway speaks only for itself, and only for its own end.

use contracts::paths::{End, PathReport};
use service_kit::tls::GatewayId;

use crate::{intake::Refused, owners::Owners};

pub(crate) fn admit(
    gateway: &GatewayId,
    report: &PathReport,
    owners: &Owners,
) -> Result<(), Refused> {
    if report.gateway != gateway.id || report.end() != End::Gateway {
        return Err(Refused::NotYours {
            reporter: format!("gateway {}", gateway.id),
            gateway: report.gateway.clone(),
        });
    }
    if owners.is_anothers(gateway) {
        return Err(Refused::Anothers {
            tenant: gateway.tenant.clone(),
            gateway: gateway.id.clone(),
        });
    }
    Ok(())
}
