//! Sends the heartbeats that are due, and stores what confirms them. `proof.rs` decides.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use rand::RngExt;
use service_kit::Context;
use store::{Proof, Store, WriteError};

use super::{channel::Channel, channel_state::ChannelState, heartbeat::Heartbeat};
use crate::{
    proof::{Due, Pace, Proofs, Target, targets},
    routing::Channels,
    rules_in_force,
};

/// Interval of the look for due heartbeats. A changed team is followed at once.
const LOOK_EACH: Duration = Duration::from_secs(10);
/// Heartbeats of one look; more wait for the next. Alerts share the receivers.
const SENT_MAX: usize = 32;
/// Heartbeats at the same time.
const AT_ONCE: usize = 4;
/// Recipients whose failures are counted. Beyond it counting begins anew.
const FAILURES_MAX: usize = 10_000;

pub(super) struct Prover {
    pub channels: Channels,
    pub pace: Pace,
    pub public_url: Option<String>,
    pub senders: Vec<(Arc<Channel>, Arc<Mutex<ChannelState>>)>,
    pub store: Arc<dyn Store>,
    pub context: Context,
}

/// Result of a heartbeat.
enum Beat {
    /// Another member sends it.
    Others,
    Failed,
    Sent {
        is_confirmed: bool,
    },
}

impl Prover {
    /// Runs until shutdown.
    pub(super) async fn run(self, mut in_force: rules_in_force::Reader) {
        if self.senders.is_empty() {
            return;
        }
        let shutdown = self.context.shutdown().clone();
        let mut failures: BTreeMap<Target, u32> = BTreeMap::new();
        loop {
            let current = Arc::clone(&in_force.borrow_and_update());
            let looking = self.look(&current, &mut failures);
            tokio::select! {
                () = shutdown.requested() => return,
                looked = looking => {
                    if let Err(error) = looked {
                        tracing::debug!(%error, "heartbeats of channels wait for the store");
                    }
                }
            }
            tokio::select! {
                () = shutdown.requested() => return,
                () = tokio::time::sleep(LOOK_EACH) => {}
                Ok(()) = in_force.changed() => {}
            }
        }
    }

    async fn look(
        &self,
        in_force: &rules_in_force::DocumentsInForce,
        failures: &mut BTreeMap<Target, u32>,
    ) -> Result<(), WriteError> {
        let stored = self.store.proofs().await;
        let stored = stored.map_err(|error| WriteError::Unavailable(error.to_string()))?;
        let proofs = Proofs::new(&self.pace, stored);
        let targets = targets(&self.channels, in_force.teams());
        let mut due = proofs.due(&targets, failures, self.context.clock().now_us());
        due.truncate(SENT_MAX);
        let sending = stream::iter(due).map(|due| self.act(due));
        let mut acted = sending.buffer_unordered(AT_ONCE);
        while let Some(acted) = acted.next().await {
            let Some((target, beat)) = acted? else {
                continue;
            };
            if failures.len() >= FAILURES_MAX {
                failures.clear();
            }
            // A person confirms later; a machine at once.
            let is_person = target.channel == crate::routing::EMAIL;
            match beat {
                Beat::Others => {}
                Beat::Sent { is_confirmed } if is_confirmed || is_person => {
                    failures.remove(&target);
                }
                Beat::Sent { .. } | Beat::Failed => *failures.entry(target).or_default() += 1,
            }
        }
        Ok(())
    }

    async fn act(&self, due: Due) -> Result<Option<(Target, Beat)>, WriteError> {
        match due {
            Due::End(target) => {
                let Target {
                    channel,
                    tenant,
                    recipient,
                } = &target;
                self.store.end_proof(channel, tenant, recipient).await?;
                Ok(None)
            }
            Due::Send {
                target,
                settings,
                before_us,
            } => {
                let beat = self.send(&target, settings, before_us).await?;
                Ok(Some((target, beat)))
            }
        }
    }

    async fn send(
        &self,
        target: &Target,
        settings: String,
        before_us: Option<i64>,
    ) -> Result<Beat, WriteError> {
        let sender = self
            .senders
            .iter()
            .find(|(it, _)| it.names().channel == target.channel);
        let Some((channel, state)) = sender else {
            return Ok(Beat::Others);
        };
        let secret = secret();
        let proof = Proof {
            channel: target.channel.to_owned(),
            tenant: target.tenant.clone(),
            recipient: target.recipient.clone(),
            settings,
            token: Proof::token_of(&secret),
            sent_us: self.context.clock().now_us(),
            ..Proof::default()
        };
        if !self.store.begin_proof(&proof, before_us).await? {
            return Ok(Beat::Others);
        }
        let heartbeat = Heartbeat {
            secret: &secret,
            key: format!("heartbeat/{}", &proof.token[..16]),
            tenant: &target.tenant,
            recipient: &target.recipient,
            public_url: self.public_url.as_deref(),
        };
        let name = target.channel;
        let count = |outcome: &'static str| {
            metrics::counter!("braid_alerting_heartbeats_total", "channel" => name, "outcome" => outcome).increment(1);
        };
        match channel.prove(&heartbeat).await {
            Ok(is_confirmed) => {
                state.lock().on_success();
                count(if is_confirmed { "confirmed" } else { "sent" });
                if is_confirmed {
                    let now_us = self.context.clock().now_us();
                    let by = "the receiver's answer";
                    self.store.confirm_proof(&proof.token, by, now_us).await?;
                }
                Ok(Beat::Sent { is_confirmed })
            }
            Err(error) => {
                if error.is_of_channel(name) {
                    let now_us = self.context.clock().monotonic_us();
                    state.lock().on_failure(now_us, &error.reason);
                }
                count("failed");
                tracing::warn!(
                    channel = name,
                    reason = error.reason,
                    "a heartbeat was not sent"
                );
                Ok(Beat::Failed)
            }
        }
    }
}

/// 256 random bits. It is in no log, and the store has its hash.
fn secret() -> String {
    let bytes: [u8; 32] = rand::rng().random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
