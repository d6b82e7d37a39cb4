//! The part of one experiment in the report: text, tables, rows with targets, and charts.
//!
//! An experiment of any module joins the report with an `Experiment` in the list of `studies.rs`.
//! Its exhibit is kept as JSON between runs, so everything in it is plain data.

use serde::{Deserialize, Serialize};

use crate::figures::Figure;
use crate::plot::Plot;

/// Parts of the report, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Pals,
    Lte,
    Keepalive,
    Fluid,
    Applications,
    /// The closest open project, and its benchmark profiles.
    Yardstick,
    /// Rules of this project's own; no paper has them.
    Steering,
    /// A scenario that a user wrote.
    Given,
}

impl Section {
    pub const ALL: [Self; 8] = [
        Self::Pals,
        Self::Lte,
        Self::Keepalive,
        Self::Fluid,
        Self::Applications,
        Self::Yardstick,
        Self::Steering,
        Self::Given,
    ];

    /// As `--only` takes it; ids of experiments begin with it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pals => "pals",
            Self::Lte => "lte",
            Self::Keepalive => "keepalive",
            Self::Fluid => "fluid",
            Self::Applications => "applications",
            Self::Yardstick => "yardstick",
            Self::Steering => "steering",
            Self::Given => "given",
        }
    }
}

/// A table of text; the experiment formats the numbers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: &str, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            columns: columns.iter().map(|&name| name.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

/// A chart as it stands in the report, with its data beside it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Drawn {
    /// Name of its files, and its entry in `references.toml`; for example `pals.fig3b`.
    pub id: String,
    pub title: String,
    pub svg: String,
    pub csv: String,
    pub data: serde_json::Value,
}

impl Drawn {
    pub fn new(id: &str, plot: impl Into<Plot>) -> Self {
        let plot = plot.into();
        Self {
            id: id.to_owned(),
            title: plot.title().to_owned(),
            svg: plot.svg(),
            csv: plot.csv(),
            // Plain numbers and texts always have a JSON form.
            data: serde_json::to_value(&plot).unwrap_or_default(),
        }
    }
}

/// One experiment in the report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Exhibit {
    pub title: String,
    /// Paragraphs: what is run, what is assumed, what follows.
    pub notes: Vec<String>,
    /// The command that repeats it.
    pub command: String,
    /// Rows paper, target, measured.
    pub figures: Vec<Figure>,
    pub tables: Vec<Table>,
    pub plots: Vec<Drawn>,
    /// HTML of its own, for example a slider. Never text from outside.
    #[serde(default)]
    pub fragment: Option<String>,
    /// Why the experiment, or a part of it, was not run.
    #[serde(default)]
    pub skipped: Vec<String>,
}

impl Exhibit {
    pub fn new(title: &str, command: &str) -> Self {
        Self {
            title: title.to_owned(),
            command: command.to_owned(),
            ..Self::default()
        }
    }

    pub fn note(mut self, paragraph: &str) -> Self {
        self.notes.push(paragraph.to_owned());
        self
    }

    pub fn plot(&mut self, id: &str, plot: impl Into<Plot>) {
        self.plots.push(Drawn::new(id, plot));
    }
}

/// A finished experiment in the report.
pub struct Finished {
    pub id: &'static str,
    pub section: Section,
    pub exhibit: Exhibit,
}
