//! Tells people by the dashboard's own webhook that alerts do not come through. Alerting has no
//! part in it.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Method, header};
use rustls::ClientConfig;
use serde_json::json;
use service_kit::{
    Backoff, ConfigError, Secret, Shutdown,
    config::parse_address,
    https::{self, CallError},
};
use tokio::sync::mpsc;

use crate::{config::CanaryConfig, outage::Post};

/// Posts that wait; a further post is dropped and logged. An outage has two.
const WAITING_MAX: usize = 8;
/// Attempts for one post, over about ten minutes. Then it is given up and logged.
const TRIES_MAX: u32 = 16;
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct Webhook {
    posts: mpsc::Sender<Post>,
}

impl Webhook {
    /// The sender, and the future that sends until shutdown. `None`: no address is configured.
    pub fn new(
        config: &CanaryConfig,
        shutdown: Shutdown,
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
        Ok(Some((Webhook { posts }, run(waiting, url, tls, shutdown))))
    }

    pub fn post(&self, post: Post) {
        if self.posts.try_send(post).is_err() {
            tracing::error!("people are not told of an outage: too many posts wait");
        }
    }
}

async fn run(
    mut waiting: mpsc::Receiver<Post>,
    url: Secret,
    tls: Arc<ClientConfig>,
    shutdown: Shutdown,
) {
    loop {
        let post = tokio::select! {
            () = shutdown.requested() => return,
            post = waiting.recv() => match post {
                Some(post) => post,
                None => return,
            },
        };
        tokio::select! {
            () = shutdown.requested() => return,
            () = deliver(&post, &url, &tls) => {}
        }
    }
}

async fn deliver(post: &Post, url: &Secret, tls: &Arc<ClientConfig>) {
    let body = body(post).to_string().into_bytes();
    let headers = [(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )];
    let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
    let count = |outcome: &'static str| {
        metrics::counter!("braid_dashboard_outage_posts_total", "outcome" => outcome).increment(1);
    };
    while backoff.attempts() < TRIES_MAX {
        let called = https::call(Method::POST, url.expose(), &headers, body.clone(), tls).await;
        let reason = match called {
            Ok((status, _)) if status.is_success() => return count("delivered"),
            Ok((status, _)) => format!("answered {status}"),
            // The text of this error contains the address.
            Err(CallError::Url(_)) => "the address cannot be used".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(reason, "the webhook of the canary was not reached");
        count("failed");
        backoff.wait().await;
    }
    tracing::error!(TRIES_MAX, "people were not told of an outage by webhook");
    count("given-up");
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
