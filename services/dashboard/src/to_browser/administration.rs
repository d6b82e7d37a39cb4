//! Calls for administrators only: the audit log, gateways and their certificates. Reading the log
//! is logged as well.

use std::sync::Arc;

use contracts::identity::administration_service_server::AdministrationService;
use contracts::identity::{
    AuditEntry, EnrolGatewayRequest, EnrolGatewayResponse, ListAuditRequest, ListAuditResponse,
    ListGatewaysRequest, ListGatewaysResponse, RevokeGatewayRequest, RevokeGatewayResponse,
};
use store::{AuditQuery, Scope};
use tonic::{Request, Response, Status};

use super::app::App;
use super::calls::{audited, identifier, person, store_status};
use crate::gateways::{self, Decision, GatewayError};
use crate::moment;
use crate::sessions::Person;

/// Entries of the log in one answer.
const AUDIT_MAX: u32 = 10_000;
const AUDIT_DEFAULT: u32 = 1_000;

pub(crate) struct Administration {
    pub app: Arc<App>,
}

fn administrator<T>(request: &Request<T>) -> Result<Person, Status> {
    let person = person(request)?;
    if person.is_administrator() {
        return Ok(person);
    }
    Err(Status::permission_denied("this needs an administrator"))
}

fn status(error: GatewayError) -> Status {
    match error {
        GatewayError::Invalid { .. } => Status::invalid_argument(error.to_string()),
        // Reserved, or of another tenant: which of them is for the log alone.
        GatewayError::Write(store::WriteError::Invalid(reason)) => {
            tracing::warn!(reason, "a gateway is not enrolled");
            Status::invalid_argument("gateway: this id is not available; choose another")
        }
        GatewayError::Full => Status::resource_exhausted(error.to_string()),
        GatewayError::Contended => Status::aborted(error.to_string()),
        error => {
            tracing::warn!(%error, "gateways");
            Status::unavailable("the store does not answer; try again")
        }
    }
}

#[tonic::async_trait]
impl AdministrationService for Administration {
    async fn list_audit(
        &self,
        request: Request<ListAuditRequest>,
    ) -> Result<Response<ListAuditResponse>, Status> {
        let person = administrator(&request)?;
        let ListAuditRequest {
            patient,
            from_us,
            to_us,
            limit,
        } = request.into_inner();
        let detail = moment::window(from_us, to_us);
        audited(&self.app, &person, "read audit", &patient, detail).await?;
        let query = AuditQuery {
            patient: (!patient.is_empty()).then_some(patient),
            from_us,
            to_us: if to_us == 0 { i64::MAX } else { to_us },
            limit: match limit {
                0 => AUDIT_DEFAULT,
                limit => limit.min(AUDIT_MAX),
            } as usize,
        };
        let scope = Scope::tenant(person.tenant.clone());
        let entries = self.app.store.audit(&scope, &query).await;
        let entries = entries.map_err(|error| store_status(&error))?;
        let entries = entries.into_iter().map(|entry| AuditEntry {
            time_us: entry.time_us,
            who: entry.who,
            action: entry.action,
            patient: entry.patient,
            detail: entry.detail,
        });
        Ok(Response::new(ListAuditResponse {
            entries: entries.collect(),
        }))
    }

    async fn enrol_gateway(
        &self,
        request: Request<EnrolGatewayRequest>,
    ) -> Result<Response<EnrolGatewayResponse>, Status> {
        let person = administrator(&request)?;
        let request = request.into_inner();
        identifier("gateway", &request.gateway)?;
        let Some(issuer) = &self.app.issuer else {
            return Err(Status::failed_precondition(
                "certificates are not issued here: the dashboard has no --authority",
            ));
        };
        let authority = issuer.authority.fingerprint();
        let authority = authority.map_err(|error| status(error.into()))?;
        let decision = Decision {
            tenant: &person.tenant,
            by: &person.name,
            reason: &request.reason,
        };
        let token = gateways::enrol(
            self.app.store.as_ref(),
            authority,
            &request.gateway,
            request.valid_hours,
            &decision,
        )
        .await
        .map_err(status)?;
        Ok(Response::new(EnrolGatewayResponse {
            token: token.text.expose().to_owned(),
            until_us: token.until_us,
        }))
    }

    async fn list_gateways(
        &self,
        request: Request<ListGatewaysRequest>,
    ) -> Result<Response<ListGatewaysResponse>, Status> {
        let person = administrator(&request)?;
        let scope = Scope::tenant(person.tenant.clone());
        let gateways = gateways::list(self.app.store.as_ref(), &scope).await;
        let gateways = gateways.map_err(status)?;
        Ok(Response::new(ListGatewaysResponse { gateways }))
    }

    async fn revoke_gateway(
        &self,
        request: Request<RevokeGatewayRequest>,
    ) -> Result<Response<RevokeGatewayResponse>, Status> {
        let person = administrator(&request)?;
        let RevokeGatewayRequest { gateway, reason } = request.into_inner();
        identifier("gateway", &gateway)?;
        let decision = Decision {
            tenant: &person.tenant,
            by: &person.name,
            reason: &reason,
        };
        gateways::revoke(self.app.store.as_ref(), &gateway, &decision)
            .await
            .map_err(status)?;
        tracing::warn!(
            gateway,
            by = person.name,
            at = contracts::now_us(),
            "gateway revoked"
        );
        Ok(Response::new(RevokeGatewayResponse {}))
    }
}
