//! Series of all gateways' paths for Prometheus, by the name of the access. Names come from
//! gateways, so the label is bounded.

use std::collections::BTreeSet;

use contracts::paths::PathReport;

/// Accesses with series of their own since the start; further ones share [`OTHER`].
const NAMES_MAX: usize = 64;
const OTHER: &str = "other";

#[derive(Debug, Default)]
pub(crate) struct PathSeries {
    names: BTreeSet<String>,
}

impl PathSeries {
    /// Adds what one interval's reports counted.
    pub(crate) fn count(&mut self, reports: &[PathReport]) {
        for report in reports {
            let path = self.label(&report.path);
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

    fn label(&mut self, path: &str) -> String {
        if !self.names.contains(path) {
            if self.names.len() >= NAMES_MAX {
                return OTHER.to_owned();
            }
            self.names.insert(path.to_owned());
        }
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_gateways_make_a_bounded_number_of_series() {
        let mut series = PathSeries::default();
        for number in 0..NAMES_MAX {
            series.label(&format!("wwan{number}"));
        }
        assert_eq!(series.label("one-more"), OTHER);
        assert_eq!(series.label("wwan3"), "wwan3");
    }
}
