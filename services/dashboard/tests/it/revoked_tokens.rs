//! A revoked gateway returns with a token that was created after the revocation, and with no older
//! one.

use dashboard::gateways::{self, Decision, GatewayError};
use service_kit::tls::{Fingerprint, IdentityFiles, PeerId, authority::LocalAuthority, renewal};
use store::{SqliteStore, Store};

const DECISION: Decision<'_> = Decision {
    tenant: "default",
    by: "Eve",
    reason: "a test",
};

struct Issuer {
    store: SqliteStore,
    authority: LocalAuthority,
    _dir: tempfile::TempDir,
}

impl Issuer {
    fn new() -> Issuer {
        let dir = tempfile::tempdir().unwrap();
        Issuer {
            store: SqliteStore::open(dir.path()).unwrap(),
            authority: LocalAuthority::open_or_create(dir.path()).unwrap(),
            _dir: dir,
        }
    }

    async fn token(&self) -> String {
        let authority = self.authority.fingerprint().unwrap();
        let token = gateways::enrol(&self.store, authority, "gw-1", 0, &DECISION).await;
        token.unwrap().text.expose().to_owned()
    }

    /// Fingerprint of the certificate that the token buys.
    async fn exchange(&self, token: &str) -> Result<Fingerprint, GatewayError> {
        let request = renewal::Request::new().unwrap().request_pem;
        let given = self.ask(token, &request).await?;
        Ok(renewal::fingerprint(&given).unwrap())
    }

    async fn ask(&self, token: &str, request: &str) -> Result<String, GatewayError> {
        let given = gateways::exchange(&self.store, &self.authority, token, request).await?;
        Ok(given.certificate)
    }

    async fn lets_in(&self, certificate: &Fingerprint) -> bool {
        let store: &dyn Store = &self.store;
        let gateway = PeerId::gateway("default", "gw-1");
        let revocations = store::revocations(store).await.unwrap();
        !revocations.refuses(&gateway, Some(certificate))
    }
}

#[tokio::test]
async fn a_token_made_before_a_revocation_lets_nobody_in_after_it() {
    let issuer = Issuer::new();
    let (first, older) = (issuer.token().await, issuer.token().await);
    let certificate = issuer.exchange(&first).await.unwrap();
    assert!(issuer.lets_in(&certificate).await);
    gateways::revoke(&issuer.store, "gw-1", &DECISION)
        .await
        .unwrap();
    assert!(!issuer.lets_in(&certificate).await);
    let refused = issuer.exchange(&older).await.unwrap_err();
    assert!(matches!(refused, GatewayError::Outdated), "{refused}");

    let newer = issuer.token().await;
    let certificate = issuer.exchange(&newer).await.unwrap();
    assert!(issuer.lets_in(&certificate).await);
    // After a second revocation the gateway needs a token again.
    gateways::revoke(&issuer.store, "gw-1", &DECISION)
        .await
        .unwrap();
    assert!(!issuer.lets_in(&certificate).await);
    assert!(issuer.exchange(&older).await.is_err());
}

#[tokio::test]
async fn an_answer_that_is_lost_costs_neither_token_nor_certificate() {
    let issuer = Issuer::new();
    let token = issuer.token().await;
    let files = IdentityFiles::in_dir(issuer._dir.path(), "gw-1");
    let request = || renewal::Request::kept(&files).unwrap();
    let lost = issuer.ask(&token, &request().request_pem).await.unwrap();
    let other_key = issuer.exchange(&token).await.unwrap_err();
    assert!(matches!(other_key, GatewayError::Used(_)), "{other_key}");
    let certificate = issuer.ask(&token, &request().request_pem).await.unwrap();
    assert_ne!(lost, certificate);
    request().install(&certificate, &files).unwrap();

    // Revoked and enrolled again: the new certificate stays valid, however many answers are lost.
    gateways::revoke(&issuer.store, "gw-1", &DECISION)
        .await
        .unwrap();
    let token = issuer.token().await;
    let certificate = issuer.ask(&token, &request().request_pem).await.unwrap();
    request().install(&certificate, &files).unwrap();
    for lost in 0..3 {
        let next = renewal::Request::new().unwrap();
        let proof = next.proof(&files.key).unwrap();
        let (store, authority) = (&issuer.store, &issuer.authority);
        let given =
            gateways::renew(store, authority, &certificate, &next.request_pem, &proof).await;
        let given = given.unwrap_or_else(|refused| panic!("after {lost} lost answers: {refused}"));
        for pem in [&certificate, &given.certificate] {
            let fingerprint = renewal::fingerprint(pem).unwrap();
            assert!(issuer.lets_in(&fingerprint).await, "after {lost}");
        }
    }
}
