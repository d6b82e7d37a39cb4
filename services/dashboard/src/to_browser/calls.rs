//! Parts that the calls of the page share: the audit entry, checks, and the answer for the store.

use store::{QueryError, WriteError};
use tonic::{Request, Status};

use super::app::App;
use crate::explain::ExplainError;
use crate::sessions::Person;

/// Bytes of an identifier that a browser sends.
const ID_BYTES_MAX: usize = 256;

/// Nothing is answered or done without an entry in the log.
pub(crate) async fn audited(
    app: &App,
    person: &Person,
    action: &str,
    patient: &str,
    detail: String,
) -> Result<(), Status> {
    identifier("patient", patient)?;
    app.audit(person, action, patient, detail)
        .await
        .map_err(|error: WriteError| {
            tracing::warn!(%error, action, "the audit log could not be written, so the request was refused");
            Status::unavailable("the audit log cannot be written; try again")
        })
}

pub(crate) fn store_status(error: &QueryError) -> Status {
    tracing::warn!(%error, "a query of the store failed");
    Status::unavailable("the store does not answer; try again")
}

pub(crate) fn identifier(field: &'static str, value: &str) -> Result<(), Status> {
    if value.len() > ID_BYTES_MAX {
        return Err(Status::invalid_argument(format!(
            "{field}: longer than {ID_BYTES_MAX} bytes"
        )));
    }
    plain(field, value)
}

/// Refuses what could forge a line of a list or of the log.
pub(crate) fn plain(field: &'static str, value: &str) -> Result<(), Status> {
    contracts::text::check(value)
        .map_err(|found| Status::invalid_argument(format!("{field}: {found}")))
}

/// The caller; the layer in front refuses everybody else.
pub(crate) fn person<T>(request: &Request<T>) -> Result<Person, Status> {
    request
        .extensions()
        .get::<Person>()
        .cloned()
        .ok_or_else(|| Status::unauthenticated("not signed in"))
}

pub(crate) fn unexplained(error: &ExplainError) -> Status {
    match error {
        ExplainError::Flow { .. } => Status::invalid_argument(error.to_string()),
        ExplainError::NoGateway => Status::not_found(error.to_string()),
        ExplainError::NoPaths | ExplainError::OwnFile { .. } | ExplainError::Document { .. } => {
            Status::failed_precondition(error.to_string())
        }
        ExplainError::Store(error) => store_status(error),
    }
}

/// The error of another service, without details for operators.
pub(crate) fn upstream(who: &str, status: &Status) -> Status {
    use tonic::Code::{Aborted, FailedPrecondition, InvalidArgument, NotFound};
    tracing::warn!(who, %status, "a call failed");
    match status.code() {
        code @ (Aborted | FailedPrecondition | InvalidArgument | NotFound) => {
            Status::new(code, status.message())
        }
        _ => Status::unavailable(format!("{who} does not answer; try again")),
    }
}
