//! The gRPC service of the page. Every answer with patient data is in the audit log before it is
//! given.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;

use contracts::alerts::{self, AcknowledgeRequest, Alert, WithdrawRequest};
use contracts::query::query_service_server::QueryService;
use contracts::query::{
    AcknowledgeAlertRequest, AcknowledgeAlertResponse, ExplainSteeringRequest,
    ExplainSteeringResponse, GetPathsRequest, GetPathsResponse, GetProofRequest, GetProofResponse,
    GetSeriesRequest, GetSeriesResponse, ListAlertsRequest, ListAlertsResponse,
    ListDocumentsRequest, ListDocumentsResponse, ListLinksRequest, ListLinksResponse,
    ListMetricsRequest, ListMetricsResponse, ListNoticesRequest, ListNoticesResponse,
    ListPatientsRequest, ListPatientsResponse, ListQuarantineRequest, ListQuarantineResponse,
    PutDocumentRequest, PutDocumentResponse, SetLinkRequest, SetLinkResponse, WatchRequest,
    WatchResponse, WithdrawAcknowledgementRequest, WithdrawAcknowledgementResponse,
};
use store::completeness::{RANGE_US_MAX, prove};
use store::{
    AlertsQuery, CASES_LISTED_MAX, DOCUMENTS_MAX, PathsQuery, RULES, Scope, StoredDocument,
    patient_of,
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::built_in::{BUILT_IN, built_in};
use super::calls::{self, identifier, person, plain, store_status, unexplained, upstream};
use super::{app::App, catalogue, kiosk, watch};
use crate::explain::{self, Described};
use crate::from_store::{self, SeriesError};
use crate::moment;
use crate::sessions::{Key, Person};

/// Alerts in one answer at most.
const ALERTS_MAX: u32 = 1_000;
/// Cases of readings of no patient in one answer, unless the request names another number.
const QUARANTINE_LISTED: usize = 100;
/// Path reports in one answer.
const PATH_REPORTS_MAX: usize = 10_000;
/// Longest stretch of path reports: one day.
const PATHS_US_MAX: i64 = 86_400 * 1_000_000;
/// Characters of a note.
const NOTE_LENGTH_MAX: usize = 500;

pub(crate) struct Query {
    app: Arc<App>,
}

impl Query {
    pub(crate) fn new(app: Arc<App>) -> Query {
        Query { app }
    }

    async fn audited(
        &self,
        person: &Person,
        action: &str,
        patient: &str,
        detail: String,
    ) -> Result<(), Status> {
        calls::audited(&self.app, person, action, patient, detail).await
    }

    /// An alert of the person's tenant: alerting knows no tenants.
    async fn own_alert(&self, person: &Person, id: &str) -> Result<Alert, Status> {
        let alert = self.app.store.alert(&scope(person), id).await;
        let alert = alert.map_err(|error| store_status(&error))?;
        alert.ok_or_else(|| Status::not_found("there is no such alert"))
    }
}

fn scope(person: &Person) -> Scope {
    Scope::tenant(person.tenant.clone())
}

/// The gateways whose emulated links a tenant may see: its own.
async fn own_gateways(app: &App, person: &Person) -> Result<HashSet<String>, Status> {
    let gateways = app.store.gateways(&scope(person)).await;
    let gateways = gateways.map_err(|error| store_status(&error))?;
    Ok(gateways.into_iter().map(|gateway| gateway.id).collect())
}

fn may_act(person: &Person) -> Result<(), Status> {
    if person.may_act() {
        return Ok(());
    }
    if person.is_kiosk {
        return Err(Status::permission_denied(kiosk::LOOKS_ONLY));
    }
    Err(Status::permission_denied(
        "viewers look only; this needs a clinician or an administrator",
    ))
}

#[tonic::async_trait]
impl QueryService for Query {
    async fn list_patients(
        &self,
        request: Request<ListPatientsRequest>,
    ) -> Result<Response<ListPatientsResponse>, Status> {
        let person = person(&request)?;
        self.audited(&person, "read ward", "", String::new())
            .await?;
        Ok(Response::new(self.app.live.look(&person.tenant)))
    }

    async fn get_series(
        &self,
        request: Request<GetSeriesRequest>,
    ) -> Result<Response<GetSeriesResponse>, Status> {
        let person = person(&request)?;
        let request = request.into_inner();
        let detail = moment::window(request.from_us, request.to_us);
        self.audited(&person, "read series", &request.patient, detail)
            .await?;
        let series = from_store::series(self.app.store.as_ref(), &scope(&person), &request).await;
        series.map(Response::new).map_err(|error| match error {
            SeriesError::Request(reason) => Status::invalid_argument(reason),
            SeriesError::Store(error) => store_status(&error),
        })
    }

    async fn get_proof(
        &self,
        request: Request<GetProofRequest>,
    ) -> Result<Response<GetProofResponse>, Status> {
        let person = person(&request)?;
        let request = request.into_inner();
        let range = (request.from_us, request.to_us);
        let detail = moment::window(range.0, range.1);
        self.audited(&person, "read proof", &request.patient, detail)
            .await?;
        let stretch = range.1.checked_sub(range.0);
        if !stretch.is_some_and(|stretch| (1..=RANGE_US_MAX).contains(&stretch)) {
            return Err(Status::invalid_argument(
                "from_us, to_us: from must be before to, by at most 31 days",
            ));
        }
        let (store, now_us) = (self.app.store.as_ref(), contracts::now_us());
        let proof = prove(store, &scope(&person), &request.patient, range, now_us).await;
        match proof.map_err(|error| store_status(&error))? {
            None => Err(Status::not_found("there is no such patient")),
            proof => Ok(Response::new(GetProofResponse { proof })),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let person = person(&request)?;
        let key = request.extensions().get::<Key>().copied();
        let key = key.ok_or_else(|| Status::unauthenticated("not signed in"))?;
        let patient = request.into_inner().patient;
        self.audited(
            &person,
            "watch",
            &patient,
            "with the ward and its alerts".to_owned(),
        )
        .await?;
        let stream = watch::open(self.app.clone(), person, key, patient)?;
        Ok(Response::new(Box::pin(stream)))
    }

    async fn list_alerts(
        &self,
        request: Request<ListAlertsRequest>,
    ) -> Result<Response<ListAlertsResponse>, Status> {
        let person = person(&request)?;
        let request = request.into_inner();
        self.audited(&person, "read alerts", &request.patient, String::new())
            .await?;
        let query = AlertsQuery {
            patient: (!request.patient.is_empty()).then_some(request.patient),
            include_resolved: request.include_resolved,
            only_resolved: request.only_resolved,
            limit: request.limit.min(ALERTS_MAX) as usize,
        };
        let listed = from_store::alerts(self.app.store.as_ref(), &scope(&person), &query).await;
        let (alerts, counts) = listed.map_err(|error| store_status(&error))?;
        Ok(Response::new(ListAlertsResponse { alerts, counts }))
    }

    async fn acknowledge_alert(
        &self,
        request: Request<AcknowledgeAlertRequest>,
    ) -> Result<Response<AcknowledgeAlertResponse>, Status> {
        let person = person(&request)?;
        may_act(&person)?;
        let AcknowledgeAlertRequest { id, note } = request.into_inner();
        identifier("id", &id)?;
        plain("note", &note)?;
        if note.chars().count() > NOTE_LENGTH_MAX {
            return Err(Status::invalid_argument(format!(
                "note: longer than {NOTE_LENGTH_MAX} characters"
            )));
        }
        let alert = self.own_alert(&person, &id).await?;
        self.audited(&person, "acknowledge alert", &alert.patient, id.clone())
            .await?;
        let mut alerting = self.app.clients.alerting.clone();
        let acknowledged = alerting
            .acknowledge(AcknowledgeRequest {
                id,
                by: person.name.clone(),
                note,
            })
            .await
            .map_err(|status| upstream("alerting", &status))?;
        metrics::counter!("braid_dashboard_acknowledgements_total").increment(1);
        Ok(Response::new(AcknowledgeAlertResponse {
            alert: acknowledged.into_inner().alert,
        }))
    }

    async fn withdraw_acknowledgement(
        &self,
        request: Request<WithdrawAcknowledgementRequest>,
    ) -> Result<Response<WithdrawAcknowledgementResponse>, Status> {
        let person = person(&request)?;
        may_act(&person)?;
        let WithdrawAcknowledgementRequest { id } = request.into_inner();
        identifier("id", &id)?;
        let alert = self.own_alert(&person, &id).await?;
        let what = "withdraw acknowledgement";
        self.audited(&person, what, &alert.patient, id.clone())
            .await?;
        let mut alerting = self.app.clients.alerting.clone();
        let by = person.name.clone();
        let withdrawn = alerting
            .withdraw(WithdrawRequest { id, by })
            .await
            .map_err(|status| upstream("alerting", &status))?;
        Ok(Response::new(WithdrawAcknowledgementResponse {
            alert: withdrawn.into_inner().alert,
        }))
    }

    async fn put_document(
        &self,
        request: Request<PutDocumentRequest>,
    ) -> Result<Response<PutDocumentResponse>, Status> {
        let person = person(&request)?;
        may_act(&person)?;
        let request = request.into_inner();
        identifier("kind", &request.kind)?;
        identifier("subject", &request.subject)?;
        plain("reason", &request.reason)?;
        // Teams and rules are for administrators; a silence passes.
        if request.kind != "silence" && !person.is_administrator() {
            return Err(Status::permission_denied("this needs an administrator"));
        }
        let detail = format!("{} {} {}", request.kind, request.subject, request.version);
        let dry_run = request.dry_run;
        let ends = request.kind == "silence" && request.until_us <= contracts::now_us();
        let action = match (dry_run, ends) {
            (true, _) => "check document",
            (false, true) => "end silence",
            (false, false) => "put document",
        };
        let patient = patient_of(&request.kind, &request.subject, &request.body);
        self.audited(&person, action, &patient, detail).await?;
        let document = alerts::Document {
            kind: request.kind,
            tenant: person.tenant.clone(),
            subject: request.subject,
            version: request.version,
            author: person.name.clone(),
            reason: request.reason,
            at_us: 0,
            until_us: request.until_us,
            body: request.body,
        };
        let mut alerting = self.app.clients.alerting.clone();
        let put = alerting
            .put_document(alerts::PutDocumentRequest {
                document: Some(document),
                dry_run,
            })
            .await
            .map_err(|status| upstream("alerting", &status))?;
        let put = put.into_inner();
        Ok(Response::new(PutDocumentResponse {
            document: put.document,
            rules_lost: put.rules_lost,
        }))
    }

    async fn list_documents(
        &self,
        request: Request<ListDocumentsRequest>,
    ) -> Result<Response<ListDocumentsResponse>, Status> {
        let person = person(&request)?;
        let request = request.into_inner();
        identifier("kind", &request.kind)?;
        identifier("subject", &request.subject)?;
        // Documents of other kinds, such as certificates, have calls of their own.
        if !matches!(request.kind.as_str(), "silence" | "team" | "rules") {
            return Err(Status::invalid_argument(
                "kind: none of silence, team and rules",
            ));
        }
        let (scope, store) = (scope(&person), &self.app.store);
        let detail = format!("{} {}", request.kind, request.subject);
        let patient = patient_of(&request.kind, &request.subject, "");
        self.audited(&person, "read documents", &patient, detail)
            .await?;
        if (request.kind.as_str(), request.subject.as_str()) == (RULES, BUILT_IN) {
            let documents = vec![built_in(&person.tenant)?];
            return Ok(Response::new(ListDocumentsResponse { documents }));
        }
        let documents = if request.subject.is_empty() {
            let now_us = contracts::now_us();
            let stored = store.stored_documents(&scope, &request.kind, now_us);
            let stored = stored
                .await
                .map_err(|error| store_status(&error))?
                .into_iter();
            stored.filter_map(StoredDocument::readable).collect()
        } else {
            let (kind, subject) = (&request.kind, &request.subject);
            let stored = store.stored_history(&scope, kind, subject, DOCUMENTS_MAX);
            let stored = stored
                .await
                .map_err(|error| store_status(&error))?
                .into_iter();
            stored.map(StoredDocument::or_named).collect()
        };
        Ok(Response::new(ListDocumentsResponse { documents }))
    }

    async fn list_metrics(
        &self,
        request: Request<ListMetricsRequest>,
    ) -> Result<Response<ListMetricsResponse>, Status> {
        person(&request)?;
        let metrics = vitals::entries().into_iter().map(catalogue::shown);
        let metrics = metrics.collect();
        Ok(Response::new(ListMetricsResponse { metrics }))
    }

    async fn list_notices(
        &self,
        request: Request<ListNoticesRequest>,
    ) -> Result<Response<ListNoticesResponse>, Status> {
        let person = person(&request)?;
        let ListNoticesRequest { alert } = request.into_inner();
        identifier("alert", &alert)?;
        let store = &self.app.store;
        let of = store.alert(&scope(&person), &alert).await;
        let of = of.map_err(|error| store_status(&error))?;
        let patient = of.map_or_else(String::new, |of| of.patient);
        self.audited(&person, "read notices", &patient, alert.clone())
            .await?;
        let notices = store.notices(&scope(&person), &alert).await;
        let notices = notices.map_err(|error| store_status(&error))?;
        Ok(Response::new(ListNoticesResponse { notices }))
    }

    async fn list_quarantine(
        &self,
        request: Request<ListQuarantineRequest>,
    ) -> Result<Response<ListQuarantineResponse>, Status> {
        let person = person(&request)?;
        let limit = match request.into_inner().limit as usize {
            0 => QUARANTINE_LISTED,
            limit => limit.min(CASES_LISTED_MAX),
        };
        self.audited(&person, "read quarantine", "", String::new())
            .await?;
        let listed = from_store::quarantine(self.app.store.as_ref(), &scope(&person), limit).await;
        let listed = listed.map_err(|error| store_status(&error))?;
        Ok(Response::new(listed))
    }

    async fn get_paths(
        &self,
        request: Request<GetPathsRequest>,
    ) -> Result<Response<GetPathsResponse>, Status> {
        let person = person(&request)?;
        let request = request.into_inner();
        identifier("gateway", &request.gateway)?;
        let stretch = request.to_us.checked_sub(request.from_us);
        if !stretch.is_some_and(|stretch| (1..=PATHS_US_MAX).contains(&stretch)) {
            return Err(Status::invalid_argument(
                "from_us, to_us: from must be before to, by at most one day",
            ));
        }
        let query = PathsQuery {
            gateway: (!request.gateway.is_empty()).then_some(request.gateway),
            from_us: request.from_us,
            to_us: request.to_us,
            limit: PATH_REPORTS_MAX,
        };
        let reports = self.app.store.paths(&scope(&person), &query).await;
        let reports = reports.map_err(|error| store_status(&error))?;
        Ok(Response::new(GetPathsResponse { reports }))
    }

    async fn list_links(
        &self,
        request: Request<ListLinksRequest>,
    ) -> Result<Response<ListLinksResponse>, Status> {
        let person = person(&request)?;
        let Some(mut links) = self.app.clients.links.clone() else {
            return Ok(Response::new(ListLinksResponse::default()));
        };
        let own = own_gateways(&self.app, &person).await?;
        let listed = links
            .list_links(contracts::paths::ListLinksRequest {})
            .await
            .map_err(|status| upstream("the demonstration", &status))?;
        let mut links = listed.into_inner().links;
        links.retain(|link| own.contains(&link.gateway));
        Ok(Response::new(ListLinksResponse { links }))
    }

    async fn set_link(
        &self,
        request: Request<SetLinkRequest>,
    ) -> Result<Response<SetLinkResponse>, Status> {
        let person = person(&request)?;
        may_act(&person)?;
        let SetLinkRequest { gateway, name, up } = request.into_inner();
        identifier("gateway", &gateway)?;
        identifier("name", &name)?;
        let Some(mut links) = self.app.clients.links.clone() else {
            return Err(Status::failed_precondition(
                "there are no emulated links here",
            ));
        };
        if !own_gateways(&self.app, &person).await?.contains(&gateway) {
            return Err(Status::not_found("there is no such gateway"));
        }
        let verb = if up { "restore link" } else { "cut link" };
        self.audited(&person, verb, "", format!("{gateway}/{name}"))
            .await?;
        let request = contracts::paths::SetLinkRequest {
            gateway,
            name,
            up: Some(up),
            ..Default::default()
        };
        let set = links
            .set_link(request)
            .await
            .map_err(|status| upstream("the demonstration", &status))?;
        Ok(Response::new(SetLinkResponse {
            links: set.into_inner().links,
        }))
    }

    async fn explain_steering(
        &self,
        request: Request<ExplainSteeringRequest>,
    ) -> Result<Response<ExplainSteeringResponse>, Status> {
        let person = person(&request)?;
        may_act(&person)?;
        let request = request.into_inner();
        identifier("gateway", &request.gateway)?;
        let described = Described {
            destination: &request.destination,
            application: &request.application,
            urgency: &request.urgency,
            protocol: &request.protocol,
            group: &request.group,
        };
        let flow = described.flow().map_err(|error| unexplained(&error))?;
        let detail = format!("{} {}", request.gateway, request.destination);
        self.audited(&person, "explain steering", "", detail)
            .await?;
        let (store, now_us) = (self.app.store.as_ref(), self.app.live.now_us());
        let explained = explain::explain(
            store,
            &person.tenant,
            (&request.gateway, None),
            &flow,
            now_us,
        )
        .await;
        let explained = explained.map_err(|error| unexplained(&error))?;
        let decision = serde_json::to_string(&explained.decision)
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(ExplainSteeringResponse {
            version: explained.version,
            gateway_version: explained.gateway_version,
            text: explained.text,
            decision,
        }))
    }
}
