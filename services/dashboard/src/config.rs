//! Configuration of the dashboard.

mod mail;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use service_kit::config::parse_address;
use service_kit::tls::IdentityFiles;
use service_kit::{ConfigError, Secret, ServiceConfig};

pub use mail::MailConfig;

#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct Config {
    /// Address of the web page and of gRPC-web.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Serve the page over TLS with the certificate of --cert. Without it, a proxy in front must do
    /// so.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    pub tls: bool,
    /// Mark the session cookie `Secure` although the page is served without TLS here. Set it when
    /// TLS ends at a proxy in front.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    pub secure_cookies: bool,
    /// Use the last entry of X-Forwarded-For when sign-in attempts are counted. Set it behind a
    /// proxy, and only there.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    pub trust_forwarded_for: bool,
    /// Alerting's gRPC address, for acknowledgements.
    #[arg(long, value_name = "URL", default_value = "https://alerting:7002")]
    pub alerting_url: String,
    /// Address of the emulated links' gRPC service; empty when there is no demonstration.
    #[arg(long, value_name = "URL", default_value = "")]
    pub links_url: String,
    /// Address of a gateway's own page; the first page links to it. Empty: no link.
    #[arg(long, value_name = "URL", default_value = "")]
    pub gateway_page: String,
    /// Hours after which a person must sign in again.
    #[arg(long, value_name = "HOURS", default_value_t = 12)]
    pub session_hours: u32,
    /// A code that signs in the first administrator, once, within 15 minutes of the start, as
    /// `/?code=...`.
    #[arg(long, value_name = "CODE")]
    pub sign_in_code: Option<Secret>,
    #[command(flatten)]
    #[serde(flatten)]
    pub canary: CanaryConfig,
    #[command(flatten)]
    #[serde(flatten)]
    pub mail: MailConfig,
    #[command(flatten)]
    #[serde(flatten)]
    pub oidc: OidcConfig,
    /// Folder of the authority that issues gateways' certificates: `gateways.pem` and
    /// `gateways.key`, else `ca.pem` and `ca.key`. Without it the dashboard issues none.
    #[arg(long, value_name = "DIR")]
    pub authority: Option<PathBuf>,
    #[command(flatten)]
    pub identity: IdentityFiles,
}

/// The test alert of every minute that proves the way of alerts.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct CanaryConfig {
    /// Warn when the test alert of each minute is not raised and cleared within this time. 0: no
    /// test alert is expected (ingest has --canary=false).
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    pub canary_within_s: u32,
    /// Address that gets a POST when alerts stop coming through, and another when they do again.
    /// Alerting has no part in it.
    #[arg(long, value_name = "URL")]
    pub canary_webhook: Option<Secret>,
    /// Authorities that may sign the certificate of an https webhook (PEM).
    #[arg(long, value_name = "FILE")]
    pub canary_webhook_ca: Option<PathBuf>,
}

/// A test alert is raised once a minute and needs some time on its way.
const CANARY_WITHIN_S: std::ops::RangeInclusive<u32> = 75..=3600;

impl CanaryConfig {
    /// `None`: no canary is expected.
    pub fn within(&self) -> Option<Duration> {
        (self.canary_within_s > 0).then(|| Duration::from_secs(u64::from(self.canary_within_s)))
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if self.canary_within_s > 0 && !CANARY_WITHIN_S.contains(&self.canary_within_s) {
            return Err(ConfigError::new(
                "canary_within_s",
                format!(
                    "{} is neither 0 nor within {} to {}",
                    self.canary_within_s,
                    CANARY_WITHIN_S.start(),
                    CANARY_WITHIN_S.end()
                ),
                "--canary-within-s 90",
            ));
        }
        Ok(())
    }
}

/// Sign-in at a provider. Built-in accounts remain usable.
#[derive(Clone, Debug, Default, clap::Args, serde::Serialize)]
pub struct OidcConfig {
    /// OpenID Connect provider, exactly as it names itself in its tokens. Empty: people sign in
    /// here only.
    #[arg(long, value_name = "URL", default_value = "")]
    pub oidc_issuer: String,
    /// Name of this dashboard at the provider.
    #[arg(long, value_name = "ID", default_value = "braid")]
    pub oidc_client: String,
    /// Secret of the client, for providers that require one.
    #[arg(long, value_name = "SECRET")]
    pub oidc_secret: Option<Secret>,
    /// This dashboard's own address to which people return, `https://HOST/api/sso/return`. It must
    /// be registered at the provider.
    #[arg(long, value_name = "URL", default_value = "")]
    pub oidc_redirect: String,
    /// Scopes that are requested; `openid` must be among them.
    #[arg(long, value_name = "SCOPES", default_value = "openid profile")]
    pub oidc_scope: String,
    /// Claim with the role: viewer, clinician or administrator, also with the prefix `braid-`. A
    /// dot leads into an object.
    #[arg(long, value_name = "CLAIM", default_value = "roles")]
    pub oidc_role_claim: String,
    /// Claim with the tenant. Empty: all people belong to the tenant `default`.
    #[arg(long, value_name = "CLAIM", default_value = "")]
    pub oidc_tenant_claim: String,
    /// Name of this API in the access tokens that the provider issues to programs (`aud`); such
    /// programs may call with them. It must differ from --oidc-client. Empty: access tokens of the
    /// provider are not accepted.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub oidc_audience: String,
    /// Authorities that may sign the provider's certificate (PEM).
    #[arg(long, value_name = "FILE")]
    pub oidc_ca: Option<PathBuf>,
}

impl OidcConfig {
    pub fn is_set(&self) -> bool {
        !self.oidc_issuer.is_empty()
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if !self.is_set() {
            if self.oidc_audience.is_empty() {
                return Ok(());
            }
            return Err(ConfigError::new(
                "oidc_audience",
                "no provider is given whose tokens could name it",
                "--oidc-issuer https://idp.example.org",
            ));
        }
        let refuse = |field: &str, reason: &str, example: &str| {
            Err(ConfigError::new(field, reason, example))
        };
        if let Err(reason) = parse_address(&self.oidc_issuer, &["https"]) {
            return refuse(
                "oidc_issuer",
                &reason,
                "--oidc-issuer https://idp.example.org",
            );
        }
        let is_loopback = self.oidc_redirect.starts_with("http://127.0.0.1:");
        let schemes: &[&str] = if is_loopback { &["http"] } else { &["https"] };
        if parse_address(&self.oidc_redirect, schemes).is_err()
            || !self.oidc_redirect.ends_with("/api/sso/return")
        {
            return refuse(
                "oidc_redirect",
                "is no https address of /api/sso/return",
                "--oidc-redirect https://ward.example.org/api/sso/return",
            );
        }
        if !self.oidc_scope.split(' ').any(|scope| scope == "openid") {
            return refuse(
                "oidc_scope",
                "`openid` is not among them",
                "--oidc-scope 'openid profile'",
            );
        }
        if self.oidc_audience == self.oidc_client {
            return refuse(
                "oidc_audience",
                "is the client's name, by which every identity token of a sign-in would pass for an access token",
                "--oidc-audience https://ward.example.org",
            );
        }
        if self.oidc_ca.is_none() {
            return refuse(
                "oidc_ca",
                "no authority is given that the provider's certificate may be of",
                "--oidc-ca /etc/ssl/certs/ca-certificates.crt",
            );
        }
        Ok(())
    }
}

/// A code that can be guessed is a password that everybody has.
const SIGN_IN_CODE_LENGTH_MIN: usize = 24;
/// Longest session of a person: one week.
const SESSION_HOURS_MAX: u32 = 24 * 7;

impl ServiceConfig for Config {
    const NOUN: &'static str = "dashboard";

    fn validate(&self) -> Result<(), ConfigError> {
        if self.tls
            || self.alerting_url.starts_with("https:")
            || self.links_url.starts_with("https:")
        {
            self.identity.validate()?;
        }
        if !(self.tls || self.secure_cookies || self.listen.ip().is_loopback()) {
            return Err(ConfigError::new(
                "tls",
                format!(
                    "passwords and health data would cross the network in the clear on {}",
                    self.listen
                ),
                "--tls, or --secure-cookies where something in front ends TLS",
            ));
        }
        self.oidc.validate()?;
        self.canary.validate()?;
        self.mail.mailer().map(drop)?;
        url("alerting_url", &self.alerting_url, "https://alerting:7002")?;
        if !self.links_url.is_empty() {
            url("links_url", &self.links_url, "http://127.0.0.1:7010")?;
        }
        if !self.gateway_page.is_empty() {
            url("gateway_page", &self.gateway_page, "http://127.0.0.1:8090/")?;
        }
        if self.session_hours == 0 || self.session_hours > SESSION_HOURS_MAX {
            return Err(ConfigError::new(
                "session_hours",
                format!(
                    "{} is not within 1 to {SESSION_HOURS_MAX}",
                    self.session_hours
                ),
                "--session-hours 12",
            ));
        }
        if let Some(code) = &self.sign_in_code
            && code.expose().len() < SIGN_IN_CODE_LENGTH_MIN
        {
            return Err(ConfigError::new(
                "sign_in_code",
                format!("shorter than {SIGN_IN_CODE_LENGTH_MIN} characters"),
                "--sign-in-code \"$(openssl rand -hex 16)\"",
            ));
        }
        Ok(())
    }
}

fn url(field: &str, value: &str, example: &str) -> Result<(), ConfigError> {
    parse_address(value, &["http", "https"])
        .map(drop)
        .map_err(|reason| {
            ConfigError::new(
                field,
                format!("{value:?} {reason}"),
                format!("--{} {example}", field.replace('_', "-")),
            )
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        config: Config,
    }

    /// The flags, without an identity.
    fn parse(flags: &[&str]) -> Config {
        let identity = ["--cert", "c", "--key", "k", "--ca", "a"];
        let line = ["dashboard"].iter().chain(&identity).chain(flags);
        Config {
            identity: IdentityFiles::default(),
            ..Line::try_parse_from(line).unwrap().config
        }
    }

    #[test]
    fn plain_inner_addresses_need_no_identity_and_tls_ones_do() {
        parse(&["--alerting-url", "http://127.0.0.1:1"])
            .validate()
            .unwrap();
        let refused = parse(&[]).validate().unwrap_err();
        assert_eq!(refused.field, "cert");
    }

    #[test]
    fn nothing_is_served_in_the_clear_beyond_this_machine() {
        let open = ["--alerting-url", "http://a:1", "--listen", "0.0.0.0:8080"];
        let refused = parse(&open).validate().unwrap_err();
        assert_eq!(refused.field, "tls");
        for closed in [&["--secure-cookies", "true"][..], &["--secure-cookies"]] {
            parse(&[&open[..], closed].concat()).validate().unwrap();
        }
    }

    #[test]
    fn refusals_name_the_field() {
        let plain = ["--alerting-url", "http://a:1"];
        for (flags, field) in [
            (vec!["--alerting-url", "alerting:7002"], "alerting_url"),
            ([&plain[..], &["--links-url", "x"]].concat(), "links_url"),
            (
                [&plain[..], &["--gateway-page", "javascript:alert(1)"]].concat(),
                "gateway_page",
            ),
            (
                [&plain[..], &["--session-hours", "0"]].concat(),
                "session_hours",
            ),
            (
                [&plain[..], &["--sign-in-code", "short"]].concat(),
                "sign_in_code",
            ),
        ] {
            assert_eq!(parse(&flags).validate().unwrap_err().field, field);
        }
    }

    #[test]
    fn access_tokens_need_a_provider_and_a_name_of_their_own() {
        let refused = |flags: &[&str]| {
            let plain = ["--alerting-url", "http://a:1"];
            let config = parse(&[&plain[..], flags].concat());
            config.validate().map_err(|error| error.field)
        };
        let provider = [
            "--oidc-issuer",
            "https://idp.example.org",
            "--oidc-redirect",
            "https://ward.example.org/api/sso/return",
            "--oidc-ca",
            "ca.pem",
            "--oidc-audience",
        ];
        let named = |name| [&provider[..], &[name]].concat();
        assert_eq!(refused(&named("https://ward.example.org")), Ok(()));
        assert_eq!(refused(&named("")), Ok(()));
        assert_eq!(refused(&named("braid")), Err("oidc_audience".into()));
        assert_eq!(
            refused(
                &provider[6..]
                    .iter()
                    .copied()
                    .chain(["x"])
                    .collect::<Vec<_>>()
            ),
            Err("oidc_audience".into())
        );
    }

    #[test]
    fn the_code_is_not_printed() {
        let config = parse(&["--sign-in-code", "0123456789abcdef0123456789abcdef"]);
        assert!(!format!("{config:?}").contains("0123456789"));
        assert!(
            !serde_json::to_string(&config)
                .unwrap()
                .contains("0123456789")
        );
    }
}
