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
            // Ready once the bus takes writes; from then on publishing itself tells.
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
            Err(error) => self.check.failing(error.to_string()),
        }
        published
    }
}
