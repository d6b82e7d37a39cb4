//! `braid rules`: alert rules as data, looked at, checked and tried before anybody depends on them.

mod replay;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use service_kit::ConfigError;
use service_kit::config::parse_file;
use vitals::RuleSet;
use vitals::cases::Cases;

use crate::process::Failure;

/// What the built-in rules are held to.
const BUILT_IN_CASES: &str = include_str!("../rules/default-cases.toml");

#[derive(Debug, clap::Subcommand)]
pub enum RulesCommand {
    /// Print a rule set as JSON: the built-in one, to begin from, or a file's.
    #[command(after_help = "Example:\n  braid rules show > rules.json")]
    Show {
        /// Rule set; without it the built-in one.
        #[arg(long, value_name = "FILE")]
        rules: Option<PathBuf>,
    },
    /// Say whether rule sets can be used, and what is wrong with them.
    #[command(after_help = "Example:\n  braid rules check rules.json")]
    Check {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Try a rule set on examples: readings in, alerts expected.
    #[command(
        after_help = "Examples:\n  braid rules test                                   the built-in rules on the built-in examples\n  braid rules test --rules rules.json cases.toml\n  braid rules test --print                           the built-in examples, to begin from"
    )]
    Test {
        /// Rule set; without it the built-in one.
        #[arg(long, value_name = "FILE")]
        rules: Option<PathBuf>,
        /// Examples as TOML; without them the built-in ones.
        #[arg(value_name = "CASES")]
        cases: Option<PathBuf>,
        /// Print the built-in examples instead.
        #[arg(long, default_value_t = false)]
        print: bool,
    },
    /// Run a rule set over stored history: alarms per patient-day, and what it would have missed.
    Replay(replay::ReplayCommand),
}

impl RulesCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Show { rules } => {
                let rules = read_rules(rules.as_deref())?;
                let text = serde_json::to_string_pretty(&rules).map_err(Failure::other)?;
                say(&text)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Check { files } => {
                for file in &files {
                    let rules = read_rules(Some(file))?;
                    say(&format!(
                        "{}: {:?} version {}, {} rules",
                        file.display(),
                        rules.name,
                        rules.version,
                        rules.rules.len()
                    ))?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Self::Test { print: true, .. } => {
                say(BUILT_IN_CASES)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Test { rules, cases, .. } => test(rules.as_deref(), cases.as_deref()),
            Self::Replay(replay) => replay.run(),
        }
    }
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

fn read_rules(file: Option<&Path>) -> Result<RuleSet, ConfigError> {
    let Some(file) = file else {
        return Ok(RuleSet::default_set());
    };
    let example = "what `braid rules show` prints";
    parse_file("rules", file, example, RuleSet::from_json)
}

/// A line to standard output; a reader who went away is no failure of ours, but the end.
fn say(line: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{line}").map_err(Failure::other)
}
