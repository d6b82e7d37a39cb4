//! Path reports of proxies. A proxy reports on every gateway that it serves.

use contracts::paths::PathReport;
use service_kit::tls::GatewayId;

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
