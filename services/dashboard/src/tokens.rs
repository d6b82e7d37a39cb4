//! The tokens of sessions: signed (JWT, ES256), so that a proxy in front can refuse
//! unauthenticated clients by itself.
//!
//! Each replica signs with its own key, which never leaves its memory. The public half is a
//! document of the store until its last token has ended, so every replica shows the keys of all
//! (RFC 7517). The sessions of the store alone decide whether a token is valid here: a forged,
//! altered or signed-out token is not among them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use contracts::alerts::Document;
use rand::RngExt;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::{DEFAULT_TENANT, QueryError, Scope, Store, WriteError};
use tokio::sync::Mutex;

use crate::sessions::Key;

/// Requirements of Envoy's configuration.
const ISSUER: &str = "spiffe://braid/service/dashboard";
const AUDIENCE: &str = "braid-people";
/// Kind of the documents that hold public keys.
const KIND: &str = "session-key";
/// A replica makes a new key after this time.
const KEY_US: i64 = 24 * 3_600_000_000;
/// Tolerance for clocks that differ: a key is shown for this time after its last token has ended.
const CLOCK_TOLERANCE_US: i64 = 600_000_000;
/// Keys shown, the newest first: two of each of a hundred replicas. Tokens of further keys are
/// refused in front.
const KEYS_MAX: usize = 200;
/// Unauthenticated clients may request the keys, so the store is asked once in this time.
const SHOWN_FRESH_US: i64 = 1_000_000;
/// Envoy reads the keys each second and does not ask for missing ones. So the first token of a new
/// key waits until the key was read.
const SETTLE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the key: {0}")]
    Key(#[from] rcgen::Error),
    #[error("the signature is none")]
    Signature,
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error("{0}")]
    Write(#[from] WriteError),
}

struct Own {
    pair: KeyPair,
    id: String,
    until_us: i64,
    /// When the first token of the key may be sent.
    settled: Instant,
}

/// The own key, and the keys of all replicas.
pub(crate) struct Tokens {
    store: Arc<dyn Store>,
    /// How long a session lasts.
    session_us: i64,
    /// A proxy in front reads the keys.
    is_fronted: bool,
    own: Mutex<Option<Own>>,
    shown: Mutex<Option<(i64, String)>>,
}

/// The value in the table of sessions that stands for the token.
pub(crate) fn key_of(token: &str) -> Key {
    Sha256::digest(token.as_bytes()).into()
}

impl Tokens {
    pub(crate) fn new(store: Arc<dyn Store>, session_us: i64, is_fronted: bool) -> Tokens {
        Tokens {
            store,
            session_us,
            is_fronted,
            own: Mutex::new(None),
            shown: Mutex::new(None),
        }
    }

    /// A token of a session that begins now.
    pub(crate) async fn sign(&self, name: &str, now_us: i64) -> Result<String, TokenError> {
        let (token, settled) = {
            let mut own = self.own.lock().await;
            let own = self.in_use(&mut own, now_us).await?;
            (self.signed(own, name, now_us)?, own.settled)
        };
        tokio::time::sleep_until(settled.into()).await;
        Ok(token)
    }

    fn signed(&self, own: &Own, name: &str, now_us: i64) -> Result<String, TokenError> {
        let unique: [u8; 32] = rand::rng().random();
        let (now_s, session_s) = (now_us / 1_000_000, self.session_us / 1_000_000);
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": own.id});
        let claims = json!({
            "iss": ISSUER, "aud": AUDIENCE, "sub": name, "jti": BASE64.encode(unique),
            "iat": now_s, "exp": now_s + session_s,
        });
        let [header, claims] = [header, claims].map(|part| BASE64.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = own.pair.sign(signed.as_bytes())?;
        let signature = side_by_side(&signature).ok_or(TokenError::Signature)?;
        Ok(format!("{signed}.{}", BASE64.encode(signature)))
    }

    /// The public keys of all replicas, including the own, as a set of RFC 7517.
    pub(crate) async fn shown(&self, now_us: i64) -> Result<String, TokenError> {
        let mut shown = self.shown.lock().await;
        if let Some((at_us, keys)) = &*shown
            && (0..SHOWN_FRESH_US).contains(&(now_us - at_us))
        {
            return Ok(keys.clone());
        }
        match (self.read(now_us).await, &*shown) {
            (Ok(keys), _) => {
                *shown = Some((now_us, keys.clone()));
                Ok(keys)
            }
            // An absent store must not sign out the ward's screens.
            (Err(error), Some((_, keys))) => {
                tracing::warn!(%error, "the keys of other replicas could not be read");
                Ok(keys.clone())
            }
            (Err(error), None) => Err(error),
        }
    }

    async fn read(&self, now_us: i64) -> Result<String, TokenError> {
        self.in_use(&mut *self.own.lock().await, now_us).await?;
        let mut documents = self.store.documents(&Scope::Service, KIND, now_us).await?;
        documents.sort_by_key(|document| std::cmp::Reverse(document.at_us));
        let keys: Vec<Value> = documents
            .iter()
            .take(KEYS_MAX)
            .filter_map(|document| serde_json::from_str(&document.body).ok())
            .collect();
        Ok(json!({ "keys": keys }).to_string())
    }

    async fn in_use<'a>(
        &self,
        own: &'a mut Option<Own>,
        now_us: i64,
    ) -> Result<&'a Own, TokenError> {
        if own.as_ref().is_none_or(|own| now_us >= own.until_us) {
            *own = Some(self.make(now_us).await?);
        }
        own.as_ref().ok_or(TokenError::Signature)
    }

    /// No token is signed with a key before the store has its public half.
    async fn make(&self, now_us: i64) -> Result<Own, TokenError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let (id, public) = public(&pair).ok_or(TokenError::Signature)?;
        let until_us = now_us.saturating_add(KEY_US);
        let shown_until_us = until_us
            .saturating_add(self.session_us)
            .saturating_add(CLOCK_TOLERANCE_US);
        let document = Document {
            kind: KIND.to_owned(),
            tenant: DEFAULT_TENANT.to_owned(),
            subject: id.clone(),
            version: 1,
            author: "dashboard".to_owned(),
            reason: "signs the tokens of sessions".to_owned(),
            at_us: now_us,
            until_us: shown_until_us,
            body: public.to_string(),
        };
        self.store.put_document(&document).await?;
        let settle = if self.is_fronted {
            SETTLE
        } else {
            Duration::ZERO
        };
        Ok(Own {
            pair,
            id,
            until_us,
            settled: Instant::now() + settle,
        })
    }
}

/// A public key without a private half, because Envoy treats a set without keys as a failure.
pub(crate) fn nobodys_key() -> Option<Value> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).ok()?;
    public(&pair).map(|(_, key)| key)
}

/// Its name, made from the key itself, and the key (RFC 7518, 6.2).
fn public(pair: &KeyPair) -> Option<(String, Value)> {
    // The uncompressed point: a four, x and y.
    let point = pair.der_bytes();
    let (x, y) = (point.get(1..33)?, point.get(33..65)?);
    let id = BASE64.encode(&Sha256::digest(point)[..16]);
    let key = json!({
        "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": id,
        "x": BASE64.encode(x), "y": BASE64.encode(y),
    });
    Some((id, key))
}

/// From a sequence of two numbers in DER to 32 bytes each (RFC 7518, 3.4).
fn side_by_side(der: &[u8]) -> Option<Vec<u8>> {
    let mut rest = der.get(2..)?;
    let mut both = Vec::with_capacity(64);
    for _ in 0..2 {
        let (head, tail) = rest.split_at_checked(2)?;
        let (number, tail) = tail.split_at_checked(usize::from(head[1]))?;
        // A zero precedes a number that would look negative otherwise.
        let number = &number[number.len().saturating_sub(32)..];
        both.extend(std::iter::repeat_n(0, 32 - number.len()));
        both.extend_from_slice(number);
        rest = tail;
    }
    Some(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_length_become_32_bytes() {
        let der = |r: &[u8], s: &[u8]| {
            let head = |number: &[u8]| vec![2, number.len() as u8];
            let both = [&head(r), r, &head(s), s].concat();
            [&[0x30, both.len() as u8], &both[..]].concat()
        };
        let long = [&[0][..], &[0xff; 32]].concat();
        let raw = side_by_side(&der(&long, &[7])).unwrap_or_default();
        assert_eq!((&raw[..32], raw[62], raw[63]), (&[0xff; 32][..], 0, 7));
        for cut in 0..der(&long, &[7]).len() {
            assert_eq!(side_by_side(&der(&long, &[7])[..cut]), None, "{cut}");
        }
    }
}
