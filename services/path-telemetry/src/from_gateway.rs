//! Reports of gateways: a gateway speaks only for itself, and only for its own end.

use contracts::paths::{End, PathReport};

use crate::intake::Refused;

pub(crate) fn admit(id: &str, report: &PathReport) -> Result<(), Refused> {
    if report.gateway == id && report.end() == End::Gateway {
        return Ok(());
    }
    Err(Refused::NotYours {
        reporter: format!("gateway {id}"),
        gateway: report.gateway.clone(),
    })
}
