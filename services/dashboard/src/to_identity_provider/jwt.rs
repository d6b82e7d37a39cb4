//! A JSON Web Token of a provider: first its signature, then its audience and validity (OpenID
//! Connect Core 1.0, 3.1.3.7).
//!
//! Sans-IO: keys and times are handed in. RS256 and ES256 are accepted. Every other algorithm,
//! above all `none`, is refused by name.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use rustls::SignatureScheme;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest token that is parsed.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Keys of a provider; further keys are ignored.
const KEYS_MAX: usize = 64;
/// Tolerance for clocks that differ.
pub(crate) const CLOCK_TOLERANCE_S: i64 = 60;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum TokenError {
    #[error("the token is not a signed JWT")]
    Form,
    #[error("the token's algorithm {0:?} is neither RS256 nor ES256")]
    Algorithm(String),
    #[error("no key of the provider fits the token")]
    NoKey,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token has a wrong {0}")]
    Claim(&'static str),
    #[error("the token has expired")]
    Expired,
}

/// The claims that a token must have.
pub(crate) struct Expected<'a> {
    pub issuer: &'a str,
    pub purpose: Purpose<'a>,
    pub now_s: i64,
}

/// The purpose of a token. A token for one purpose is refused for the other.
pub(crate) enum Purpose<'a> {
    /// The identity token at the end of a sign-in.
    SignIn { client: &'a str, nonce: &'a str },
    /// An access token (RFC 9068) for the audience of this name. The provider decides who may ask
    /// for it.
    Call { audience: &'a str },
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
struct Key {
    kty: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    kid: String,
    #[serde(default, rename = "use", skip_serializing_if = "String::is_empty")]
    purpose: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    crv: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    n: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    e: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    x: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    y: String,
}

impl Key {
    fn is_for_signatures(&self) -> bool {
        matches!(self.purpose.as_str(), "" | "sig")
    }
}

impl KeySet {
    /// The keys that can sign a token, for publication: only their public halves.
    pub(crate) fn shown(&self) -> Vec<Value> {
        let keys = self.keys.iter().take(KEYS_MAX);
        keys.filter(|key| key.is_for_signatures() && public_key(key).is_some())
            .filter_map(|key| serde_json::to_value(key).ok())
            .collect()
    }
}

/// Whether the token claims to be of this issuer. The claim is not trusted yet.
pub(crate) fn names_issuer(token: &str, issuer: &str) -> bool {
    let payload = token
        .split('.')
        .nth(1)
        .filter(|_| token.len() <= TOKEN_BYTES_MAX);
    let payload = payload.and_then(|payload| BASE64.decode(payload).ok());
    let claims = payload.and_then(|payload| serde_json::from_slice::<Value>(&payload).ok());
    claims.is_some_and(|claims| claims["iss"] == issuer)
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// The claims of a token that is genuine, in force, and made for this audience.
pub(crate) fn verify(
    token: &str,
    keys: &KeySet,
    expected: &Expected<'_>,
) -> Result<Value, TokenError> {
    let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Form)?;
    let (header, payload) = signed.split_once('.').ok_or(TokenError::Form)?;
    if token.len() > TOKEN_BYTES_MAX || payload.contains('.') {
        return Err(TokenError::Form);
    }
    let bytes = |part: &str| BASE64.decode(part).map_err(|_| TokenError::Form);
    let header: Header = serde_json::from_slice(&bytes(header)?).map_err(|_| TokenError::Form)?;
    let (kty, scheme) = match header.alg.as_str() {
        "RS256" => ("RSA", SignatureScheme::RSA_PKCS1_SHA256),
        "ES256" => ("EC", SignatureScheme::ECDSA_NISTP256_SHA256),
        other => return Err(TokenError::Algorithm(other.chars().take(20).collect())),
    };
    let signature = match kty {
        "EC" => ecdsa_der(&bytes(signature)?).ok_or(TokenError::Signature)?,
        _ => bytes(signature)?,
    };
    // The algorithm is that of the key, not of the token: a key of another kind is never tried.
    let fitting = keys.keys.iter().take(KEYS_MAX).filter(|key| {
        key.kty == kty
            && (header.kid.is_empty() || key.kid == header.kid)
            && key.is_for_signatures()
    });
    let mut found = TokenError::NoKey;
    let mut genuine = false;
    for key in fitting {
        found = TokenError::Signature;
        genuine |= public_key(key)
            .is_some_and(|key| is_signed(scheme, &key, signed.as_bytes(), &signature));
    }
    if !genuine {
        return Err(found);
    }
    let claims: Value = serde_json::from_slice(&bytes(payload)?).map_err(|_| TokenError::Form)?;
    check(&claims, expected)?;
    Ok(claims)
}

fn check(claims: &Value, expected: &Expected<'_>) -> Result<(), TokenError> {
    if claims["iss"] != expected.issuer {
        return Err(TokenError::Claim("issuer"));
    }
    let audiences: Vec<&Value> = match &claims["aud"] {
        Value::Array(audiences) => audiences.iter().collect(),
        audience => vec![audience],
    };
    let is_for = |name: &str| audiences.iter().any(|audience| *audience == name);
    match expected.purpose {
        Purpose::SignIn { client, nonce } => {
            // The authorized party must be this client. Among several audiences one must be named.
            let azp = &claims["azp"];
            if !is_for(client)
                || (azp.is_null() && audiences.len() > 1)
                || (!azp.is_null() && azp != client)
            {
                return Err(TokenError::Claim("audience"));
            }
            if claims["nonce"] != nonce {
                return Err(TokenError::Claim("nonce"));
            }
        }
        Purpose::Call { audience } => {
            if !is_for(audience) {
                return Err(TokenError::Claim("audience"));
            }
        }
    }
    let time = |claim: &str| seconds(claims, claim);
    let expires_s = time("exp").ok_or(TokenError::Claim("exp"))?;
    if expires_s.saturating_add(CLOCK_TOLERANCE_S) <= expected.now_s {
        return Err(TokenError::Expired);
    }
    let issued_s = time("iat").ok_or(TokenError::Claim("iat"))?;
    let begins_s = time("nbf").unwrap_or(issued_s).max(issued_s);
    if begins_s.saturating_sub(CLOCK_TOLERANCE_S) > expected.now_s {
        return Err(TokenError::Claim("time"));
    }
    Ok(())
}

/// A time in the claims, without its fraction.
pub(crate) fn seconds(claims: &Value, claim: &str) -> Option<i64> {
    let value = &claims[claim];
    value.as_i64().or(value.as_f64().map(|s| s as i64))
}

fn is_signed(scheme: SignatureScheme, key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let provider = rustls::crypto::ring::default_provider();
    let algorithms = provider.signature_verification_algorithms.mapping;
    let of_scheme = algorithms.iter().find(|(known, _)| *known == scheme);
    of_scheme.is_some_and(|(_, algorithms)| {
        algorithms
            .iter()
            .any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok())
    })
}

/// The encoding of a certificate: RSAPublicKey of RFC 8017, or the uncompressed point.
fn public_key(key: &Key) -> Option<Vec<u8>> {
    let bytes = |text: &str| BASE64.decode(text).ok();
    if key.kty == "RSA" {
        let numbers = [integer(&bytes(&key.n)?)?, integer(&bytes(&key.e)?)?].concat();
        return der(0x30, &numbers);
    }
    let (x, y) = (bytes(&key.x)?, bytes(&key.y)?);
    (key.crv == "P-256" && x.len() == 32 && y.len() == 32).then(|| [&[4], &x[..], &y[..]].concat())
}

/// JSON Web Algorithms put both numbers side by side (RFC 7518, 3.4). Certificates have a sequence
/// of two.
fn ecdsa_der(signature: &[u8]) -> Option<Vec<u8>> {
    if signature.len() != 64 {
        return None;
    }
    let (r, s) = signature.split_at(32);
    der(0x30, &[integer(r)?, integer(s)?].concat())
}

/// An unsigned number: no leading zeros but the one that keeps it from being negative.
fn integer(bytes: &[u8]) -> Option<Vec<u8>> {
    let first = bytes.iter().position(|byte| *byte != 0)?;
    let bytes = &bytes[first..];
    let sign: &[u8] = if bytes[0] >= 0x80 { &[0] } else { &[] };
    der(0x02, &[sign, bytes].concat())
}

/// Tag, length, content; lengths up to 65,535.
fn der(tag: u8, content: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(content.len()).ok()?;
    let [high, low] = length.to_be_bytes();
    let head = match length {
        0..=0x7f => vec![tag, low],
        0x80..=0xff => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    Some([&head[..], content].concat())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    // By `openssl genrsa 2048` and `openssl dgst -sha256 -sign`.
    const RSA_KEYS: &str = include_str!("jwt_rsa_keys.json");
    const RSA_TOKEN: &str = include_str!("jwt_rsa_token.txt");

    fn expected() -> Expected<'static> {
        Expected {
            issuer: "https://idp.example.org",
            purpose: Purpose::SignIn {
                client: "braid",
                nonce: "n-1",
            },
            now_s: 1_800_000_100,
        }
    }

    #[test]
    fn a_token_signed_elsewhere_is_believed() {
        let keys: KeySet = serde_json::from_str(RSA_KEYS).unwrap();
        let claims = verify(RSA_TOKEN.trim(), &keys, &expected()).unwrap();
        assert_eq!(claims["sub"], "ada");
    }

    #[test]
    fn what_was_touched_or_is_somebody_elses_is_not() {
        let keys: KeySet = serde_json::from_str(RSA_KEYS).unwrap();
        let token = RSA_TOKEN.trim();
        let refused = |token: &str| verify(token, &keys, &expected()).unwrap_err();
        let (head, rest) = token.split_once('.').unwrap();
        let (payload, signature) = rest.split_once('.').unwrap();
        let claims = BASE64.decode(payload).unwrap();
        let claims = String::from_utf8(claims).unwrap().replace("ada", "eve");
        let forged = format!("{head}.{}.{signature}", BASE64.encode(claims));
        assert_eq!(refused(&forged), TokenError::Signature);
        let none = BASE64.encode(r#"{"alg":"none"}"#);
        assert_eq!(
            refused(&format!("{none}.{payload}.")),
            TokenError::Algorithm("none".into())
        );
        // The public key used as a shared secret, a well-known attack.
        let shared = BASE64.encode(r#"{"alg":"HS256"}"#);
        assert!(matches!(
            refused(&format!("{shared}.{payload}.{signature}")),
            TokenError::Algorithm(_)
        ));
        for rubbish in ["", "a", "a.b", "a.b.c.d", "..", "é.é.é"] {
            assert_eq!(refused(rubbish), TokenError::Form, "{rubbish}");
        }
        assert_eq!(
            verify(token, &KeySet::default(), &expected()).unwrap_err(),
            TokenError::NoKey
        );
    }

    #[test]
    fn each_claim_is_held_to_what_was_asked() {
        let good = serde_json::json!({
            "iss": "https://idp.example.org", "aud": ["braid"], "nonce": "n-1",
            "exp": 1_800_000_600, "iat": 1_800_000_000,
        });
        check(&good, &expected()).unwrap();
        for (claim, value, refused) in [
            (
                "iss",
                "https://other.example.org".into(),
                TokenError::Claim("issuer"),
            ),
            ("aud", "other".into(), TokenError::Claim("audience")),
            ("aud", Value::Null, TokenError::Claim("audience")),
            (
                "aud",
                vec!["braid", "other"].into(),
                TokenError::Claim("audience"),
            ),
            ("azp", "other".into(), TokenError::Claim("audience")),
            ("nonce", "n-2".into(), TokenError::Claim("nonce")),
            ("nonce", Value::Null, TokenError::Claim("nonce")),
            ("exp", 1_800_000_000.into(), TokenError::Expired),
            ("exp", Value::Null, TokenError::Claim("exp")),
            ("iat", Value::Null, TokenError::Claim("iat")),
            ("iat", 1_800_009_000.into(), TokenError::Claim("time")),
            ("nbf", 1_800_009_000.into(), TokenError::Claim("time")),
        ] {
            let mut claims = good.clone();
            claims[claim] = value;
            assert_eq!(check(&claims, &expected()), Err(refused), "{claims}");
        }
    }

    #[test]
    fn an_access_token_is_held_to_its_audience_and_is_no_sign_in() {
        let call = Expected {
            purpose: Purpose::Call {
                audience: "https://ward.example.org",
            },
            ..expected()
        };
        let good = serde_json::json!({
            "iss": "https://idp.example.org", "aud": ["account", "https://ward.example.org"], "azp": "nightly-report",
            "exp": 1_800_000_600, "iat": 1_800_000_000,
        });
        check(&good, &call).unwrap();
        assert!(check(&good, &expected()).is_err());
        for (claim, value, refused) in [
            ("aud", "braid".into(), TokenError::Claim("audience")),
            ("aud", Value::Null, TokenError::Claim("audience")),
            (
                "iss",
                "https://other.example.org".into(),
                TokenError::Claim("issuer"),
            ),
            ("exp", 1_800_000_000.into(), TokenError::Expired),
            ("exp", Value::Null, TokenError::Claim("exp")),
            ("nbf", 1_800_009_000.into(), TokenError::Claim("time")),
        ] {
            let mut claims = good.clone();
            claims[claim] = value;
            assert_eq!(check(&claims, &call), Err(refused), "{claims}");
        }
    }

    #[test]
    fn keys_are_shown_without_what_is_not_for_others() {
        let keys = serde_json::json!({"keys": [
            {"kty": "RSA", "kid": "1", "use": "sig", "n": "wA", "e": "AQAB", "x5c": ["..."], "d": "private"},
            {"kty": "RSA", "kid": "2", "use": "enc", "n": "wA", "e": "AQAB"},
            {"kty": "OKP", "kid": "3", "crv": "Ed25519", "x": "wA"},
        ]});
        let keys: KeySet = serde_json::from_value(keys).unwrap();
        let shown =
            serde_json::json!([{"kty": "RSA", "kid": "1", "use": "sig", "n": "wA", "e": "AQAB"}]);
        assert_eq!(Value::from(keys.shown()), shown);
    }

    #[test]
    fn whose_a_token_says_to_be_is_read_without_belief() {
        let token = RSA_TOKEN.trim();
        assert!(names_issuer(token, "https://idp.example.org"));
        assert!(!names_issuer(token, "https://other.example.org"));
        for rubbish in ["", "a", "a.b.c", "..", "e30.e30."] {
            assert!(
                !names_issuer(rubbish, "https://idp.example.org"),
                "{rubbish}"
            );
        }
    }
}
