//! AlertsService: requests of the dashboard on behalf of people. The dashboard authenticates and
//! authorises people. Requests about documents and notices of one tenant carry the tenant.

use std::sync::Arc;

use clocks::CheckedClock;
use contracts::alerts::{
    AcknowledgeRequest, AcknowledgeResponse, Alert, AlertState, Document, ListAlertsRequest,
    ListAlertsResponse, ListDocumentsRequest, ListDocumentsResponse, ListNoticesRequest,
    ListNoticesResponse, ListUntoldRequest, ListUntoldResponse, PutDocumentRequest,
    PutDocumentResponse, Untold, WithdrawRequest, WithdrawResponse,
    alerts_service_server::AlertsService,
};
use contracts::text;
use service_kit::{grpc::Peer, tls::PeerId};
use store::{
    AlertsBatch, AlertsQuery, DOCUMENTS_MAX, OpenAlerts, QueryError, Scope, Store, StoredDocument,
    WriteError,
};
use tokio::sync::Notify;
use tonic::{Request, Response, Status};
use vitals::{Invalid, RuleSet, validate_text};

use crate::{
    documents, reach_watch,
    withdrawal::{self, WithdrawError},
};

/// Alerts in one answer at most.
const LIST_MAX: u32 = 1000;
/// Bytes of a name and of a note; longer ones are refused.
const NAME_BYTES_MAX: usize = 200;
const NOTE_BYTES_MAX: usize = 4000;
/// Attempts to write the next revision of an alert while the rules write theirs.
const ATTEMPTS_MAX: u32 = 8;

pub(crate) struct Alerts {
    store: Arc<dyn Store>,
    outbox: Arc<Notify>,
    /// Rules of patients without a rule set of their own.
    rules: Arc<RuleSet>,
    allow: Vec<String>,
    untold: reach_watch::Reader,
    clock: CheckedClock,
}

#[derive(Debug, thiserror::Error)]
enum AcknowledgeError {
    #[error("{0}")]
    Argument(&'static str),
    #[error("there is no alert {0:?}")]
    Unknown(String),
    #[error("the alert changes too often; try again")]
    Busy,
    #[error("{0}")]
    Withdraw(WithdrawError),
    #[error("{0}")]
    Write(WriteError),
    #[error("{0}")]
    Query(#[from] QueryError),
}

impl AcknowledgeError {
    fn unknown(id: &str) -> AcknowledgeError {
        AcknowledgeError::Unknown(id.chars().take(64).collect())
    }
}

impl From<AcknowledgeError> for Status {
    fn from(error: AcknowledgeError) -> Status {
        let is_retryable = match &error {
            AcknowledgeError::Argument(_) => return Status::invalid_argument(error.to_string()),
            AcknowledgeError::Unknown(_) => return Status::not_found(error.to_string()),
            AcknowledgeError::Busy => return Status::aborted(error.to_string()),
            AcknowledgeError::Withdraw(error) => {
                return Status::failed_precondition(error.to_string());
            }
            AcknowledgeError::Write(error) => error.is_retryable(),
            AcknowledgeError::Query(error) => matches!(error, QueryError::Unavailable(_)),
        };
        // Address and messages of the store go to the log only.
        tracing::warn!(%error, "a request failed because of the store");
        if is_retryable {
            Status::unavailable("the store does not answer; try again")
        } else {
            Status::internal("the store refuses the request; the log of alerting has the reason")
        }
    }
}

impl Alerts {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        outbox: Arc<Notify>,
        rules: Arc<RuleSet>,
        allow: Vec<String>,
        untold: reach_watch::Reader,
        clock: CheckedClock,
    ) -> Alerts {
        Alerts {
            store,
            outbox,
            rules,
            allow,
            untold,
            clock,
        }
    }

    fn authorise<T>(&self, request: &Request<T>) -> Result<(), Status> {
        match request
            .extensions()
            .get::<Peer>()
            .and_then(|peer| peer.id.as_ref())
        {
            Some(PeerId::Service { noun }) if self.allow.contains(noun) => Ok(()),
            Some(id) => Err(Status::permission_denied(format!(
                "{id} may not handle alerts"
            ))),
            None => Err(Status::unauthenticated("a client certificate is needed")),
        }
    }

    async fn acknowledge(&self, request: &AcknowledgeRequest) -> Result<Alert, AcknowledgeError> {
        if validate_text("by", &request.by, NAME_BYTES_MAX, "Ada Nurse").is_err() {
            return Err(AcknowledgeError::Argument(
                "by: the name of a person, 1 to 200 bytes in one line, for example \"Ada Nurse\"",
            ));
        }
        if request.note.len() > NOTE_BYTES_MAX || !text::is_plain(&request.note) {
            return Err(AcknowledgeError::Argument(
                "note: at most 4000 bytes, without control characters",
            ));
        }
        for _ in 0..ATTEMPTS_MAX {
            let alert = self
                .store
                .alert(&Scope::Service, &request.id)
                .await?
                .ok_or_else(|| AcknowledgeError::unknown(&request.id))?;
            let Some(next) = acknowledged(&alert, request, self.clock.now_us()) else {
                return Ok(alert);
            };
            if self.write(&next).await? {
                metrics::counter!("braid_alerting_acknowledgements_total").increment(1);
                return Ok(next);
            }
        }
        Err(AcknowledgeError::Busy)
    }

    async fn withdraw(&self, request: &WithdrawRequest) -> Result<Alert, AcknowledgeError> {
        for _ in 0..ATTEMPTS_MAX {
            let history = self
                .store
                .alert_history(&Scope::Service, &request.id)
                .await?;
            if history.is_empty() {
                return Err(AcknowledgeError::unknown(&request.id));
            }
            let next = withdrawal::withdrawn(&history, &request.by, self.clock.now_us());
            let next = next.map_err(AcknowledgeError::Withdraw)?;
            if self.write(&next).await? {
                metrics::counter!("braid_alerting_withdrawals_total").increment(1);
                return Ok(next);
            }
        }
        Err(AcknowledgeError::Busy)
    }

    /// False: the rules or another person wrote this revision first.
    async fn write(&self, next: &Alert) -> Result<bool, AcknowledgeError> {
        let batch = AlertsBatch {
            transitions: vec![next.clone()],
            states: Vec::new(),
        };
        match self.store.write_alerts(batch, Vec::new()).await {
            Ok(_) => {
                self.outbox.notify_one();
                Ok(true)
            }
            Err(WriteError::Conflict(_)) => Ok(false),
            Err(error) => Err(AcknowledgeError::Write(error)),
        }
    }
}

/// The alert's next revision. `None`: it is already acknowledged or over.
fn acknowledged(alert: &Alert, request: &AcknowledgeRequest, now_us: i64) -> Option<Alert> {
    let state = match alert.state() {
        _ if !alert.acknowledged_by.is_empty() => return None,
        AlertState::Active => AlertState::Acknowledged,
        AlertState::Latched => AlertState::Resolved,
        AlertState::Unspecified
        | AlertState::Pending
        | AlertState::Acknowledged
        | AlertState::Resolved => return None,
    };
    Some(Alert {
        state: state.into(),
        acknowledged_by: request.by.trim().to_owned(),
        note: request.note.clone(),
        changed_us: now_us.max(alert.changed_us),
        recorded_us: now_us,
        revision: alert.revision + 1,
        ..alert.clone()
    })
}

#[tonic::async_trait]
impl AlertsService for Alerts {
    async fn acknowledge(
        &self,
        request: Request<AcknowledgeRequest>,
    ) -> Result<Response<AcknowledgeResponse>, Status> {
        self.authorise(&request)?;
        let alert = Alerts::acknowledge(self, request.get_ref()).await?;
        tracing::info!(alert = alert.id, by = alert.acknowledged_by, "acknowledged");
        Ok(Response::new(AcknowledgeResponse { alert: Some(alert) }))
    }

    async fn withdraw(
        &self,
        request: Request<WithdrawRequest>,
    ) -> Result<Response<WithdrawResponse>, Status> {
        self.authorise(&request)?;
        let by = request.get_ref().by.clone();
        let alert = Alerts::withdraw(self, request.get_ref()).await?;
        tracing::info!(alert = alert.id, by, "acknowledgement withdrawn");
        Ok(Response::new(WithdrawResponse { alert: Some(alert) }))
    }

    async fn list_alerts(
        &self,
        request: Request<ListAlertsRequest>,
    ) -> Result<Response<ListAlertsResponse>, Status> {
        self.authorise(&request)?;
        let request = request.into_inner();
        let query = AlertsQuery {
            patient: (!request.patient.is_empty()).then_some(request.patient),
            include_resolved: request.include_resolved,
            limit: request.limit.min(LIST_MAX) as usize,
            ..AlertsQuery::default()
        };
        let alerts = self.store.alerts(&Scope::Service, &query);
        let alerts = alerts.await.map_err(AcknowledgeError::from)?;
        let totals = self
            .store
            .open_alerts(&Scope::Service, query.patient.as_deref());
        let totals = totals.await.map_err(AcknowledgeError::from)?;
        let counts = OpenAlerts::beside(&totals, &alerts);
        Ok(Response::new(ListAlertsResponse { alerts, counts }))
    }

    async fn put_document(
        &self,
        request: Request<PutDocumentRequest>,
    ) -> Result<Response<PutDocumentResponse>, Status> {
        self.authorise(&request)?;
        let request = request.into_inner();
        let document = Document {
            at_us: self.clock.now_us(),
            ..request
                .document
                .ok_or_else(|| Status::invalid_argument("document: is missing"))?
        };
        let refused = |error: Invalid| Status::invalid_argument(error.to_string());
        documents::check(&document).map_err(refused)?;
        if document.kind == documents::SILENCE {
            let known = documents::known_rules(&*self.store, &document.tenant, &self.rules).await;
            let known = known.map_err(AcknowledgeError::from)?;
            documents::check_rule(&document, &known).map_err(refused)?;
        }
        let known = documents::check_patient(&*self.store, &document).await;
        known.map_err(AcknowledgeError::from)?.map_err(refused)?;
        if request.dry_run {
            return Ok(Response::new(PutDocumentResponse {
                rules_lost: documents::rules_lost(&document),
                document: Some(document),
            }));
        }
        match self.store.put_document(&document).await {
            Ok(()) => {}
            Err(WriteError::Conflict(_)) => {
                return Err(Status::aborted(format!(
                    "version: {} does not follow the newest version; read the document again",
                    document.version
                )));
            }
            Err(WriteError::Invalid(reason)) => return Err(Status::failed_precondition(reason)),
            Err(error) => return Err(AcknowledgeError::Write(error).into()),
        }
        metrics::counter!("braid_alerting_documents_total").increment(1);
        tracing::info!(
            kind = document.kind,
            tenant = document.tenant,
            subject = document.subject,
            version = document.version,
            author = document.author,
            reason = document.reason,
            "document put"
        );
        Ok(Response::new(PutDocumentResponse {
            rules_lost: documents::rules_lost(&document),
            document: Some(document),
        }))
    }

    async fn list_documents(
        &self,
        request: Request<ListDocumentsRequest>,
    ) -> Result<Response<ListDocumentsResponse>, Status> {
        self.authorise(&request)?;
        let request = request.into_inner();
        let scope = tenant_of(request.tenant)?;
        let documents = if request.subject.is_empty() {
            let now_us = self.clock.now_us();
            let stored = self.store.stored_documents(&scope, &request.kind, now_us);
            let stored = stored.await.map_err(AcknowledgeError::from)?.into_iter();
            stored.filter_map(StoredDocument::readable).collect()
        } else {
            let (kind, subject) = (&request.kind, &request.subject);
            let stored = self
                .store
                .stored_history(&scope, kind, subject, DOCUMENTS_MAX);
            let stored = stored.await.map_err(AcknowledgeError::from)?.into_iter();
            stored.map(StoredDocument::or_named).collect()
        };
        Ok(Response::new(ListDocumentsResponse { documents }))
    }

    async fn list_untold(
        &self,
        request: Request<ListUntoldRequest>,
    ) -> Result<Response<ListUntoldResponse>, Status> {
        self.authorise(&request)?;
        let found = Arc::clone(&self.untold.borrow());
        let untold = found.gaps.iter().map(|gap| Untold {
            tenant: gap.tenant.clone(),
            total: gap.is_total,
            text: gap.says.clone(),
            to_do: gap.to_do.to_owned(),
        });
        Ok(Response::new(ListUntoldResponse {
            untold: untold.collect(),
            omitted: u32::try_from(found.omitted).unwrap_or(u32::MAX),
        }))
    }

    async fn list_notices(
        &self,
        request: Request<ListNoticesRequest>,
    ) -> Result<Response<ListNoticesResponse>, Status> {
        self.authorise(&request)?;
        let request = request.into_inner();
        let scope = tenant_of(request.tenant)?;
        let notices = self.store.notices(&scope, &request.alert).await;
        let notices = notices.map_err(AcknowledgeError::from)?;
        Ok(Response::new(ListNoticesResponse { notices }))
    }
}

/// Every request here is about one tenant.
fn tenant_of(tenant: String) -> Result<Scope, Status> {
    if tenant.is_empty() {
        return Err(Status::invalid_argument("tenant: is missing"));
    }
    Ok(Scope::Tenant(tenant))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dashboard shows people the text of refused, aborted and not-found requests unchanged.
    #[test]
    fn nobody_is_told_what_the_store_says_of_itself() {
        let inside = || "timescaledb.inside:5432".to_owned();
        for error in [
            AcknowledgeError::Query(QueryError::Unavailable(inside())),
            AcknowledgeError::Query(QueryError::Unreadable(inside())),
            AcknowledgeError::Write(WriteError::Unavailable(inside())),
            AcknowledgeError::Write(WriteError::Unfit(inside())),
        ] {
            let status = Status::from(error);
            assert!(status.message().starts_with("the store"), "{status}");
            assert!(!status.message().contains("inside"), "{status}");
        }
    }
}
