//! `braid plan`: what access networks give to an operator's patients, and what that costs.

use std::io::Read;
use std::path::{Path, PathBuf};

use access_plan::{EXAMPLE, Plan};

use crate::process::{self, Failure};

/// Longest plan; a longer file is refused.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid plan --example > plan.toml   a plan to begin with\n  braid plan plan.toml               tables\n  braid plan plan.toml --json        for programs"
)]
pub struct PlanCommand {
    /// The plan.
    #[arg(value_name = "plan.toml", required_unless_present = "example")]
    file: Option<PathBuf>,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
    /// Print a plan to begin with, and nothing else.
    #[arg(long, conflicts_with_all = ["file", "json"])]
    example: bool,
}

impl PlanCommand {
    pub fn run(self) -> Result<(), Failure> {
        let Some(file) = self.file else {
            return process::print(EXAMPLE);
        };
        let outcome = access_plan::solve(&plan(&file)?);
        match self.json {
            true => process::json(&outcome),
            false => process::print(&access_plan::text(&outcome)),
        }
    }
}

fn plan(file: &Path) -> Result<Plan, Failure> {
    let named =
        |error: &dyn std::fmt::Display| Failure::other(format!("{}: {error}", file.display()));
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|error| named(&error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(named(&format!("more than {FILE_BYTES_MAX} bytes")));
    }
    Plan::from_toml(&text).map_err(|error| named(&error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_refused_plan_names_file_line_and_an_example() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan.toml");
        std::fs::write(&file, EXAMPLE).unwrap();
        plan(&file).unwrap();
        std::fs::write(&file, EXAMPLE.replace("coverage = 0.95", "coverage = 1.5")).unwrap();
        let refused = plan(&file).unwrap_err().to_string();
        for part in ["plan.toml: line ", "access[1].coverage", "for example"] {
            assert!(refused.contains(part), "{refused}");
        }
        std::fs::write(&file, "#".repeat(FILE_BYTES_MAX as usize + 1)).unwrap();
        assert!(plan(&file).unwrap_err().to_string().contains("more than"));
    }
}
