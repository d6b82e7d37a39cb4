//! Reports of proxies: a proxy sees the paths of every gateway it serves, and speaks only for its own end.

use contracts::paths::{End, PathReport};

use crate::intake::Refused;

pub(crate) fn admit(noun: &str, report: &PathReport) -> Result<(), Refused> {
    if report.end() == End::Proxy {
        return Ok(());
    }
    Err(Refused::NotYours {
        reporter: format!("service {noun}"),
        gateway: report.gateway.clone(),
    })
}
