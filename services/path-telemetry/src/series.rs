//! Bytes of all gateways for Prometheus: by access, and by steering rule with its mode. Their names
//! come from gateways, so labels are bounded.

use contracts::paths::{End, PathReport};
use service_kit::labels::{Labels, OTHER};

/// Values of the label `mode`.
const MODES: [&str; 6] = [
    "auto",
    "active-standby",
    "smallest-delay",
    "load-balancing",
    "priority",
    "redundant",
];

#[derive(Debug, Default)]
pub(crate) struct Series {
    paths: Labels,
    rules: Labels,
}

impl Series {
    /// Counts reports that the bus holds. Both ends see the same bytes, so gateways alone count.
    pub(crate) fn count(&mut self, reports: &[PathReport]) {
        for report in reports.iter().filter(|it| it.end() == End::Gateway) {
            let path = self.paths.of(&report.path);
            for (direction, bytes) in [("up", report.sent_bytes), ("down", report.received_bytes)] {
                metrics::counter!("braid_path_telemetry_path_bytes_total", "path" => path.clone(), "direction" => direction)
                    .increment(bytes);
            }
            for rule_use in &report.rule_uses {
                let rule = match rule_use.rule.as_str() {
                    "" => "none".to_owned(),
                    rule => self.rules.of(rule),
                };
                let mode = match rule_use.mode.as_str() {
                    // No flow carried it.
                    "" => Some("none"),
                    mode => MODES.into_iter().find(|known| *known == mode),
                };
                metrics::counter!("braid_path_telemetry_rule_bytes_total", "rule" => rule, "mode" => mode.unwrap_or(OTHER))
                    .increment(rule_use.bytes);
            }
        }
    }
}
