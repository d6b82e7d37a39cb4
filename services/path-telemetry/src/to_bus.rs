//! Publishes reports to the topic `paths`, keyed by gateway.

use std::{collections::BTreeMap, sync::Arc};

use bus::{Bus, PublishError, Record, Topic};
use contracts::paths::{PathReport, PathsRecord};
use prost::Message;
use service_kit::{CheckHandle, Context};

#[derive(Clone)]
pub(crate) struct Publisher {
    bus: Arc<dyn Bus>,
    check: CheckHandle,
}

impl Publisher {
    pub(crate) fn new(bus: Arc<dyn Bus>, context: &Context) -> Publisher {
        let check = context.health().check("bus");
        let publisher = Publisher { bus, check };
        let probing = publisher.clone();
        let shutdown = context.shutdown().clone();
        context.tasks().spawn(async move {
            // Ready once the bus takes writes; later failures are set by `publish`.
            let mut backoff = service_kit::Backoff::for_reconnect();
            loop {
                match probing.bus.ready().await {
                    Ok(()) => return probing.check.ok(),
                    Err(error) => probing.check.failing(error.to_string()),
                }
                tokio::select! {
                    () = shutdown.requested() => return,
                    () = backoff.wait() => {}
                }
            }
        });
        publisher
    }

    /// One record per gateway. Returns once the bus has them.
    pub(crate) async fn publish(&self, reports: Vec<PathReport>) -> Result<(), PublishError> {
        if reports.is_empty() {
            return Ok(());
        }
        let mut by_gateway: BTreeMap<String, Vec<PathReport>> = BTreeMap::new();
        for report in reports {
            by_gateway
                .entry(report.gateway.clone())
                .or_default()
                .push(report);
        }
        let records = by_gateway
            .into_iter()
            .map(|(gateway, reports)| Record::new(gateway, PathsRecord { reports }.encode_to_vec()))
            .collect();
        let published = self.bus.publish(Topic::Paths, records).await;
        match &published {
            Ok(()) => self.check.ok(),
            // A record that the bus can never take is no failure of the bus. Otherwise one gateway
            // could take the service out of readiness.
            Err(error) if !error.is_retryable() => {}
            Err(error) => self.check.failing(error.to_string()),
        }
        published
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bus::{EmbeddedBus, EmbeddedOptions, RECORD_BYTES_MAX};

    use super::*;

    #[tokio::test]
    async fn a_record_that_the_bus_cannot_take_is_no_failure_of_the_bus() {
        let directory = tempfile::tempdir().unwrap();
        let bus = EmbeddedBus::open(directory.path(), EmbeddedOptions::default()).unwrap();
        let context = Context::new("path-telemetry");
        let publisher = Publisher::new(Arc::new(bus), &context);
        let report = PathReport {
            gateway: "gw".into(),
            ..PathReport::default()
        };
        publisher.publish(vec![report.clone()]).await.unwrap();
        let large = PathReport {
            path: "x".repeat(RECORD_BYTES_MAX),
            ..report
        };
        let refused = publisher.publish(vec![large]).await.unwrap_err();
        assert!(!refused.is_retryable());
        assert_eq!(context.health().failing(), []);
    }
}
