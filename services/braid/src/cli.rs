//! The command line. Configuration is layered over it (see `service_kit::config`), so it is also
//! the schema of the file.

mod variables;

use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use service_kit::config::{self, ConfigFile, EXIT_CONFIG};
use service_kit::{ConfigError, Secret};

use crate::accounts::AccountsCommand;
use crate::alerts::AlertsCommand;
use crate::audit::AuditCommand;
use crate::backup::BackupCommand;
use crate::budget::BudgetCommand;
use crate::dead_letters::DeadLettersCommand;
use crate::doctor::DoctorCommand;
use crate::episode::EpisodeCommand;
use crate::gateways::GatewaysCommand;
use crate::health::HealthCommand;
use crate::identity::IdentityCommand;
use crate::links::LinkCommand;
use crate::migrate::MigrateCommand;
use crate::paths::PathsCommand;
use crate::patients::PatientsCommand;
use crate::plan::PlanCommand;
use crate::probe::ProbeCommand;
use crate::process::{self, Failure};
use crate::proof::ProofCommand;
use crate::qlog::QlogCommand;
use crate::quarantine::QuarantineCommand;
use crate::register::RegisterCommand;
use crate::rules::RulesCommand;
use crate::run_service::ServiceCommand;
use crate::secrets::SecretsCommand;
use crate::setup::SetupCommand;
use crate::steering::SteeringCommand;
use crate::trial::TrialCommand;
use crate::tun::TunCommand;

/// Tables of the configuration file, which are the subcommands with a table.
const NOUNS: [&str; 11] = [
    "gateway",
    "proxy",
    "ingest",
    "alerting",
    "path-telemetry",
    "dashboard",
    "exchange",
    "swarm",
    "up",
    "setup",
    "trial",
];
/// Version and commit; `-V` prints the version alone.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("BRAID_BUILT_FROM"),
    ")"
);
/// Commands that are no services: they have no admin listener and no log of their own.
const JOBS: [&str; 2] = ["setup", "trial"];

/// Keeps a person's health data flowing while they move.
///
/// Every flag of a service can also be set by a variable (see its help) or in the service's table
/// of a TOML file. Flags override variables, and variables override the file.
#[derive(Debug, Parser)]
#[command(
    name = "braid",
    version,
    long_version = LONG_VERSION,
    max_term_width = 110,
    after_help = "Examples:\n  braid up                          everything here, with simulated patients\n  braid link cut wifi               cut their Wi-Fi; vitals go on over LTE\n  braid config gateway              what a gateway would run with, and why\n  braid ingest --config braid.toml  one service of a larger installation"
)]
struct Cli {
    /// TOML file with a table per service, such as [gateway].
    #[arg(long, global = true, value_name = "FILE", env = "BRAID_CONFIG")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Braid,
}

#[derive(Debug, Subcommand)]
enum Braid {
    #[command(flatten)]
    Service(ServiceCommand),
    /// Print the effective configuration of a service as TOML, each value with its origin and with
    /// secrets masked.
    #[command(
        after_help = "Examples:\n  braid config gateway\n  BRAID_INGEST_LISTEN=0.0.0.0:7001 braid config ingest --config braid.toml"
    )]
    Config {
        #[command(subcommand)]
        service: ServiceCommand,
    },
    /// List, cut, restore or change the emulated links of a running `braid up`.
    #[command(subcommand)]
    Link(LinkCommand),
    /// Let a simulated patient of a running `braid up` fall ill.
    Episode(EpisodeCommand),
    /// Admit, move, pause, discharge, merge and erase patients, and print their records.
    #[command(subcommand)]
    Patients(PatientsCommand),
    /// Set and list who wears which device at which gateway, from when until when.
    Register(RegisterCommand),
    /// List, assign and discard readings that fall in no wearing interval.
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
    /// Prove that everything gateways took in for a patient is stored, or list what is missing.
    Proof(ProofCommand),
    /// Show, check and try alert rules before they are in force.
    #[command(subcommand)]
    Rules(RulesCommand),
    /// Set which traffic takes which access: check, put, show and explain steering rules.
    #[command(subcommand)]
    Steering(SteeringCommand),
    /// Set who is notified of alerts, silence them for a while, and print their history.
    #[command(subcommand)]
    Alerts(AlertsCommand),
    /// Enrol gateways, list them, and revoke their certificates.
    #[command(subcommand)]
    Gateways(GatewaysCommand),
    /// Make, list and remove accounts of people who sign in with a password.
    #[command(subcommand)]
    Accounts(AccountsCommand),
    /// Print the log of reads and changes by people.
    Audit(AuditCommand),
    /// Copy the embedded store, and restore it without bringing back what was removed.
    #[command(subcommand)]
    Backup(BackupCommand),
    /// Bring the schema of the store up to date.
    Migrate(MigrateCommand),
    /// Prepare an installation before its services start: schema, administrator, simulated patients
    /// in the register.
    Setup(SetupCommand),
    /// Send one reading through an installation, from a gateway's entry to the store, and read it
    /// back.
    Trial(TrialCommand),
    /// Create the TUN device for a proxy without the right to, in a pod or a container.
    Tun(TunCommand),
    /// Certificates and passwords of an installation, made on its first start.
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Report whether a service is ready, and which checks fail; exit status 1 if it is not.
    Health(HealthCommand),
    /// Show the paths of a gateway or a proxy: rate, round trip, loss, share, bytes of the month
    /// and steering rules.
    Paths(PathsCommand),
    /// Record the paths of a gateway as qlog files, within a bound on disk.
    #[command(subcommand)]
    Qlog(QlogCommand),
    /// Measure a path between two machines: round trip at both ends, loss of each direction, and
    /// the keepalive that suits it.
    #[command(subcommand)]
    Probe(ProbeCommand),
    /// Check an installation (certificates, engines, clocks, topics, services) and advise what to
    /// do.
    Doctor(Box<DoctorCommand>),
    /// List, print and replay records that a service could not process.
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
    /// Issue certificates from the authority in a data directory.
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Compute what access networks give to patients: load, headroom, and cost of a month.
    Plan(PlanCommand),
    /// Compute the bytes of a gateway in a month, and their price.
    Budget(BudgetCommand),
    /// Print a completion script for a shell.
    #[command(
        after_help = "Examples:\n  braid completion bash > /etc/bash_completion.d/braid\n  braid completion zsh > \"${fpath[1]}/_braid\""
    )]
    Completion {
        /// The shell.
        shell: Shell,
    },
}

pub fn main() -> ExitCode {
    match run(std::env::args_os().collect()) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(args: Vec<OsString>) -> Result<ExitCode, Failure> {
    refuse_control_characters(&args)?;
    let file = match config_path(&args) {
        Some(path) => Some(ConfigFile::read(&path, &NOUNS)?),
        None => None,
    };
    let command = layered(file.as_ref())?;
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for (name, meant) in variables::mistyped(&command, set) {
        eprintln!("warning: {name} is set but has no effect; the nearest known name is {meant}");
    }
    let typed = args.clone();
    let matches = match command.clone().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return Ok(refuse(&error, &typed, file.as_ref())),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return Ok(refuse(&error, &typed, file.as_ref())),
    };
    match cli.command {
        Braid::Service(service) => service.run()?,
        Braid::Config { service } => {
            let text = effective(&service, &matches, file.as_ref(), &command)?;
            process::print(&text)?;
            // The printed values are asked for, not a start.
            if let Err(error) = service.validate() {
                eprintln!("note: the service would not start with this: {error}");
            }
        }
        Braid::Link(link) => link.run()?,
        Braid::Episode(episode) => episode.run()?,
        Braid::Patients(patients) => patients.run()?,
        Braid::Register(register) => register.run()?,
        Braid::Quarantine(quarantine) => quarantine.run()?,
        Braid::Proof(proof) => return proof.run(),
        Braid::Rules(rules) => return rules.run(),
        Braid::Steering(steering) => return steering.run(),
        Braid::Alerts(alerts) => alerts.run()?,
        Braid::Gateways(gateways) => gateways.run()?,
        Braid::Accounts(accounts) => accounts.run()?,
        Braid::Audit(audit) => audit.run()?,
        Braid::Backup(backup) => backup.run()?,
        Braid::Migrate(migrate) => migrate.run()?,
        Braid::Setup(setup) => setup.run()?,
        Braid::Trial(trial) => trial.run()?,
        Braid::Tun(tun) => tun.run()?,
        Braid::Secrets(secrets) => secrets.run()?,
        Braid::Health(health) => return health.run(),
        Braid::Paths(paths) => paths.run()?,
        Braid::Qlog(qlog) => qlog.run()?,
        Braid::Probe(probe) => return probe.run(),
        Braid::Doctor(doctor) => return doctor.run(),
        Braid::DeadLetters(letters) => letters.run()?,
        Braid::Identity(identity) => identity.run()?,
        Braid::Plan(plan) => plan.run()?,
        Braid::Budget(budget) => budget.run()?,
        Braid::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut layered(None)?, "braid", &mut script);
            process::verbatim(&String::from_utf8_lossy(&script))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Every id, name and reason that is typed is one line without control characters.
fn refuse_control_characters(args: &[OsString]) -> Result<(), ConfigError> {
    for (number, arg) in args.iter().enumerate().skip(1) {
        if let Err(found) = contracts::text::check(&arg.to_string_lossy()) {
            return Err(ConfigError::new(
                "arguments",
                format!("word {number} {found}"),
                "--reason \"the charger is here\"",
            ));
        }
    }
    Ok(())
}

/// The command with file and environment underneath its flags, for the services and for `config
/// <service>`.
fn layered(file: Option<&ConfigFile>) -> Result<Command, ConfigError> {
    let mut command = Cli::command();
    // `--config` must not become a flag of the subcommands before they are layered: build()
    // propagates globals.
    for noun in NOUNS {
        let mut refused = None;
        let mut layer =
            |sub: Command| match config::layer(with_own_defaults(sub.clone(), noun), noun, file) {
                Ok(layered) => layered,
                Err(error) => {
                    refused = Some(error);
                    sub
                }
            };
        command = command.mut_subcommand(noun, &mut layer);
        if !JOBS.contains(&noun) {
            command = command.mut_subcommand("config", |sub| sub.mut_subcommand(noun, &mut layer));
        }
        if let Some(error) = refused {
            return Err(error);
        }
    }
    Ok(discreet(command))
}

/// Help shows no secret of a variable or of the file, and no empty default.
fn discreet(command: Command) -> Command {
    let arg = |arg: Arg| {
        let is_secret = is_secret(&arg);
        let is_empty = arg.get_default_values() == [""];
        arg.hide_env_values(is_secret)
            .hide_default_value(is_secret || is_empty)
    };
    command.mut_args(arg).mut_subcommands(discreet)
}

fn is_secret(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<Secret>()
}

/// Services on one machine need different admin ports. `up` prints what people need, and logs only
/// warnings.
fn with_own_defaults(command: Command, noun: &str) -> Command {
    if JOBS.contains(&noun) {
        return command;
    }
    let index = NOUNS
        .iter()
        .position(|known| *known == noun)
        .unwrap_or_default();
    // `up` uses 9100, the services 9101 and on in the order of the data path.
    let port = if noun == "up" { 9100 } else { 9101 + index };
    let command = command.mut_arg("admin", |arg| {
        arg.default_value(format!("127.0.0.1:{port}"))
    });
    if noun == "up" {
        return command.mut_arg("log", |arg| arg.default_value("warn"));
    }
    command
}

/// The file must be known before the rest can be parsed, since it may supply required values.
fn config_path(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter().skip(1);
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if text == "--" {
            break;
        }
        if text == "--config" {
            return args.next().map(PathBuf::from);
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Some(Path::new(path).to_owned());
        }
    }
    std::env::var_os("BRAID_CONFIG").map(PathBuf::from)
}

/// Prints clap's message, and advice that clap does not know.
fn refuse(error: &clap::Error, typed: &[OsString], file: Option<&ConfigFile>) -> ExitCode {
    // An error on the terminal cannot be reported.
    let _ = error.print();
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        return ExitCode::SUCCESS;
    }
    let is_set = |variable: &str| std::env::var_os(variable).is_some();
    for advice in advice(error, typed, file, is_set) {
        eprintln!("\n  {advice}");
    }
    ExitCode::from(EXIT_CONFIG)
}

/// The source of a refused value, unless it was typed, and the flag's default as an example. For a
/// command of the laboratory, its program.
fn advice(
    error: &clap::Error,
    typed: &[OsString],
    file: Option<&ConfigFile>,
    is_set: impl Fn(&str) -> bool,
) -> Vec<String> {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && ["lab", "bench"].contains(&word.as_str())
    {
        let of_lab = if word == "lab" { "" } else { " bench" };
        return vec![format!(
            "the laboratory is the program braid-lab: cargo run --release -p braid-lab --{of_lab}"
        )];
    }
    let is_value = matches!(
        error.kind(),
        ErrorKind::ValueValidation | ErrorKind::InvalidValue
    );
    let long = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(shown)) if is_value => shown.split([' ', '=']).next(),
        _ => None,
    };
    let Some(long) = long.and_then(|it| it.strip_prefix("--")) else {
        return Vec::new();
    };
    let noun = typed.iter().find_map(|it| NOUNS.iter().find(|n| it == *n));
    let mut advice = Vec::new();
    let flag = format!("--{long}");
    let is_flag = |it: &OsString| it.to_string_lossy().split('=').next() == Some(&flag);
    if let Some(noun) = noun
        && !typed.iter().any(is_flag)
    {
        let variable = config::variable(noun, long);
        match file {
            _ if is_set(&variable) => advice.push(format!("it stands in {variable}")),
            Some(file) => advice.push(format!("it stands in {}, [{noun}]", file.path())),
            None => {}
        }
    }
    // The unchanged command: the layered one may have the refused value as its default.
    let command = Cli::command();
    let of = |sub: &&Command| noun.is_none_or(|noun| sub.get_name() == *noun);
    let mut args = command
        .get_subcommands()
        .filter(of)
        .flat_map(Command::get_arguments);
    let arg = args.find(|arg| arg.get_long() == Some(long));
    let default = arg.and_then(|arg| arg.get_default_values().first()?.to_str());
    if let Some(default) = default.filter(|it| !it.is_empty()) {
        advice.push(format!("example: {flag} {default}"));
    }
    advice
}

fn effective(
    service: &ServiceCommand,
    matches: &ArgMatches,
    file: Option<&ConfigFile>,
    command: &Command,
) -> Result<String, Failure> {
    let of_config = matches.subcommand_matches("config");
    let (noun, matches) = of_config
        .and_then(ArgMatches::subcommand)
        .ok_or_else(|| Failure::other("no service named"))?;
    let command = command
        .find_subcommand(noun)
        .ok_or_else(|| Failure::other("no such service"))?;
    service.render(matches, file, command)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod as_written;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod reference;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        layered(None).unwrap().debug_assert();
    }

    #[test]
    fn the_long_version_says_the_commit_and_the_short_one_is_a_number() {
        let command = layered(None).unwrap();
        assert_eq!(command.get_version(), Some(env!("CARGO_PKG_VERSION")));
        let long = command.get_long_version().unwrap();
        let (number, commit) = long.split_once(" (commit ").unwrap();
        assert_eq!(number, env!("CARGO_PKG_VERSION"));
        assert!(commit.ends_with(')') && commit.len() >= 8, "{commit}");
    }

    /// The chart asks for 20 s.
    #[test]
    fn a_proxy_that_drains_for_long_has_the_time() {
        let exit_limit = |args: &[&str]| {
            let command = layered(None).unwrap();
            let args = ["braid"].iter().chain(args);
            let matches = command.try_get_matches_from(args).unwrap();
            match Cli::from_arg_matches(&matches).unwrap().command {
                Braid::Service(service) => service.exit_limit(),
                _ => panic!("no service"),
            }
        };
        let usual = exit_limit(&["gateway"]);
        assert!(usual < std::time::Duration::from_secs(5));
        assert_eq!(exit_limit(&["proxy"]), usual);
        let long = exit_limit(&["proxy", "--drain-ms", "20000"]);
        assert!(long > std::time::Duration::from_secs(21), "{long:?}");
    }

    #[test]
    fn every_flag_of_every_service_has_help_a_variable_and_one_meaning() {
        let command = layered(None).unwrap();
        for noun in NOUNS {
            let sub = command.find_subcommand(noun).unwrap();
            let mut flags = 0;
            for arg in sub.get_arguments().filter(|arg| arg.get_long().is_some()) {
                flags += 1;
                assert!(
                    arg.get_help().is_some(),
                    "{noun} --{} has no help",
                    arg.get_id()
                );
                assert!(
                    arg.get_env().is_some(),
                    "{noun} --{} has no variable",
                    arg.get_id()
                );
            }
            assert!(flags > 5, "{noun} has {flags} flags");
        }
    }

    #[test]
    fn former_names_of_flags_of_the_proxy_still_hold() {
        let line = "braid proxy --allow a:1 --sessions-per-device-max 3 --tunnels-per-device-max 3 \
                    --plain-tunnels-per-device-max 3 --resume-mib-per-device-max 3";
        let matches = layered(None)
            .unwrap()
            .try_get_matches_from(line.split_whitespace());
        let matches = matches.unwrap();
        let (_, proxy) = matches.subcommand().unwrap();
        for field in ["sessions", "tunnels", "plain_tunnels", "resume_mib"] {
            let value = proxy.get_one::<usize>(&format!("{field}_per_gateway_max"));
            assert_eq!(value, Some(&3), "{field}");
        }
    }

    #[test]
    fn a_refused_value_is_found_where_it_stands() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, b"[ingest]\nlisten = 7\n").unwrap();
        let file = ConfigFile::read(file.path(), &NOUNS).unwrap();
        let told = |line: &str, file: Option<&ConfigFile>, set: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = layered(file).unwrap().try_get_matches_from(&words);
            advice(&error.unwrap_err(), &words, file, |it| it == set)
        };
        let example = "example: --listen 127.0.0.1:7001";
        assert_eq!(told("braid ingest --listen=x", None, ""), [example]);
        let in_file = format!("it stands in {}, [ingest]", file.path());
        assert_eq!(told("braid ingest", Some(&file), ""), [&in_file, example]);
        let variable = "BRAID_INGEST_LISTEN";
        let in_variable = format!("it stands in {variable}");
        assert_eq!(
            told("braid config ingest", Some(&file), variable),
            [&in_variable, example]
        );
    }

    #[test]
    fn a_command_of_the_laboratory_names_its_program() {
        for (typed, told) in [("braid lab targets", "-- "), ("braid bench", "-- bench")] {
            let words: Vec<OsString> = typed.split(' ').map(OsString::from).collect();
            let error = layered(None).unwrap().try_get_matches_from(&words);
            let advice = advice(&error.unwrap_err(), &words, None, |_| false).concat();
            assert!(
                advice.contains("braid-lab") && advice.ends_with(told.trim()),
                "{advice}"
            );
        }
    }

    #[test]
    fn a_control_character_is_refused_in_every_typed_word() {
        for word in ["a\nb", "--by=\u{1b}[2J", "a\tb", "\u{202e}adA", "\u{9b}"] {
            let args = ["braid", "audit", word].map(OsString::from);
            let refused = refuse_control_characters(&args).unwrap_err().to_string();
            assert!(
                refused.contains("word 2 has the control character"),
                "{refused}"
            );
        }
        let args = ["braid", "audit", "--by", "Zo\u{eb} N."].map(OsString::from);
        refuse_control_characters(&args).unwrap();
    }

    #[test]
    fn help_shows_no_secret() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text =
            "[gateway]\nsensor_token = 'hunter-two'\n[alerting]\nwebhook = 'https://hunter-two'\n";
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let file = ConfigFile::read(file.path(), &NOUNS).unwrap();
        let command = layered(Some(&file)).unwrap();
        for noun in ["gateway", "alerting"] {
            let mut command = command.find_subcommand(noun).unwrap().clone();
            let help = command.render_long_help().to_string();
            assert!(!help.contains("hunter-two"), "{help}");
        }
        // A variable of this process would be in it.
        let mut secrets = 0;
        for arg in command.get_subcommands().flat_map(Command::get_arguments) {
            assert_eq!(arg.is_hide_env_values_set(), is_secret(arg), "{arg:?}");
            secrets += usize::from(is_secret(arg));
        }
        assert!(secrets > 10, "{secrets} secrets");
    }

    #[test]
    fn the_file_is_found_wherever_it_stands() {
        let found = |args: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            config_path(&args)
        };
        let some = Some(PathBuf::from("a.toml"));
        assert_eq!(found(&["braid", "--config", "a.toml", "up"]), some);
        assert_eq!(found(&["braid", "up", "--config=a.toml"]), some);
    }
}
