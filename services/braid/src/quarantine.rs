//! `braid quarantine`: readings, gaps and alerts of no patient, which a person assigns or discards.

mod readmit;

use std::sync::Arc;

use contracts::text;
use contracts::vitals::{Quarantined, quarantined::Entry, sample::Reading};
use ingest::release::{Release, To};
use serde_json::json;
use store::{AuditEntry, CASES_LISTED_MAX, QuarantineEntry, QuarantineQuery, Scope, Store};

use crate::audit::Asker;
use crate::engines::{Engines, EnginesChoice};
use crate::moment::{Moment, shown};
use crate::process::{self, Failure, say};
use crate::signed::Signed;
use crate::tenancy::Tenancy;

/// Entries read at once.
const PAGE: usize = 500;
/// Reasons printed for the entries that stay.
const REASONS_MAX: usize = 20;

#[derive(Debug, clap::Subcommand)]
pub enum QuarantineCommand {
    /// List the quarantine: device, gateway, reason, number of entries, first and last time.
    #[command(after_help = "Example:\n  braid quarantine list")]
    List {
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Print the entries of a device. The audit log records the reader.
    #[command(
        after_help = "Example:\n  braid quarantine show --device chest-7 \\\n      --by \"Eve Nurse\" --reason \"whose is it\""
    )]
    Show {
        #[command(flatten)]
        which: Which,
        /// Largest number of entries printed, the first ones.
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Assign entries, as a backfill: to a patient, or to the wearers of the device by the present
    /// register.
    #[command(
        after_help = "Examples:\n  braid quarantine assign --device chest-7 \\\n      --by \"Eve Nurse\" --reason \"registered late\"\n  braid quarantine assign --device chest-7 --patient ada \\\n      --until 2026-03-01T12:00:00Z --by \"Eve Nurse\" --reason \"until noon\""
    )]
    Assign {
        /// The patient. Absent: the wearer of the device at the time, by the register.
        #[arg(long, value_name = "ID")]
        patient: Option<String>,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        signed: Signed,
        /// Tenant of gateway and patient.
        #[arg(long, value_name = "ID", default_value = store::DEFAULT_TENANT)]
        tenant: String,
        #[command(flatten)]
        engines: EnginesChoice,
    },
    /// Admit samples that ingest refused before it had a quarantine, as `braid gateway rejected`
    /// prints them, by the admission of every upload. A repetition has no further effect.
    #[command(
        after_help = "Example:\n  braid quarantine readmit rejected.jsonl --gateway gw-1 \\\n      --by \"Eve Nurse\" --reason \"registered late\""
    )]
    Readmit(readmit::Readmit),
    /// Delete entries for good, for example readings of a technician.
    #[command(
        after_help = "Example:\n  braid quarantine discard --device chest-7 \\\n      --by \"Eve Operator\" --reason \"a test\""
    )]
    Discard {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
}

#[derive(Clone, Debug, clap::Args)]
pub struct Which {
    /// The sensor.
    #[arg(long, value_name = "ID")]
    device: String,
    /// Only entries that came over this gateway.
    #[arg(long, value_name = "ID")]
    gateway: Option<String>,
    /// Only since this time, in RFC 3339.
    #[arg(long, value_name = "TIME")]
    from: Option<Moment>,
    /// Only before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,
}

/// The proven author of a decision.
struct Author {
    by: String,
    reason: String,
}

impl Author {
    async fn of(signed: &Signed, store: &dyn Store, tenant: &str) -> Result<Author, Failure> {
        Ok(Author {
            by: signed.by.who(store, tenant).await?,
            reason: signed.reason.clone(),
        })
    }
}

impl Which {
    fn query(&self, after: i64, limit: usize) -> QuarantineQuery {
        QuarantineQuery {
            device: self.device.clone(),
            gateway: self.gateway.clone(),
            from_us: self.from.map_or(i64::MIN, |it| it.0),
            until_us: self.until.map_or(i64::MAX, |it| it.0),
            after,
            limit,
        }
    }

    fn detail(&self) -> String {
        let mut detail = format!("device {}", self.device);
        if let Some(gateway) = &self.gateway {
            detail += &format!(" at gateway {gateway}");
        }
        if let Some(Moment(from_us)) = self.from {
            detail += &format!(" from {}", shown(from_us));
        }
        if let Some(Moment(until_us)) = self.until {
            detail += &format!(" until {}", shown(until_us));
        }
        detail
    }

    fn audit(
        &self,
        action: &str,
        tenant: &str,
        patient: &str,
        more: &str,
        signed: &Author,
    ) -> AuditEntry {
        let entry = AuditEntry {
            time_us: contracts::now_us(),
            tenant: tenant.to_owned(),
            who: signed.by.clone(),
            action: action.to_owned(),
            patient: patient.to_owned(),
            detail: self.detail() + more,
        };
        entry.because(&signed.reason)
    }

    async fn page(
        &self,
        store: &dyn Store,
        scope: &Scope,
        after: i64,
        limit: usize,
    ) -> Result<Vec<QuarantineEntry>, Failure> {
        let page = store.quarantined(scope, &self.query(after, limit)).await;
        page.map_err(Failure::other)
    }
}

impl QuarantineCommand {
    pub fn run(self) -> Result<(), Failure> {
        process::block_on(async move {
            match self {
                Self::List {
                    json,
                    asker,
                    tenancy,
                } => {
                    let store = tenancy.store.open().await?;
                    let action = "read quarantine";
                    asker
                        .reads(&*store, &tenancy.tenant, action, "", String::new())
                        .await?;
                    list(&*store, &Scope::tenant(tenancy.tenant), json).await
                }
                Self::Show {
                    which,
                    limit,
                    signed,
                    tenancy,
                } => {
                    let store = tenancy.store.open().await?;
                    show(&*store, &tenancy.tenant, &which, limit, &signed).await
                }
                Self::Assign {
                    patient,
                    which,
                    signed,
                    tenant,
                    engines,
                } => {
                    let engines = engines.open().await?;
                    let said = assign(&engines, &tenant, patient, &which, &signed).await?;
                    process::print(&format!("{said}\n"))
                }
                Self::Readmit(readmit) => readmit.run().await,
                Self::Discard {
                    which,
                    signed,
                    tenancy,
                } => {
                    let store = tenancy.store.open().await?;
                    say(&discard(&*store, &tenancy.tenant, &which, &signed).await?)
                }
            }
        })?
    }
}

async fn list(store: &dyn Store, scope: &Scope, as_json: bool) -> Result<(), Failure> {
    let cases = store.quarantine_cases(scope).await;
    let cases = cases.map_err(Failure::other)?;
    if as_json {
        let listed: Vec<_> = cases
            .iter()
            .map(|it| {
                json!({
                    "device": it.device,
                    "gateway": it.gateway,
                    "kind": it.kind,
                    "entries": it.entries,
                    "bytes": it.bytes,
                    "first": shown(it.first_us),
                    "last": shown(it.last_us),
                    "arrived": shown(it.arrived_us),
                })
            })
            .collect();
        return process::json(&listed);
    }
    for it in &cases {
        say(&format!(
            "{}  at {}  {}  {} entries ({} bytes)  from {} until {}",
            it.device,
            it.gateway,
            it.kind,
            it.entries,
            it.bytes,
            shown(it.first_us),
            shown(it.last_us)
        ))?;
    }
    let entries: u64 = cases.iter().map(|it| it.entries).sum();
    let mut text = format!("{entries} entries are kept apart");
    if cases.len() >= CASES_LISTED_MAX {
        text += "; older ones are left out";
    }
    say(&text)
}

async fn show(
    store: &dyn Store,
    tenant: &str,
    which: &Which,
    limit: usize,
    signed: &Signed,
) -> Result<(), Failure> {
    let author = Author::of(signed, store, tenant).await?;
    // Written before the recorded action, as everywhere.
    let audit = which.audit("show quarantined", tenant, "", "", &author);
    let audited = store.append_audit(vec![audit]).await;
    audited.map_err(Failure::other)?;
    let scope = Scope::tenant(tenant);
    let entries = which.page(store, &scope, 0, limit).await?;
    for it in &entries {
        say(&line(&it.quarantined))?;
    }
    say(&format!("{} shown", entries.len()))
}

fn line(it: &Quarantined) -> String {
    let what = match &it.entry {
        Some(Entry::Sample(sample)) => {
            let reading = match &sample.reading {
                Some(Reading::Value(value)) => format!("{value} {}", sample.unit),
                Some(Reading::Waveform(waveform)) => {
                    format!("a waveform of {} values", waveform.values.len())
                }
                None => "nothing".to_owned(),
            };
            format!(
                "{}  {}  {reading}{}",
                shown(sample.device_time_us),
                sample.stream,
                names(&sample.patient)
            )
        }
        Some(Entry::Gap(gap)) => format!(
            "{}  {}  a gap of {} samples",
            shown(gap.from_time_us),
            gap.stream,
            gap.last_sequence
                .saturating_sub(gap.first_sequence)
                .saturating_add(1)
        ),
        Some(Entry::Alert(alert)) => format!(
            "{}  alert {}{}",
            shown(alert.time_us),
            alert.rule,
            names(&alert.patient)
        ),
        None => "nothing".to_owned(),
    };
    format!("{what}  over {}: {}", it.gateway, it.reason)
}

fn names(patient: &str) -> String {
    if patient.is_empty() {
        String::new()
    } else {
        format!("  names patient {patient}")
    }
}

async fn assign(
    engines: &Engines,
    tenant: &str,
    patient: Option<String>,
    which: &Which,
    signed: &Signed,
) -> Result<String, Failure> {
    let (store, scope) = (&*engines.store, Scope::tenant(tenant));
    let author = Author::of(signed, store, tenant).await?;
    if let Some(patient) = &patient {
        let known = store.patient(&scope, patient).await;
        if known.map_err(Failure::other)?.is_none() {
            return Err(Failure::other(format!("patient `{patient}` is unknown")));
        }
    }
    let named = patient.clone().unwrap_or_default();
    let to = patient.map_or(To::Wearer, To::Patient);
    let audit = which.audit("assign quarantined", tenant, &named, "", &author);
    let audited = store.append_audit(vec![audit]).await;
    audited.map_err(Failure::other)?;
    let release = Release::new(&engines.bus, Arc::clone(&engines.store));
    let (mut after, mut taken, mut left) = (0, 0, Vec::new());
    loop {
        let page = which.page(store, &scope, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.key;
        let released = release.release(page, &to).await.map_err(Failure::other)?;
        left.extend(released.left);
        if released.keys.is_empty() {
            continue;
        }
        let more = format!(", {} entries", released.keys.len());
        let audit = which.audit("settle quarantined", tenant, &named, &more, &author);
        taken += store
            .settle_quarantined(&scope, released.keys, audit)
            .await
            .map_err(Failure::other)?;
    }
    let mut said = format!("{taken} entries are taken in, {} left", left.len());
    for reason in left.iter().take(REASONS_MAX) {
        said += &format!("\n  left: {}", text::line(reason));
    }
    Ok(said)
}

async fn discard(
    store: &dyn Store,
    tenant: &str,
    which: &Which,
    signed: &Signed,
) -> Result<String, Failure> {
    let author = Author::of(signed, store, tenant).await?;
    let scope = Scope::tenant(tenant);
    let (mut after, mut discarded) = (0, 0);
    loop {
        let page = which.page(store, &scope, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.key;
        let keys: Vec<i64> = page.iter().map(|it| it.key).collect();
        let more = format!(", {} entries", keys.len());
        let audit = which.audit("discard quarantined", tenant, "", &more, &author);
        discarded += store
            .settle_quarantined(&scope, keys, audit)
            .await
            .map_err(Failure::other)?;
    }
    Ok(format!("{discarded} entries are discarded"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bus::embedded::{EmbeddedBus, EmbeddedOptions};
    use bus::{Bus, Event, Topic};
    use contracts::vitals::{Metric, Sample, VitalsRecord};
    use prost::Message;
    use store::{AuditQuery, DeviceEntry, SqliteStore, VitalsBatch};

    use super::*;
    use crate::signed::By;

    fn apart(sequence: u64, time_us: i64) -> Quarantined {
        Quarantined {
            tenant: store::DEFAULT_TENANT.into(),
            gateway: "gw".into(),
            kind: "unknown-device".into(),
            reason: "the register does not know the device".into(),
            arrived_us: 1,
            entry: Some(Entry::Sample(Sample {
                device: "belt".into(),
                stream: "heart-rate".into(),
                unit: "/min".into(),
                metric: Metric::HeartRate.into(),
                sequence,
                device_time_us: time_us,
                gateway: "gw".into(),
                reading: Some(Reading::Value(70.0)),
                ..Sample::default()
            })),
        }
    }

    fn naming(patient: &str, mut apart: Quarantined) -> Quarantined {
        if let Some(Entry::Sample(sample)) = &mut apart.entry {
            sample.patient = patient.to_owned();
        }
        apart
    }

    #[tokio::test]
    async fn what_is_kept_apart_is_taken_in_by_the_register_by_hand_or_discarded() {
        let dir = tempfile::tempdir().unwrap();
        let bus: Arc<dyn Bus> =
            Arc::new(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap());
        let mut records = bus.tail(Topic::Vitals).await.unwrap();
        let engines = Engines {
            bus,
            store: Arc::new(SqliteStore::open(dir.path()).unwrap()),
        };
        let store = &*engines.store;
        let hour_us = 3_600_000_000;
        let batch = VitalsBatch {
            quarantined: (1..=4)
                .map(|n| apart(n, n.cast_signed() * hour_us))
                .chain([naming("bob", apart(5, 5 * hour_us))])
                .collect(),
            ..VitalsBatch::default()
        };
        store.write_vitals(batch.into(), Vec::new()).await.unwrap();
        let entry = DeviceEntry {
            id: "belt".into(),
            tenant: store::DEFAULT_TENANT.into(),
            gateway: "gw".into(),
            patient: "ada".into(),
            registered_us: 3 * hour_us,
        };
        store.put_device(&entry).await.unwrap();
        let which = Which {
            device: "belt".into(),
            gateway: None,
            from: None,
            until: Some(Moment(2 * hour_us)),
        };
        let signed = Signed {
            by: By::named("eve"),
            reason: "a test".into(),
        };
        let tenant = store::DEFAULT_TENANT;
        let all = Which {
            until: None,
            ..which.clone()
        };
        let said = assign(&engines, tenant, None, &all, &signed).await.unwrap();
        assert!(said.starts_with("2 entries are taken in, 3 left"), "{said}");
        assert!(said.contains("no patient wore"), "{said}");
        assert!(
            said.contains("names patient bob, and ada wore it"),
            "{said}"
        );
        let by_hand = |patient: &str| Some(patient.to_owned());
        let unregistered = assign(&engines, tenant, by_hand("zoe"), &which, &signed).await;
        assert!(unregistered.unwrap_err().to_string().contains("unknown"));
        let said = assign(&engines, tenant, by_hand("ada"), &which, &signed).await;
        assert!(said.unwrap().starts_with("1 entries are taken in, 0 left"));
        let said = discard(store, tenant, &all, &signed).await.unwrap();
        assert_eq!(said, "2 entries are discarded");
        let scope = Scope::tenant(tenant);
        assert_eq!(store.quarantine_cases(&scope).await.unwrap(), []);

        let mut taken = Vec::new();
        while taken.len() < 3 {
            let Event::Batch(batch) = records.next(10).await.unwrap() else {
                continue;
            };
            for delivery in batch {
                assert_eq!(delivery.key, "ada");
                let record = VitalsRecord::decode(delivery.value).unwrap();
                taken.extend(
                    record
                        .samples
                        .into_iter()
                        .map(|it| (it.sequence, it.patient)),
                );
            }
        }
        taken.sort();
        let of_ada = |sequence| (sequence, "ada".to_owned());
        assert_eq!(taken, [of_ada(1), of_ada(3), of_ada(4)]);
        let query = AuditQuery {
            patient: None,
            from_us: 0,
            to_us: i64::MAX,
            limit: 0,
        };
        let audit = store.audit(&scope, &query).await.unwrap();
        let count = |action: &str| audit.iter().filter(|it| it.action == action).count();
        assert_eq!(count("assign quarantined"), 2);
        assert_eq!(count("settle quarantined"), 2);
        assert_eq!(count("discard quarantined"), 1);
    }
}
