//! Complaints of the client library, kept for error messages and logged now and then.
//!
//! The library reports every failed connection of every client; a log that repeats them helps no
//! operator. The first complaint and its end are logged at once, the same kind again at most every
//! [`SAY_EVERY`].

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdkafka::{
    ClientContext, config::RDKafkaLogLevel, consumer::ConsumerContext, error::KafkaError,
    types::RDKafkaErrorCode,
};

const SAY_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Trouble {
    some: AtomicBool,
    last: Mutex<Option<Complaint>>,
}

#[derive(Debug, Clone)]
pub struct Complaint {
    pub code: RDKafkaErrorCode,
    pub reason: String,
    said: Instant,
}

impl Trouble {
    pub fn note(&self, code: RDKafkaErrorCode, reason: &str) {
        metrics::counter!("braid_bus_client_errors_total", "kind" => kind(code)).increment(1);
        let mut last = self.last.lock();
        let now = Instant::now();
        // In one outage the library reports each broker and then that all are down: the broker's
        // reason is more precise.
        if code == RDKafkaErrorCode::AllBrokersDown && last.is_some() {
            return;
        }
        let said = match last.as_ref() {
            Some(known) if known.code == code && now - known.said < SAY_EVERY => known.said,
            _ => {
                tracing::warn!(reason, "Kafka: {code}");
                now
            }
        };
        *last = Some(Complaint {
            code,
            reason: reason.to_owned(),
            said,
        });
        self.some.store(true, Ordering::Relaxed);
    }

    /// A call has succeeded.
    pub fn over(&self) {
        if self.some.swap(false, Ordering::Relaxed) && self.last.lock().take().is_some() {
            tracing::info!("Kafka answers");
        }
    }

    pub fn last(&self) -> Option<Complaint> {
        self.last.lock().clone()
    }

    /// For an error message: the attempt, and the library's last complaint.
    pub fn explain(&self, what: &str) -> String {
        match self.last() {
            Some(complaint) => format!("{what} ({})", complaint.reason),
            None => what.to_owned(),
        }
    }
}

/// A label with few values.
fn kind(code: RDKafkaErrorCode) -> &'static str {
    match code {
        RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => {
            "credentials"
        }
        RDKafkaErrorCode::SSL => "tls",
        RDKafkaErrorCode::Resolve => "name",
        RDKafkaErrorCode::BrokerTransportFailure
        | RDKafkaErrorCode::AllBrokersDown
        | RDKafkaErrorCode::OperationTimedOut => "connection",
        _ => "other",
    }
}

/// Context of clients without further callbacks.
#[derive(Clone)]
pub struct Listener(pub Arc<Trouble>);

impl ClientContext for Listener {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        note(&self.0, &error, reason);
    }
}

impl ConsumerContext for Listener {}

pub fn note(trouble: &Trouble, error: &KafkaError, reason: &str) {
    let code = error.rdkafka_error_code();
    trouble.note(code.unwrap_or(RDKafkaErrorCode::Fail), reason);
}

/// The library's own log is for developers who debug it; an operator gets errors.
pub fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::warn!(target: "librdkafka", facility, "{message}");
        }
        _ => tracing::debug!(target: "librdkafka", facility, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_s_reason_is_kept_over_all_are_down_and_forgotten_when_it_is_over() {
        let trouble = Trouble::default();
        assert_eq!(trouble.explain("no answer"), "no answer");
        trouble.note(
            RDKafkaErrorCode::BrokerTransportFailure,
            "connection refused",
        );
        trouble.note(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
        assert_eq!(
            trouble.explain("no answer"),
            "no answer (connection refused)"
        );
        trouble.over();
        assert_eq!(trouble.explain("no answer"), "no answer");
    }
}
