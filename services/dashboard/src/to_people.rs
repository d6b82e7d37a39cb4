//! Notifies people when alerts do not come through, and when they do again: by the dashboard's own
//! e-mail and its own webhook. Alerting has no part in it. The replicas of a dashboard tell each
//! person once.
//!
//! ```text
//! system.rs --> Post --> run --> one round --> webhook, mail
//!                          ^         |
//!                turns of all replicas in the store; recipients by the teams
//! ```

mod letter;
mod outage_turns;
mod recipients;
mod webhook;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use mail::{Letter, Mailer};
use parking_lot::Mutex;
use service_kit::{Backoff, ConfigError, Context, Shutdown};
use store::Store;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    config::{CanaryConfig, MailConfig},
    outage::{Post, shared::Turn},
};
use letter::letter;
use outage_turns::OutageTurns;
pub(crate) use recipients::{Recipient, Recipients, TeamPeople};
use webhook::Webhook;

/// Posts that wait; a further post is dropped and logged. An outage has two.
const WAITING_MAX: usize = 8;
/// How often a replica looks whether somebody is left whom no replica has told. Another one may
/// have died, and other people may be on call by then.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// Rounds with a failure, over about ten minutes. Then another replica has its turn, and this one
/// rests for [`REST`]. The end of an outage is given up.
const TRIES_MAX: u32 = 16;
/// A replica that cannot reach people leaves them to the others for so long.
const REST: Duration = Duration::from_secs(60);
/// First pause between two rounds; each pause doubles it.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Longest pause between two rounds.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Key of the webhook among those who are told.
const WEBHOOK: &str = "webhook";

/// Names the people of an outage, for every part that learns of teams.
pub(crate) type SharedRecipients = Arc<Mutex<Recipients>>;

/// Which ways are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub webhook: bool,
    pub mail: bool,
}

/// The ways out of this service.
pub(crate) struct Ways {
    webhook: Option<Webhook>,
    mailer: Option<Arc<Mailer>>,
}

impl Ways {
    /// Refuses a wrong setting.
    pub(crate) fn new(canary: &CanaryConfig, mail: &MailConfig) -> Result<Ways, ConfigError> {
        Ok(Ways {
            webhook: Webhook::new(canary)?,
            mailer: mail.mailer()?.map(Arc::new),
        })
    }

    pub(crate) fn mailer(&self) -> Option<Arc<Mailer>> {
        self.mailer.clone()
    }

    pub(crate) fn kinds(&self) -> Kinds {
        Kinds {
            webhook: self.webhook.is_some(),
            mail: self.mailer.is_some(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct People {
    posts: mpsc::Sender<Post>,
}

impl People {
    /// The sender, and the future that notifies people until shutdown.
    pub(crate) fn new(
        ways: Ways,
        recipients: SharedRecipients,
        store: &Arc<dyn Store>,
        context: &Context,
    ) -> (People, impl Future<Output = ()> + use<>) {
        let (posts, waiting) = mpsc::channel(WAITING_MAX);
        let turns = OutageTurns::new(Arc::clone(store), context.clock().clone());
        let teller = Teller::new(ways, recipients, turns, context.clock().clone());
        let running = run(waiting, teller, context.shutdown().clone());
        (People { posts }, running)
    }

    pub(crate) fn tell(&self, post: Post) {
        if self.posts.try_send(post).is_err() {
            tracing::error!("people are not told of an outage: too many posts wait");
        }
    }
}

async fn run(mut waiting: mpsc::Receiver<Post>, mut teller: Teller, shutdown: Shutdown) {
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            post = waiting.recv() => match post {
                Some(post) => teller.begin(post),
                None => return,
            },
            () = tokio::time::sleep_until(teller.next_at), if teller.current.is_some() => {}
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = teller.round() => {}
        }
    }
}

/// One receiver of letters or posts.
enum Target {
    Webhook,
    Mail(Recipient),
}

impl Target {
    fn key(&self) -> String {
        match self {
            Target::Webhook => WEBHOOK.to_owned(),
            Target::Mail(recipient) => recipient.key(),
        }
    }
}

/// The result of one try.
enum Tried {
    Told,
    /// The server refuses this address for good.
    Refused,
    /// `is_way`: the way itself is closed, so that other tries by it are in vain now.
    Failed {
        is_way: bool,
    },
}

struct Teller {
    ways: Ways,
    recipients: SharedRecipients,
    turns: OutageTurns,
    clock: clocks::CheckedClock,
    /// The outage that this replica sees, or a recovery that is not settled.
    current: Option<Post>,
    /// Those whom this replica has told of the outage.
    told: BTreeSet<String>,
    /// Addresses that the mail server refuses for good.
    refused: BTreeSet<String>,
    /// Those who are left to tell of the end, and the name of the outage. `None`: not asked yet.
    to_close: Option<(BTreeSet<String>, String)>,
    backoff: Backoff,
    next_at: Instant,
}

impl Teller {
    fn new(
        ways: Ways,
        recipients: SharedRecipients,
        turns: OutageTurns,
        clock: clocks::CheckedClock,
    ) -> Teller {
        Teller {
            ways,
            recipients,
            turns,
            clock,
            current: None,
            told: BTreeSet::new(),
            refused: BTreeSet::new(),
            to_close: None,
            backoff: Backoff::new(PAUSE_FIRST, PAUSE_MAX),
            next_at: Instant::now(),
        }
    }

    fn begin(&mut self, post: Post) {
        if matches!(post, Post::Outage { .. }) {
            self.told.clear();
            self.refused.clear();
        }
        self.to_close = None;
        self.backoff.reset();
        self.current = Some(post);
    }

    async fn round(&mut self) {
        let is_settled = match self.current.clone() {
            Some(post @ Post::Outage { .. }) => self.outage(&post).await,
            Some(post @ Post::Recovered { .. }) => self.recovered(&post).await,
            None => return,
        };
        let pause = if is_settled {
            self.backoff.reset();
            LOOK_AGAIN
        } else if self.backoff.attempts() + 1 < TRIES_MAX {
            self.backoff.next_delay()
        } else {
            self.give_up().await;
            REST
        };
        self.next_at = Instant::now() + pause;
    }

    /// One try for each who was not told. However long the outage lasts, there is another round.
    /// Without an answer of the store, which may be the outage itself, each replica notifies all.
    /// Returns whether nobody is left for this replica.
    async fn outage(&mut self, post: &Post) -> bool {
        let mut targets = self.targets(self.recipients.lock().now(self.clock.now_us()));
        targets.retain(|target| !self.refused.contains(&target.key()));
        let wanted: BTreeSet<String> = targets.iter().map(Target::key).collect();
        let (told, outage) = match self.turns.enter(&self.told, &wanted).await {
            Some((Turn::Tell, shared)) => (shared.told, shared.outage),
            Some((Turn::Wait | Turn::Done, _)) => return true,
            None => (self.told.clone(), self.turns.replica().to_owned()),
        };
        targets.retain(|target| !told.contains(&target.key()));
        let mut is_settled = true;
        let mut closed = BTreeSet::new();
        for target in targets {
            let way = matches!(target, Target::Mail(_));
            if closed.contains(&way) {
                continue;
            }
            match self.try_once(&target, post, &outage).await {
                Tried::Told => {
                    self.told.insert(target.key());
                    // Renews the turn, too.
                    self.turns.enter(&self.told, &wanted).await;
                }
                Tried::Refused => {
                    self.refused.insert(target.key());
                }
                Tried::Failed { is_way } => {
                    is_settled = false;
                    if is_way {
                        closed.insert(way);
                    }
                }
            }
        }
        is_settled
    }

    /// Notifies those who were told of the outage that it is over.
    async fn recovered(&mut self, post: &Post) -> bool {
        if self.to_close.is_none() {
            self.to_close = match self.turns.leave().await {
                // Another replica still sees the outage, and is asked again.
                Some(None) => return true,
                Some(Some(left)) => Some(left),
                None => Some((self.told.clone(), self.turns.replica().to_owned())),
            };
        }
        let Some((left, outage)) = self.to_close.clone() else {
            return true;
        };
        let outage = format!("{outage}/end");
        let mut targets = self.targets(self.recipients.lock().ever());
        targets.retain(|target| left.contains(&target.key()));
        let mut failed = BTreeSet::new();
        for target in targets {
            if let Tried::Failed { .. } = self.try_once(&target, post, &outage).await {
                failed.insert(target.key());
            }
        }
        if !failed.is_empty() {
            self.to_close = self.to_close.take().map(|(_, outage)| (failed, outage));
            return false;
        }
        self.end();
        true
    }

    async fn give_up(&mut self) {
        tracing::error!(
            "people were not reached for long; they are told of an outage later or by another replica"
        );
        count("given-up");
        self.backoff.reset();
        if matches!(self.current, Some(Post::Recovered { .. })) {
            self.end();
        } else {
            self.turns.pass_on().await;
        }
    }

    fn end(&mut self) {
        self.current = None;
        self.told.clear();
        self.to_close = None;
    }

    fn targets(&self, people: Vec<Recipient>) -> Vec<Target> {
        let webhook = self.ways.webhook.iter().map(|_| Target::Webhook);
        let people = people.into_iter().map(Target::Mail);
        let has_mail = self.ways.mailer.is_some();
        webhook.chain(people.filter(|_| has_mail)).collect()
    }

    async fn try_once(&self, target: &Target, post: &Post, outage: &str) -> Tried {
        let (tried, reason) = match (target, &self.ways.webhook, &self.ways.mailer) {
            (Target::Webhook, Some(webhook), _) => match webhook.post(post).await {
                Ok(()) => (Tried::Told, String::new()),
                Err(reason) => (Tried::Failed { is_way: true }, reason),
            },
            (Target::Mail(recipient), _, Some(mailer)) => {
                let (subject, text) = letter(post, &recipient.zone);
                let key = format!("{outage}/{}", recipient.key());
                let letter = Letter {
                    to: &recipient.address,
                    subject,
                    text,
                    key: &key,
                };
                match mailer.send(&letter).await {
                    Ok(()) => (Tried::Told, String::new()),
                    Err(unsent) if !unsent.is_retryable => (Tried::Refused, unsent.reason),
                    Err(unsent) => {
                        let is_way = !unsent.is_of_letter;
                        (Tried::Failed { is_way }, unsent.reason)
                    }
                }
            }
            _ => (Tried::Refused, "the way is not configured".to_owned()),
        };
        let key = target.key();
        match &tried {
            Tried::Told => count("delivered"),
            Tried::Refused => {
                tracing::error!(key, reason, "one person is not told of an outage");
                count("refused");
            }
            Tried::Failed { .. } => {
                tracing::warn!(key, reason, "one person is not told of an outage yet");
                count("failed");
            }
        }
        tried
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("braid_dashboard_outage_posts_total", "outcome" => outcome).increment(1);
}

#[cfg(test)]
mod tests;
