//! A small OpenID Connect provider: discovery, keys, an authorization endpoint that admits
//! everybody at once, and a token endpoint that checks PKCE. Tokens are signed with ES256, and the
//! test sets their claims.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64};
use parking_lot::Mutex;
pub use rcgen::KeyPair;
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

pub const CLIENT: &str = "braid";
pub const SECRET: &str = "a secret/of the client";

/// The claims of a token and the provider's behaviour, as a test wants them.
pub struct Saying {
    /// Overlays the claims of a valid token; null removes a claim.
    pub claims: Value,
    /// Signs with a key that is not among the published keys.
    pub by_unpublished_key: bool,
    /// Takes requests and leaves them unanswered.
    pub hangs: bool,
}

pub struct Provider {
    pub issuer: String,
    pub saying: Mutex<Saying>,
    /// Notified of each unanswered request.
    pub unanswered: Notify,
    key: Mutex<KeyPair>,
    codes: Mutex<HashMap<String, HashMap<String, String>>>,
}

impl Provider {
    /// `tls` belongs to a server whose certificate names 127.0.0.1.
    pub async fn start(tls: Arc<rustls::ServerConfig>) -> std::io::Result<Arc<Provider>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address: SocketAddr = listener.local_addr()?;
        let provider = Arc::new(Provider {
            issuer: format!("https://{address}"),
            saying: Mutex::new(Saying {
                claims: json!({}),
                by_unpublished_key: false,
                hangs: false,
            }),
            unanswered: Notify::new(),
            key: Mutex::new(new_key()?),
            codes: Mutex::default(),
        });
        let serving = Arc::clone(&provider);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let provider = Arc::clone(&serving);
                let acceptor = TlsAcceptor::from(Arc::clone(&tls));
                tokio::spawn(async move {
                    // A client may go away at any time.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let _ = provider.answer(stream).await;
                    }
                });
            }
        });
        Ok(provider)
    }

    /// Signs with another key from now on, and publishes it.
    pub fn change_key(&self) -> std::io::Result<()> {
        *self.key.lock() = new_key()?;
        Ok(())
    }

    /// Id of the key that signs now.
    pub fn kid(&self) -> String {
        kid(&self.key.lock())
    }

    /// The redirect that a browser gets for `location`.
    pub fn visit(&self, location: &str) -> Option<String> {
        let query = location.strip_prefix(&format!("{}/authorize?", self.issuer))?;
        self.authorize(&pairs(query))
    }

    async fn answer<S>(&self, mut stream: S) -> std::io::Result<()>
    where
        S: AsyncReadExt + AsyncWriteExt + Unpin,
    {
        let mut request = Vec::new();
        let (head, body) = loop {
            let mut chunk = [0; 4096];
            let read = stream.read(&mut chunk).await?;
            request.extend_from_slice(&chunk[..read]);
            let text = String::from_utf8_lossy(&request).into_owned();
            let length = |head: &str| {
                let header = |line: &str| {
                    let (name, value) = line.split_once(':')?;
                    let is_length = name.eq_ignore_ascii_case("content-length");
                    is_length
                        .then(|| value.trim().parse::<usize>().ok())
                        .flatten()
                };
                head.lines().find_map(header).unwrap_or(0)
            };
            match text.split_once("\r\n\r\n") {
                Some((head, body)) if body.len() >= length(head) => {
                    break (head.to_owned(), body.to_owned());
                }
                _ if read == 0 => return Ok(()),
                _ => {}
            }
        };
        if self.saying.lock().hangs {
            self.unanswered.notify_one();
            return std::future::pending().await;
        }
        let target = head.split(' ').nth(1).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (status, extra, body) = match path {
            "/.well-known/openid-configuration" => ("200 OK", String::new(), self.discovery()),
            "/keys" => ("200 OK", String::new(), self.keys()),
            "/authorize" => match self.authorize(&pairs(query)) {
                Some(location) => (
                    "302 Found",
                    format!("location: {location}\r\n"),
                    Value::Null,
                ),
                None => ("400 Bad Request", String::new(), Value::Null),
            },
            "/token" => match self.token(&head, &pairs(&body)) {
                Ok(tokens) => ("200 OK", String::new(), tokens),
                Err(error) => ("400 Bad Request", String::new(), json!({ "error": error })),
            },
            _ => ("404 Not Found", String::new(), Value::Null),
        };
        let body = body.to_string();
        let answer = format!(
            "HTTP/1.1 {status}\r\n{extra}content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }

    fn discovery(&self) -> Value {
        let issuer = &self.issuer;
        json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/keys"),
        })
    }

    fn keys(&self) -> Value {
        json!({"keys": [public(&self.key.lock())]})
    }

    /// Redirects to the client with a code, and remembers the parameters of the request.
    fn authorize(&self, asked: &HashMap<String, String>) -> Option<String> {
        let is = |name: &str, value: &str| asked.get(name).is_some_and(|given| given == value);
        let is_good = is("response_type", "code")
            && is("client_id", CLIENT)
            && is("code_challenge_method", "S256")
            && asked
                .get("scope")?
                .split(' ')
                .any(|scope| scope == "openid");
        let (redirect, state) = (asked.get("redirect_uri")?, asked.get("state")?);
        let code = format!("code-{}", self.codes.lock().len());
        self.codes.lock().insert(code.clone(), asked.clone());
        is_good.then(|| format!("{redirect}?code={code}&state={state}"))
    }

    fn token(&self, head: &str, asked: &HashMap<String, String>) -> Result<Value, &'static str> {
        let get = |name: &str| asked.get(name).map(String::as_str).unwrap_or_default();
        // The `/` and ` ` of the secret are percent-encoded before the base64 encoding.
        let pair = STANDARD.encode(format!("{CLIENT}:a%20secret%2Fof%20the%20client"));
        if !head.contains(&format!("Basic {pair}")) {
            return Err("invalid_client");
        }
        let began = self
            .codes
            .lock()
            .remove(get("code"))
            .ok_or("invalid_grant")?;
        let challenge = BASE64.encode(Sha256::digest(get("code_verifier").as_bytes()));
        let same = |name: &str, value: &str| began.get(name).is_some_and(|known| known == value);
        if get("grant_type") != "authorization_code"
            || !same("code_challenge", &challenge)
            || !same("redirect_uri", get("redirect_uri"))
        {
            return Err("invalid_grant");
        }
        let mut claims = self.claims(CLIENT);
        claims["nonce"] = json!(began.get("nonce"));
        let token = self.says(claims).map_err(|_| "server_error")?;
        Ok(json!({
            "token_type": "Bearer", "access_token": "none", "id_token": token,
        }))
    }

    /// An access token for the resource `audience`, as a program gets it with its own credentials.
    pub fn access_token(&self, audience: &str) -> std::io::Result<String> {
        self.says(self.claims(audience))
    }

    fn claims(&self, audience: &str) -> Value {
        let now_s = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |passed| passed.as_secs());
        json!({
            "iss": self.issuer, "aud": audience, "sub": "17", "preferred_username": "ada",
            "iat": now_s, "exp": now_s + 300,
        })
    }

    /// Signs these claims with the overlay of the test.
    fn says(&self, mut claims: Value) -> std::io::Result<String> {
        let saying = self.saying.lock();
        for (claim, value) in saying.claims.as_object().into_iter().flatten() {
            claims[claim] = value.clone();
        }
        let own = self.key.lock();
        let unpublished = new_key()?;
        let key = if saying.by_unpublished_key {
            &unpublished
        } else {
            &*own
        };
        signed(key, &kid(&own), &claims)
    }
}

/// A fresh key for ES256.
pub fn new_key() -> std::io::Result<KeyPair> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(std::io::Error::other)
}

/// The published part of a key.
pub fn public(key: &KeyPair) -> Value {
    // The uncompressed point: the byte 4, x and y.
    let point = key.der_bytes();
    json!({
        "kty": "EC", "crv": "P-256", "use": "sig", "kid": kid(key),
        "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..65]),
    })
}

/// A signed token with the key id `kid`.
pub fn signed(key: &KeyPair, kid: &str, claims: &Value) -> std::io::Result<String> {
    let header = json!({"alg": "ES256", "kid": kid}).to_string();
    let [header, claims] = [header, claims.to_string()].map(|part| BASE64.encode(part));
    let signed = format!("{header}.{claims}");
    let signature = key.sign(signed.as_bytes());
    let signature = BASE64.encode(side_by_side(&signature.map_err(std::io::Error::other)?));
    Ok(format!("{signed}.{signature}"))
}

pub fn kid(key: &KeyPair) -> String {
    BASE64.encode(&Sha256::digest(key.der_bytes())[..8])
}

/// Converts a DER sequence of two numbers to 32 bytes each.
fn side_by_side(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut both = Vec::with_capacity(64);
    for _ in 0..2 {
        let length = usize::from(rest[1]);
        let number = &rest[2..2 + length];
        let number = &number[number.len().saturating_sub(32)..];
        both.extend(std::iter::repeat_n(0, 32 - number.len()));
        both.extend_from_slice(number);
        rest = &rest[2 + length..];
    }
    both
}

fn pairs(form: &str) -> HashMap<String, String> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        Some((name.to_owned(), unescape(value)))
    };
    form.split('&').filter_map(pair).collect()
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match (first, hex.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
