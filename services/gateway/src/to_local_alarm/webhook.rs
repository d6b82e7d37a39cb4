//! An address in the local network that is called with an alert.

use std::{net::IpAddr, path::Path, sync::Arc};

use http::{HeaderValue, Method, header};
use rustls::ClientConfig;
use service_kit::{ConfigError, Secret, config::parse_address, https};

pub struct Webhook {
    url: Secret,
    tls: Arc<ClientConfig>,
}

impl Webhook {
    /// Plain HTTP only to a private address: alerts of a person leave the building encrypted or not
    /// at all. A name could point anywhere.
    pub fn new(url: &Secret, ca: Option<&Path>) -> Result<Self, ConfigError> {
        const EXAMPLE: &str = "--alarm-webhook http://192.168.1.20/alarm";
        // The URL may contain a secret, so no message repeats it.
        let refused = |reason: &str| ConfigError::new("alarm_webhook", reason, EXAMPLE);
        let uri =
            parse_address(url.expose(), &["http", "https"]).map_err(|reason| refused(&reason))?;
        let host = uri.host().ok_or_else(|| refused("has no host"))?;
        let is_https = uri.scheme_str() == Some("https");
        if !is_https && !is_private(host) {
            return Err(refused("is plain http and no private address"));
        }
        let tls = match (is_https, ca) {
            (true, None) => {
                return Err(ConfigError::new(
                    "alarm_webhook_ca",
                    "an https webhook needs a trusted certificate authority",
                    "--alarm-webhook-ca /etc/ssl/certs/ca-certificates.crt",
                ));
            }
            (_, Some(ca)) => https::believing("alarm_webhook_ca", ca)?,
            (false, None) => Arc::new(https::believing_anybody()?),
        };
        let url = url.clone();
        Ok(Self { url, tls })
    }

    pub async fn call(&self, body: Vec<u8>) -> Result<(), String> {
        let json = HeaderValue::from_static("application/json");
        let headers = [(header::CONTENT_TYPE, json)];
        let url = self.url.expose();
        let called = https::call(Method::POST, url, &headers, body, &self.tls).await;
        match called {
            Ok((status, _)) if status.is_success() => Ok(()),
            Ok((status, _)) => Err(format!("answered {status}")),
            Err(https::CallError::Url(_)) => Err("is no address".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn is_private(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_private() || ip.is_loopback() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => {
            ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()
        }
        Err(_) => bare == "localhost",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn plain_http_stays_in_the_building() {
        let field = |url: &str| {
            let made = Webhook::new(&Secret::new(url), None);
            made.err().map(|error| error.field)
        };
        for url in [
            "http://127.0.0.1:9/alarm",
            "http://192.168.1.20",
            "http://10.1.2.3:80/x",
            "http://[fd00::7]/alarm",
            "http://localhost:9",
        ] {
            assert_eq!(field(url), None, "{url}");
        }
        let refused = Some("alarm_webhook".to_owned());
        for url in [
            "http://203.0.113.9/",
            "http://lamp.example.org/",
            "http://[2001:db8::1]/",
            "ftp://192.168.1.20/",
            "lamp",
        ] {
            assert_eq!(field(url), refused, "{url}");
        }
        let https = field("https://lamp.example.org/");
        assert_eq!(https, Some("alarm_webhook_ca".to_owned()));
    }
}
