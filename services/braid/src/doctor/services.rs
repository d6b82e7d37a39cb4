//! The state of a service by its own report, at its admin address.

use std::net::SocketAddr;

use super::finding::Finding;
use crate::health;

const SEE_LOG: &str = "see the service's log: it says what it waits for";

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
    let mut findings = wrong(&subject, &text);
    if findings.is_empty() {
        findings.push(match ready {
            true => Finding::ok(subject, "ready, and nothing is wrong"),
            // A service of another version may list nothing.
            false => {
                let says = format!("not ready: {}", text.trim().replace('\n', "; "));
                Finding::failed(subject, says, SEE_LOG)
            }
        });
    }
    findings
}

/// The service's own list of what is wrong.
fn wrong(subject: &str, text: &str) -> Vec<Finding> {
    let answer: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let told = answer["wrong"].as_array().into_iter().flatten();
    told.map(|wrong| {
        let field = |name: &str| wrong[name].as_str().unwrap_or_default();
        let says = format!("{}, {}: {}", field("service"), field("name"), field("says"));
        match (field("level"), field("do")) {
            ("warning", to_do) => Finding::warning(subject, says, to_do),
            (_, "") => Finding::failed(subject, says, SEE_LOG),
            (_, to_do) => Finding::failed(subject, says, to_do),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_what_to_do() {
        let text = r#"{"ready":false,"wrong":[
            {"service":"gateway","name":"disk","level":"failing","says":"full","do":""},
            {"service":"gateway","name":"transport","level":"warning","says":"by TCP","do":"open UDP"}]}"#;
        let expected = [
            Finding::failed("here", "gateway, disk: full", SEE_LOG),
            Finding::warning("here", "gateway, transport: by TCP", "open UDP"),
        ];
        assert_eq!(wrong("here", text), expected);
        for other in ["", "{}", r#"{"wrong":7}"#] {
            assert_eq!(wrong("here", other), []);
        }
    }
}
