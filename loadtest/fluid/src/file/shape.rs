//! The TOML file as it is written, before anything is looked up.

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) title: String,
    #[serde(default)]
    pub(super) assumed: Vec<String>,
    #[serde(default = "one")]
    pub(super) step_ms: f64,
    #[serde(default = "hundred")]
    pub(super) record_every_ms: f64,
    /// Default: the way's.
    pub(super) duration_s: Option<f64>,
    pub(super) increase: f64,
    pub(super) decrease: f64,
    #[serde(default = "tenth")]
    pub(super) floor: f64,
    pub(super) decay: Option<FileDecay>,
    #[serde(default)]
    pub(super) way: Vec<FileSegment>,
    #[serde(default)]
    pub(super) node: Vec<FileNode>,
    #[serde(default)]
    pub(super) station: Vec<FileStation>,
    pub(super) source: Vec<FileSource>,
    pub(super) resource: Vec<FileResource>,
    pub(super) route: Vec<FileRoute>,
    #[serde(default)]
    pub(super) figure: Vec<FileFigure>,
}

pub(super) fn one() -> f64 {
    1.0
}

pub(super) fn hundred() -> f64 {
    100.0
}

pub(super) fn tenth() -> f64 {
    0.1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileDecay {
    pub(super) alpha_per_m: f64,
    pub(super) d0_m: f64,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum FileSegment {
    Clover {
        radius_m: f64,
        gamma_per_s: f64,
        revolutions: f64,
    },
    Arc {
        centre_m: (f64, f64),
        radius_m: f64,
        from_deg: f64,
        sweep_deg: f64,
        speed_m_s: f64,
    },
    Line {
        from_m: (f64, f64),
        to_m: (f64, f64),
        speed_m_s: f64,
    },
    Stay {
        at_m: (f64, f64),
        heading_deg: f64,
        seconds: f64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileNode {
    pub(super) name: String,
    pub(super) ahead_m: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileStation {
    pub(super) name: String,
    pub(super) at_m: (f64, f64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSource {
    pub(super) name: String,
    #[serde(default = "one")]
    pub(super) weight: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileResource {
    pub(super) name: String,
    pub(super) capacity: f64,
    pub(super) responsiveness: f64,
    pub(super) node: Option<String>,
    pub(super) station: Option<String>,
    pub(super) steps: Option<Vec<(f64, f64)>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRoute {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) decrease: Option<f64>,
    pub(super) resources: Vec<FileUse>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileUse {
    pub(super) name: String,
    pub(super) there_ms: f64,
    pub(super) back_ms: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileFigure {
    pub(super) file: String,
    pub(super) title: String,
    pub(super) show: Show,
    #[serde(default)]
    pub(super) series: Vec<FileSeries>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSeries {
    pub(super) name: String,
    pub(super) routes: Vec<String>,
}

/// Text to write where a field is missing or has the wrong type.
pub(super) const EXAMPLES: [(&str, &str); 20] = [
    ("name", "name = \"convoy\""),
    ("title", "title = \"head, tail and satellite\""),
    ("increase", "increase = 0.025"),
    ("decrease", "decrease = 0.875"),
    ("capacity", "capacity = 20.0"),
    ("responsiveness", "responsiveness = 15.0"),
    ("source", "[[source]] with name = \"convoy\""),
    (
        "resource",
        "[[resource]] with name, capacity and responsiveness",
    ),
    ("route", "[[route]] with name, source and resources"),
    (
        "resources",
        "resources = [{ name = \"satellite\", there_ms = 15.0, back_ms = 15.0 }]",
    ),
    ("there_ms", "there_ms = 15.0"),
    ("back_ms", "back_ms = 15.0"),
    ("ahead_m", "ahead_m = 100.0"),
    ("at_m", "at_m = [-200.0, -400.0]"),
    ("kind", "kind = \"clover\", \"arc\", \"line\" or \"stay\""),
    ("alpha_per_m", "alpha_per_m = 0.007"),
    ("d0_m", "d0_m = 500.0"),
    (
        "show",
        "show = \"rates\", \"capacities\", \"stacked\", \"map\", \"field\" or \"decay\"",
    ),
    (
        "series",
        "series = [{ name = \"WiFi\", routes = [\"r1\"] }]",
    ),
    ("routes", "routes = [\"r1\", \"r2\"]"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Show {
    Rates,
    Capacities,
    /// Rates as areas upon each other.
    Stacked,
    /// The way, its nodes and the stations.
    Map,
    /// The sum of the capacities at each place of the plane.
    Field,
    /// The factor of capacity by distance.
    Decay,
}
