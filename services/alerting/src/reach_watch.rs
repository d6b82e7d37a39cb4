//! Publishes gaps in notification to the log, `/readyz` and the dashboard.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use service_kit::{Context, Warning};
use store::{QueryError, Scope, Store};
use tokio::sync::watch;

use crate::{
    proof::{Pace, Proofs},
    reach::{GAPS_MAX, Gap, Known, gaps},
    routing::Channels,
    rules_in_force,
};

/// Interval at which register and proofs are read. A changed document is followed at once.
const LOOK_EACH: Duration = Duration::from_secs(10);
/// Gaps named in a warning. The rest is counted.
const NAMED_MAX: usize = 3;

/// Gaps as last found, and the number of omitted ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub gaps: Vec<Gap>,
    pub omitted: usize,
}

pub(crate) type Reader = watch::Receiver<Arc<Found>>;

/// Runs until shutdown.
pub(crate) async fn run(
    store: Arc<dyn Store>,
    channels: Channels,
    pace: Pace,
    mut in_force: rules_in_force::Reader,
    found: watch::Sender<Arc<Found>>,
    context: Context,
) {
    let warning = context.health().warning("nobody-told");
    let shutdown = context.shutdown();
    loop {
        let current = Arc::clone(&in_force.borrow_and_update());
        let now_us = context.clock().now_us();
        match look(store.as_ref(), &channels, &pace, &current, now_us).await {
            Ok(now) => {
                metrics::gauge!("braid_alerting_untold").set((now.gaps.len() + now.omitted) as f64);
                warning.set(warning_of(&now));
                if **found.borrow() != now {
                    for gap in &now.gaps {
                        tracing::warn!(tenant = gap.tenant, to_do = gap.to_do, "{}", gap.says);
                    }
                    if now.gaps.is_empty() {
                        tracing::info!("every alert notifies somebody");
                    }
                    found.send_replace(Arc::new(now));
                }
            }
            // The gaps found before stay. The check of the documents reports that the store is
            // away.
            Err(error) => tracing::debug!(%error, "gaps in notification are not updated"),
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(LOOK_EACH) => {}
            Ok(()) = in_force.changed() => {}
        }
    }
}

async fn look(
    store: &dyn Store,
    channels: &Channels,
    pace: &Pace,
    in_force: &rules_in_force::DocumentsInForce,
    now_us: i64,
) -> Result<Found, QueryError> {
    let patients = store.patients(&Scope::Service).await?;
    let gateways = store.gateways(&Scope::Service).await?;
    let proofs = Proofs::new(pace, store.proofs().await?);
    let of_patients = patients.iter().map(|patient| &patient.tenant);
    let tenants: BTreeSet<String> = of_patients
        .chain(gateways.iter().map(|gateway| &gateway.tenant))
        .chain(in_force.tenants_with_team())
        .cloned()
        .collect();
    let mut gaps = gaps(&Known {
        channels,
        proofs: &proofs,
        now_us,
        team_of: &|tenant| in_force.team(tenant),
        tenants: &tenants,
        patients: &patients,
    });
    let omitted = gaps.len().saturating_sub(GAPS_MAX);
    gaps.truncate(GAPS_MAX);
    Ok(Found { gaps, omitted })
}

fn warning_of(found: &Found) -> Option<Warning> {
    let first = found.gaps.first()?;
    let named = found.gaps.iter().take(NAMED_MAX);
    let named: Vec<&str> = named.map(|gap| gap.says.as_str()).collect();
    let more = match found.gaps.len() + found.omitted - named.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(Warning {
        says: format!("{}{more}", named.join("; ")),
        to_do: first.to_do.to_owned(),
    })
}
