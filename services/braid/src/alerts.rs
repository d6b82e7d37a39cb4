//! `braid alerts`: teams, silences, and the history of alerts. It works on the store; alerting
//! follows within a second.

mod shown;

use std::path::{Path, PathBuf};

use alerting::documents::{self, DEFAULT, SILENCE, TEAM};
use alerting::silence::{SILENCE_US_MAX, Silence};
use alerting::team;
use store::{AlertsQuery, Proof, Scope, StoredDocument};
use vitals::RuleSet;

use crate::audit::Asker;
use crate::decisions::put;
use crate::process::{self, Failure};
use crate::signed::Signed;
use crate::tenancy::Tenancy;

const HOUR_US: f64 = 3_600e6;
/// Alerts of one list; further ones are counted.
const LISTED_MAX: usize = 10_000;

#[derive(Debug, clap::Subcommand)]
pub enum AlertsCommand {
    /// Send no notices for a patient's or a rule's alerts for a while. The alerts are still raised
    /// and stored.
    #[command(
        after_help = "Example:\n  braid alerts silence --patient ada --rule battery-low --hours 2 \\\n      --by \"Eve Nurse\" --reason \"charger is on its way\""
    )]
    Silence {
        /// Patient; empty: every patient.
        #[arg(long, value_name = "ID", default_value = "")]
        patient: String,
        /// Rule; empty: every rule.
        #[arg(long, value_name = "RULE", default_value = "")]
        rule: String,
        /// Hours that the silence lasts, at most a week.
        #[arg(long, value_name = "HOURS")]
        hours: f64,
        /// Also a rule that is not known here, because only the file of alerting's --rules has it.
        #[arg(long, default_value_t = false)]
        even_unknown: bool,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List the silences in force.
    #[command(after_help = "Example:\n  braid alerts silences --by \"Eve Operator\"")]
    Silences {
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// End a silence before its time.
    #[command(
        after_help = "Example:\n  braid alerts unsilence silence-1763926123000000 \\\n      --by \"Eve Nurse\" --reason \"the charger is here\""
    )]
    Unsilence {
        /// The silence's name in `braid alerts silences`.
        #[arg(value_name = "SILENCE")]
        id: String,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Contacts, on-call shifts and escalation of a tenant.
    #[command(subcommand)]
    Team(TeamCommand),
    /// Confirm a heartbeat of a channel in the name of its receiver.
    #[command(after_help = "Example:\n  braid alerts confirm CODE --by \"Eve Operator\"")]
    Confirm {
        /// The code in the message.
        #[arg(value_name = "CODE")]
        code: String,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List alerts, newest first: begin, id, state, priority, patient or gateway, text.
    #[command(
        after_help = "Examples:\n  braid alerts list --by \"Eve Operator\"\n  braid alerts list --patient ada --all --by Eve --reason \"the ward asks\""
    )]
    List {
        /// Only alerts of this patient.
        #[arg(long, value_name = "ID")]
        patient: Option<String>,
        /// Also list resolved alerts.
        #[arg(long)]
        all: bool,
        /// Largest number of alerts, the newest.
        #[arg(long, value_name = "COUNT", default_value_t = 200)]
        limit: usize,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Print every transition of an alert, its notices, and their results.
    History {
        /// The alert's id: see `braid alerts list`.
        #[arg(value_name = "ALERT")]
        id: String,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
}

#[derive(Debug, clap::Subcommand)]
pub enum TeamCommand {
    /// Print an example of a team.
    #[command(after_help = "Example:\n  braid alerts team example > team.json")]
    Example,
    /// Print the team in force.
    #[command(after_help = "Example:\n  braid alerts team show --by \"Eve Operator\" > team.json")]
    Show {
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Check a file, and print its errors.
    #[command(after_help = "Example:\n  braid alerts team check team.json")]
    Check {
        /// The team as JSON.
        file: PathBuf,
    },
    /// Put a team in force.
    #[command(
        after_help = "Example:\n  braid alerts team put team.json --by \"Eve Nurse\" --reason \"night shift joins\""
    )]
    Put {
        /// The team as JSON: see `braid alerts team example`.
        file: PathBuf,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
}

impl AlertsCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self {
            Self::Team(TeamCommand::Example) => process::json_text(team::EXAMPLE),
            Self::Team(TeamCommand::Check { file }) => {
                let team = read_team(&file)?.1;
                println!(
                    "{}: {} contacts, {} patients, {} shifts",
                    file.display(),
                    team.contacts.len(),
                    team.patients.len(),
                    team.rota
                        .iter()
                        .map(|rota| rota.shifts.len())
                        .sum::<usize>()
                );
                warn_of_doubts(&team);
                Ok(())
            }
            command => process::block_on(command.on_store())?,
        }
    }

    async fn on_store(self) -> Result<(), Failure> {
        match self {
            Self::Silence {
                patient,
                rule,
                hours,
                even_unknown,
                signed,
                tenancy,
            } => {
                if !even_unknown {
                    refuse_unknown_rule(&tenancy, &rule).await?;
                }
                silence(Silence { patient, rule }, hours, &signed, &tenancy).await
            }
            Self::Silences {
                json,
                asker,
                tenancy,
            } => shown::silences(json, &asker, tenancy).await,
            Self::Unsilence {
                id,
                signed,
                tenancy,
            } => end_silence(&id, &signed, &tenancy).await,
            Self::Confirm {
                code,
                asker,
                tenancy,
            } => confirm(&code, &asker, tenancy).await,
            Self::Team(TeamCommand::Show { asker, tenancy }) => show_team(&asker, tenancy).await,
            Self::Team(TeamCommand::Put {
                file,
                signed,
                tenancy,
            }) => {
                let (text, team) = read_team(&file)?;
                warn_of_doubts(&team);
                let put = put(&tenancy, TEAM, DEFAULT, &signed, 0, &text).await?;
                println!(
                    "version {} of the team of {:?} is in force",
                    put.version, put.tenant
                );
                Ok(())
            }
            Self::List {
                patient,
                all,
                limit,
                json,
                asker,
                tenancy,
            } => {
                let query = AlertsQuery {
                    patient,
                    include_resolved: all,
                    limit: limit.clamp(1, LISTED_MAX),
                    ..AlertsQuery::default()
                };
                shown::list(query, json, &asker, tenancy).await
            }
            Self::History {
                id,
                json,
                asker,
                tenancy,
            } => shown::history(&id, json, &asker, tenancy).await,
            // Needs no store: `run` has answered.
            Self::Team(TeamCommand::Example | TeamCommand::Check { .. }) => Ok(()),
        }
    }
}

async fn silence(
    silence: Silence,
    hours: f64,
    signed: &Signed,
    tenancy: &Tenancy,
) -> Result<(), Failure> {
    let length_us = hours * HOUR_US;
    if !(length_us > 0.0 && length_us <= SILENCE_US_MAX as f64) {
        return Err(Failure::other(format!(
            "--hours {hours} is not above 0 and at most {}: write --hours 2",
            SILENCE_US_MAX as f64 / HOUR_US
        )));
    }
    let now_us = contracts::now_us();
    let body = serde_json::to_string(&silence).map_err(Failure::other)?;
    let subject = format!("silence-{now_us}");
    let until_us = now_us + length_us as i64;
    let put = put(tenancy, SILENCE, &subject, signed, until_us, &body).await?;
    println!("{} holds for {hours} h", put.subject);
    Ok(())
}

async fn confirm(code: &str, asker: &Asker, tenancy: Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    let action = "confirm heartbeat";
    asker
        .reads(&*store, &tenancy.tenant, action, "", String::new())
        .await?;
    let token = Proof::token_of(code.trim());
    let by = asker.who(&*store, &tenancy.tenant).await?;
    let confirmed = store.confirm_proof(&token, &by, contracts::now_us()).await;
    let Some(proof) = confirmed.map_err(Failure::other)? else {
        return Err(Failure::other(
            "no heartbeat has this code, or a newer message has replaced it: use the newest message",
        ));
    };
    let to = match proof.recipient.as_str() {
        "" => String::new(),
        recipient => format!(" to {recipient}"),
    };
    println!("{}{to} is proven", proof.channel);
    Ok(())
}

async fn end_silence(id: &str, signed: &Signed, tenancy: &Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    let scope = Scope::Tenant(tenancy.tenant.clone());
    let silences = store
        .stored_documents(&scope, SILENCE, contracts::now_us())
        .await;
    let silences = silences.map_err(Failure::other)?.into_iter();
    let Some(silence) = silences
        .filter(|silence| silence.subject == id)
        .find_map(StoredDocument::readable)
    else {
        return Err(Failure::other(format!(
            "no silence {id:?} is in force in tenant {:?}: see `braid alerts silences`",
            tenancy.tenant
        )));
    };
    put(
        tenancy,
        SILENCE,
        id,
        signed,
        contracts::now_us(),
        &silence.body,
    )
    .await?;
    println!("{id} is over");
    Ok(())
}

async fn show_team(asker: &Asker, tenancy: Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    asker
        .reads(
            &*store,
            &tenancy.tenant,
            "read documents",
            "",
            ", team".to_owned(),
        )
        .await?;
    let teams = store
        .documents(&Scope::Tenant(tenancy.tenant), TEAM, contracts::now_us())
        .await;
    match teams.map_err(Failure::other)?.first() {
        Some(team) => process::json_text(&team.body)?,
        None => {
            return Err(Failure::other(
                "this tenant has no team: see `braid alerts team example`",
            ));
        }
    }
    Ok(())
}

/// Rules of alerting's `--rules` are known here once they have raised an alert.
async fn refuse_unknown_rule(tenancy: &Tenancy, rule: &str) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    let built_in = RuleSet::default_set();
    let known = documents::known_rules(&*store, &tenancy.tenant, &built_in).await;
    documents::refuse_rule(rule, &known.map_err(Failure::other)?).map_err(|refused| {
        Failure::other(format!(
            "{refused}; --even-unknown silences a rule that only alerting's --rules has"
        ))
    })
}

/// Doubts do not refuse a team: it still reaches people, perhaps not at every hour.
fn warn_of_doubts(team: &team::Team) {
    for doubt in team.clock_doubts().into_iter().chain(team.cover_doubts()) {
        eprintln!("warning: {doubt}");
    }
}

fn read_team(file: &Path) -> Result<(String, team::Team), Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::other(format!("{}: {error}", file.display())))?;
    let team = team::Team::from_json(&text)
        .map_err(|error| Failure::other(format!("{}: {error}", file.display())))?;
    Ok((text, team))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use contracts::alerts::Alert;
    use store::{
        Accounts, AlertsBatch, AlertsStore, AuditQuery, DocumentsStore, PatientEntry, Register,
        Spo2Scale, SqliteStore,
    };

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        command: AlertsCommand,
    }

    /// The only silence, with its version.
    fn silenced(dir: &Path) -> String {
        let found = process::block_on(async {
            let store = SqliteStore::open(dir).unwrap();
            let scope = Scope::tenant(store::DEFAULT_TENANT);
            store.documents(&scope, SILENCE, 0).await.unwrap()
        });
        let found = &found.unwrap()[0];
        format!("{} {}", found.subject, found.version)
    }

    #[test]
    fn reads_and_decisions_are_in_the_audit_log_like_those_of_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_str().unwrap();
        let alert = Alert {
            id: "fall-1".into(),
            patient: "ada".into(),
            revision: 1,
            ..Alert::default()
        };
        process::block_on(async {
            let batch = AlertsBatch {
                transitions: vec![alert],
                states: Vec::new(),
            };
            let store = SqliteStore::open(dir.path()).unwrap();
            let ada = PatientEntry {
                id: "ada".into(),
                tenant: store::DEFAULT_TENANT.into(),
                name: "Ada".into(),
                spo2_scale: Spo2Scale::One,
                ..PatientEntry::default()
            };
            store.put_patient(&ada).await.unwrap();
            store.write_alerts(batch, Vec::new()).await.unwrap();
        })
        .unwrap();
        let run = |args: &[&str]| {
            let by = ["--by", "eve", "--reason", "the ward asks", "--data", data];
            let line = [&["alerts"], args, &by].concat();
            Line::parse_from(line).command.run()
        };
        run(&["list"]).unwrap();
        run(&["list", "--patient", "ada"]).unwrap();
        run(&["history", "fall-1"]).unwrap();
        run(&["history", "fall-1", "--json"]).unwrap();
        run(&["history", "fall-2"]).unwrap_err();
        run(&["silence", "--patient", "ada", "--hours", "2"]).unwrap();
        for (named, near) in [
            (["--rule", "battry-low"], "near are battery-low"),
            (["--patient", "adda"], "near are ada"),
        ] {
            let refused = run(&[&["silence", "--hours", "2"], &named[..]].concat());
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(near), "{refused}");
        }
        run(&["silences"]).unwrap();
        run(&["silences", "--json"]).unwrap();
        run(&["team", "show"]).unwrap_err();
        let log = process::block_on(async {
            let store = SqliteStore::open(dir.path()).unwrap();
            let query = AuditQuery {
                patient: None,
                from_us: 0,
                to_us: i64::MAX,
                limit: 0,
            };
            let scope = Scope::tenant(store::DEFAULT_TENANT);
            Accounts::audit(&store, &scope, &query).await.unwrap()
        })
        .unwrap();
        let mut read: Vec<[&str; 3]> = log
            .iter()
            .map(|row| [row.action.as_str(), row.patient.as_str(), &row.detail])
            .collect();
        read.reverse();
        let silence = &*format!(
            "by command line, silence {}; reason: the ward asks",
            silenced(dir.path())
        );
        let list = "by command line; reason: the ward asks";
        let silences = "by command line, silences; reason: the ward asks";
        let history = "by command line, history of fall-1; reason: the ward asks";
        assert_eq!(
            read,
            [
                ["read alerts", "", list],
                ["read alerts", "ada", list],
                ["read alerts", "ada", history],
                ["read alerts", "ada", history],
                ["put document", "ada", silence],
                ["read documents", "", silences],
                ["read documents", "", silences],
                [
                    "read documents",
                    "",
                    "by command line, team; reason: the ward asks"
                ],
            ]
        );
        assert!(log.iter().all(|row| row.who.starts_with("eve (said by ")));
    }
}
