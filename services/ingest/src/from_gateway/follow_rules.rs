//! FollowRules: sends gateways the rules in force, so that they judge as the core does while they
//! cannot reach it. Gateways also get the open alerts of high priority, so that they know of
//! acknowledgements.

use std::{pin::Pin, sync::Arc, time::Duration};

use contracts::vitals::{FollowRulesRequest, FollowRulesResponse, HighAlerts as Alerts};
use service_kit::{Backoff, Shutdown, Warning, WarningHandle};
use store::{
    CallGuard, Damaged, Followed, Of, Otherwise, PUT_ANEW, QueryError, RULES, Reported, Scope,
    Store, TEAM,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};
use vitals::TeamGroups;

use crate::{
    admission::GatewayId,
    caller::caller,
    high_alerts::HighAlerts,
    register::Register,
    rules_in_force::{RulesInForce, Worn, answer, in_force},
};

pub(crate) type RulesStream =
    Pin<Box<dyn Stream<Item = Result<FollowRulesResponse, Status>> + Send>>;

/// `None`: not read yet.
pub(crate) type Reader = watch::Receiver<Option<Arc<RulesInForce>>>;

/// Keeps the rules in step with the store until shutdown; `documents` notifies of a new version.
/// While the store does not answer, the last ones hold.
pub(crate) async fn follow_documents(
    store: Arc<dyn Store>,
    mut documents: watch::Receiver<Followed>,
    to: watch::Sender<Option<Arc<RulesInForce>>>,
    warning: WarningHandle,
    shutdown: Shutdown,
) {
    let mut reported = Reported::default();
    let mut backoff = Backoff::for_reconnect();
    loop {
        // Marked as seen before reading, so that a document put meanwhile is read the next time.
        let is_known = documents.borrow_and_update().version > 0;
        let read = async {
            if !is_known {
                return Ok(None);
            }
            read(&*store).await.map(Some)
        };
        let wait = match read.await {
            Ok(rules) => {
                backoff.reset();
                if let Some((rules, damaged)) = rules {
                    let says = reported.report("ingest", damaged);
                    warning.set(says.map(|says| Warning {
                        says,
                        to_do: PUT_ANEW.to_owned(),
                    }));
                    // Documents of other kinds change as well.
                    to.send_if_modified(|known| {
                        let is_new = known.as_deref() != Some(&rules);
                        if is_new {
                            *known = Some(Arc::new(rules));
                        }
                        is_new
                    });
                }
                None
            }
            Err(error) => {
                tracing::warn!(%error, "rules could not be read");
                Some(backoff.next_delay())
            }
        };
        tokio::select! {
            () = shutdown.requested() => return,
            changed = documents.changed(), if wait.is_none() => if changed.is_err() {
                return;
            },
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
    }
}

/// Also returns the documents that cannot be read. Whether a rule set can be used is decided by the
/// gateways.
async fn read(store: &dyn Store) -> Result<(RulesInForce, Vec<Damaged>), QueryError> {
    let now_us = contracts::now_us();
    // Before the rules, which may name metrics of it.
    let catalogue = store::take_catalogue(store).await?;
    let teams = store::in_force(store, TEAM, now_us, Otherwise::Earlier, TeamGroups::read).await?;
    let rules = store::in_force(store, RULES, now_us, Otherwise::Earlier, |_| Ok(())).await?;
    let damaged = [catalogue.damaged, teams.damaged, rules.damaged].concat();
    let [rules, catalogue] = [rules.documents, catalogue.documents]
        .map(|documents| documents.into_iter().map(|(document, ())| document));
    Ok((in_force(teams.documents, rules, catalogue), damaged))
}

/// Gateways that follow their rules.
pub(crate) struct Followers {
    pub store: Arc<dyn Store>,
    pub register: Arc<Register>,
    pub rules: Reader,
    pub high_alerts: Arc<HighAlerts>,
    /// Age up to which the known devices of a gateway are used.
    pub refresh: Duration,
    pub guard: CallGuard,
    pub shutdown: Shutdown,
}

struct Follower {
    gateway: GatewayId,
    store: Arc<dyn Store>,
    register: Arc<Register>,
    rules: Reader,
    high_alerts: Arc<HighAlerts>,
    /// The gateway reads answers that hold nothing but alerts.
    takes_high_alerts: bool,
    takes_catalogue: bool,
    /// The rules that the gateway has; 0 for none, and if it reads no answer without rules.
    known_digest: u64,
    refresh: Duration,
}

impl Followers {
    pub(crate) fn follow(
        &self,
        request: Request<FollowRulesRequest>,
    ) -> Result<Response<RulesStream>, Status> {
        let (gateway, ended) = caller(request.extensions(), &self.guard)?;
        let FollowRulesRequest {
            takes_high_alerts,
            known_digest,
            takes_catalogue,
        } = *request.get_ref();
        let follower = Follower {
            gateway,
            store: Arc::clone(&self.store),
            register: Arc::clone(&self.register),
            rules: self.rules.clone(),
            high_alerts: Arc::clone(&self.high_alerts),
            takes_high_alerts,
            takes_catalogue,
            known_digest: if takes_high_alerts { known_digest } else { 0 },
            refresh: self.refresh,
        };
        let shutdown = self.shutdown.clone();
        // One answer waits for a slow reader; the next one is made after that.
        let (answers, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            let ended = tokio::select! {
                biased;
                status = ended => status,
                () = shutdown.requested() => Status::unavailable("ingest ends"),
                () = answers.closed() => return,
                status = follower.answer_changes(&answers) => status,
            };
            // The follower may be gone.
            let _ = answers.send(Err(ended)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

impl Follower {
    /// Answers at once, and again whenever the answer changes. Returns why it cannot continue.
    async fn answer_changes(
        &self,
        answers: &mpsc::Sender<Result<FollowRulesResponse, Status>>,
    ) -> Status {
        let ended = || Status::unavailable("ingest ends");
        let mut rules = self.rules.clone();
        if rules.wait_for(Option::is_some).await.is_err() {
            return ended();
        }
        let mut refresh = tokio::time::interval(self.refresh);
        refresh.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut changes = self.register.changes();
        let mut alerts_changed = self.high_alerts.changes();
        let mut worn = None;
        let mut told = Told {
            rules: self.known_digest,
            ..Told::default()
        };
        loop {
            let woken = tokio::select! {
                changed = rules.changed() => changed.map(|()| Woken::Rules),
                changed = changes.changed() => changed.map(|()| Woken::Register),
                changed = alerts_changed.changed(), if self.takes_high_alerts => {
                    changed.map(|()| Woken::Alerts)
                }
                _ = refresh.tick() => Ok(Woken::Register),
            };
            let Ok(woken) = woken else {
                return ended();
            };
            if woken == Woken::Register {
                match self.worn().await {
                    Ok(found) => worn = Some(found),
                    Err(error) => {
                        tracing::debug!(gateway = self.gateway.id, %error, "the register does not answer");
                    }
                }
            }
            let Some(worn) = &worn else { continue };
            let of_rules = match woken {
                Woken::Alerts => None,
                Woken::Rules | Woken::Register => {
                    let Some(rules) = rules.borrow_and_update().clone() else {
                        continue;
                    };
                    match answer(&rules, &self.gateway.tenant, worn, self.takes_catalogue) {
                        Ok(answer) => Some(answer),
                        Err(error) => {
                            tracing::error!(gateway = self.gateway.id, %error, "rules are not handed out");
                            return Status::resource_exhausted(error.to_string());
                        }
                    }
                }
            };
            let alerts = match self.takes_high_alerts {
                true => self.high_alerts.of(worn.wearers.keys()),
                false => None,
            };
            let Some(news) = told.news(of_rules, alerts) else {
                continue;
            };
            if !news.only_high_alerts {
                metrics::counter!("braid_ingest_rules_handed_total").increment(1);
            }
            if answers.send(Ok(news)).await.is_err() {
                return ended();
            }
        }
    }

    /// Asked in the tenant of the certificate, so that a gateway of the same name elsewhere gets
    /// nothing.
    async fn worn(&self) -> Result<Worn, QueryError> {
        let scope = Scope::tenant(&self.gateway.tenant);
        let of = Of::Gateway(&self.gateway.id);
        let assignments = self.store.assignments(&scope, of).await?;
        let mut worn = Worn::new(assignments, contracts::now_us());
        for (patient, wearer) in &mut worn.wearers {
            if let Some(entry) = self.store.patient(&scope, patient).await? {
                wearer.scale = entry.spo2_scale;
            }
        }
        Ok(worn)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Rules,
    Register,
    Alerts,
}

/// The last answers to the gateway.
#[derive(Debug, Default)]
struct Told {
    /// Digest of the rules that the gateway has; 0 for none.
    rules: u64,
    alerts: Option<Alerts>,
    /// It has had an answer, so it knows that its rules are followed.
    answered: bool,
}

impl Told {
    /// The next answer. A change of alerts alone leaves the rules out, which are thousands of
    /// bytes.
    fn news(
        &mut self,
        rules: Option<FollowRulesResponse>,
        alerts: Option<Alerts>,
    ) -> Option<FollowRulesResponse> {
        let rules = rules.filter(|rules| self.rules != rules.digest);
        let alerts = alerts.filter(|alerts| self.alerts.as_ref() != Some(alerts));
        if alerts.is_some() {
            self.alerts.clone_from(&alerts);
        }
        let is_of_alerts = rules.is_none();
        let answer = match rules {
            Some(rules) => {
                self.rules = rules.digest;
                rules
            }
            None if alerts.is_none() && self.answered => return None,
            None => FollowRulesResponse::default(),
        };
        self.answered = true;
        Some(FollowRulesResponse {
            only_high_alerts: is_of_alerts,
            high_alerts: alerts,
            ..answer
        })
    }
}
