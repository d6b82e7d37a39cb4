//! Commands in help and documents can be typed as they are printed.

use clap::CommandFactory;
use clap::error::ErrorKind;
use testkit::command_lines::{in_documents, words};

use super::*;

/// Columns of a default terminal.
const COLUMNS: usize = 80;

/// Within a sentence a command may only be named.
const ONLY_NAMED: [ErrorKind; 3] = [
    ErrorKind::MissingRequiredArgument,
    ErrorKind::MissingSubcommand,
    ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
];

fn refusal(line: &str) -> Option<clap::Error> {
    let refused = Cli::command()
        .try_get_matches_from(words("braid-lab", line))
        .err()?;
    let is_help = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&refused.kind());
    (!is_help).then_some(refused)
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_has_help_and_examples_in_help_are_valid() {
    let command = Cli::command();
    let (mut examples, mut wrong) = (0, Vec::new());
    let visible = command.get_subcommands().filter(|it| !it.is_hide_set());
    for command in visible.chain([&command]) {
        for arg in command.get_arguments().filter(|it| it.get_help().is_none()) {
            wrong.push(format!("{}: no help: {}", command.get_name(), arg.get_id()));
        }
        let help = command.get_after_help().map(ToString::to_string);
        for line in help.unwrap_or_default().lines() {
            if line.starts_with("  ") && line.chars().count() > COLUMNS {
                wrong.push(format!("longer than {COLUMNS}:\n{line}"));
            }
            if !words("braid-lab", line).is_empty() {
                examples += 1;
                wrong.extend(refusal(line).map(|refused| format!("{line}\n{refused}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(examples > 20, "{examples} examples");
}

#[test]
fn commands_in_documents_are_valid() {
    let (mut commands, mut wrong) = (0, Vec::new());
    for written in in_documents("braid-lab") {
        commands += 1;
        if let Some(refused) = refusal(&written.line)
            && (written.is_typed || !ONLY_NAMED.contains(&refused.kind()))
        {
            let file = written.file.display();
            wrong.push(format!("{file}:\n{}\n{refused}", written.line));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 30, "{commands} commands");
}
