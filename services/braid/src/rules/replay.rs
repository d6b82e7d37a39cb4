//! `braid rules replay`: runs a rule set over stored history.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use alerting::rules_then::RulesThen;
use contracts::text;
use contracts::vitals::{Priority, Sample};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use store::{Scope, Spo2Scale, Stays, Store};
use vitals::rehearsal::{Raised, Rehearsal, missed};
use vitals::{Profile, RuleSet};

use super::rule_file::read_rules;
use crate::audit::Asker;
use crate::engines::StoreChoice;
use crate::process::{self, Failure, when};

const DAY_US: f64 = 86_400e6;
/// Largest distance in time between an alert of the present rules and its counterpart among the
/// proposed ones.
const SLACK_US: i64 = 60_000_000;
/// Samples read at once.
const PAGE: usize = 20_000;
/// Missed alerts printed one by one. The table counts all.
const SHOWN_MAX: usize = 20;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid rules replay --rules rules.json --by Eve   beside those in force, 7 days\n  braid rules replay --by Eve                      what those in force raised\n  braid rules replay --rules new.json --against old.json --days 30 \\\n      --patient ada --by Eve --reason \"she is called too often\""
)]
pub struct ReplayCommand {
    /// The proposed rule set. Absent: the present one.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The present rule set, whose alerts must not be missed. Absent: the documents in force for
    /// each patient at each reading.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// The configured rule set of alerting (--rules), in force without a document. Absent: the
    /// built-in set.
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    own: Option<PathBuf>,
    /// Length of the history.
    #[arg(long, value_name = "DAYS", default_value_t = 7.0)]
    days: f64,
    /// Only this patient; may be repeated.
    #[arg(long, value_name = "ID")]
    patient: Vec<String>,
    /// Tenant of the patients.
    #[arg(long, value_name = "ID", default_value = store::DEFAULT_TENANT)]
    tenant: String,
    /// Print JSON.
    #[arg(long, default_value_t = false)]
    json: bool,
    #[command(flatten)]
    asker: Asker,
    #[command(flatten)]
    store: StoreChoice,
}

/// Alerts of one rule in both sets.
#[derive(Debug, Default, Serialize)]
struct RuleCount {
    present: u64,
    proposed: u64,
    missed: u64,
}

#[derive(Debug, Serialize)]
struct Missed {
    patient: String,
    rule: String,
    at_us: i64,
    summary: String,
}

#[derive(Debug, Serialize)]
struct Report {
    patients: u64,
    samples: u64,
    /// Hours in which a patient has samples, in days.
    patient_days: f64,
    present_per_patient_day: f64,
    proposed_per_patient_day: f64,
    rules: BTreeMap<String, RuleCount>,
    missed: Vec<Missed>,
    /// Patients without a recorded change of the SpO2 scale. Their present scale is used.
    scale_of_today: Vec<String>,
}

impl ReplayCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if !(self.days > 0.0 && self.days.is_finite()) {
            return Err(Failure::other(format!(
                "--days {} is no time: write --days 7",
                self.days
            )));
        }
        // The sets may name metrics of the store's catalogue.
        process::block_on(self.store.open())??;
        let read = |file: &PathBuf| read_rules(Some(file)).map(Arc::new);
        let proposed = self.rules.as_ref().map(read).transpose()?;
        let against = self.against.as_ref().map(read).transpose()?;
        let own = Arc::new(read_rules(self.own.as_deref())?);
        let report = process::block_on(async {
            let store = self.store.open().await?;
            self.log(&*store).await?;
            self.replay(&*store, against, own, proposed).await
        })??;
        if report.patients == 0 {
            return Err(Failure::other(format!(
                "no such patient in tenant {:?} of {}",
                self.tenant,
                self.store.config().store
            )));
        }
        if self.json {
            process::json(&report)?;
        } else {
            process::print(&format!("{}\n", report.table()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// One row for each requested patient, or one for all.
    async fn log(&self, store: &dyn Store) -> Result<(), Failure> {
        let all = [String::new()];
        let patients = match self.patient.as_slice() {
            [] => &all[..],
            some => some,
        };
        for patient in patients {
            let detail = format!(", rules replayed over {} days", self.days);
            self.asker
                .reads(store, &self.tenant, "read series", patient, detail)
                .await?;
        }
        Ok(())
    }

    async fn replay(
        &self,
        store: &dyn Store,
        against: Option<Arc<RuleSet>>,
        own: Arc<RuleSet>,
        proposed: Option<Arc<RuleSet>>,
    ) -> Result<Report, Failure> {
        let scope = Scope::Tenant(self.tenant.clone());
        // Also those who have departed since.
        let patients = store.patient_records(&scope, Stays::All).await;
        let mut patients = patients.map_err(Failure::other)?;
        patients.retain(|entry| self.patient.is_empty() || self.patient.contains(&entry.id));
        let ids = patients.iter().map(|entry| entry.id.as_str());
        let then = RulesThen::read(store, &scope, ids).await;
        let present = Present {
            then: then.map_err(Failure::other)?,
            against,
            own,
        };
        let to_us = contracts::now_us();
        let from_us = to_us.saturating_sub((self.days * DAY_US) as i64);
        let style = ProgressStyle::with_template(
            "{bar:30} {pos}/{len} patients, {msg} samples, {eta} left",
        )
        .map_err(Failure::other)?;
        let bar = ProgressBar::new(patients.len() as u64).with_style(style);
        let mut report = Report {
            patients: patients.len() as u64,
            samples: 0,
            patient_days: 0.0,
            present_per_patient_day: 0.0,
            proposed_per_patient_day: 0.0,
            rules: BTreeMap::new(),
            missed: Vec::new(),
            scale_of_today: Vec::new(),
        };
        for entry in &patients {
            let scale = |time_us| Profile {
                spo2_scale: present
                    .then
                    .scale(&entry.id, time_us)
                    .unwrap_or(Spo2Scale::of_number(entry.spo2_scale.into())),
            };
            if present.then.scale(&entry.id, from_us).is_none() {
                report.scale_of_today.push(entry.id.clone());
            }
            let begin = present.rules(&entry.id, from_us);
            let mut rehearsals = [begin, proposed.as_ref().unwrap_or(begin)]
                .map(|rules| Rehearsal::new(&entry.id, Arc::clone(rules), scale(from_us)));
            let mut next_us = from_us;
            loop {
                let page = store
                    .samples(&scope, &entry.id, next_us, to_us, PAGE)
                    .await
                    .map_err(Failure::other)?;
                let (whole, resume_us) = whole_instants(&page);
                for sample in whole {
                    let rules = present.rules(&entry.id, judged_us(sample));
                    let [old, new] = &mut rehearsals;
                    old.judge_by(rules);
                    new.judge_by(proposed.as_ref().unwrap_or(rules));
                    for rehearsal in &mut rehearsals {
                        rehearsal.set_profile(scale(judged_us(sample)));
                        rehearsal.feed(sample);
                    }
                }
                report.samples += whole.len() as u64;
                bar.set_message(report.samples.to_string());
                match resume_us {
                    Some(resume_us) => next_us = resume_us,
                    None => break,
                }
            }
            let [present, proposed] = rehearsals.map(Rehearsal::finish);
            report.patient_days += present.1 as f64 / 24.0;
            report.add(&present.0, &proposed.0);
            bar.inc(1);
        }
        bar.finish_and_clear();
        report.finish();
        Ok(report)
    }
}

/// The rules whose alerts must not be missed.
struct Present {
    then: RulesThen,
    /// In place of the rules in force.
    against: Option<Arc<RuleSet>>,
    /// In force without a document.
    own: Arc<RuleSet>,
}

impl Present {
    fn rules(&self, patient: &str, time_us: i64) -> &Arc<RuleSet> {
        let in_force = || self.then.of(patient, time_us).unwrap_or(&self.own);
        self.against.as_ref().unwrap_or_else(in_force)
    }
}

/// A backlog is judged by the rules at its arrival.
fn judged_us(sample: &Sample) -> i64 {
    sample.device_time_us.max(sample.ingest_time_us)
}

/// A full page may end within an instant. Returns the complete part, and where the next page
/// begins.
fn whole_instants(page: &[Sample]) -> (&[Sample], Option<i64>) {
    let last_us = match page.last() {
        Some(last) if page.len() == PAGE => last.device_time_us,
        _ => return (page, None),
    };
    let whole = page.partition_point(|sample| sample.device_time_us < last_us);
    if whole == 0 {
        // One instant with a page of samples is a fault, because no patient has as many streams.
        // The rest is skipped.
        return (page, Some(last_us + 1));
    }
    (&page[..whole], Some(last_us))
}

impl Report {
    fn add(&mut self, present: &[Raised], proposed: &[Raised]) {
        for raised in present {
            self.rules.entry(raised.rule.clone()).or_default().present += 1;
        }
        for raised in proposed {
            self.rules.entry(raised.rule.clone()).or_default().proposed += 1;
        }
        for raised in missed(present, proposed, SLACK_US) {
            self.rules.entry(raised.rule.clone()).or_default().missed += 1;
            // Alerts of low priority call no person, so the table only counts them.
            if raised.priority > Priority::Low {
                self.missed.push(Missed {
                    patient: raised.patient.clone(),
                    rule: raised.rule.clone(),
                    at_us: raised.raised_us,
                    summary: raised.summary.clone(),
                });
            }
        }
    }

    fn finish(&mut self) {
        let per_day = |count: u64| count as f64 / self.patient_days.max(1.0 / 24.0);
        let total = |count: fn(&RuleCount) -> u64| self.rules.values().map(count).sum::<u64>();
        self.present_per_patient_day = per_day(total(|rule| rule.present));
        self.proposed_per_patient_day = per_day(total(|rule| rule.proposed));
    }

    fn table(&self) -> String {
        let mut lines = vec![
            format!(
                "{} patients, {} samples, {:.1} patient-days",
                self.patients, self.samples, self.patient_days
            ),
            format!(
                "alarms per patient-day: {:.2} present, {:.2} proposed",
                self.present_per_patient_day, self.proposed_per_patient_day
            ),
            String::new(),
            format!(
                "{:32} {:>8} {:>9} {:>7}",
                "rule", "present", "proposed", "missed"
            ),
        ];
        for (rule, count) in &self.rules {
            lines.push(format!(
                "{rule:32} {:>8} {:>9} {:>7}",
                count.present, count.proposed, count.missed
            ));
        }
        if !self.scale_of_today.is_empty() {
            let shown: Vec<&str> = self
                .scale_of_today
                .iter()
                .take(SHOWN_MAX)
                .map(String::as_str)
                .collect();
            let more = self.scale_of_today.len() - shown.len();
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            lines.push(String::new());
            lines.push(format!(
                "SpO2 scale: no change is recorded for {}{more}; the present scale is taken",
                shown.join(", ")
            ));
        }
        if !self.missed.is_empty() {
            lines.push(String::new());
            lines.push("would have been missed (medium and high):".into());
        }
        for missed in self.missed.iter().take(SHOWN_MAX) {
            lines.push(format!(
                "  {} {:20} {:24} {}",
                when(missed.at_us),
                missed.patient,
                missed.rule,
                missed.summary
            ));
        }
        if self.missed.len() > SHOWN_MAX {
            let more = self.missed.len() - SHOWN_MAX;
            lines.push(format!("  and {more} more; --json lists all"));
        }
        let lines = lines.iter().map(|line| text::line(line));
        lines.collect::<Vec<_>>().join("\n")
    }
}
