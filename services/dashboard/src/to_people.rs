//! Posts to a webhook of the dashboard's own when alerts do not reach people, and when they do
//! again. Alerting has no part in it. The replicas of a dashboard make one post together.

mod one_post;

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Method, header};
use rustls::ClientConfig;
use serde_json::json;
use service_kit::{
    Backoff, ConfigError, Context, Secret, Shutdown,
    config::parse_address,
    https::{self, CallError},
};
use store::Store;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    config::CanaryConfig,
    outage::{Post, shared::Turn},
};
use one_post::OnePost;

/// Posts that wait; a further post is dropped and logged. An outage has two.
const WAITING_MAX: usize = 8;
/// How often a replica looks whether another one has posted.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// Tries of one post, over about ten minutes. Then another replica has its turn, and this one rests
/// for [`REST`]. The end of an outage is given up.
const TRIES_MAX: u32 = 16;
/// A replica that cannot reach the webhook leaves the post to the others for so long.
const REST: Duration = Duration::from_secs(60);
/// First pause between two tries; each pause doubles it.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Longest pause between two tries of one post.
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct Webhook {
    posts: mpsc::Sender<Post>,
}

impl Webhook {
    /// The sender, and the future that sends until shutdown. `None`: no address is configured.
    pub(crate) fn new(
        config: &CanaryConfig,
        store: &Arc<dyn Store>,
        context: &Context,
    ) -> Result<Option<(Webhook, impl Future<Output = ()> + use<>)>, ConfigError> {
        let Some(url) = config.canary_webhook.clone() else {
            return Ok(None);
        };
        let refused = |reason: String| {
            // The address may hold a secret, so no message repeats it.
            ConfigError::new(
                "canary_webhook",
                reason,
                "--canary-webhook https://pager.example.org/braid",
            )
        };
        let uri = parse_address(url.expose(), &["http", "https"]).map_err(refused)?;
        let tls = match (&config.canary_webhook_ca, uri.scheme_str()) {
            (Some(ca), _) => https::believing("canary_webhook_ca", ca)?,
            (None, Some("https")) => {
                return Err(ConfigError::new(
                    "canary_webhook_ca",
                    "an https webhook needs the authority to believe",
                    "--canary-webhook-ca /etc/ssl/certs/ca-certificates.crt",
                ));
            }
            // Never used: the address has no TLS.
            (None, _) => Arc::new(https::believing_anybody()?),
        };
        let (posts, waiting) = mpsc::channel(WAITING_MAX);
        let one_post = OnePost::new(Arc::clone(store), context.clock().clone());
        let shutdown = context.shutdown().clone();
        let running = run(waiting, Target { url, tls }, one_post, shutdown);
        Ok(Some((Webhook { posts }, running)))
    }

    pub(crate) fn post(&self, post: Post) {
        if self.posts.try_send(post).is_err() {
            tracing::error!("people are not told of an outage: too many posts wait");
        }
    }
}

/// Posts what comes, once for the installation, until shutdown.
async fn run(
    mut waiting: mpsc::Receiver<Post>,
    target: Target,
    one_post: OnePost,
    shutdown: Shutdown,
) {
    let mut poster = Poster {
        target,
        one_post,
        current: None,
        has_posted: false,
        tries_max: TRIES_MAX,
        rests_until: None,
    };
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            post = waiting.recv() => match post {
                Some(post) => {
                    let is_outage = matches!(post, Post::Outage { .. });
                    poster.has_posted &= !is_outage;
                    poster.current = Some(post);
                }
                None => return,
            },
            () = tokio::time::sleep(LOOK_AGAIN), if poster.current.is_some() => {}
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = poster.act() => {}
        }
    }
}

struct Target {
    url: Secret,
    tls: Arc<ClientConfig>,
}

struct Poster {
    target: Target,
    one_post: OnePost,
    /// The outage that this replica sees, or a recovery that is not settled.
    current: Option<Post>,
    /// This replica has posted the outage.
    has_posted: bool,
    tries_max: u32,
    rests_until: Option<Instant>,
}

impl Poster {
    async fn act(&mut self) {
        match self.current.clone() {
            Some(post @ Post::Outage { .. }) => self.outage(&post).await,
            Some(post @ Post::Recovered { .. }) => self.recovered(&post).await,
            None => {}
        }
    }

    /// Tries in turns with the other replicas until one of them has posted, however long the outage
    /// lasts. Without an answer of the store, which may be the outage itself, each replica posts.
    async fn outage(&mut self, post: &Post) {
        if self.rests_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        while !self.has_posted
            && self.one_post.enter(false).await.unwrap_or(Turn::Post) == Turn::Post
        {
            if self.target.post(post).await {
                self.has_posted = true;
            } else if backoff.attempts() + 1 >= self.tries_max {
                give_up();
                self.rests_until = Some(Instant::now() + REST);
                self.one_post.pass_on().await;
                return;
            } else {
                backoff.wait().await;
            }
        }
        // Renews the entry of this replica, and lists a post that it made by itself.
        self.one_post.enter(self.has_posted).await;
    }

    async fn recovered(&mut self, post: &Post) {
        let turn = self.one_post.leave().await;
        let is_due = match turn {
            Some(turn) => turn == Turn::Post,
            None => self.has_posted,
        };
        if turn == Some(Turn::Wait) {
            return;
        }
        self.current = None;
        self.has_posted = false;
        self.rests_until = None;
        if !is_due {
            return;
        }
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        while !self.target.post(post).await {
            if backoff.attempts() + 1 >= self.tries_max {
                return give_up();
            }
            backoff.wait().await;
        }
    }
}

fn give_up() {
    tracing::error!(
        "the webhook of the canary was not reached for long; an outage is posted later or by another replica"
    );
    count("given-up");
}

fn count(outcome: &'static str) {
    metrics::counter!("braid_dashboard_outage_posts_total", "outcome" => outcome).increment(1);
}

impl Target {
    /// One try.
    async fn post(&self, post: &Post) -> bool {
        let body = body(post).to_string().into_bytes();
        let headers = [(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        )];
        let url = self.url.expose();
        let called = https::call(Method::POST, url, &headers, body, &self.tls).await;
        let reason = match called {
            Ok((status, _)) if status.is_success() => {
                count("delivered");
                return true;
            }
            Ok((status, _)) => format!("answered {status}"),
            // The text of this error contains the address.
            Err(CallError::Url(_)) => "the address cannot be used".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(reason, "the webhook of the canary was not reached");
        count("failed");
        false
    }
}

fn body(post: &Post) -> serde_json::Value {
    match post {
        Post::Outage { since, says } => json!({
            "source": "braid-dashboard",
            "event": "outage",
            "since": since.utc(),
            "says": says,
        }),
        Post::Recovered { since, until } => json!({
            "source": "braid-dashboard",
            "event": "recovered",
            "since": since.utc(),
            "until": until.utc(),
            "says": ["alerts come through again"],
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clocks::CheckedClock;
    use consumer_health::Moment;
    use store::SqliteStore;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::timeout,
    };

    use super::*;

    /// Reached only by a failing test.
    const STUCK_AFTER: Duration = Duration::from_secs(20);

    /// A replica that tries once in its turn.
    fn replica(store: &Arc<dyn Store>, port: u16) -> Poster {
        Poster {
            target: Target {
                url: Secret::new(format!("http://127.0.0.1:{port}/pager")),
                tls: Arc::new(https::believing_anybody().unwrap()),
            },
            one_post: OnePost::new(Arc::clone(store), CheckedClock::of_machine()),
            current: Some(Post::Outage {
                since: Moment::now(),
                says: vec!["alerts are late".to_owned()],
            }),
            has_posted: false,
            tries_max: 1,
            rests_until: None,
        }
    }

    #[tokio::test]
    async fn an_outage_that_one_replica_cannot_post_is_posted_by_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir.path()).unwrap());
        let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused_port = refusing.local_addr().unwrap().port();
        drop(refusing);
        let mut cut = replica(&store, refused_port);
        timeout(STUCK_AFTER, cut.act()).await.unwrap();
        assert!(!cut.has_posted, "nobody was told");

        let pager = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut other = replica(&store, pager.local_addr().unwrap().port());
        let told = tokio::spawn(async move {
            let (mut stream, _) = pager.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            length
        });
        timeout(STUCK_AFTER, other.act()).await.unwrap();
        assert!(other.has_posted);
        assert!(timeout(STUCK_AFTER, told).await.unwrap().unwrap() > 0);
        // The first one rests, and then learns that the installation has posted.
        cut.rests_until = None;
        timeout(STUCK_AFTER, cut.act()).await.unwrap();
        assert!(!cut.has_posted);
    }
}
