//! Series of all gateways' paths for Prometheus, by the name of the access. Names come from
//! gateways, so the label is bounded.

use contracts::paths::PathReport;
use service_kit::labels::Labels;

#[derive(Debug, Default)]
pub(crate) struct PathSeries {
    names: Labels,
}

impl PathSeries {
    /// Adds what one interval's reports counted.
    pub(crate) fn count(&mut self, reports: &[PathReport]) {
        for report in reports {
            let path = self.names.of(&report.path);
            for (direction, bytes) in [("up", report.received_bytes), ("down", report.sent_bytes)] {
                metrics::counter!("braid_proxy_path_bytes_total", "path" => path.clone(), "direction" => direction)
                    .increment(bytes);
            }
            metrics::counter!("braid_proxy_path_packets_sent_total", "path" => path.clone())
                .increment(report.sent_packets);
            metrics::counter!("braid_proxy_path_packets_lost_total", "path" => path)
                .increment(report.lost_packets);
        }
    }
}
