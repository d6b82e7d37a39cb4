//! The state of a service by its own report, at its admin address.

use std::net::SocketAddr;

use super::finding::Finding;
use crate::health;

/// Blocks until the service answers, within a bound.
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
    let mut findings = vec![if ready {
        Finding::ok(subject.clone(), says)
    } else {
        Finding::failed(
            subject.clone(),
            says,
            "see the service's log: it says what it waits for",
        )
    }];
    findings.extend(warnings(&subject, &text));
    findings
}

/// A service of another version may omit these fields.
fn warnings(subject: &str, text: &str) -> Vec<Finding> {
    let answer: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let told = answer["warnings"].as_array().into_iter().flatten();
    told.map(|warning| {
        let field = |name: &str| warning[name].as_str().unwrap_or_default();
        let says = format!("{}: {}", field("service"), field("says"));
        Finding::warning(subject, says, field("do"))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_told_with_what_to_do() {
        let text = r#"{"ready":true,"warnings":[{"service":"gateway","warning":"transport","says":"by TCP","do":"open UDP"}]}"#;
        let expected = Finding::warning("here", "gateway: by TCP", "open UDP");
        assert_eq!(warnings("here", text), [expected]);
        for other in ["", "{}", r#"{"warnings":7}"#] {
            assert_eq!(warnings("here", other), []);
        }
    }
}
