//! The webhook of the canary: one POST when alerts stop coming through, and one when they do again.

use std::sync::Arc;

use http::{HeaderValue, Method, header};
use rustls::ClientConfig;
use serde_json::json;
use service_kit::{
    ConfigError, Secret,
    config::parse_address,
    https::{self, CallError},
};

use crate::{config::CanaryConfig, outage::Post};

pub(super) struct Webhook {
    url: Secret,
    tls: Arc<ClientConfig>,
}

impl Webhook {
    /// `None`: no address is configured.
    pub(super) fn new(config: &CanaryConfig) -> Result<Option<Webhook>, ConfigError> {
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
        Ok(Some(Webhook { url, tls }))
    }

    /// One try, which takes at most ten seconds.
    pub(super) async fn post(&self, post: &Post) -> Result<(), String> {
        let body = body(post).to_string().into_bytes();
        let headers = [(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        )];
        let url = self.url.expose();
        match https::call(Method::POST, url, &headers, body, &self.tls).await {
            Ok((status, _)) if status.is_success() => Ok(()),
            Ok((status, _)) => Err(format!("answered {status}")),
            // The text of this error contains the address.
            Err(CallError::Url(_)) => Err("the address cannot be used".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[cfg(test)]
    pub(super) fn at(url: String) -> Webhook {
        #[allow(clippy::unwrap_used)]
        let tls = Arc::new(https::believing_anybody().unwrap());
        Webhook {
            url: Secret::new(url),
            tls,
        }
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
