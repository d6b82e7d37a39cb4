//! Commands in help and documents can be typed as they are printed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use testkit::command_lines::{Written, in_documents, words};

use super::*;

/// Columns of a default terminal.
const COLUMNS: usize = 80;

/// Every command below `command`, with its words.
fn commands(command: &Command, words: &str, found: &mut Vec<(String, Command)>) {
    for sub in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let words = format!("{words} {}", sub.get_name());
        found.push((words.clone(), sub.clone()));
        commands(sub, &words, found);
    }
}

fn all() -> Vec<(String, Command)> {
    let root = layered(None).unwrap();
    let mut found = vec![("braid".to_owned(), root.clone())];
    commands(&root, "braid", &mut found);
    found
}

fn refusal(line: &str) -> Option<clap::Error> {
    let words = words("braid", line);
    let refused = layered(None).unwrap().try_get_matches_from(words).err()?;
    let is_help = matches!(
        refused.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    (!is_help).then_some(refused)
}

fn root() -> PathBuf {
    let lock = testkit::sources::file("Cargo.lock").unwrap();
    lock.parent().unwrap().to_owned()
}

#[test]
fn every_flag_and_argument_has_help() {
    let mut without = Vec::new();
    for (words, command) in all() {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            if arg.get_help().is_none() {
                without.push(format!("{words}: {}", arg.get_id()));
            }
        }
    }
    assert!(without.is_empty(), "no help:\n{}", without.join("\n"));
}

#[test]
fn examples_in_help_are_valid() {
    let (mut examples, mut wrong) = (0, Vec::new());
    for (of, command) in all() {
        let help = command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        // A line that a narrow terminal breaks in two cannot be copied.
        let lines = help.lines().filter(|line| line.starts_with("  "));
        for line in lines.filter(|line| line.chars().count() > COLUMNS) {
            wrong.push(format!("{of} --help: longer than {COLUMNS}:\n{line}"));
        }
        for line in help.replace(" \\\n     ", "").lines() {
            if words("braid", line).is_empty() {
                continue;
            }
            examples += 1;
            // Variables before it may supply required values.
            let is_whole = line.trim().starts_with("braid");
            if let Some(refused) = refusal(line)
                && (is_whole || refused.kind() != ErrorKind::MissingRequiredArgument)
            {
                wrong.push(format!("{of} --help:\n{line}\n{refused}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(examples > 50, "{examples} examples");
}

/// Within a sentence a command may only be named, with words for its values.
fn is_named_only(refused: &clap::Error) -> bool {
    let is_word = |given: &ContextValue| match given {
        ContextValue::String(word) => {
            word.starts_with('<') || word.chars().all(|it| it.is_ascii_uppercase())
        }
        _ => false,
    };
    match refused.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::MissingSubcommand
        | ErrorKind::InvalidValue => true,
        ErrorKind::ValueValidation => refused.get(ContextKind::InvalidValue).is_some_and(is_word),
        ErrorKind::InvalidSubcommand => refused
            .get(ContextKind::InvalidSubcommand)
            .is_some_and(is_word),
        _ => false,
    }
}

#[test]
fn commands_in_documents_are_valid() {
    let (mut commands, mut wrong) = (0, Vec::new());
    for Written {
        file,
        line,
        is_typed,
    } in in_documents("braid")
    {
        commands += 1;
        // Variables before the command may supply required values.
        let is_whole = line.trim().starts_with("braid");
        if let Some(refused) = refusal(&line)
            && (is_whole || refused.kind() != ErrorKind::MissingRequiredArgument)
            && (is_typed || !is_named_only(&refused))
        {
            wrong.push(format!("{}:\n{line}\n{refused}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 50, "{commands} commands");
}

/// Flags in the files of an installation that belong to other programs: Envoy, kubectl, docker, and
/// a script beside the chart.
const FLAGS_OF_OTHERS: [&str; 8] = [
    "concurrency",
    "drain-time-s",
    "dry-run",
    "enrolment",
    "from-file",
    "log-level",
    "rm",
    "wait",
];

/// Compose files, and the chart's templates.
fn installations(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => installations(&path, found),
            false => found.push(fs::read_to_string(&path).unwrap()),
        }
    }
}

#[test]
fn compose_and_charts_name_existing_flags_and_variables() {
    let (mut flags, mut variables) = (BTreeSet::new(), BTreeSet::new());
    for (_, command) in all() {
        for arg in command.get_arguments() {
            flags.extend(arg.get_long().map(str::to_owned));
            variables.extend(arg.get_env().map(|it| it.to_string_lossy().into_owned()));
        }
    }
    let mut texts = Vec::new();
    for folder in ["compose", "charts/braid/templates"] {
        installations(&root().join(folder), &mut texts);
    }
    for file in ["docker-compose.yml", ".env", "charts/braid/identities.sh"] {
        texts.push(fs::read_to_string(root().join(file)).unwrap());
    }
    let is_of_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let (mut named, mut unknown) = (0, BTreeSet::new());
    for word in texts.iter().flat_map(|it| it.split(|it| !is_of_name(it))) {
        // Names with a dot are Prometheus'. The chart composes a name that goes on in braces.
        // BRAID_IMAGE belongs to .env.
        let is_known = match word.strip_prefix("--") {
            Some(flag) if !flag.starts_with(|it: char| it.is_ascii_lowercase()) => continue,
            Some(flag) => {
                flags.contains(flag) || flag.contains('.') || FLAGS_OF_OTHERS.contains(&flag)
            }
            None if !word.starts_with("BRAID_") => continue,
            None => variables.contains(word) || ["BRAID_", "BRAID_IMAGE"].contains(&word),
        };
        named += 1;
        if !is_known {
            unknown.insert(word);
        }
    }
    assert!(unknown.is_empty(), "no command knows {unknown:?}");
    assert!(named > 100, "only {named} names found");
}
