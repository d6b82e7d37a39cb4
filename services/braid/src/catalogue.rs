//! `braid catalogue`: the metrics that sensors may report. Entries are added by documents, while
//! everything runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use alerting::documents::check_signed;
use contracts::alerts::Document;
use serde_json::{Value, json};
use service_kit::config::parse_file;
use store::{
    AuditEntry, CATALOGUE, CATALOGUE_TENANT, DOCUMENTS_MAX, Scope, Store, StoredDocument,
    WriteError,
};
use vitals::{Entry, MetricDocument};

use crate::decisions::version_json;
use crate::process::{self, Failure, say};
use crate::signed::Signed;
use crate::tenancy::Tenancy;

const EXAMPLE: &str = "what `braid catalogue show glucose --json` prints";

#[derive(Debug, clap::Subcommand)]
pub enum CatalogueCommand {
    /// Check whether entries can be added, and report the faults. Nothing changes.
    #[command(after_help = "Example:\n  braid catalogue check capillary-glucose.json")]
    Check {
        /// Entries as JSON, one in a file.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Add a metric, or a version of an added one. No service needs a restart.
    #[command(
        after_help = "Example:\n  braid catalogue put capillary-glucose.json --by \"Dr. Eve\" \\\n      --reason \"meters of ward 3\"\n\nGateways, rules, the page, HL7 and Grafana know the metric within a minute. All tenants\nshare one catalogue. The unit and the form of an added metric never change, and neither\nunits nor choices can be removed, because readings are stored in them. To begin an entry,\nchange the key of one that `braid catalogue show KEY --json` prints."
    )]
    Put {
        /// The entry as JSON.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Print one entry: units, range, choices and chart.
    #[command(
        after_help = "Examples:\n  braid catalogue show glucose\n  braid catalogue show glucose --json > capillary-glucose.json"
    )]
    Show {
        /// Key of the metric.
        #[arg(value_name = "KEY")]
        key: String,
        /// Print JSON, in the form that `put` reads.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List all metrics, built in and added.
    #[command(after_help = "Example:\n  braid catalogue list")]
    List {
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List the versions of an added metric: number, time, author and reason.
    #[command(after_help = "Example:\n  braid catalogue history capillary-glucose")]
    History {
        /// Key of the metric.
        #[arg(value_name = "KEY")]
        key: String,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        tenancy: Tenancy,
    },
}

impl CatalogueCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        process::block_on(self.on_store())??;
        Ok(ExitCode::SUCCESS)
    }

    async fn on_store(self) -> Result<(), Failure> {
        match self {
            Self::Check { files, tenancy } => {
                tenancy.store.open().await?;
                for file in &files {
                    let entry = read(file)?;
                    vitals::check_metric(&entry).map_err(Failure::other)?;
                    let (file, units) = (file.display(), units(&entry).join(", "));
                    say(&format!("{file}: {:?} can be put, in {units}", entry.key))?;
                }
                Ok(())
            }
            Self::Put {
                file,
                json: as_json,
                signed,
                tenancy,
            } => {
                let entry = read(&file)?;
                let put = put(&entry, &signed, &tenancy).await?;
                if as_json {
                    let metric = entry.metric().number();
                    return process::json(&json!({
                        "key": put.subject, "metric": metric, "version": put.version,
                    }));
                }
                say(&format!(
                    "version {} of the metric {} is in force",
                    put.version, put.subject
                ))
            }
            Self::Show {
                key,
                json: as_json,
                tenancy,
            } => {
                tenancy.store.open().await?;
                let Some(entry) = vitals::by_name(&key) else {
                    return Err(Failure::other(format!(
                        "{key:?} is in no catalogue; see `braid catalogue list`"
                    )));
                };
                if as_json {
                    return process::json(entry.document);
                }
                show(entry)
            }
            Self::List {
                json: as_json,
                tenancy,
            } => {
                tenancy.store.open().await?;
                if as_json {
                    let entries = vitals::entries();
                    return process::json(&entries.into_iter().map(line).collect::<Vec<_>>());
                }
                for entry in vitals::entries() {
                    let units: Vec<_> = entry.units().collect();
                    say(&format!(
                        "{:<28} {:<10} {:<24} {}",
                        entry.name,
                        entry.loinc.unwrap_or("-"),
                        units.join(", "),
                        entry.display
                    ))?;
                }
                Ok(())
            }
            Self::History {
                key,
                json: as_json,
                tenancy,
            } => history(&key, as_json, &tenancy).await,
        }
    }
}

fn read(file: &Path) -> Result<MetricDocument, Failure> {
    Ok(parse_file(
        "catalogue",
        file,
        EXAMPLE,
        MetricDocument::from_json,
    )?)
}

fn units(entry: &MetricDocument) -> Vec<&str> {
    let others = entry.accepted.iter().map(|it| it.unit.as_str());
    std::iter::once(entry.unit.as_str()).chain(others).collect()
}

/// The next version of the entry, checked, and in the audit log before it is in force.
async fn put(
    entry: &MetricDocument,
    signed: &Signed,
    tenancy: &Tenancy,
) -> Result<Document, Failure> {
    let store = tenancy.store.open().await?;
    vitals::check_metric(entry).map_err(Failure::other)?;
    let added = vitals::entries();
    let is_new = vitals::by_name(&entry.key).is_none();
    let built_in = added.iter().filter(|it| it.is_built_in()).count();
    if is_new && added.len() - built_in >= vitals::ADDED_MAX {
        let reason = format!("{} metrics are added already", vitals::ADDED_MAX);
        return Err(Failure::other(reason));
    }
    let newest = versions(&*store, &entry.key, 1).await?.into_iter().next();
    let document = Document {
        kind: CATALOGUE.to_owned(),
        tenant: CATALOGUE_TENANT.to_owned(),
        subject: entry.key.clone(),
        version: newest.map_or(0, |newest| newest.version) + 1,
        author: signed.by.who(&*store, &tenancy.tenant).await?,
        reason: signed.reason.clone(),
        at_us: contracts::now_us(),
        until_us: 0,
        body: serde_json::to_string(entry).map_err(Failure::other)?,
    };
    check_signed(&Document {
        tenant: tenancy.tenant.clone(),
        ..document.clone()
    })
    .map_err(Failure::other)?;
    let decided = AuditEntry {
        time_us: document.at_us,
        tenant: tenancy.tenant.clone(),
        who: document.author.clone(),
        action: "put document".to_owned(),
        patient: String::new(),
        detail: format!(
            "by command line, {CATALOGUE} {} {}",
            entry.key, document.version
        ),
    };
    let decided = store.append_audit(vec![decided.because(&document.reason)]);
    decided.await.map_err(Failure::other)?;
    match store.put_document(&document).await {
        Ok(()) => Ok(document),
        Err(WriteError::Conflict(_)) => Err(Failure::other(format!(
            "somebody else has put version {} of {}; look at it, and try again",
            document.version, entry.key
        ))),
        Err(error) => Err(Failure::other(error)),
    }
}

async fn versions(
    store: &dyn Store,
    key: &str,
    most: usize,
) -> Result<Vec<StoredDocument>, Failure> {
    let scope = Scope::tenant(CATALOGUE_TENANT);
    let history = store.stored_history(&scope, CATALOGUE, key, most).await;
    history.map_err(Failure::other)
}

async fn history(key: &str, as_json: bool, tenancy: &Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    let versions = versions(&*store, key, DOCUMENTS_MAX).await?;
    if as_json {
        return process::json(&versions.iter().map(version_json).collect::<Vec<_>>());
    }
    if versions.is_empty() {
        let says = match vitals::by_name(key) {
            Some(_) => "is built in and has no versions of its own",
            None => "is in no catalogue",
        };
        return Err(Failure::other(format!("{key:?} {says}")));
    }
    for stored in versions {
        let version = stored.version;
        say(&match stored.document {
            Ok(document) => format!(
                "version {version}  {}  by {}: {}",
                process::when(document.at_us),
                document.author,
                document.reason
            ),
            Err(error) => format!("version {version}  cannot be read: {error}"),
        })?;
    }
    Ok(())
}

fn line(entry: &Entry) -> Value {
    json!({
        "key": entry.name,
        "metric": entry.metric.number(),
        "name": entry.display,
        "loinc": entry.loinc,
        "units": entry.units().collect::<Vec<_>>(),
        "built_in": entry.is_built_in(),
    })
}

fn show(entry: &Entry) -> Result<(), Failure> {
    let document = entry.document;
    let names: Vec<_> = document
        .names
        .iter()
        .map(|(language, name)| format!("{name} ({language})"))
        .collect();
    say(&format!("{}  {}", entry.name, names.join(", ")))?;
    say(&format!("number  {}", entry.metric.number()))?;
    say(&format!("loinc   {}", entry.loinc.unwrap_or("-")))?;
    say(&format!("unit    {}", entry.unit))?;
    for it in &document.accepted {
        say(&format!(
            "accepts {}: (value - {}) * {} / {} is in {}",
            it.unit, it.subtract, it.multiply, it.divide, entry.unit
        ))?;
    }
    let (low, high) = entry.range;
    say(&format!("range   {low} to {high} {}", entry.unit))?;
    for choice in &document.choices {
        let word = choice.names.get("en").map_or("", |word| word);
        say(&format!("choice  {}: {word}", choice.value))?;
    }
    say(&format!("stale   after {} s", document.stale_after_s))
}
