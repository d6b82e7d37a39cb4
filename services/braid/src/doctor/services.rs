//! A service by its own word, at its admin address.

use std::net::SocketAddr;

use super::finding::Finding;
use crate::health;

/// Blocks for as long as the service takes to answer, which is bounded.
pub fn look(address: SocketAddr) -> Vec<Finding> {
    let subject = address.to_string();
    let (ready, text) = match health::readiness(address) {
        Ok(answer) => answer,
        Err(error) => {
            let to_do =
                "start the service, or name its admin address (flag --admin of the service)";
            return vec![Finding::failed(
                subject,
                format!("does not answer: {error}"),
                to_do,
            )];
        }
    };
    let says = text.trim().replace('\n', "; ");
    vec![if ready {
        Finding::ok(subject, says)
    } else {
        Finding::failed(
            subject,
            says,
            "see the service's log: it says what it waits for",
        )
    }]
}
