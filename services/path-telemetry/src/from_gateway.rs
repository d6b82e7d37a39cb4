//! Reports of gateways: a gateway speaks only for itself, and only for its own end.

use contracts::paths::{End, PathReport};

use crate::{intake::Refused, owners::Owners};

pub(crate) fn admit(
    tenant: &str,
    id: &str,
    report: &PathReport,
    owners: &Owners,
) -> Result<(), Refused> {
    if report.gateway != id || report.end() != End::Gateway {
        return Err(Refused::NotYours {
            reporter: format!("gateway {id}"),
            gateway: report.gateway.clone(),
        });
    }
    if owners.is_anothers(tenant, id) {
        return Err(Refused::Anothers {
            tenant: tenant.to_owned(),
            gateway: id.to_owned(),
        });
    }
    Ok(())
}
