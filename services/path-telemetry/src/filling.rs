//! Gateways whose journals fill, by their own reports. Sans-IO.
//!
//! A gateway at home is scraped by nobody, so its report has the share. A gateway that reports no
//! more is silent, which alerting raises.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use service_kit::tls::GatewayId;

/// Share of its bound from which on a journal counts as filling, in thousandths.
const FILLING_FROM_PERMILLE: u32 = 750;
/// Gateways that count at once. Further ones change nothing: the alarm is on.
const GATEWAYS_MAX: usize = 10_000;
/// A report counts for this time. A gateway reports at least once an hour.
const COUNTS_FOR: Duration = Duration::from_secs(2 * 3_600);

#[derive(Debug, Default)]
pub(crate) struct Filling(HashMap<GatewayId, Instant>);

impl Filling {
    /// Takes the report of a gateway, and sets the gauge.
    pub(crate) fn on_report(&mut self, gateway: &GatewayId, permille: Option<u32>, now: Instant) {
        if let Some(permille) = permille {
            let is_filling = permille >= FILLING_FROM_PERMILLE;
            if is_filling && (self.0.len() < GATEWAYS_MAX || self.0.contains_key(gateway)) {
                if self.0.insert(gateway.clone(), now).is_none() {
                    tracing::warn!(
                        gateway = gateway.id,
                        tenant = gateway.tenant,
                        permille,
                        "the journal of a gateway fills: ingest does not take its readings"
                    );
                }
            } else if !is_filling {
                self.0.remove(gateway);
            }
        }
        let counts = |at: &Instant| now.saturating_duration_since(*at) < COUNTS_FOR;
        self.0.retain(|_, at| counts(at));
        metrics::gauge!("braid_path_telemetry_journals_filling").set(self.0.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_counts_while_its_journal_fills_and_it_reports() {
        let (mut filling, start) = (Filling::default(), Instant::now());
        let [one, two] = ["one", "two"].map(|id| GatewayId::new("default", id));
        filling.on_report(&one, Some(749), start);
        assert!(filling.0.is_empty());
        filling.on_report(&one, Some(750), start);
        filling.on_report(&two, Some(1_000), start);
        assert_eq!(filling.0.len(), 2);
        // An older gateway does not tell.
        filling.on_report(&two, None, start);
        assert_eq!(filling.0.len(), 2);
        filling.on_report(&two, Some(10), start);
        assert_eq!(filling.0.len(), 1);
        filling.on_report(&two, Some(10), start + COUNTS_FOR);
        assert!(filling.0.is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut filling, start) = (Filling::default(), Instant::now());
        for number in 0..=GATEWAYS_MAX {
            let gateway = GatewayId::new("default", number.to_string());
            if !(10..=GATEWAYS_MAX - 5).contains(&number) {
                filling.on_report(&gateway, Some(900), start);
            } else {
                filling.0.insert(gateway, start);
            }
        }
        assert_eq!(filling.0.len(), GATEWAYS_MAX);
    }
}
