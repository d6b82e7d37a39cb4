//! The meaning of the server's errors for the caller.

use bus::Topic;
use tokio_postgres::error::SqlState;

use crate::{QueryError, WriteError};

/// Outcome of one attempt at a transaction.
#[derive(Debug)]
pub enum Fault {
    /// Serialization failure or deadlock: the same again is likely to pass.
    Again(String),
    Unavailable(String),
    Invalid(String),
    Unfit(String),
    Fenced(Vec<(Topic, u32)>),
    Conflict(Vec<String>),
}

impl Fault {
    pub fn into_write(self) -> WriteError {
        match self {
            Fault::Again(reason) | Fault::Unavailable(reason) => WriteError::Unavailable(reason),
            Fault::Invalid(reason) => WriteError::Invalid(reason),
            Fault::Unfit(reason) => WriteError::Unfit(reason),
            Fault::Fenced(partitions) => WriteError::Fenced(partitions),
            Fault::Conflict(ids) => WriteError::Conflict(ids),
        }
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Fault {
        let Some(server) = error.as_db_error() else {
            return Fault::Unavailable(explain(&error));
        };
        let reason = explain(&error);
        match server.code() {
            code if *code == SqlState::T_R_SERIALIZATION_FAILURE
                || *code == SqlState::T_R_DEADLOCK_DETECTED =>
            {
                Fault::Again(reason)
            }
            // Data that the server cannot represent (class 22, such as a text with NUL), or that
            // breaks the schema (class 23). The same rows would be refused again.
            code if code.code().starts_with("22") || code.code().starts_with("23") => {
                Fault::Unfit(reason)
            }
            // Everything else passes with time or with an operator's help: disk full, restarting,
            // no connection left, time-out.
            _ => Fault::Unavailable(reason),
        }
    }
}

/// Values that both engines refuse by the same code.
impl From<WriteError> for Fault {
    fn from(error: WriteError) -> Fault {
        match error {
            WriteError::Fenced(partitions) => Fault::Fenced(partitions),
            WriteError::Conflict(ids) => Fault::Conflict(ids),
            WriteError::Unavailable(reason) => Fault::Unavailable(reason),
            WriteError::Invalid(reason) => Fault::Invalid(reason),
            WriteError::Unfit(reason) => Fault::Unfit(reason),
        }
    }
}

impl From<deadpool_postgres::PoolError> for Fault {
    fn from(error: deadpool_postgres::PoolError) -> Fault {
        Fault::Unavailable(explain_pool(error))
    }
}

pub fn explain_pool(error: deadpool_postgres::PoolError) -> String {
    use deadpool_postgres::{PoolError, TimeoutType};
    match error {
        PoolError::Backend(error) => explain(&error),
        PoolError::Timeout(TimeoutType::Wait) => "all connections are in use".to_owned(),
        PoolError::Timeout(_) => "it does not answer in time".to_owned(),
        // A hook of the pool, of which there is none, or a pool that is closed.
        other => chain(&other),
    }
}

/// An error with its causes, each once: an error of a library often names its kind only.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// One line for an operator: what the server said, or why it could not be asked.
pub fn explain(error: &tokio_postgres::Error) -> String {
    let Some(server) = error.as_db_error() else {
        return chain(error);
    };
    let code = server.code();
    let what = match code.code() {
        "53100" => "its disk is full; rows wait until there is room".to_owned(),
        "53300" => "it has no connection left".to_owned(),
        "57P01" | "57P02" | "57P03" => "it is starting or stopping".to_owned(),
        "57014" => "a statement took longer than its limit".to_owned(),
        _ => server.message().to_owned(),
    };
    format!("{what} ({}: {})", code.code(), server.message())
}

impl From<Fault> for QueryError {
    fn from(fault: Fault) -> QueryError {
        match fault {
            Fault::Invalid(reason) | Fault::Unfit(reason) => QueryError::Unreadable(reason),
            other => QueryError::Unavailable(other.into_write().to_string()),
        }
    }
}

impl From<tokio_postgres::Error> for QueryError {
    fn from(error: tokio_postgres::Error) -> QueryError {
        QueryError::Unavailable(explain(&error))
    }
}

impl From<deadpool_postgres::PoolError> for QueryError {
    fn from(error: deadpool_postgres::PoolError) -> QueryError {
        QueryError::Unavailable(explain_pool(error))
    }
}
