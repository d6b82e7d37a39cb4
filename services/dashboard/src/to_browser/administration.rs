//! Calls for administrators: the audit log, gateways and their certificates, people. Reading the
//! log is logged as well. Each person may change the own password.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use contracts::identity::administration_service_server::AdministrationService;
use contracts::identity::{
    Account, AuditEntry, ChangePasswordRequest, ChangePasswordResponse, EnrolGatewayRequest,
    EnrolGatewayResponse, ListAccountsRequest, ListAccountsResponse, ListAuditRequest,
    ListAuditResponse, ListGatewaysRequest, ListGatewaysResponse, PutAccountRequest,
    PutAccountResponse, RemoveAccountRequest, RemoveAccountResponse, RevokeGatewayRequest,
    RevokeGatewayResponse,
};
use service_kit::grpc::Peer;
use store::{AuditQuery, Role, Scope};
use tonic::{Request, Response, Status};

use super::app::App;
use super::calls::{audited, identifier, person, plain, store_status};
use super::sign_in::{self, Verified};
use crate::accounts::{self, AccountChange, ChangeError, EnsureError};
use crate::gateways::{self, Decision, GatewayError};
use crate::moment;
use crate::sessions::Person;

/// Entries of the log in one answer.
const AUDIT_MAX: u32 = 10_000;
const AUDIT_DEFAULT: u32 = 1_000;
/// Characters of the reason for a change of an account.
const REASON_LENGTH_MAX: usize = 500;

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

fn unchanged(error: ChangeError) -> Status {
    match error {
        ChangeError::Taken(_) => Status::already_exists(error.to_string()),
        ChangeError::Unknown(_) => Status::not_found(error.to_string()),
        ChangeError::Own => Status::failed_precondition(error.to_string()),
        ChangeError::Ensure(EnsureError::Length) => Status::invalid_argument(error.to_string()),
        ChangeError::Ensure(error) => {
            tracing::warn!(%error, "an account was not changed");
            Status::unavailable("the store does not answer; try again")
        }
    }
}

fn as_listed(account: store::Account) -> Account {
    Account {
        name: account.name,
        role: account.role.name().to_owned(),
        created_us: account.created_us,
    }
}

/// A person decides about others, so a reason is required.
fn reasoned(reason: &str) -> Result<&str, Status> {
    plain("reason", reason)?;
    match reason.trim() {
        "" => Err(Status::invalid_argument("reason: is missing")),
        reason if reason.chars().count() > REASON_LENGTH_MAX => Err(Status::invalid_argument(
            format!("reason: longer than {REASON_LENGTH_MAX} characters"),
        )),
        reason => Ok(reason),
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

    async fn list_accounts(
        &self,
        request: Request<ListAccountsRequest>,
    ) -> Result<Response<ListAccountsResponse>, Status> {
        let person = administrator(&request)?;
        audited(&self.app, &person, "read accounts", "", String::new()).await?;
        let accounts = self.app.store.accounts(&Scope::tenant(person.tenant)).await;
        let mut accounts = accounts.map_err(|error| store_status(&error))?;
        accounts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Response::new(ListAccountsResponse {
            accounts: accounts.into_iter().map(as_listed).collect(),
        }))
    }

    async fn put_account(
        &self,
        request: Request<PutAccountRequest>,
    ) -> Result<Response<PutAccountResponse>, Status> {
        let mut person = administrator(&request)?;
        let request = request.into_inner();
        identifier("name", &request.name)?;
        reasoned(&request.reason)?.clone_into(&mut person.reason);
        let role = Role::from_name(&request.role).ok_or_else(|| {
            Status::invalid_argument("role: none of viewer, clinician and administrator")
        })?;
        let password = match request.password.as_str() {
            "" => "",
            _ => " with a new password",
        };
        let detail = format!("{} {}{password}", request.name, role.name());
        audited(&self.app, &person, "put account", "", detail).await?;
        let change = AccountChange {
            name: &request.name,
            role,
            password: &request.password,
            create: request.create,
        };
        let by = (person.tenant.as_str(), person.name.as_str());
        let put = accounts::put(self.app.store.as_ref(), by, &change).await;
        Ok(Response::new(PutAccountResponse {
            account: Some(as_listed(put.map_err(unchanged)?)),
        }))
    }

    async fn remove_account(
        &self,
        request: Request<RemoveAccountRequest>,
    ) -> Result<Response<RemoveAccountResponse>, Status> {
        let mut person = administrator(&request)?;
        let request = request.into_inner();
        identifier("name", &request.name)?;
        reasoned(&request.reason)?.clone_into(&mut person.reason);
        let detail = request.name.clone();
        audited(&self.app, &person, "remove account", "", detail).await?;
        let by = (person.tenant.as_str(), person.name.as_str());
        let removed = accounts::remove(self.app.store.as_ref(), by, &request.name).await;
        removed.map_err(unchanged)?;
        Ok(Response::new(RemoveAccountResponse {}))
    }

    async fn change_password(
        &self,
        request: Request<ChangePasswordRequest>,
    ) -> Result<Response<ChangePasswordResponse>, Status> {
        let person = person(&request)?;
        let address = address(&self.app, &request);
        let ChangePasswordRequest { present, password } = request.into_inner();
        let (store, name) = (self.app.store.as_ref(), &person.name);
        let account = store.account(name).await;
        let account = account.map_err(|error| store_status(&error))?;
        if person.is_kiosk || account.is_none() {
            return Err(Status::failed_precondition(
                "you have no password here: your organisation or a link signs you in",
            ));
        }
        // Guesses at an open page are slowed as those at the door.
        let verified = sign_in::verified(&self.app, name, &present, address).await;
        let account = match verified.map_err(|error| store_status(&error))? {
            Verified::Account(account) => account,
            Verified::Slowed(wait) => {
                let seconds = wait.as_secs() + 1;
                return Err(Status::resource_exhausted(format!(
                    "too many attempts; try again in {seconds} s"
                )));
            }
            Verified::Wrong => {
                let now = Instant::now();
                self.app.attempts.lock().failed(name, address, now);
                let (action, from) = ("change of password refused", format!("from {address}"));
                audited(&self.app, &person, action, "", from).await?;
                return Err(Status::invalid_argument("present: the password is wrong"));
            }
        };
        audited(&self.app, &person, "change password", "", String::new()).await?;
        accounts::set_password(store, name, &account.tenant, &password, account.role)
            .await
            .map_err(|error| unchanged(error.into()))?;
        Ok(Response::new(ChangePasswordResponse {}))
    }
}

/// The caller's address, as signing in counts attempts by it.
fn address<T>(app: &App, request: &Request<T>) -> IpAddr {
    let headers = request.metadata().clone().into_headers();
    sign_in::address(app, request.extensions().get::<Peer>(), &headers)
}
