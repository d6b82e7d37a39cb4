//! `braid rules`: shows, checks and tries alert rules before they are in force.

mod replay;
mod rule_file;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use alerting::documents::RULES;
use service_kit::config::parse_file;
use store::{DOCUMENTS_MAX, Scope};
use vitals::cases::Cases;
use vitals::{RuleDocument, RuleSet};

use crate::audit::Asker;
use crate::decisions;
use crate::process::{self, Failure, say};
use crate::signed::{By, Signed};
use crate::tenancy::Tenancy;
use rule_file::{read_document, read_rules, read_to_put};

/// Examples for the built-in rules.
const BUILT_IN_CASES: &str = include_str!("../rules/default-cases.toml");

#[derive(Debug, clap::Subcommand)]
pub enum RulesCommand {
    /// Print a rule set as JSON: the built-in one, one of a file, or a stored one.
    #[command(
        after_help = "Examples:\n  braid rules show > rules.json\n  braid rules show --for patient:ada --by Eve > ada.json"
    )]
    Show {
        /// Rule set. Absent: the built-in one.
        #[arg(long, value_name = "FILE", conflicts_with = "stored")]
        rules: Option<PathBuf>,
        /// Subject of `braid rules put`: default, group:NAME or patient:ID.
        #[arg(long = "for", alias = "stored", value_name = "SUBJECT")]
        stored: Option<String>,
        #[command(flatten)]
        by: By,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Put a rule set in force for a tenant, a group or a patient. Alerting needs no restart.
    #[command(
        after_help = "Examples:\n  braid rules put ada.json --for patient:ada --by \"Dr. Eve\" \\\n      --reason \"COPD, target 88 to 92 %\"\n  braid rules put --none --for patient:ada --by \"Dr. Eve\" --reason \"discharged\"\n\nThe narrowest set holds: the patient's, else the group's (see `braid alerts team`), else the tenant's default,\nelse what alerting was started with. A set with \"extends\": \"built-in\" keeps the built-in rules that it does not\nreplace. Without the word it must have rules for falls and NEWS2; \"none\" allows a set without them."
    )]
    Put {
        /// The rule set as JSON: see `braid rules show`.
        #[arg(value_name = "FILE", required_unless_present = "none")]
        file: Option<PathBuf>,
        /// Withdraw the rules, so that the next wider set applies.
        #[arg(long, conflicts_with = "file", default_value_t = false)]
        none: bool,
        /// default, group:NAME or patient:ID.
        #[arg(long = "for", value_name = "SUBJECT")]
        subject: String,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List the stored rule sets with author, time and reason; with a subject all of its versions.
    #[command(after_help = "Example:\n  braid rules list patient:ada --by \"Eve Operator\"")]
    List {
        /// default, group:NAME or patient:ID.
        #[arg(value_name = "SUBJECT")]
        subject: Option<String>,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Check whether rule sets can be used, and report the faults.
    #[command(after_help = "Example:\n  braid rules check rules.json")]
    Check {
        /// Rule sets as JSON.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Try a rule set on examples: readings in, alerts expected.
    #[command(
        after_help = "Examples:\n  braid rules test                               the built-in rules and examples\n  braid rules show > rules.json                  the rules, to begin from\n  braid rules test --print > cases.toml          the examples, to begin from\n  braid rules test --rules rules.json cases.toml"
    )]
    Test {
        /// Rule set. Absent: the built-in one.
        #[arg(long, value_name = "FILE")]
        rules: Option<PathBuf>,
        /// Examples as TOML. Absent: the built-in ones.
        #[arg(value_name = "CASES")]
        cases: Option<PathBuf>,
        /// Print the built-in examples instead.
        #[arg(long, default_value_t = false)]
        print: bool,
    },
    /// Run a rule set over stored history and compare it with the rules in force then: alarms per
    /// patient-day, and missed alerts.
    Replay(replay::ReplayCommand),
}

impl RulesCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Show {
                stored: Some(subject),
                by,
                tenancy,
                ..
            } => {
                let asker = Asker::of(by);
                let text = process::block_on(async {
                    decisions::stored_rules(&tenancy, &subject, &asker).await
                })??;
                process::json_text(&text)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Put {
                file,
                subject,
                signed,
                tenancy,
                ..
            } => {
                // The set may name metrics of the store's catalogue.
                process::block_on(tenancy.store.open())??;
                let rules = file.as_deref().map(read_to_put).transpose()?;
                let body = rules.as_ref().map(serde_json::to_string_pretty).transpose();
                let body = body.map_err(Failure::other)?.unwrap_or_default();
                let put = process::block_on(async {
                    decisions::put(&tenancy, RULES, &subject, &signed, 0, &body).await
                })??;
                say(&format!(
                    "version {} of the rules of {} is in force",
                    put.version, put.subject
                ))?;
                if let Some(lost) = rules.and_then(|rules| rules.says_lost()) {
                    say(&lost)?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Self::List {
                subject,
                json,
                asker,
                tenancy,
            } => process::block_on(list(subject, json, &asker, tenancy))?,
            Self::Show { rules, .. } => {
                let document = read_document(rules.as_deref())?;
                // With the inherited rules, and the word of the file.
                let whole = RuleDocument::of(document.resolve(), document.extends);
                process::json(&whole)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Check { files } => {
                for file in &files {
                    let document = read_to_put(file)?;
                    let (rules, file) = (document.resolve(), file.display());
                    say(&format!(
                        "{file}: {:?} version {}, {} rules, {} of them inherited",
                        rules.name,
                        rules.version,
                        rules.rules.len(),
                        rules.rules.len() - document.rules.len()
                    ))?;
                    if let Some(lost) = document.says_lost() {
                        say(&format!("{file}: {lost}"))?;
                    }
                }
                Ok(ExitCode::SUCCESS)
            }
            Self::Test { print: true, .. } => {
                process::print(&format!("{BUILT_IN_CASES}\n"))?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Test { rules, cases, .. } => test(rules.as_deref(), cases.as_deref()),
            Self::Replay(replay) => replay.run(),
        }
    }
}

async fn list(
    subject: Option<String>,
    as_json: bool,
    asker: &Asker,
    tenancy: Tenancy,
) -> Result<ExitCode, Failure> {
    let store = tenancy.store.open().await?;
    let of = subject.as_deref().unwrap_or_default();
    asker.reads_rules(&*store, &tenancy.tenant, of).await?;
    let scope = Scope::Tenant(tenancy.tenant);
    let documents = match &subject {
        Some(subject) => {
            store
                .stored_history(&scope, RULES, subject, DOCUMENTS_MAX)
                .await
        }
        None => {
            store
                .stored_documents(&scope, RULES, contracts::now_us())
                .await
        }
    };
    let documents = documents.map_err(Failure::other)?;
    if as_json {
        let shown = documents.iter().map(decisions::version_json);
        process::json(&shown.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    for stored in documents {
        let document = match stored.document {
            Ok(document) => document,
            Err(error) => {
                let (subject, version) = (stored.subject, stored.version);
                say(&format!(
                    "{subject}  version {version}  cannot be read: {error}"
                ))?;
                continue;
            }
        };
        let rules = match RuleSet::from_json(&document.body) {
            Ok(rules) => format!("{} rules", rules.rules.len()),
            Err(_) if document.body.is_empty() => "taken back".to_owned(),
            Err(error) => error.to_string(),
        };
        say(&format!(
            "{}  version {}  {rules}  {}  by {}: {}",
            document.subject,
            document.version,
            process::when(document.at_us),
            document.author,
            document.reason
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn test(rules: Option<&Path>, cases: Option<&Path>) -> Result<ExitCode, Failure> {
    let rules = Arc::new(read_rules(rules)?);
    let example = "what `braid rules test --print` prints";
    let cases: Cases = match cases {
        Some(file) => parse_file("cases", file, example, |text| toml::from_str(text))?,
        None => toml::from_str(BUILT_IN_CASES).map_err(Failure::other)?,
    };
    let mut failed = 0;
    for case in &cases.case {
        match case.try_on(&rules) {
            Ok(()) => say(&format!("ok      {}", case.name))?,
            Err(error) => {
                failed += 1;
                say(&format!("FAILED  {error}"))?;
            }
        }
    }
    let count = cases.case.len();
    say(&format!("{} of {count} as expected", count - failed))?;
    Ok(if failed == 0 && count > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
