//! Runs many scenarios over all cores, with a bar for people who watch.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;

use crate::identity::Identity;
use crate::mechanisms::Mechanisms;
use crate::report::RunReport;
use crate::scenario::{Scenario, ScenarioError};
use crate::selection::Selection;
use crate::world;

/// Everything that the runs of one command share.
pub struct Runner {
    identity: Identity,
    /// Several at once where experiments run beside each other.
    bars: MultiProgress,
    only_run: Option<String>,
    selection: Selection,
}

impl Runner {
    pub fn new(identity: Identity, progress: bool) -> Self {
        let bars = MultiProgress::new();
        if !progress {
            bars.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self {
            identity,
            bars,
            only_run: None,
            selection: Selection::default(),
        }
    }

    /// Runs only the selected part.
    pub fn select(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Whether figures with this beginning of an id are asked for.
    pub fn wants(&self, prefix: &str) -> bool {
        self.selection.wants(prefix)
    }

    /// Leaves out every run with another name.
    pub fn only_run(mut self, name: Option<String>) -> Self {
        self.only_run = name;
        self
    }

    /// Whether the run is not left out.
    pub(crate) fn is_asked(&self, scenario: &Scenario) -> bool {
        let only = self.only_run.as_ref();
        only.is_none_or(|name| *name == scenario.name)
    }

    /// The one run asked for, if any.
    pub fn only(&self) -> Option<&str> {
        self.only_run.as_deref()
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Prints a line above the bars.
    pub(crate) fn say(&self, line: &str) {
        self.bars.suspend(|| eprintln!("{line}"));
    }

    /// A bar for so many runs.
    pub fn bar(&self, what: &str, runs: u64) -> ProgressBar {
        let bar = self.bars.add(ProgressBar::new(runs));
        if let Ok(style) = ProgressStyle::with_template("{msg:28} {wide_bar} {pos}/{len} {eta}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar
    }

    /// The reports in the order of the scenarios, whatever core they ran on.
    pub fn run(
        &self,
        what: &str,
        scenarios: &[Scenario],
        mechanisms: Mechanisms,
    ) -> Result<Vec<RunReport>, ScenarioError> {
        let scenarios: Vec<&Scenario> = scenarios
            .iter()
            .filter(|scenario| self.is_asked(scenario))
            .collect();
        let bar = self.bar(what, scenarios.len() as u64);
        let reports = scenarios
            .par_iter()
            .map(|scenario| {
                let report = world::run(scenario, &self.identity, mechanisms);
                bar.inc(1);
                report
            })
            .collect();
        bar.finish_and_clear();
        reports
    }
}
