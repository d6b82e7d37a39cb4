//! Signing in at an OpenID Connect provider: authorization code with PKCE (RFC 7636).
//!
//! The browser is sent there with a state, a nonce and the hash of a verifier. All are random and
//! remembered here. The browser returns with a code, which is exchanged for a token that must carry
//! the nonce. The state is also in a cookie, so that nobody can be made to finish another person's
//! sign-in.
//!
//! A program has no browser. It may call with an access token that the provider issued for this
//! dashboard.

mod jwt;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;
use rand::RngExt;
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::Value;
use service_kit::https::{self, CallError};
use service_kit::{ConfigError, Secret, Shutdown};
use sha2::{Digest, Sha256};
use store::{DEFAULT_TENANT, Role};
use tokio::time::MissedTickBehavior;

use crate::config::OidcConfig;

pub(crate) use jwt::TokenError;
use jwt::{Expected, KeySet, Purpose};

/// Sign-ins in progress. At the bound the oldest of the address with the most is forgotten, so that
/// no address displaces the others.
const PENDING_MAX: usize = 1_000;
/// A slower person begins again.
const PENDING_WITHIN: Duration = Duration::from_secs(600);
/// The provider's metadata is read again after this time. For an unknown key, or for a proxy in
/// front, it is read this often.
const FRESH: Duration = Duration::from_secs(3_600);
const KEYS_AGAIN: Duration = Duration::from_secs(30);
/// Longest name of a person.
const NAME_BYTES_MAX: usize = 120;
/// Prefix of every name, so that no person can be taken for a built-in account.
pub(crate) const NAME_PREFIX: &str = "sso:";

#[derive(Debug, thiserror::Error)]
pub(crate) enum OidcError {
    #[error("the provider: {0}")]
    Call(#[from] CallError),
    #[error("the provider answered {0} to {1}")]
    Status(StatusCode, &'static str),
    #[error("the provider's {0} cannot be used")]
    Provider(&'static str),
    #[error("this sign-in was not begun here, or too long ago")]
    Unknown,
    #[error("{0}")]
    Token(#[from] TokenError),
    #[error("the token gives no role that is known here")]
    NoRole,
    #[error("the token gives no tenant")]
    NoTenant,
    #[error("the token gives no name")]
    NoName,
}

impl OidcError {
    /// The origin of an error: the provider or the network, or the person.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(
            self,
            OidcError::Call(_) | OidcError::Status(..) | OidcError::Provider(_)
        )
    }
}

/// The person, as the provider names them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Vouched {
    pub name: String,
    pub tenant: String,
    pub role: Role,
}

/// OpenID Connect Discovery 1.0, section 3.
#[derive(Clone, Debug, Deserialize)]
struct Discovered {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
}

struct Known {
    at: Instant,
    discovered: Discovered,
    keys: KeySet,
}

struct Pending {
    at: Instant,
    from: IpAddr,
    nonce: String,
    verifier: String,
}

pub(crate) struct Oidc {
    config: OidcConfig,
    tls: Arc<ClientConfig>,
    known: tokio::sync::Mutex<Option<Known>>,
    /// When the keys were last read because of an unknown one. Held during the read: others with
    /// such a key wait, those with a known key do not.
    asked_again: tokio::sync::Mutex<Option<Instant>>,
    pending: Mutex<HashMap<String, Pending>>,
    shown: Mutex<Vec<Value>>,
}

#[derive(Deserialize)]
struct Tokens {
    id_token: String,
}

impl Oidc {
    /// `None`: no provider is configured.
    pub(crate) fn new(config: &OidcConfig) -> Result<Option<Arc<Oidc>>, ConfigError> {
        let Some(ca) = config.oidc_ca.as_deref().filter(|_| config.is_set()) else {
            return Ok(None);
        };
        Ok(Some(Arc::new(Oidc {
            tls: https::believing("oidc_ca", ca)?,
            config: config.clone(),
            known: tokio::sync::Mutex::new(None),
            asked_again: tokio::sync::Mutex::new(None),
            pending: Mutex::default(),
            shown: Mutex::default(),
        })))
    }

    /// The address to which the browser is sent, and the state that it must bring back.
    pub(crate) async fn begin(&self, from: IpAddr) -> Result<(String, String), OidcError> {
        let discovered = self.discovered().await?;
        let (state, nonce, verifier) = (random(), random(), random());
        let challenge = BASE64.encode(Sha256::digest(verifier.as_bytes()));
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &self.config.oidc_client),
            ("redirect_uri", &self.config.oidc_redirect),
            ("scope", &self.config.oidc_scope),
            ("state", &state),
            ("nonce", &nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let endpoint = discovered.authorization_endpoint;
        let and = if endpoint.contains('?') { '&' } else { '?' };
        let mut pending = self.pending.lock();
        pending.retain(|_, pending| pending.at.elapsed() < PENDING_WITHIN);
        if pending.len() >= PENDING_MAX {
            forget_one(&mut pending);
        }
        pending.insert(
            state.clone(),
            Pending {
                at: Instant::now(),
                from: service_kit::network(from),
                nonce,
                verifier,
            },
        );
        Ok((format!("{endpoint}{and}{query}"), state))
    }

    /// Finishes a sign-in with the values that the browser brought back; its cookie named the same
    /// state. A state serves once.
    pub(crate) async fn finish(&self, state: &str, code: &str) -> Result<Vouched, OidcError> {
        let pending = self.pending.lock().remove(state);
        let pending = pending.filter(|pending| pending.at.elapsed() < PENDING_WITHIN);
        let pending = pending.ok_or(OidcError::Unknown)?;
        let discovered = self.discovered().await?;
        let body = form(&[
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.config.oidc_redirect),
            ("client_id", &self.config.oidc_client),
            ("code_verifier", &pending.verifier),
        ]);
        let mut headers = vec![(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        )];
        if let Some(secret) = &self.config.oidc_secret {
            headers.push((
                header::AUTHORIZATION,
                basic(&self.config.oidc_client, secret)?,
            ));
        }
        let tokens: Tokens = self
            .ask(
                Method::POST,
                &discovered.token_endpoint,
                &headers,
                body.into_bytes(),
                "a code",
            )
            .await?;
        let purpose = Purpose::SignIn {
            client: &self.config.oidc_client,
            nonce: &pending.nonce,
        };
        let claims = self.verified(&tokens.id_token, purpose).await?;
        vouched(&self.config, &claims)
    }

    /// Whether access tokens of the provider are accepted, and this token claims to be one.
    pub(crate) fn takes(&self, token: &str) -> bool {
        !self.config.oidc_audience.is_empty() && jwt::names_issuer(token, &self.config.oidc_issuer)
    }

    /// The caller of this access token, and the time until which it is accepted.
    pub(crate) async fn caller(&self, token: &str) -> Result<(Vouched, i64), OidcError> {
        let purpose = Purpose::Call {
            audience: &self.config.oidc_audience,
        };
        let claims = self.verified(token, purpose).await?;
        let ends_s = jwt::seconds(&claims, "exp").unwrap_or_default();
        let until_s = ends_s.saturating_add(jwt::CLOCK_TOLERANCE_S);
        let vouched = vouched(&self.config, &claims)?;
        Ok((vouched, until_s.saturating_mul(1_000_000)))
    }

    /// The keys that sign the provider's access tokens, as last read, for a proxy in front.
    pub(crate) fn shown_keys(&self) -> Vec<Value> {
        self.shown.lock().clone()
    }

    /// Keeps the provider's keys fresh for a proxy in front, which checks tokens before the
    /// dashboard does.
    pub(crate) async fn keep_keys(&self, shutdown: Shutdown) {
        if self.config.oidc_audience.is_empty() {
            return;
        }
        let mut tick = tokio::time::interval(KEYS_AGAIN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                _ = tick.tick() => {}
            }
            // Not under the lock: a provider that hangs must not delay people whose keys are known.
            match self.fetch().await {
                Ok(fetched) => {
                    self.learn(&mut *self.known.lock().await, fetched);
                }
                Err(error) => tracing::warn!(%error, "the provider's keys could not be read"),
            }
        }
    }

    async fn verified(&self, token: &str, purpose: Purpose<'_>) -> Result<Value, OidcError> {
        let expected = Expected {
            issuer: &self.config.oidc_issuer,
            purpose,
            now_s: contracts::now_us() / 1_000_000,
        };
        let keys = self.keys().await?;
        Ok(match jwt::verify(token, &keys, &expected) {
            // Providers change their keys, so they are read again, at a bounded rate.
            Err(TokenError::NoKey | TokenError::Signature) => {
                self.ask_again().await?;
                jwt::verify(token, &self.keys().await?, &expected)?
            }
            verified => verified?,
        })
    }

    async fn discovered(&self) -> Result<Discovered, OidcError> {
        let mut known = self.known.lock().await;
        self.refresh(&mut known)
            .await
            .map(|known| known.discovered.clone())
    }

    /// Reads the keys once more, unless that was tried recently.
    async fn ask_again(&self) -> Result<(), OidcError> {
        let mut asked = self.asked_again.lock().await;
        if asked.is_some_and(|at| at.elapsed() < KEYS_AGAIN) {
            return Ok(());
        }
        // Also without an answer: forged tokens must not cause one request after the other.
        *asked = Some(Instant::now());
        let fetched = self.fetch().await?;
        self.learn(&mut *self.known.lock().await, fetched);
        Ok(())
    }

    async fn keys(&self) -> Result<KeySet, OidcError> {
        let mut known = self.known.lock().await;
        self.refresh(&mut known)
            .await
            .map(|known| known.keys.clone())
    }

    async fn refresh<'a>(&self, known: &'a mut Option<Known>) -> Result<&'a Known, OidcError> {
        if known
            .as_ref()
            .is_none_or(|known| known.at.elapsed() >= FRESH)
        {
            let fetched = self.fetch().await?;
            self.learn(known, fetched);
        }
        known.as_ref().ok_or(OidcError::Provider("discovery"))
    }

    fn learn(&self, known: &mut Option<Known>, (discovered, keys): (Discovered, KeySet)) {
        if !self.config.oidc_audience.is_empty() {
            *self.shown.lock() = keys.shown();
        }
        *known = Some(Known {
            at: Instant::now(),
            discovered,
            keys,
        });
    }

    /// Metadata and keys. The last ones stay when they cannot be read.
    async fn fetch(&self) -> Result<(Discovered, KeySet), OidcError> {
        let issuer = self.config.oidc_issuer.trim_end_matches('/');
        let url = format!("{issuer}/.well-known/openid-configuration");
        let discovered: Discovered = self
            .ask(Method::GET, &url, &[], Vec::new(), "discovery")
            .await?;
        // Discovery 1.0, 4.3: the answer of another issuer is refused.
        if discovered.issuer != self.config.oidc_issuer {
            return Err(OidcError::Provider("issuer"));
        }
        let endpoints = [
            &discovered.authorization_endpoint,
            &discovered.token_endpoint,
            &discovered.jwks_uri,
        ];
        if !endpoints.iter().all(|url| url.starts_with("https://")) {
            return Err(OidcError::Provider("address without TLS"));
        }
        let url = &discovered.jwks_uri;
        let keys = self.ask(Method::GET, url, &[], Vec::new(), "keys").await?;
        Ok((discovered, keys))
    }

    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        url: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Vec<u8>,
        what: &'static str,
    ) -> Result<T, OidcError> {
        let (status, answer) = https::call(method, url, headers, body, &self.tls).await?;
        if status != StatusCode::OK {
            return Err(OidcError::Status(status, what));
        }
        serde_json::from_slice(&answer).map_err(|_| OidcError::Provider(what))
    }
}

/// See `PENDING_MAX`.
fn forget_one(pending: &mut HashMap<String, Pending>) {
    let mut begun: HashMap<IpAddr, usize> = HashMap::new();
    for pending in pending.values() {
        *begun.entry(pending.from).or_default() += 1;
    }
    let most = |pending: &Pending| Reverse(begun.get(&pending.from).copied());
    let first = pending
        .iter()
        .min_by_key(|(_, pending)| (most(pending), pending.at));
    if let Some(state) = first.map(|(state, _)| state.clone()) {
        pending.remove(&state);
    }
}

/// Name, tenant and role from the claims. The highest known role counts.
fn vouched(config: &OidcConfig, claims: &Value) -> Result<Vouched, OidcError> {
    let texts = |claim: &str| -> Vec<String> {
        match at(claims, claim) {
            Value::String(text) => vec![text.clone()],
            Value::Array(all) => all
                .iter()
                .filter_map(|text| text.as_str().map(str::to_owned))
                .collect(),
            _ => Vec::new(),
        }
    };
    let role = texts(&config.oidc_role_claim)
        .iter()
        .filter_map(|name| Role::from_name(name.strip_prefix("braid-").unwrap_or(name)))
        .max()
        .ok_or(OidcError::NoRole)?;
    let tenant = match config.oidc_tenant_claim.as_str() {
        "" => DEFAULT_TENANT.to_owned(),
        claim => texts(claim)
            .into_iter()
            .next()
            .filter(|it| !it.is_empty())
            .ok_or(OidcError::NoTenant)?,
    };
    // The subject is the one claim that is unique at the provider.
    let subject = texts("sub")
        .into_iter()
        .next()
        .filter(|it| !it.is_empty())
        .ok_or(OidcError::NoName)?;
    let shown = texts("preferred_username").into_iter().next();
    let name = match shown {
        Some(shown) if shown != subject => format!("{NAME_PREFIX}{shown} ({subject})"),
        _ => format!("{NAME_PREFIX}{subject}"),
    };
    if name.len() > NAME_BYTES_MAX || !contracts::text::is_plain(&name) {
        return Err(OidcError::NoName);
    }
    Ok(Vouched { name, tenant, role })
}

/// `realm_access.roles` is the claim `roles` in the object `realm_access`.
fn at<'a>(claims: &'a Value, path: &str) -> &'a Value {
    if let Some(value) = claims.get(path) {
        return value;
    }
    path.split('.').fold(claims, |value, part| &value[part])
}

/// 256 bits.
fn random() -> String {
    let bytes: [u8; 32] = rand::rng().random();
    BASE64.encode(bytes)
}

/// RFC 6749, 2.3.1: both are form-encoded first.
fn basic(client: &str, secret: &Secret) -> Result<HeaderValue, OidcError> {
    let pair = format!("{}:{}", escape(client), escape(secret.expose()));
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair)))
        .map_err(|_| OidcError::Provider("secret"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn form(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", escape(value)));
    pairs.collect::<Vec<String>>().join("&")
}

fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn role_tenant_and_name_come_from_the_claims() {
        let config = OidcConfig {
            oidc_role_claim: "realm_access.roles".to_owned(),
            oidc_tenant_claim: "tenant".to_owned(),
            ..OidcConfig::default()
        };
        let claims = json!({
            "sub": "17", "preferred_username": "ada", "tenant": "home",
            "realm_access": {"roles": ["offline", "viewer", "braid-clinician"]},
        });
        let ada = vouched(&config, &claims).unwrap();
        assert_eq!(
            (ada.name.as_str(), ada.tenant.as_str(), ada.role),
            ("sso:ada (17)", "home", Role::Clinician)
        );
        for (claim, value) in [
            ("sub", json!("")),
            ("sub", json!("x".repeat(200))),
            ("preferred_username", json!("a\nb")),
            ("tenant", json!(null)),
            ("realm_access", json!({"roles": ["root"]})),
        ] {
            let mut claims = claims.clone();
            claims[claim] = value;
            assert!(vouched(&config, &claims).is_err(), "{claims}");
        }
    }

    #[test]
    fn what_goes_into_an_address_is_escaped() {
        let query = form(&[("a", "x y&z=1/é"), ("b", "A-._~9")]);
        assert_eq!(query, "a=x%20y%26z%3D1%2F%C3%A9&b=A-._~9");
    }
}
