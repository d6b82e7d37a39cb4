//! The result of a run, as a table and as JSON.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use serde::Serialize;

use crate::{
    plan::Plan,
    verdict::{Fault, Verdict},
};

/// Differences in the table; the folder and the JSON contain all listed ones.
const SHOWN_MAX: usize = 20;

#[derive(Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub seconds: u32,
    pub took_s: u64,
    pub is_good: bool,
    /// Number of faults by target and kind.
    pub faults: BTreeMap<String, usize>,
    pub faults_overlapping: usize,
    pub verdict: Verdict,
    /// Processes that ended without having been killed, and invalid answers to sensors.
    pub unexpected: Vec<String>,
    /// Gateways whose readings were refused after their revocation.
    pub revoked: usize,
    /// Restores of the database; only longer runs have one.
    pub restored: usize,
    pub days_away: usize,
    /// Faults of the plan that this machine cannot play, each with the reason.
    pub not_played: Vec<String>,
    /// Folder of the logs; `None` after a good run.
    pub folder: Option<PathBuf>,
    /// The command that repeats the run.
    pub command: String,
}

impl Report {
    pub fn new(plan: &Plan, verdict: Verdict, unexpected: Vec<String>, took: Duration) -> Report {
        let mut faults = BTreeMap::new();
        for fault in plan.faults() {
            *faults.entry(kind(fault)).or_default() += 1;
        }
        Report {
            seed: plan.seed,
            seconds: plan.seconds,
            took_s: took.as_secs(),
            is_good: verdict.is_good() && unexpected.is_empty(),
            faults,
            faults_overlapping: plan.overlapping(),
            verdict,
            unexpected,
            revoked: 0,
            restored: 0,
            days_away: 0,
            not_played: Vec::new(),
            folder: None,
            command: format!(
                "make chaos SEED={} MINUTES={}",
                plan.seed,
                f64::from(plan.seconds) / 60.0
            ),
        }
    }

    pub fn is_good(&self) -> bool {
        self.is_good
    }

    fn show_recovery(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = &self.verdict;
        writeln!(f, "\nrecovery in milliseconds")?;
        let percentiles = [
            (
                "a fault ends, to the first reading after it",
                verdict.recovery,
            ),
            ("an alert is due, to people are told", verdict.told),
        ];
        for (what, of) in percentiles {
            writeln!(
                f,
                "  {what:<46} {:>8}  p50 {}  p99 {}",
                of.count, of.p50_ms, of.p99_ms
            )?;
        }
        Ok(())
    }
}

/// Without names of gateways and patients, so that the table of any run has few lines.
fn kind(fault: &crate::plan::Fault) -> String {
    use crate::plan::{Kind, Target};
    let target = match &fault.target {
        Target::Process(_) if fault.kind == Kind::Restart => "every process".to_owned(),
        Target::Process(name) if name.starts_with("gw-") => "gateway".to_owned(),
        Target::Network { .. } => "both links of a gateway".to_owned(),
        Target::Link { link, .. } => format!("{} of a gateway", crate::scenario::LINKS[*link].0),
        Target::Radio { .. } => "sensors of a patient".to_owned(),
        Target::Wearer { .. } => "device of a patient".to_owned(),
        Target::Disk { .. } => "disk of a gateway".to_owned(),
        Target::Clock { process } if process.starts_with("gw-") => "clock of a gateway".to_owned(),
        target => target.to_string(),
    };
    format!("{target} {}", fault.kind)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, what: &str, count: usize| {
            writeln!(f, "  {what:<46} {count:>8}")
        };
        let total: usize = self.faults.values().sum();
        writeln!(
            f,
            "chaos, seed {}, {} s of faults, {} s in all",
            self.seed, self.seconds, self.took_s
        )?;
        writeln!(
            f,
            "\nfaults: {total}, of which {} began while another lasted",
            self.faults_overlapping
        )?;
        for (what, count) in &self.faults {
            line(f, what, *count)?;
        }
        for text in &self.not_played {
            writeln!(f, "  NOT PLAYED: {text}")?;
        }
        let verdict = &self.verdict;
        writeln!(f, "\ncounted")?;
        line(f, "readings accepted", verdict.readings_accepted)?;
        line(f, "readings stored", verdict.readings_stored)?;
        line(f, "alerts due", verdict.alerts_due)?;
        let kinds = verdict.alerts_due_by_kind;
        line(f, "  thresholds", kinds.thresholds)?;
        line(f, "  falls", kinds.falls)?;
        line(f, "  NEWS2 scores", kinds.scores)?;
        line(f, "alerts raised", verdict.alerts_raised)?;
        line(f, "alerts acknowledged", verdict.acknowledged)?;
        line(f, "alerts over before that", verdict.alerts_over)?;
        line(
            f,
            "returns that are alerts of their own",
            verdict.returns_apart,
        )?;
        line(f, "reminders", verdict.reminders)?;
        line(f, "gateways revoked", self.revoked)?;
        line(f, "databases restored", self.restored)?;
        line(f, "days away", self.days_away)?;
        line(
            f,
            "readings of next wearers of a device",
            verdict.readings_of_next_wearers,
        )?;
        line(f, "silences raised", verdict.silences)?;
        line(
            f,
            "alerts of other rules, not judged",
            verdict.alerts_of_other_rules,
        )?;
        line(f, "webhook calls", verdict.calls)?;
        line(
            f,
            "webhook calls repeated with the same key",
            verdict.calls_repeated,
        )?;
        line(f, "letters", verdict.letters)?;
        self.show_recovery(f)?;
        writeln!(f, "\ndifferences, each must be 0")?;
        for fault in Fault::ALL {
            line(
                f,
                fault.what(),
                verdict.counts.get(&fault).copied().unwrap_or(0),
            )?;
        }
        line(f, "unexpected ends and answers", self.unexpected.len())?;
        for text in verdict
            .listed
            .iter()
            .chain(&self.unexpected)
            .take(SHOWN_MAX)
        {
            writeln!(f, "  - {text}")?;
        }
        if let Some(folder) = &self.folder {
            writeln!(f, "\nlogs and plan: {}", folder.display())?;
        }
        writeln!(f, "\nagain: {}", self.command)?;
        write!(
            f,
            "{}",
            if self.is_good {
                "good: nothing is missing"
            } else {
                "FAILED"
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_names_every_difference_and_the_command_that_repeats_the_run() {
        let plan = Plan::new(7, 180);
        let good = Report::new(
            &plan,
            Verdict::default(),
            Vec::new(),
            Duration::from_secs(200),
        );
        let text = good.to_string();
        assert!(
            good.is_good() && text.ends_with("nothing is missing"),
            "{text}"
        );
        assert!(text.contains("make chaos SEED=7 MINUTES=3\n"), "{text}");
        assert!(
            Fault::ALL.iter().all(|fault| text.contains(fault.what())),
            "{text}"
        );
        let mut verdict = Verdict::default();
        verdict.counts.insert(Fault::AlertMissing, 1);
        let bad = Report::new(&plan, verdict, Vec::new(), Duration::ZERO);
        assert!(!bad.is_good() && bad.to_string().ends_with("FAILED"));
        let ended = vec!["ingest ended by itself".to_owned()];
        assert!(!Report::new(&plan, Verdict::default(), ended, Duration::ZERO).is_good());
    }
}
