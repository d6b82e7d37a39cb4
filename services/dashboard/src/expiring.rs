//! Warns of gateways' certificates that run out: on the page, in `/readyz` and so by `braid
//! doctor`, and as a metric. E-mails warn 30, 14, 7 and 1 days before.

mod stages;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use calendar::Zone;
use contracts::query::WarningSeverity;
use mail::{Letter, Mailer};
use service_kit::{Context, Warning};
use store::{Scope, Store};

use crate::{
    gateways::{self, GatewayError},
    live::Live,
    shared_document::{Changed, SharedDocument},
    to_people::SharedRecipients,
    warnings::warning,
};
use stages::{DAYS, Ending, Told, stage};

/// A renewed certificate ends its warning within this time.
const LOOK_EACH: Duration = Duration::from_secs(60);
const CODE: &str = "certificates";
const TO_DO: &str = "look why these gateways do not renew (their log; `--enrol-url`), or make a \
                     token: `braid gateways enrol`";
/// Gateways that a sentence names; the rest is counted.
const NAMED_MAX: usize = 5;
/// A day from which on the page warns instead of noting it.
const URGENT_DAYS: u32 = 7;

pub(crate) struct Watch {
    pub store: Arc<dyn Store>,
    pub live: Arc<Live>,
    pub recipients: SharedRecipients,
    pub mailer: Option<Arc<Mailer>>,
    pub context: Context,
}

/// Runs until shutdown.
pub(crate) async fn watch(watch: Watch) {
    let handle = watch.context.health().warning(CODE);
    let clock = watch.context.clock().clone();
    let told = SharedDocument::new(
        Arc::clone(&watch.store),
        clock.clone(),
        "certificates-told",
        "gateways",
    );
    let mut warned = BTreeSet::new();
    loop {
        let look = async {
            let now_us = clock.now_us();
            match ending(watch.store.as_ref(), now_us).await {
                Ok(found) => {
                    measure(&found);
                    handle.set(warning_of(&found, now_us));
                    warned = say(&watch.live, &found, &warned, now_us);
                    if let Some(mailer) = &watch.mailer {
                        tell(mailer, &watch.recipients, &told, &found, now_us).await;
                    }
                }
                // The warnings of before stay.
                Err(error) => {
                    tracing::debug!(%error, "certificates that run out are not looked for");
                }
            }
        };
        tokio::select! {
            () = watch.context.shutdown().requested() => return,
            () = look => {}
        }
        tokio::select! {
            () = watch.context.shutdown().requested() => return,
            () = tokio::time::sleep(LOOK_EACH) => {}
        }
    }
}

/// Certificates of all tenants that run out, the first one first.
async fn ending(store: &dyn Store, now_us: i64) -> Result<Vec<Ending>, GatewayError> {
    let gateways = store.gateways(&Scope::Service).await?;
    let tenants: BTreeSet<&str> = gateways.iter().map(|it| it.tenant.as_str()).collect();
    let mut found = Vec::new();
    for tenant in tenants {
        let listed = gateways::list(store, &Scope::tenant(tenant)).await?;
        found.extend(listed.into_iter().filter_map(|gateway| {
            let is_out = gateway.revoked.is_some_and(|it| !it.let_in_again);
            // 0: the dashboard has issued none.
            let until_us = gateway.certificate_until_us;
            let days = stage(until_us, now_us).filter(|_| until_us > 0 && !is_out)?;
            Some(Ending {
                tenant: tenant.to_owned(),
                gateway: gateway.id,
                until_us,
                days,
            })
        }));
    }
    found.sort_by_key(|ending| ending.until_us);
    Ok(found)
}

fn measure(found: &[Ending]) {
    for days in DAYS.into_iter().chain([0]) {
        let count = found.iter().filter(|it| it.days == days).count();
        metrics::gauge!("braid_dashboard_gateway_certificates_ending", "days" => days.to_string())
            .set(count as f64);
    }
}

fn warning_of(found: &[Ending], now_us: i64) -> Option<Warning> {
    (!found.is_empty()).then(|| Warning {
        says: sentence(found, now_us),
        to_do: TO_DO.to_owned(),
    })
}

/// One line for a tenant or for all, the first to end first.
fn sentence(found: &[Ending], now_us: i64) -> String {
    let named = found.iter().take(NAMED_MAX).map(|it| it.text(now_us));
    let named: Vec<String> = named.collect();
    let more = match found.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("gateways' certificates run out: {}{more}", named.join(", "))
}

/// Returns the tenants that are warned now.
fn say(live: &Live, found: &[Ending], warned: &BTreeSet<String>, now_us: i64) -> BTreeSet<String> {
    let mut by_tenant: BTreeMap<&str, Vec<Ending>> = BTreeMap::new();
    for ending in found {
        let of_tenant = by_tenant.entry(&ending.tenant).or_default();
        of_tenant.push(ending.clone());
    }
    let now: BTreeSet<String> = by_tenant.keys().map(|it| (*it).to_owned()).collect();
    let mut warnings = live.warnings.lock();
    for ended in warned.difference(&now) {
        warnings.end(ended, CODE);
    }
    for (tenant, found) in by_tenant {
        let is_urgent = found.iter().any(|it| it.days <= URGENT_DAYS);
        let severity = match is_urgent {
            true => WarningSeverity::Warning,
            false => WarningSeverity::Note,
        };
        let text = sentence(&found, now_us).replacen('g', "G", 1);
        warnings.raise(tenant, warning(CODE, severity, 0, format!("{text}.")));
    }
    now
}

/// One letter about each tenant whose certificates have come nearer to their end. The people are
/// the administrators of the configuration; without any, those on call of the tenant.
async fn tell(
    mailer: &Mailer,
    recipients: &SharedRecipients,
    shared: &SharedDocument,
    found: &[Ending],
    now_us: i64,
) {
    let changed = shared.change(|told: &mut Told, now_us| {
        let due = told.claim(shared.replica(), found, now_us);
        due.into_iter().cloned().collect::<Vec<Ending>>()
    });
    let due = match changed.await {
        Changed::To(due) => due,
        // Another look comes soon.
        Changed::Contended | Changed::Away => return,
    };
    let tenants: BTreeSet<&str> = due.iter().map(|it| it.tenant.as_str()).collect();
    let mut done: Vec<Ending> = Vec::new();
    // The server is away: what is left is told by a later look.
    let mut is_closed = false;
    for tenant in tenants {
        let of_tenant: Vec<Ending> = due
            .iter()
            .filter(|it| it.tenant == tenant)
            .cloned()
            .collect();
        let people = recipients.lock().administrators_of(tenant, now_us);
        let mut is_told = false;
        for recipient in people {
            if is_closed {
                break;
            }
            let text = letter(tenant, &of_tenant, &recipient.zone, now_us);
            let key = format!("{CODE}/{tenant}/{now_us}/{}", recipient.key());
            let letter = Letter {
                to: &recipient.address,
                subject: "Certificates of gateways run out".to_owned(),
                text,
                key: &key,
            };
            match mailer.send(&letter).await {
                Ok(()) => is_told = true,
                Err(error) => {
                    is_closed |= !error.is_of_letter;
                    let (key, reason) = (recipient.key(), error.reason);
                    tracing::warn!(key, reason, "a letter about certificates is not sent");
                }
            }
        }
        if is_told {
            done.extend(of_tenant);
        }
    }
    if !due.is_empty() {
        shared
            .change(|told: &mut Told, _| told.settle(shared.replica(), &done, found))
            .await;
    }
}

fn letter(tenant: &str, due: &[Ending], zone: &Zone, now_us: i64) -> String {
    let lines: String = due
        .iter()
        .map(|it| format!("  {}, {}\n", it.text(now_us), zone.text(it.until_us)))
        .collect();
    format!(
        "Certificates of gateways of tenant {tenant} run out. A gateway renews its own 30 days\n\
         before; these did not. Without a certificate a gateway delivers nothing.\n\n{lines}\n\
         To do: {TO_DO}.\n"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clocks::CheckedClock;
    use contracts::alerts::Document;
    use store::{CERTIFICATE, GatewayEntry, REVOCATION, Revocation, SqliteStore};

    use super::*;

    const NOW_US: i64 = 1_800_000_000_000_000;
    const DAY_US: i64 = 86_400_000_000;

    async fn gateway(store: &dyn Store, id: &str, tenant: &str, days: i64) {
        let entry = GatewayEntry {
            id: id.to_owned(),
            tenant: tenant.to_owned(),
        };
        store.put_gateway(&entry).await.unwrap();
        document(store, CERTIFICATE, id, tenant, NOW_US + days * DAY_US, "{}").await;
    }

    async fn document(
        store: &dyn Store,
        kind: &str,
        id: &str,
        tenant: &str,
        until_us: i64,
        body: &str,
    ) {
        let document = Document {
            kind: kind.to_owned(),
            tenant: tenant.to_owned(),
            subject: id.to_owned(),
            version: 1,
            author: "eve".to_owned(),
            reason: "a test".to_owned(),
            at_us: NOW_US,
            until_us,
            body: body.to_owned(),
        };
        store.put_document(&document).await.unwrap();
    }

    #[tokio::test]
    async fn a_certificate_that_runs_out_is_a_warning_of_its_tenant_until_it_is_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        gateway(&store, "far", "one", 60).await;
        gateway(&store, "near", "one", 6).await;
        gateway(&store, "other", "two", 20).await;
        gateway(&store, "revoked", "one", 1).await;
        let revocation = Revocation {
            by: "eve".to_owned(),
            reason: "lost".to_owned(),
            at_us: NOW_US,
            excepted: Vec::new(),
        };
        let body = serde_json::to_string(&revocation).unwrap();
        document(&store, REVOCATION, "revoked", "one", 0, &body).await;

        let found = ending(&store, NOW_US).await.unwrap();
        let named = found.iter().map(|it| (it.gateway.as_str(), it.days));
        assert_eq!(named.collect::<Vec<_>>(), [("near", 7), ("other", 30)]);
        assert_eq!(
            sentence(&found, NOW_US),
            "gateways' certificates run out: near in 6 days, other in 20 days"
        );
        let live = Live::new(vitals::RuleSet::default_set(), CheckedClock::of_machine());
        let warned = say(&live, &found, &BTreeSet::new(), NOW_US);
        let of = |tenant: &str| live.warnings.lock().of(tenant);
        assert_eq!(of("one")[0].severity(), WarningSeverity::Warning);
        assert_eq!(of("two")[0].severity(), WarningSeverity::Note);
        assert!(of("two")[0].text.ends_with("run out: other in 20 days."));
        say(&live, &found[1..], &warned, NOW_US);
        assert_eq!(of("one"), [], "it was renewed");
        let letter = letter("two", &found[1..], &Zone::default(), NOW_US);
        assert!(letter.contains("  other in 20 days, "), "{letter}");
        assert!(!letter.contains("near"), "of no other tenant");
    }
}
