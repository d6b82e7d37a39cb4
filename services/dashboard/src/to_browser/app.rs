//! The state that all handlers of the page share: store, sessions, and clients of services.

use std::sync::Arc;

use parking_lot::Mutex;
use service_kit::{
    Shutdown,
    guesses::{Attempts, Guesses},
};
use store::{AuditEntry, QueryError, Store, WriteError};

use super::page::Page;
use super::sign_in_code::SignInCode;
use super::viewers::Viewers;
use crate::Config;
use crate::from_gateway::CertificateIssuer;
use crate::live::Live;
use crate::sessions::{Key, Person, Sessions};
use crate::to_alerting::Alerting;
use crate::to_identity_provider::Oidc;
use crate::to_links::LinksClient;
use crate::tokens::{self, Tokens};

/// Clients of the services that are called in the name of people.
pub(crate) struct Clients {
    pub alerting: Alerting,
    /// `None`: no demonstration.
    pub links: Option<LinksClient>,
}

pub(crate) struct App {
    pub(super) store: Arc<dyn Store>,
    pub(super) live: Arc<Live>,
    pub(super) clients: Clients,
    pub(super) issuer: Option<Arc<CertificateIssuer>>,
    pub(super) oidc: Option<Arc<Oidc>>,
    pub(crate) sessions: Arc<Sessions>,
    pub(super) tokens: Tokens,
    pub(super) nobodys_key: Option<serde_json::Value>,
    pub(super) attempts: Arc<Mutex<Attempts>>,
    pub(super) guesses: Mutex<Guesses>,
    pub(super) code: Mutex<Option<SignInCode>>,
    pub(super) viewers: Viewers,
    pub(super) session_us: i64,
    pub(super) secure_cookies: bool,
    pub(super) trust_forwarded_for: bool,
    pub(super) page: Page,
    pub(super) shutdown: Shutdown,
}

impl App {
    pub(crate) fn new(
        config: &Config,
        store: Arc<dyn Store>,
        live: Arc<Live>,
        clients: Clients,
        issuer: Option<Arc<CertificateIssuer>>,
        oidc: Option<Arc<Oidc>>,
        shutdown: Shutdown,
    ) -> Arc<App> {
        let session_us = i64::from(config.session_hours) * 3_600_000_000;
        Arc::new(App {
            tokens: Tokens::new(Arc::clone(&store), session_us, config.trust_forwarded_for),
            sessions: Arc::new(Sessions::new(Arc::clone(&store))),
            nobodys_key: tokens::nobodys_key(),
            store,
            live,
            clients,
            issuer,
            oidc,
            attempts: Arc::default(),
            guesses: Mutex::default(),
            code: Mutex::new(
                config
                    .sign_in_code
                    .clone()
                    .map(|code| SignInCode::new(code, contracts::now_us())),
            ),
            viewers: Viewers::default(),
            session_us,
            secure_cookies: config.tls || config.secure_cookies,
            trust_forwarded_for: config.trust_forwarded_for,
            page: Page::linking_to(&config.gateway_page),
            shutdown,
        })
    }

    /// Writes a row of the audit log before the recorded action happens, so nothing happens
    /// unrecorded.
    pub(super) async fn audit(
        &self,
        person: &Person,
        action: &str,
        patient: &str,
        detail: String,
    ) -> Result<(), WriteError> {
        let entry = AuditEntry {
            time_us: contracts::now_us(),
            tenant: person.tenant.clone(),
            who: person.name.clone(),
            action: action.to_owned(),
            patient: patient.to_owned(),
            detail,
        };
        let entry = entry.because(&person.reason);
        self.store.append_audit(vec![entry]).await
    }

    pub(super) async fn person(&self, key: &Key) -> Result<Option<Person>, QueryError> {
        self.sessions.person(key, contracts::now_us()).await
    }
}
