//! Layered configuration: defaults, then a TOML file, then environment, then flags.
//!
//! The command line is the schema. Each field of a service's `Config` is a flag `--some-field`, the
//! key `some_field` of the file's table `[noun]`, and the variable `BRAID_<NOUN>_SOME_FIELD`.
//! [`layer`] makes the file's values the defaults of the flags and adds the variables, so clap
//! keeps the order of precedence. An unknown table or key is refused with the nearest known name,
//! before any port is bound.

mod address;
mod error;
mod field;
mod file;
mod print;

use std::fmt;
use std::path::Path;

use clap::builder::OsStr;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

pub use address::parse_address;
pub use error::ConfigError;
pub use field::variable;
pub use file::ConfigFile;
pub use print::render;

use field::Field;

/// EX_USAGE of sysexits.h: the command was used incorrectly.
pub const EXIT_CONFIG: u8 = 64;

/// A service's typed configuration.
pub trait ServiceConfig: clap::Args + serde::Serialize + Clone + Send {
    /// The service's name: subcommand, table of the file, metric prefix.
    const NOUN: &'static str;

    /// Checks that types cannot express: ranges, combinations, required files.
    fn validate(&self) -> Result<(), ConfigError>;
}

/// Parses the file that a setting names; the error names setting, file and reason.
pub fn parse_file<T, E: fmt::Display>(
    field: &str,
    file: &Path,
    example: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, ConfigError> {
    let refuse = |reason: &dyn fmt::Display| {
        ConfigError::new(field, format!("{}: {reason}", file.display()), example)
    };
    let text = std::fs::read_to_string(file).map_err(|error| refuse(&error))?;
    parse(&text).map_err(|error| refuse(&error))
}

/// Origin of an effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File,
    Environment(String),
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File => f.write_str("file"),
            Origin::Environment(variable) => write!(f, "environment, {variable}"),
            Origin::Flag => f.write_str("flag"),
        }
    }
}

/// The configuration of `braid <service>` without any flag, file or variable.
pub fn defaults<C: clap::Args>() -> Result<C, clap::Error> {
    let command = C::augment_args(Command::new("defaults").no_binary_name(true));
    C::from_arg_matches(&command.try_get_matches_from(std::iter::empty::<&str>())?)
}

/// Gives the flags of `command` their environment variables and, from the table `[noun]` of `file`,
/// their defaults.
pub fn layer(
    mut command: Command,
    noun: &str,
    file: Option<&ConfigFile>,
) -> Result<Command, ConfigError> {
    let fields: Vec<Field> = command
        .get_arguments()
        .filter(|arg| arg.get_long().is_some() && !is_about_the_command_line(arg.get_id().as_str()))
        .map(Field::of)
        .collect();
    let values = match file {
        Some(file) => file.values(noun, &fields)?,
        None => Vec::new(),
    };
    let is_set = |variable: &str| std::env::var_os(variable).is_some();
    for field in &fields {
        command = command.mut_arg(&field.id, |arg| match arg.get_env() {
            Some(_) => arg,
            None => arg.env(OsStr::from(field.variable(noun, is_set))),
        });
    }
    for (id, values) in values {
        command = command.mut_arg(id, |arg| arg.required(false).default_values(values));
    }
    Ok(command)
}

/// Flags that are not fields of a configuration.
fn is_about_the_command_line(id: &str) -> bool {
    matches!(id, "help" | "version" | "config")
}

/// Origin of the value of `field`, after parsing a command that went through [`layer`].
pub fn origin(
    matches: &ArgMatches,
    noun: &str,
    file: Option<&ConfigFile>,
    command: &Command,
    field: &str,
) -> Origin {
    let arg = command.get_arguments().find(|arg| arg.get_id() == field);
    let is_in_file = |arg| file.is_some_and(|file| file.sets(noun, &Field::of(arg)));
    match matches.value_source(field) {
        Some(ValueSource::CommandLine) => Origin::Flag,
        Some(ValueSource::EnvVariable) => {
            let named = arg
                .and_then(|arg| arg.get_env())
                .map(|name| name.to_string_lossy().into_owned());
            Origin::Environment(named.unwrap_or_else(|| variable(noun, field)))
        }
        _ if arg.is_some_and(is_in_file) => Origin::File,
        _ => Origin::Default,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Secret;
    use clap::{Args, FromArgMatches};
    use std::io::Write;

    #[derive(Clone, Debug, Args, serde::Serialize)]
    struct Sample {
        /// Listener.
        #[arg(long, default_value = "127.0.0.1:8090")]
        listen: std::net::SocketAddr,
        /// Limit.
        #[arg(long, alias = "rate-bound", default_value_t = 10)]
        rate_limit: u32,
        /// Needed.
        #[arg(long)]
        upstream: String,
        /// Token.
        #[arg(long, default_value = "none")]
        token: Secret,
        /// Several.
        #[arg(long)]
        allow: Vec<String>,
        /// May be absent.
        #[arg(long)]
        note: Option<String>,
        /// Switch.
        #[arg(long)]
        verbose: bool,
    }

    fn file(text: &str) -> ConfigFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        ConfigFile::read(file.path(), &["sample", "other"]).unwrap()
    }

    fn refused(text: &str) -> ConfigError {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let read = ConfigFile::read(file.path(), &["sample", "other"]);
        match read {
            Err(error) => error,
            Ok(file) => layer(command(), "sample", Some(&file)).unwrap_err(),
        }
    }

    fn command() -> Command {
        Sample::augment_args(Command::new("sample"))
    }

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let file = file(
            "[sample]\nrate_limit = 20\nlisten = \"127.0.0.1:1\"\nupstream = \"a\"\nallow = [\"x\", \"y\"]\nverbose = true\n[other]\nz = 1\n",
        );
        let command = layer(command(), "sample", Some(&file)).unwrap();
        let matches = command
            .clone()
            .try_get_matches_from(["sample", "--listen", "127.0.0.1:2", "--token", "hunter2"])
            .unwrap();
        let sample = Sample::from_arg_matches(&matches).unwrap();
        assert_eq!(sample.listen.port(), 2);
        assert_eq!(sample.rate_limit, 20);
        assert_eq!(sample.upstream, "a");
        assert_eq!(sample.allow, ["x", "y"]);
        assert!(sample.verbose);

        let text = render(&sample, &matches, "sample", Some(&file), &command).unwrap();
        assert!(text.contains("listen = \"127.0.0.1:2\"  # flag"), "{text}");
        assert!(text.contains("rate_limit = 20  # file"), "{text}");
        assert!(text.contains("token = \"***\"  # flag"), "{text}");
        assert!(text.contains("# note is not set"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        let parsed: toml::Table = text.parse().unwrap();
        assert_eq!(parsed["sample"]["rate_limit"].as_integer(), Some(20));
    }

    #[test]
    fn without_a_file_the_defaults_hold() {
        let command = layer(command(), "sample", None).unwrap();
        let matches = command
            .clone()
            .try_get_matches_from(["sample", "--upstream", "b"])
            .unwrap();
        assert_eq!(
            origin(&matches, "sample", None, &command, "listen"),
            Origin::Default
        );
        assert_eq!(Sample::from_arg_matches(&matches).unwrap().rate_limit, 10);
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known_one() {
        let error = refused("[sample]\nrate_limits = 20\n");
        assert_eq!(error.field, "[sample] rate_limits");
        assert!(error.example.contains("rate_limit"), "{error}");

        let error = refused("[sampel]\nrate_limit = 20\n");
        assert!(error.example.contains("[sample]"), "{error}");

        let error = refused("[sample]\nlisten = { port = 1 }\n");
        assert!(error.reason.contains("table"), "{error}");

        assert!(refused("listen = ").reason.contains("TOML"));
        assert!(refused("listen = 3\n").reason.contains("table"));
    }

    #[test]
    fn a_former_name_of_a_flag_holds_in_every_layer() {
        let file = file("[sample]\nrate_bound = 20\nupstream = \"a\"\n");
        let command = layer(command(), "sample", Some(&file)).unwrap();
        let limit = |line: &str| {
            let matches = command.clone().try_get_matches_from(line.split(' '));
            let matches = matches.unwrap();
            let from = origin(&matches, "sample", Some(&file), &command, "rate_limit");
            (Sample::from_arg_matches(&matches).unwrap().rate_limit, from)
        };
        assert_eq!(limit("sample"), (20, Origin::File));
        assert_eq!(limit("sample --rate-bound 30"), (30, Origin::Flag));

        let arg = command
            .get_arguments()
            .find(|it| it.get_id() == "rate_limit");
        let field = Field::of(arg.unwrap());
        let variable = |set: &[&str]| field.variable("sample", |it| set.contains(&it));
        let (current, former) = ("BRAID_SAMPLE_RATE_LIMIT", "BRAID_SAMPLE_RATE_BOUND");
        assert_eq!(variable(&[]), current);
        assert_eq!(variable(&[former]), former);
        assert_eq!(variable(&[current, former]), current);
    }

    #[test]
    fn every_flag_gets_its_variable() {
        let command = layer(command(), "path-telemetry", None).unwrap();
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_id() == "rate_limit")
            .unwrap();
        assert_eq!(arg.get_env().unwrap(), "BRAID_PATH_TELEMETRY_RATE_LIMIT");
    }
}
