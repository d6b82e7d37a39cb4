//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lab::LabCommand;

use crate::bench::{BenchCommand, bare::EndCommand};
use crate::failure::Failure;

/// Braid's laboratory: experiments in virtual time and in kernel time, and figures of this machine.
///
/// Exit status 1: a target is missed, or the run could not be made.
#[derive(Debug, Parser)]
#[command(
    name = "braid-lab",
    version,
    max_term_width = 110,
    after_help = "Examples:\n  braid-lab targets --seed 77       figures beside their targets\n  braid-lab all --out report        every experiment, as one HTML page\n  braid-lab bench --only speed      this machine"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Lab(Box<LabCommand>),
    /// Figures of this machine, each beside its target.
    Bench(BenchCommand),
    #[command(hide = true)]
    BenchEnd(EndCommand),
}

pub fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Lab(lab) => lab.run().map_err(Failure::other),
        Command::Bench(bench) => bench.run(),
        Command::BenchEnd(end) => end.run().map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod as_written;
