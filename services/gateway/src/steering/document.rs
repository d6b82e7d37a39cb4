//! The document in force, and its place on disk.

use std::{io, path::PathBuf};

use serde::{Deserialize, Serialize};
use service_kit::tls::GatewayId;
use tunnel::steering_rules::{Document, DocumentError};

/// A document and its version; 0 is the file of `--steering`, or none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InForce {
    pub version: u32,
    pub document: Document,
}

impl InForce {
    /// Nothing is restricted.
    pub fn is_empty(&self) -> bool {
        self.document.rules.is_empty() && self.document.accesses.is_empty()
    }

    /// It is the file of `--steering`, which the core does not have.
    pub fn is_own(&self) -> bool {
        self.version == 0 && !self.is_empty()
    }
}

/// Where the document from path-telemetry is kept, as this gateway obeys it.
#[derive(Debug, Clone)]
pub struct Kept {
    path: PathBuf,
    gateway: GatewayId,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    document: String,
    /// Each tenant counts its own versions. An older release names no tenant.
    #[serde(default)]
    tenant: String,
}

impl Kept {
    /// `gateway` as the certificate names it.
    pub fn new(path: PathBuf, gateway: GatewayId) -> Self {
        Self { path, gateway }
    }

    /// None if none was kept for this tenant. A damaged file is reported, and path-telemetry sends
    /// another.
    pub fn read(&self) -> Option<InForce> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let read = || -> Result<InForce, String> {
            let record: Record = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            if !record.tenant.is_empty() && record.tenant != self.gateway.tenant {
                return Err(format!("it is of tenant {}", record.tenant));
            }
            let place = self.path.display().to_string();
            let document = Document::from_text(&record.document, &place);
            Ok(InForce {
                version: record.version,
                document: document.map_err(|error| error.to_string())?,
            })
        };
        read()
            .inspect_err(|error| tracing::warn!(error, "the kept steering document is left out"))
            .ok()
    }

    pub fn write(&self, in_force: &InForce) -> io::Result<()> {
        let record = Record {
            version: in_force.version,
            document: in_force.document.to_json(),
            tenant: self.gateway.tenant.clone(),
        };
        private_files::replace(&self.path, &serde_json::to_vec(&record)?)
    }

    /// Takes what path-telemetry handed out. An empty body takes the document back.
    pub fn take(&self, version: u32, body: &str) -> Result<InForce, DocumentError> {
        let document = match body {
            "" => Document::default(),
            // An older path-telemetry leaves the groups in.
            body => Document::from_text(body, "path-telemetry")?.for_gateway(&self.gateway.id),
        };
        let in_force = InForce { version, document };
        if let Err(error) = self.write(&in_force) {
            // It holds all the same, until the next start.
            tracing::warn!(%error, "the steering document is not kept");
        }
        Ok(in_force)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_of_its_own_has_no_version() {
        let of = |version, text: &str| InForce {
            version,
            document: Document::from_toml(text, "own").unwrap(),
        };
        let capped = "format = 1\n[[access]]\nname = \"lte\"\ncap_gb = 1\n";
        assert!(of(0, capped).is_own());
        assert!(!of(3, capped).is_own(), "handed out");
        assert!(!of(0, "format = 1\n").is_own(), "nothing is restricted");
    }

    fn own() -> GatewayId {
        GatewayId::new("default", "gw-7")
    }

    #[test]
    fn a_document_of_another_tenant_does_not_hold() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steering.json");
        let body = r#"{"format":1,"rule":[{"name":"bulk","accesses":["wifi"]}]}"#;
        Kept::new(path.clone(), own()).take(7, body).unwrap();
        let moved = Kept::new(path.clone(), GatewayId::new("other", "gw-7"));
        assert_eq!(moved.read(), None);
        let older = r#"{"version":7,"document":"{\"format\":1}"}"#;
        std::fs::write(&path, older).unwrap();
        assert_eq!(moved.read().unwrap().version, 7);
    }

    #[test]
    fn what_was_taken_holds_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::new(folder.path().join("steering.json"), own());
        assert_eq!(kept.read(), None);
        let body = r#"{"format":1,"rule":[{"name":"bulk","accesses":["wifi"]}]}"#;
        let taken = kept.take(7, body).unwrap();
        assert_eq!(taken.version, 7);
        assert_eq!(kept.read(), Some(taken.clone()));
        assert!(kept.take(8, r#"{"format":2}"#).is_err());
        assert_eq!(kept.read(), Some(taken), "a wrong one changes nothing");
        assert!(kept.take(9, "").unwrap().is_empty());
        assert_eq!(kept.read().unwrap().version, 9);
        let grouped = r#"{"format":1,
            "group":[{"name":"homes","gateways":["gw-*"]},{"name":"vans","gateways":["van-1"]}],
            "rule":[{"name":"at home","match":{"group":["homes"]},"accesses":["wifi"]},
                    {"name":"moving","match":{"group":["vans"]},"accesses":["lte"]}]}"#;
        kept.take(10, grouped).unwrap();
        let rules = kept.read().unwrap().document.rules;
        assert_eq!(rules.len(), 1, "{rules:?}");
        assert_eq!(
            (&*rules[0].name, rules[0].matches.group.len()),
            ("at home", 0)
        );
        std::fs::write(folder.path().join("steering.json"), "{").unwrap();
        assert_eq!(kept.read(), None);
    }

    #[test]
    fn a_freshness_holds_at_the_next_start_without_a_network() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steering.json");
        let body = r#"{"format":1,"gateway":[{"name":"gw-7","freshness_ms":10000}]}"#;
        Kept::new(path.clone(), own()).take(7, body).unwrap();
        let kept = Kept::new(path, own()).read().unwrap();
        let of = |gateway| kept.document.freshness_of(gateway);
        assert_eq!(of("gw-7"), Some(std::time::Duration::from_secs(10)));
        assert_eq!(of("gw-8"), None);
        assert!(kept.is_empty(), "it restricts no access");
    }
}
