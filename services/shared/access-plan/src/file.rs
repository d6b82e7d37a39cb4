//! A plan from a TOML file. Each error names line, field and an example.

use serde::{Deserialize, Serialize};
use toml_errors::{FileError, Invalid};

/// Accesses of a plan; a plan with more is refused, since their subsets are enumerated.
const ACCESSES_MAX: usize = 5;
/// Groups of patients of a plan; a plan with more is refused.
const GROUPS_MAX: usize = 32;
/// Kinds of traffic of a group; a plan with more is refused.
const TRAFFICS_MAX: usize = 32;
/// Entries of other users of an access; a plan with more is refused.
const BACKGROUNDS_MAX: usize = 48;
/// Bytes of a name; a longer one is refused.
const NAME_BYTES_MAX: usize = 200;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: String,
    #[serde(default)]
    pub split: Split,
    #[serde(default = "day")]
    pub busy_hours_per_day: f64,
    /// When they begin.
    #[serde(default)]
    pub busy_from_hour: f64,
    #[serde(default = "month")]
    pub days_per_month: f64,
    #[serde(default = "currency")]
    pub currency: String,
    pub access: Vec<Access>,
    pub patients: Vec<Group>,
}

/// Where traffic goes that fits into more than one access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Equal use of all accesses, as far as coverage allows.
    #[default]
    Balanced,
    /// The shortest round trip first; what does not fit goes to the next.
    Fastest,
    /// The lowest price first.
    Cheapest,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    pub name: String,
    pub rate_mbit: f64,
    /// The rate is that of each patient; otherwise all share it.
    #[serde(default)]
    pub per_patient: bool,
    /// Cells, each with this rate; patients are spread over them evenly.
    #[serde(default = "one")]
    pub cells: f64,
    /// Other users of each cell, or of the patient's line.
    #[serde(default)]
    pub background: Vec<Background>,
    pub rtt_ms: f64,
    #[serde(default)]
    pub loss: f64,
    #[serde(default)]
    pub price_per_gb: f64,
    /// Share of the patients, or of their time, at which the access is there.
    pub coverage: f64,
    /// Keepalives of one gateway without traffic.
    #[serde(default)]
    pub idle_mb_per_month: f64,
}

/// Demand of other users on one cell between two hours of the day.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    pub from_hour: f64,
    pub to_hour: f64,
    /// Payload of all of them.
    pub mbit: f64,
    /// Each has as good a share of a full cell as a gateway.
    pub users: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub name: String,
    pub count: f64,
    /// Names of the accesses that these patients have; all when empty.
    #[serde(default)]
    pub accesses: Vec<String>,
    pub traffic: Vec<Traffic>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    pub name: String,
    /// While it flows.
    pub kbit: f64,
    pub hours_per_day: f64,
}

fn day() -> f64 {
    24.0
}

fn one() -> f64 {
    1.0
}

fn month() -> f64 {
    30.0
}

fn currency() -> String {
    "EUR".to_owned()
}

const EXAMPLES: [(&str, &str); 20] = [
    ("name", "name = \"LTE operator A\""),
    ("split", "split = \"balanced\", \"fastest\" or \"cheapest\""),
    (
        "access",
        "[[access]] with name, rate_mbit, rtt_ms and coverage",
    ),
    ("patients", "[[patients]] with name, count and traffic"),
    ("rate_mbit", "rate_mbit = 40.0"),
    ("rtt_ms", "rtt_ms = 50.0"),
    ("loss", "loss = 0.01"),
    ("cells", "cells = 3"),
    (
        "background",
        "background = [{ from_hour = 17, to_hour = 23, mbit = 30.0, users = 20 }]",
    ),
    ("from_hour", "from_hour = 17"),
    ("to_hour", "to_hour = 23"),
    ("mbit", "mbit = 30.0"),
    ("users", "users = 20"),
    ("price_per_gb", "price_per_gb = 2.5"),
    ("coverage", "coverage = 0.9"),
    ("count", "count = 60"),
    ("accesses", "accesses = [\"LTE operator A\"]"),
    (
        "traffic",
        "traffic = [{ name = \"vitals\", kbit = 12.0, hours_per_day = 24.0 }]",
    ),
    ("kbit", "kbit = 12.0"),
    ("hours_per_day", "hours_per_day = 24.0"),
];

impl Plan {
    /// A plan from the text of its file.
    pub fn from_toml(text: &str) -> Result<Self, FileError> {
        let plan: Self =
            toml::from_str(text).map_err(|error| FileError::of_toml(text, &error, &EXAMPLES))?;
        plan.check()
            .map_err(|invalid| FileError::of_field(text, invalid))?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), Invalid> {
        name("name", &self.name)?;
        name("currency", &self.currency)?;
        within(
            "busy_hours_per_day",
            self.busy_hours_per_day,
            0.1,
            24.0,
            "10.0",
        )?;
        within("busy_from_hour", self.busy_from_hour, 0.0, 24.0, "8.0")?;
        within("days_per_month", self.days_per_month, 1.0, 31.0, "30.0")?;
        count("access", self.access.len(), ACCESSES_MAX)?;
        count("patients", self.patients.len(), GROUPS_MAX)?;
        for (index, access) in self.access.iter().enumerate() {
            let at = |field: &str| format!("access[{index}].{field}");
            name(&at("name"), &access.name)?;
            if self.access[..index].iter().any(|it| it.name == access.name) {
                return refuse(&at("name"), "is taken; for example \"LTE operator B\"");
            }
            within(&at("rate_mbit"), access.rate_mbit, 1e-3, 1e5, "40.0")?;
            within(&at("rtt_ms"), access.rtt_ms, 0.0, 60_000.0, "50.0")?;
            within(&at("loss"), access.loss, 0.0, 0.9, "0.01")?;
            within(&at("price_per_gb"), access.price_per_gb, 0.0, 1e6, "2.5")?;
            within(&at("coverage"), access.coverage, 0.0, 1.0, "0.9")?;
            within(
                &at("idle_mb_per_month"),
                access.idle_mb_per_month,
                0.0,
                1e6,
                "50.0",
            )?;
            within(&at("cells"), access.cells, 1.0, 1e5, "3")?;
            if access.per_patient && access.cells > 1.0 {
                return refuse(
                    &at("cells"),
                    "a line of each patient has no cells; for example per_patient = false",
                );
            }
            check_background(&at("background"), &access.background)?;
        }
        for (index, group) in self.patients.iter().enumerate() {
            self.check_group(&format!("patients[{index}]"), group)?;
        }
        Ok(())
    }

    fn check_group(&self, field: &str, group: &Group) -> Result<(), Invalid> {
        name(&format!("{field}.name"), &group.name)?;
        within(&format!("{field}.count"), group.count, 1.0, 1e7, "60")?;
        count(
            &format!("{field}.traffic"),
            group.traffic.len(),
            TRAFFICS_MAX,
        )?;
        for (index, wanted) in group.accesses.iter().enumerate() {
            if !self.access.iter().any(|it| it.name == *wanted) {
                let example = &self.access[0].name;
                let reason = format!("{wanted:?} is not an access; for example \"{example}\"");
                return refuse(&format!("{field}.accesses[{index}]"), &reason);
            }
        }
        for (index, traffic) in group.traffic.iter().enumerate() {
            let at = |part: &str| format!("{field}.traffic[{index}].{part}");
            name(&at("name"), &traffic.name)?;
            within(&at("kbit"), traffic.kbit, 0.0, 1e6, "12.0")?;
            within(
                &at("hours_per_day"),
                traffic.hours_per_day,
                0.0,
                24.0,
                "24.0",
            )?;
        }
        Ok(())
    }

    /// Which accesses a group has, by index.
    pub fn accesses_of(&self, group: &Group) -> Vec<usize> {
        let has = |index: &usize| {
            group.accesses.is_empty() || group.accesses.contains(&self.access[*index].name)
        };
        (0..self.access.len()).filter(has).collect()
    }
}

fn check_background(field: &str, background: &[Background]) -> Result<(), Invalid> {
    if background.len() > BACKGROUNDS_MAX {
        return count(field, background.len(), BACKGROUNDS_MAX);
    }
    for (index, it) in background.iter().enumerate() {
        let at = |part: &str| format!("{field}[{index}].{part}");
        within(&at("from_hour"), it.from_hour, 0.0, 24.0, "17")?;
        within(&at("to_hour"), it.to_hour, 0.0, 24.0, "23")?;
        if it.to_hour <= it.from_hour {
            return refuse(
                &at("to_hour"),
                "not after from_hour; for example two entries, one to 24 and one from 0",
            );
        }
        within(&at("mbit"), it.mbit, 0.0, 1e5, "30.0")?;
        within(&at("users"), it.users, 1.0, 1e6, "20")?;
    }
    Ok(())
}

fn refuse<T>(field: &str, reason: &str) -> Result<T, Invalid> {
    Err(Invalid {
        field: field.to_owned(),
        reason: reason.to_owned(),
    })
}

fn name(field: &str, text: &str) -> Result<(), Invalid> {
    if (1..=NAME_BYTES_MAX).contains(&text.len()) {
        return Ok(());
    }
    refuse(field, "not between 1 and 200 bytes; for example \"vitals\"")
}

fn count(field: &str, length: usize, most: usize) -> Result<(), Invalid> {
    if (1..=most).contains(&length) {
        return Ok(());
    }
    refuse(
        field,
        &format!("{length} entries are not between 1 and {most}; for example 1"),
    )
}

/// NaN and infinity are within no range.
fn within(field: &str, value: f64, from: f64, to: f64, example: &str) -> Result<(), Invalid> {
    if (from..=to).contains(&value) {
        return Ok(());
    }
    refuse(
        field,
        &format!("{value} is not between {from} and {to}; for example {example}"),
    )
}
