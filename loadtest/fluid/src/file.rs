//! An experiment from the text of a TOML file. Each error names line, field and an example.

mod shape;

use crate::mobility::{NODE_AHEAD_M_MAX, Segment, Track};
use crate::network::{Capacity, Decay, Network, Resource, Route, Source};
use crate::solver::{Run, Settings, solve};
pub use shape::Show;
use shape::{
    EXAMPLES, File, FileFigure, FileNode, FileResource, FileRoute, FileSegment, FileStation,
};
use toml_errors::{FileError, Invalid};

/// Longest name or title.
const TEXT_BYTES_MAX: usize = 400;
const NODES_MAX: usize = 64;
const STATIONS_MAX: usize = 256;
const FIGURES_MAX: usize = 32;

/// A name and a position in metres.
pub type Station = (String, (f64, f64));

/// Contents of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    pub name: String,
    pub title: String,
    /// Inputs that the paper does not publish, in words.
    pub assumed: Vec<String>,
    pub network: Network,
    pub settings: Settings,
    pub way: Vec<Segment>,
    /// Name and metres ahead of the middle.
    pub nodes: Vec<(String, f64)>,
    pub stations: Vec<Station>,
    pub figures: Vec<Panel>,
}

/// A figure that the file asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    pub file: String,
    pub title: String,
    pub show: Show,
    /// Name, and routes whose values are added.
    pub series: Vec<(String, Vec<usize>)>,
}

impl Experiment {
    pub fn from_toml(text: &str) -> Result<Self, FileError> {
        let file: File =
            toml::from_str(text).map_err(|error| FileError::of_toml(text, &error, &EXAMPLES))?;
        Self::from_file(file).map_err(|invalid| FileError::of_field(text, invalid))
    }

    fn from_file(file: File) -> Result<Self, Invalid> {
        short("name", &file.name)?;
        short("title", &file.title)?;
        let way = way(&file.way)?;
        let nodes = nodes(&file.node)?;
        let stations = stations(&file.station)?;
        let decay = file.decay.map(|it| Decay {
            alpha_per_m: it.alpha_per_m,
            d0_m: it.d0_m,
        });
        let geometry = Geometry {
            nodes: &nodes,
            stations: &stations,
            decay,
        };
        let mut network = Network {
            increase: file.increase,
            ..Network::default()
        };
        for (index, source) in file.source.into_iter().enumerate() {
            short(&format!("source[{index}].name"), &source.name)?;
            network.sources.push(Source {
                name: source.name,
                weight: source.weight,
            });
        }
        for (index, resource) in file.resource.into_iter().enumerate() {
            let field = format!("resource[{index}]");
            network.resources.push(geometry.resource(&field, resource)?);
        }
        for (index, own) in file.route.into_iter().enumerate() {
            let field = format!("route[{index}]");
            let next = route(&field, own, &network, file.decrease)?;
            network.routes.push(next);
        }
        network.check()?;
        let settings = settings(
            &file.duration_s,
            &way,
            [file.step_ms, file.floor, file.record_every_ms],
        )?;
        let figures = figures(file.figure, &network)?;
        Ok(Self {
            name: file.name,
            title: file.title,
            assumed: file.assumed,
            network,
            settings,
            way,
            nodes,
            stations,
            figures,
        })
    }

    /// The way's table; none without a way.
    pub fn track(&self) -> Option<Track> {
        let reach = self
            .nodes
            .iter()
            .map(|node| node.1.abs())
            .fold(0.0, f64::max);
        Track::new(&self.way, reach).ok()
    }

    /// Integrates the experiment.
    pub fn solve(&self) -> Result<Run, Invalid> {
        let track = self.track();
        let ahead: Vec<f64> = self.nodes.iter().map(|node| node.1).collect();
        solve(&self.network, track.as_ref(), &ahead, self.settings)
    }
}

struct Geometry<'a> {
    nodes: &'a [(String, f64)],
    stations: &'a [Station],
    decay: Option<Decay>,
}

impl Geometry<'_> {
    fn resource(&self, field: &str, own: FileResource) -> Result<Resource, Invalid> {
        short(&format!("{field}.name"), &own.name)?;
        let capacity = match (own.node, own.station, own.steps) {
            (None, None, None) => Capacity::Constant,
            (None, None, Some(steps)) => Capacity::Steps(steps),
            (Some(node), Some(station), None) => {
                let node = find(
                    &format!("{field}.node"),
                    &node,
                    self.nodes.iter().map(|it| &it.0),
                )?;
                let names = self.stations.iter().map(|it| &it.0);
                let station = find(&format!("{field}.station"), &station, names)?;
                let Some(decay) = self.decay else {
                    let reason = "a capacity by distance needs a [decay] table; for example \
                                  alpha_per_m = 0.007 and d0_m = 500.0";
                    return refuse(field, reason);
                };
                Capacity::Distance {
                    node,
                    station_m: self.stations[station].1,
                    decay,
                }
            }
            _ => {
                let reason = "either node and station, or steps; for example \
                              node = \"head\" and station = \"B1\"";
                return refuse(field, reason);
            }
        };
        Ok(Resource {
            name: own.name,
            nominal: own.capacity,
            responsiveness: own.responsiveness,
            capacity,
        })
    }
}

fn route(field: &str, own: FileRoute, network: &Network, decrease: f64) -> Result<Route, Invalid> {
    short(&format!("{field}.name"), &own.name)?;
    let sources = network.sources.iter().map(|it| &it.name);
    let source = find(&format!("{field}.source"), &own.source, sources)?;
    let mut resources = Vec::new();
    for (index, used) in own.resources.iter().enumerate() {
        let names = network.resources.iter().map(|it| &it.name);
        let resource = find(
            &format!("{field}.resources[{index}].name"),
            &used.name,
            names,
        )?;
        resources.push((resource, used.there_ms / 1e3, used.back_ms / 1e3));
    }
    let round_trip_s = resources.first().map_or(0.0, |used| used.1 + used.2);
    Ok(Route {
        name: own.name,
        source,
        decrease: own.decrease.unwrap_or(decrease),
        round_trip_s,
        resources,
    })
}

fn settings(
    duration_s: &Option<f64>,
    way: &[Segment],
    [step_ms, floor, record_every_ms]: [f64; 3],
) -> Result<Settings, Invalid> {
    let of_the_way: f64 = way.iter().map(Segment::seconds).sum();
    let settings = Settings {
        step_s: step_ms / 1e3,
        duration_s: duration_s.unwrap_or(of_the_way),
        floor,
        record_every_s: record_every_ms / 1e3,
    };
    settings.check()?;
    Ok(settings)
}

fn way(segments: &[FileSegment]) -> Result<Vec<Segment>, Invalid> {
    let mut way = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let segment = match *segment {
            FileSegment::Clover {
                radius_m,
                gamma_per_s,
                revolutions,
            } => Segment::Clover {
                radius_m,
                gamma_per_s,
                revolutions,
            },
            FileSegment::Arc {
                centre_m,
                radius_m,
                from_deg,
                sweep_deg,
                speed_m_s,
            } => Segment::Arc {
                centre_m,
                radius_m,
                from_deg,
                sweep_deg,
                speed_m_s,
            },
            FileSegment::Line {
                from_m,
                to_m,
                speed_m_s,
            } => Segment::Line {
                from_m,
                to_m,
                speed_m_s,
            },
            FileSegment::Stay {
                at_m,
                heading_deg,
                seconds,
            } => Segment::Stay {
                at_m,
                heading_deg,
                seconds,
            },
        };
        segment.check(&format!("way[{index}]"))?;
        way.push(segment);
    }
    if !way.is_empty()
        && let Err(error) = Track::new(&way, 0.0)
    {
        return refuse(
            "way",
            format!("{error}; for example one revolution of a clover"),
        );
    }
    Ok(way)
}

fn nodes(own: &[FileNode]) -> Result<Vec<(String, f64)>, Invalid> {
    few("node", own.len(), NODES_MAX)?;
    let mut nodes = Vec::new();
    for (index, node) in own.iter().enumerate() {
        short(&format!("node[{index}].name"), &node.name)?;
        if !(0.0..=NODE_AHEAD_M_MAX).contains(&node.ahead_m.abs()) {
            let reason = "not within 100 km; for example 100.0, or -100.0 for the tail";
            return refuse(&format!("node[{index}].ahead_m"), reason);
        }
        nodes.push((node.name.clone(), node.ahead_m));
    }
    Ok(nodes)
}

fn stations(own: &[FileStation]) -> Result<Vec<Station>, Invalid> {
    few("station", own.len(), STATIONS_MAX)?;
    let mut stations = Vec::new();
    for (index, station) in own.iter().enumerate() {
        short(&format!("station[{index}].name"), &station.name)?;
        let is_near = |value: f64| value.abs() <= 1e7;
        if !is_near(station.at_m.0) || !is_near(station.at_m.1) {
            let reason = "not within 10,000 km; for example [-200.0, -400.0]";
            return refuse(&format!("station[{index}].at_m"), reason);
        }
        stations.push((station.name.clone(), station.at_m));
    }
    Ok(stations)
}

fn figures(own: Vec<FileFigure>, network: &Network) -> Result<Vec<Panel>, Invalid> {
    few("figure", own.len(), FIGURES_MAX)?;
    let mut figures = Vec::new();
    for (index, figure) in own.into_iter().enumerate() {
        let field = format!("figure[{index}]");
        short(&format!("{field}.title"), &figure.title)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if figure.file.is_empty() || figure.file.len() > 100 || !figure.file.chars().all(plain) {
            let reason = "letters, digits and dashes only; for example \"figure-09-rates\"";
            return refuse(&format!("{field}.file"), reason);
        }
        let mut series = Vec::new();
        for (nth, line) in figure.series.into_iter().enumerate() {
            let field = format!("{field}.series[{nth}]");
            short(&format!("{field}.name"), &line.name)?;
            let mut routes = Vec::new();
            for (at, route) in line.routes.iter().enumerate() {
                let names = network.routes.iter().map(|it| &it.name);
                routes.push(find(&format!("{field}.routes[{at}]"), route, names)?);
            }
            series.push((line.name, routes));
        }
        figures.push(Panel {
            file: figure.file,
            title: figure.title,
            show: figure.show,
            series,
        });
    }
    Ok(figures)
}

fn find<'a>(
    field: &str,
    name: &str,
    names: impl Iterator<Item = &'a String> + Clone,
) -> Result<usize, Invalid> {
    if let Some(index) = names.clone().position(|it| it == name) {
        return Ok(index);
    }
    let known: Vec<&str> = names.map(String::as_str).take(8).collect();
    let example = known.first().copied().unwrap_or("none is declared");
    refuse(
        field,
        format!(
            "{name:?} is not declared (there are: {}); for example \"{example}\"",
            known.join(", ")
        ),
    )
}

fn short(field: &str, text: &str) -> Result<(), Invalid> {
    if (1..=TEXT_BYTES_MAX).contains(&text.len()) {
        return Ok(());
    }
    refuse(field, "not between 1 and 400 bytes; for example \"convoy\"")
}

fn few(field: &str, length: usize, most: usize) -> Result<(), Invalid> {
    if length <= most {
        return Ok(());
    }
    refuse(
        field,
        format!("{length} entries are more than {most}; for example {most}"),
    )
}

fn refuse<T>(field: &str, reason: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid {
        field: field.to_owned(),
        reason: reason.into(),
    })
}
