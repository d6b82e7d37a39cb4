//! `braid steering freshness`: how old vitals may be when gateways upload them, as one part of the
//! document in force.

use contracts::alerts::Document as Stored;
use dashboard::explain::SUBJECT;
use store::{STEERING, StoredDocument};
use tunnel::steering_rules::{Document, GatewayTerms};

use super::newest::newest;
use crate::audit::Asker;
use crate::decisions;
use crate::process::{self, Failure, say};
use crate::signed::{By, Signed};
use crate::tenancy::Tenancy;

#[derive(Debug, clap::Args)]
pub struct FreshnessCommand {
    /// Age in milliseconds, 100 to 60000.
    #[arg(value_name = "MS", requires = "reason", conflicts_with = "none")]
    ms: Option<u32>,
    /// For this gateway alone; without it for all gateways of the tenant.
    #[arg(long, value_name = "ID")]
    gateway: Option<String>,
    /// Take the setting back: that of the tenant, or of each gateway's own flag, holds.
    #[arg(long, requires = "reason", default_value_t = false)]
    none: bool,
    #[command(flatten)]
    by: By,
    /// Reason, stored with the change.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    tenancy: Tenancy,
}

impl FreshnessCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Some(reason) = self
            .reason
            .clone()
            .filter(|_| self.ms.is_some() || self.none)
        else {
            return process::block_on(self.show())?;
        };
        let signed = Signed {
            by: self.by.clone(),
            reason,
        };
        let changed = |newest: Option<StoredDocument>| {
            let document = match newest {
                Some(newest) => newest.document.map_err(Failure::other)?,
                None => Stored::default(),
            };
            with_freshness(&document.body, self.gateway.as_deref(), self.ms)
        };
        let put = process::block_on(decisions::put_changed(
            &self.tenancy,
            STEERING,
            SUBJECT,
            &signed,
            0,
            changed,
        ))??;
        let version = put.version;
        say(&format!(
            "version {version} is put; gateways follow within two minutes"
        ))
    }

    async fn show(&self) -> Result<(), Failure> {
        let newest = newest(&Asker::of(self.by.clone()), &self.tenancy).await?;
        let document = match newest.filter(|newest| !newest.body.is_empty()) {
            Some(newest) => Document::from_json(&newest.body, STEERING).map_err(Failure::other)?,
            None => Document::default(),
        };
        let shown = match &self.gateway {
            Some(gateway) => {
                let freshness = document.freshness_of(gateway);
                let ms = freshness.and_then(|it| u32::try_from(it.as_millis()).ok());
                vec![(gateway.as_str(), ms)]
            }
            None => {
                let gateways = document.gateways.iter();
                let gateways = gateways.map(|it| (it.name.as_str(), Some(it.freshness_ms)));
                let all = ("all gateways", document.freshness_ms);
                std::iter::once(all).chain(gateways).collect()
            }
        };
        for (gateway, ms) in shown {
            match ms {
                Some(ms) => say(&format!("{gateway}: {ms} ms"))?,
                None => say(&format!("{gateway}: --freshness-ms of each gateway"))?,
            }
        }
        Ok(())
    }
}

/// The body of a document with another freshness of one gateway or of all.
fn with_freshness(
    body: &str,
    gateway: Option<&str>,
    freshness_ms: Option<u32>,
) -> Result<String, Failure> {
    let mut document = match body {
        "" => Document::default(),
        body => Document::from_json(body, STEERING).map_err(Failure::other)?,
    };
    match gateway {
        None => document.freshness_ms = freshness_ms,
        Some(gateway) => {
            document.gateways.retain(|terms| terms.name != gateway);
            let terms = freshness_ms.map(|freshness_ms| GatewayTerms {
                name: gateway.to_owned(),
                freshness_ms,
            });
            document.gateways.extend(terms);
        }
    }
    match document == Document::default() {
        true => Ok(String::new()),
        false => Ok(document.to_json()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    const DOCUMENT: &str = "format = 1\n[[access]]\nname = \"lte\"\ncap_gb = 5\n[[rule]]\n\
                            name = \"updates\"\naccesses = [\"wifi\"]\n";

    #[test]
    fn a_freshness_is_a_change_of_the_document_that_leaves_its_rules() {
        let before = Document::from_toml(DOCUMENT, "test").unwrap();
        let body = with_freshness(&before.to_json(), None, Some(2_000)).unwrap();
        let body = with_freshness(&body, Some("gw-7"), Some(10_000)).unwrap();
        let body = with_freshness(&body, Some("gw-7"), Some(20_000)).unwrap();
        let changed = Document::from_json(&body, "test").unwrap();
        assert_eq!(
            (&changed.rules, &changed.accesses),
            (&before.rules, &before.accesses)
        );
        assert_eq!(changed.freshness_of("gw-7"), Some(Duration::from_secs(20)));
        assert_eq!(changed.freshness_of("gw-8"), Some(Duration::from_secs(2)));
        let body = with_freshness(&body, Some("gw-7"), None).unwrap();
        let body = with_freshness(&body, None, None).unwrap();
        assert_eq!(Document::from_json(&body, "test").unwrap(), before);
        assert_eq!(with_freshness("", None, None).unwrap(), "");
        assert!(with_freshness("{", None, None).is_err());
    }
}
