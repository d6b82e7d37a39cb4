//! Gateways that are turned away, as path-telemetry tells them: it has the store, the proxy has none.
//!
//! Asked for every second; the answer to an unchanged list is empty. While path-telemetry does not answer, what was last heard stays
//! in force; at a start without it everybody with a certificate is let in, because data must flow, and ingest asks the store itself.

use std::{sync::Arc, time::Duration};

use contracts::policy::{ListRevocationsRequest, policy_service_client::PolicyServiceClient};
use service_kit::{
    Shutdown,
    tls::{Fingerprint, PeerId, Revocations},
};
use tokio::{sync::watch, time::MissedTickBehavior};
use tonic::transport::Channel;

const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

pub(crate) async fn follow(
    channel: Channel,
    to: watch::Sender<Arc<Revocations>>,
    shutdown: Shutdown,
) {
    let mut client = PolicyServiceClient::new(channel);
    let mut version = 0;
    let mut is_away = false;
    let mut tick = tokio::time::interval(ASK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            _ = tick.tick() => {}
        }
        let asked = client.list_revocations(ListRevocationsRequest { version });
        let answered = tokio::select! {
            () = shutdown.requested() => return,
            answered = tokio::time::timeout(ANSWER_WITHIN, asked) => answered,
        };
        let answer = match answered {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(error)) => {
                warn_once(&mut is_away, &error.message());
                continue;
            }
            Err(_) => {
                warn_once(&mut is_away, &"no answer");
                continue;
            }
        };
        is_away = false;
        if answer.unchanged {
            continue;
        }
        version = answer.version;
        let revocations: Revocations = answer
            .gateways
            .into_iter()
            .map(|revoked| {
                let excepted = revoked.excepted.iter();
                let excepted = excepted.filter_map(|text| Fingerprint::from_hex(text));
                let id = PeerId::gateway(revoked.tenant, revoked.gateway);
                (id, excepted.collect())
            })
            .collect();
        metrics::gauge!("braid_identity_revoked_gateways").set(revocations.len() as f64);
        // A change of anything else is no news to the sessions.
        to.send_if_modified(|known| {
            let is_news = **known != revocations;
            *known = Arc::new(revocations);
            is_news
        });
    }
}

fn warn_once(is_away: &mut bool, reason: &dyn std::fmt::Display) {
    if !std::mem::replace(is_away, true) {
        tracing::warn!(%reason, "revocations cannot be asked for; the last ones stay in force");
    }
}
