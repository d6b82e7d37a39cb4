//! Issues, renews and revokes the certificates of gateways. A token authorises the first
//! certificate of a gateway, and the certificate in force authorises its successor. Callers are the
//! API, `braid gateways` and the gateways themselves.
//!
//! A token is `<id>.<secret>.<authority>`. The store has only the SHA-256 of the secret. The last
//! part is the fingerprint of the authority, by which a new gateway recognises it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contracts::alerts::Document;
use contracts::identity::{Gateway, Revoked};
use rand::RngExt;
use service_kit::Secret;
use service_kit::tls::authority::{AuthorityError, LocalAuthority, Signed};
use service_kit::tls::{Fingerprint, GatewayId, PeerId, renewal};
use sha2::{Digest, Sha256};
use store::{
    AuditEntry, CERTIFICATE, DOCUMENTS_MAX, ENROLMENT, Enrolment, GatewayEntry, Issued, QueryError,
    REVOCATION, Revocation, Scope, Store, WriteError,
};

pub const VALID_HOURS_DEFAULT: u32 = 24;
/// Longest validity of an enrolment token.
pub const VALID_HOURS_MAX: u32 = 30 * 24;
/// Bytes of a reason.
const REASON_BYTES_MAX: usize = 4_000;
/// Certificates of a revoked gateway that were issued later and hold: the one in use and its
/// successor.
const EXCEPTED_MAX: usize = 2;
/// Another writer may put a version at the same time; the attempt is repeated this often.
const ATTEMPTS_MAX: u32 = 5;
const HOUR_US: i64 = 3_600_000_000;

/// Why a certificate is not issued, or a person may not decide.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    #[error("the token is not known")]
    Unknown,
    #[error("the token was used already, {0}; an administrator can make another")]
    Used(String),
    #[error("the token has expired; an administrator can make another")]
    Expired,
    #[error("the gateway was revoked after the token was made; an administrator can make another")]
    Outdated,
    #[error("the certificate is revoked; an administrator can make a token for another")]
    Revoked,
    #[error("the certificate is not in force: {0}")]
    NotInForce(String),
    #[error("this tenant has as many revoked gateways as it can have")]
    Full,
    #[error("other people keep changing it; try again")]
    Contended,
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error("{0}")]
    Write(#[from] WriteError),
    #[error("the authority: {0}")]
    Authority(#[from] AuthorityError),
}

/// The author of a decision and the reason.
#[derive(Debug, Clone)]
pub struct Decision<'a> {
    pub tenant: &'a str,
    pub by: &'a str,
    pub reason: &'a str,
}

pub struct Token {
    pub text: Secret,
    pub until_us: i64,
}

/// The answer to a gateway.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Certificate {
    pub certificate: String,
    pub authority: String,
}

fn invalid(field: &'static str, reason: impl Into<String>) -> GatewayError {
    GatewayError::Invalid {
        field,
        reason: reason.into(),
    }
}

fn check(gateway: &str, decision: &Decision<'_>) -> Result<PeerId, GatewayError> {
    let reason = decision.reason.trim();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
        return Err(invalid(
            "reason",
            format!("is empty or longer than {REASON_BYTES_MAX} bytes"),
        ));
    }
    contracts::text::check(reason).map_err(|found| invalid("reason", found.to_string()))?;
    // An id that cannot be read back as an identity must not become one.
    let id = PeerId::gateway(decision.tenant, gateway);
    id.to_string()
        .parse()
        .map_err(|_| invalid("gateway", format!("{gateway:?} cannot be in a certificate")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn json(body: &impl serde::Serialize) -> Result<String, GatewayError> {
    serde_json::to_string(body).map_err(|error| invalid("body", error.to_string()))
}

/// Makes a token for a gateway and enters the gateway into the register.
pub async fn enrol(
    store: &dyn Store,
    authority: Fingerprint,
    gateway: &str,
    valid_hours: u32,
    decision: &Decision<'_>,
) -> Result<Token, GatewayError> {
    check(gateway, decision)?;
    let hours = match valid_hours {
        0 => VALID_HOURS_DEFAULT,
        hours if hours <= VALID_HOURS_MAX => hours,
        _ => {
            return Err(invalid(
                "valid_hours",
                format!("more than {VALID_HOURS_MAX}"),
            ));
        }
    };
    // Refused when another tenant has a gateway of this name.
    let entry = GatewayEntry {
        id: gateway.to_owned(),
        tenant: decision.tenant.to_owned(),
    };
    store.put_gateway(&entry).await?;
    let (id, secret): ([u8; 8], [u8; 32]) = (rand::rng().random(), rand::rng().random());
    let (id, secret) = (hex(&id), hex(&secret));
    let body = Enrolment {
        gateway: gateway.to_owned(),
        secret_sha256: hex(&Sha256::digest(secret.as_bytes())),
        key_sha256: None,
    };
    let until_us = contracts::now_us() + i64::from(hours) * HOUR_US;
    store
        .put_document(&Document {
            kind: ENROLMENT.to_owned(),
            tenant: decision.tenant.to_owned(),
            subject: id.clone(),
            version: 1,
            author: decision.by.to_owned(),
            reason: decision.reason.to_owned(),
            at_us: contracts::now_us(),
            until_us,
            body: json(&body)?,
        })
        .await?;
    audit(store, decision, "enrol gateway", gateway).await?;
    Ok(Token {
        text: Secret::new(format!("{id}.{secret}.{authority}")),
        until_us,
    })
}

/// Issues a gateway's certificate for a token. The token serves one key, and that key again while
/// it is valid, because an answer may be lost.
pub async fn exchange(
    store: &dyn Store,
    authority: &LocalAuthority,
    token: &str,
    request_pem: &str,
) -> Result<Certificate, GatewayError> {
    let mut parts = token.trim().split('.');
    let (Some(id), Some(secret)) = (parts.next(), parts.next()) else {
        return Err(GatewayError::Unknown);
    };
    if id.len() != 16 || secret.len() != 64 {
        return Err(GatewayError::Unknown);
    }
    let history = store
        .document_history(&Scope::Service, ENROLMENT, id)
        .await?;
    let (Some(newest), Some(first)) = (history.first(), history.last()) else {
        return Err(GatewayError::Unknown);
    };
    let enrolment: Enrolment =
        serde_json::from_str(&first.body).map_err(|_| GatewayError::Unknown)?;
    // Hashes are compared, so the duration reveals nothing of the secret.
    if hex(&Sha256::digest(secret.as_bytes())) != enrolment.secret_sha256 {
        return Err(GatewayError::Unknown);
    }
    if first.until_us <= contracts::now_us() {
        return Err(GatewayError::Expired);
    }
    let peer = PeerId::gateway(first.tenant.clone(), enrolment.gateway.clone());
    // Also proves that the gateway has the key.
    let signed = authority.sign(request_pem, &peer)?;
    let key_sha256 = Some(hex(&Sha256::digest(&signed.key)));
    if newest.version > 1 {
        check_used_by(newest, key_sha256.as_deref())?;
    }
    let decision = Decision {
        tenant: &first.tenant,
        by: &first.author,
        reason: &first.reason,
    };
    // Before the token is used up: the exception belongs to this gateway alone.
    let made_us = first.at_us;
    except(
        store,
        &enrolment.gateway,
        &signed,
        None,
        &decision,
        |revocation| {
            // Older tokens of a revoked gateway are refused.
            if made_us <= revocation.at_us {
                return Err(GatewayError::Outdated);
            }
            Ok(())
        },
    )
    .await?;
    let body = json(&Enrolment {
        key_sha256: key_sha256.clone(),
        ..enrolment.clone()
    })?;
    let use_up = Document {
        version: 2,
        at_us: contracts::now_us(),
        reason: "used".to_owned(),
        body,
        ..first.clone()
    };
    match store.put_document(&use_up).await {
        Ok(()) => {}
        Err(WriteError::Conflict(_)) => {
            let history = store
                .document_history(&Scope::Service, ENROLMENT, id)
                .await?;
            let newest = history.first().ok_or(GatewayError::Unknown)?;
            check_used_by(newest, key_sha256.as_deref())?;
        }
        Err(error) => return Err(error.into()),
    }
    record(store, &enrolment.gateway, &signed, &decision).await?;
    audit(store, &decision, "certificate by token", &enrolment.gateway).await?;
    Ok(Certificate {
        certificate: signed.pem,
        authority: authority.certificate_pem()?,
    })
}

fn check_used_by(used: &Document, key_sha256: Option<&str>) -> Result<(), GatewayError> {
    let enrolment: Option<Enrolment> = serde_json::from_str(&used.body).ok();
    let by = enrolment.and_then(|enrolment| enrolment.key_sha256);
    if by.is_some() && by.as_deref() == key_sha256 {
        return Ok(());
    }
    Err(GatewayError::Used(format!(
        "{} s ago",
        (contracts::now_us() - used.at_us) / 1_000_000
    )))
}

/// Issues a gateway's next certificate by the one in force.
pub async fn renew(
    store: &dyn Store,
    authority: &LocalAuthority,
    certificate_pem: &str,
    request_pem: &str,
    proof: &[u8],
) -> Result<Certificate, GatewayError> {
    let not_in_force = |error: &dyn std::fmt::Display| GatewayError::NotInForce(error.to_string());
    let leaf = authority
        .vouches_for(certificate_pem, SystemTime::now())
        .map_err(|error| match error {
            AuthorityError::Io { .. } | AuthorityError::Certificate { .. } => error.into(),
            of_theirs => not_in_force(&of_theirs),
        })?;
    let id = PeerId::from_certificate(&leaf).map_err(|error| not_in_force(&error))?;
    let PeerId::Gateway(GatewayId {
        tenant,
        id: gateway,
    }) = &id
    else {
        return Err(not_in_force(&format!("{id} is no gateway")));
    };
    renewal::check_proof(&leaf, request_pem, proof).map_err(|error| not_in_force(&error))?;
    // Asked for anew, so that a recent revocation counts.
    let revocations = store::revocations(store).await?;
    if revocations.refuses(&id, Some(&Fingerprint::of(&leaf))) {
        return Err(GatewayError::Revoked);
    }
    let signed = authority.sign(request_pem, &id)?;
    let decision = Decision {
        tenant,
        by: gateway,
        reason: "renewal",
    };
    let shown = Fingerprint::of(&leaf).to_string();
    except(
        store,
        gateway,
        &signed,
        Some(&shown),
        &decision,
        |revocation| {
            // Also if a revocation was put meanwhile.
            if !revocation.excepted.contains(&shown) {
                return Err(GatewayError::Revoked);
            }
            Ok(())
        },
    )
    .await?;
    record(store, gateway, &signed, &decision).await?;
    audit(store, &decision, "certificate by renewal", gateway).await?;
    Ok(Certificate {
        certificate: signed.pem,
        authority: authority.certificate_pem()?,
    })
}

/// Revokes every certificate of a gateway.
pub async fn revoke(
    store: &dyn Store,
    gateway: &str,
    decision: &Decision<'_>,
) -> Result<(), GatewayError> {
    check(gateway, decision)?;
    let scope = Scope::tenant(decision.tenant);
    if store.gateway(&scope, gateway).await?.is_none() {
        return Err(invalid("gateway", format!("there is no {gateway:?}")));
    }
    let revoked = store.documents(&scope, REVOCATION, i64::MIN).await?;
    // Every service reads all revocations after each decision. One that exists already adds none.
    if revoked.len() >= DOCUMENTS_MAX && !revoked.iter().any(|it| it.subject == gateway) {
        return Err(GatewayError::Full);
    }
    put_next(store, REVOCATION, gateway, decision, 0, |_| {
        json(&Revocation {
            by: decision.by.to_owned(),
            reason: decision.reason.to_owned(),
            at_us: contracts::now_us(),
            excepted: Vec::new(),
        })
        .map(Some)
    })
    .await?;
    audit(store, decision, "revoke gateway", gateway).await
}

/// The gateways of a tenant, by name.
pub async fn list(store: &dyn Store, scope: &Scope) -> Result<Vec<Gateway>, GatewayError> {
    let now_us = contracts::now_us();
    let issued = store.documents(scope, CERTIFICATE, i64::MIN).await?;
    let until: HashMap<_, _> = issued
        .iter()
        .map(|document| (document.subject.as_str(), document.until_us))
        .collect();
    let revoked = store.documents(scope, REVOCATION, i64::MIN).await?;
    let mut revoked: HashMap<String, Revocation> = revoked
        .into_iter()
        .filter_map(|document| {
            let body = serde_json::from_str(&document.body).ok()?;
            Some((document.subject, body))
        })
        .collect();
    let tokens = store.documents(scope, ENROLMENT, now_us).await?;
    let enrolling: HashSet<String> = tokens
        .iter()
        .filter(|document| document.version == 1)
        .filter_map(|document| serde_json::from_str::<Enrolment>(&document.body).ok())
        .map(|enrolment| enrolment.gateway)
        .collect();
    let gateways = store.gateways(scope).await?;
    Ok(gateways
        .into_iter()
        .map(|entry| Gateway {
            certificate_until_us: until.get(entry.id.as_str()).copied().unwrap_or_default(),
            revoked: revoked.remove(&entry.id).map(|revocation| Revoked {
                at_us: revocation.at_us,
                by: revocation.by,
                reason: revocation.reason,
                let_in_again: !revocation.excepted.is_empty(),
            }),
            enrolling: enrolling.contains(&entry.id),
            id: entry.id,
        })
        .collect())
}

/// Admits a new certificate of a revoked gateway if its proof is still valid by the revocation in
/// force. A certificate that served as a proof stays admitted, because the answer may be lost. A
/// gateway that was never revoked needs no exception.
async fn except(
    store: &dyn Store,
    gateway: &str,
    signed: &Signed,
    shown: Option<&str>,
    decision: &Decision<'_>,
    still_counts: impl Fn(&Revocation) -> Result<(), GatewayError>,
) -> Result<(), GatewayError> {
    put_next(store, REVOCATION, gateway, decision, 0, |newest| {
        let Some(newest) = newest else {
            return Ok(None);
        };
        let mut body: Revocation = serde_json::from_str(&newest.body)
            .map_err(|error| invalid("body", error.to_string()))?;
        still_counts(&body)?;
        // Before those that were requested by it and may never have arrived.
        body.excepted
            .sort_by_key(|fingerprint| Some(fingerprint.as_str()) != shown);
        body.excepted.insert(0, signed.fingerprint.to_string());
        body.excepted.truncate(EXCEPTED_MAX);
        json(&body).map(Some)
    })
    .await
}

/// Records the issued certificate for administrators.
async fn record(
    store: &dyn Store,
    gateway: &str,
    signed: &Signed,
    decision: &Decision<'_>,
) -> Result<(), GatewayError> {
    let until = signed
        .until
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let until_us = i64::try_from(until.as_micros()).unwrap_or(i64::MAX);
    put_next(store, CERTIFICATE, gateway, decision, until_us, |_| {
        let fingerprint = signed.fingerprint.to_string();
        json(&Issued { fingerprint }).map(Some)
    })
    .await
}

/// Puts the next version of a document. `body` makes it from the newest one, or returns that there
/// is nothing to put.
async fn put_next(
    store: &dyn Store,
    kind: &str,
    subject: &str,
    decision: &Decision<'_>,
    until_us: i64,
    body: impl Fn(Option<&Document>) -> Result<Option<String>, GatewayError>,
) -> Result<(), GatewayError> {
    let scope = Scope::tenant(decision.tenant);
    for _ in 0..ATTEMPTS_MAX {
        let history = store.document_history(&scope, kind, subject).await?;
        let newest = history.first();
        let Some(body) = body(newest)? else {
            return Ok(());
        };
        let next = Document {
            kind: kind.to_owned(),
            tenant: decision.tenant.to_owned(),
            subject: subject.to_owned(),
            version: newest.map_or(0, |newest| newest.version) + 1,
            author: decision.by.to_owned(),
            reason: decision.reason.to_owned(),
            at_us: contracts::now_us(),
            until_us,
            body,
        };
        match store.put_document(&next).await {
            Ok(()) => return Ok(()),
            Err(WriteError::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(GatewayError::Contended)
}

async fn audit(
    store: &dyn Store,
    decision: &Decision<'_>,
    action: &str,
    gateway: &str,
) -> Result<(), GatewayError> {
    let entry = AuditEntry {
        time_us: contracts::now_us(),
        tenant: decision.tenant.to_owned(),
        who: decision.by.to_owned(),
        action: action.to_owned(),
        patient: String::new(),
        detail: format!("{gateway}: {}", decision.reason),
    };
    Ok(store.append_audit(vec![entry]).await?)
}
