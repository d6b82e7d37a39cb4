//! The rules that a gateway starts with: its own, those that the core sent last, and their states.

use std::path::Path;

use service_kit::{ConfigError, Health, Warning, config::parse_file};
use vitals::{PUT_EXTENDS, RuleDocument};

use super::EdgeRules;
use crate::{
    Config, RunError,
    clock::Moment,
    from_ingest::RulesFile,
    journal::{Directory, Disk},
    open_alerts::{AlertsFile, OpenAlert, OpenAlerts},
    reserve::Reserve,
    rule_states::{StateLog, States},
    rules_in_force::RulesInForce,
    sealing::Keys,
};

pub(crate) struct AtStart {
    pub rules: EdgeRules,
    pub file: RulesFile<Directory>,
    pub in_force: RulesInForce,
    pub states: StateLog<Directory>,
    /// Beside the states, on the disk of the journals.
    pub reserve: Reserve<Directory>,
    /// The list for the people beside the gateway, and its file.
    pub open_alerts: (OpenAlerts, AlertsFile<Directory>),
}

/// Damaged files do not prevent the start. The core sends its rules again, and rules without states
/// raise a lasting condition again.
pub(crate) async fn open(
    config: &Config,
    (gateway, keys): (&str, &Keys),
    health: &Health,
) -> Result<AtStart, RunError> {
    let own = load_rules(config.rules.as_deref())?;
    if own.is_unsaid() {
        health.warning("rules-of-the-file").set(Some(Warning {
            says: own.says_lost().unwrap_or_default(),
            to_do: PUT_EXTENDS.to_owned(),
        }));
    }
    let journal = config.data_dir.join("journal");
    let (gateway, keys) = (gateway.to_owned(), keys.clone());
    tokio::task::spawn_blocking(move || {
        let directory = |name: &'static str| {
            let path = journal.join(name);
            Directory::open(&path, keys.for_folder(name)).map_err(|source| RunError::Directory {
                path: path.display().to_string(),
                source,
            })
        };
        let file = RulesFile(directory("rules")?);
        let in_force = file.load().unwrap_or_else(|error| {
            tracing::error!(%error, "judging by the gateway's own rules until the core answers");
            RulesInForce::default()
        });
        let of_states = directory("rule-states")?;
        let (states, kept) = open_states(of_states.clone())?;
        let mut rules = EdgeRules::new(own.resolve());
        rules.judge_by(in_force.clone());
        rules.restore(kept, Moment::now());
        let (alerts_file, stored) = open_alerts(directory("open-alerts")?)?;
        let open = OpenAlerts::restored(stored, rules.active(), &gateway, Moment::now());
        Ok(AtStart {
            rules,
            file,
            in_force,
            states,
            reserve: Reserve::open(of_states),
            open_alerts: (open, alerts_file),
        })
    })
    .await?
}

fn open_states<D: Disk>(disk: D) -> Result<(StateLog<D>, States), RunError> {
    StateLog::open(disk).map_err(|source| RunError::Directory {
        path: "journal/rule-states".to_owned(),
        source,
    })
}

fn open_alerts<D: Disk>(disk: D) -> Result<(AlertsFile<D>, Vec<OpenAlert>), RunError> {
    AlertsFile::open(disk).map_err(|source| RunError::Directory {
        path: "journal/open-alerts".to_owned(),
        source,
    })
}

fn load_rules(path: Option<&Path>) -> Result<RuleDocument, ConfigError> {
    let Some(path) = path else {
        return Ok(RuleDocument::built_in());
    };
    parse_file("rules", path, "--rules rules.json", RuleDocument::from_json)
}
