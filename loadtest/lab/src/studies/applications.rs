//! Latency-sensitive applications: figures 6 to 19, tables 4 to 12.

mod cells;
mod kernel;
mod traffic;

use crate::error::LabError;
use crate::exhibit::{Exhibit, Section, Table};
use crate::figures::Figure;
use crate::plot::{Axis, Boxes, Heat};
use crate::references;
use crate::studies::versions::two;
use crate::task::{Experiment, Task, Time};
use multipath::steering_rules::Mode;

use cells::{CellRuns, Quantile, SLIGHTLY_PERCENT, Transport, heat, red_cells, row_name};
use traffic::{Application, Pair};

pub(super) fn experiments() -> Vec<Experiment> {
    let experiment = |id, cost_s, run| Experiment {
        id,
        section: Section::Applications,
        time: Time::Virtual,
        cost_s,
        run,
    };
    vec![
        experiment("applications.cells", (49, 2400), run as fn(&Task<'_>) -> _),
        experiment("applications.buffers", (10, 200), buffers),
        Experiment {
            time: Time::Kernel,
            ..experiment(kernel::ID, (12, 2400), kernel::run)
        },
    ]
}

const NOTES: [&str; 3] = [
    "Video of 950 kbit/s and 30 frames a second, three games with the published mean intervals and \
     sizes, and pages of 15, 54 and 138 objects, six at a time. Server to client. WLAN: 20 to 30 \
     Mbit/s, 20 to 25 ms one way, 1 to 2 % loss, 100 packets of queue; 3G: 3 to 5 Mbit/s, 65 to 75 \
     ms, no loss, 3750 packets. Drawn anew for each repetition.",
    "Background: one Cubic flow on each path and Pareto on-off sources at 10 % of the rate, which \
     begin 4 s earlier. On 3G their packets have 1000 bytes, for the paper's 100 kbit/s each. \
     Assumed, for the paper does not print it: games begin with 200 kB and have a burst of 8 \
     packets every 30 s; sizes of objects are log-normal.",
    "Each message is on one stream in order, as over TCP. The single path is the better one of the \
     two in each repetition, by the quantile in question, with the same transport: stricter than \
     the paper, which takes the mean of both where they are alike. Red: multipath more than 2 % \
     worse. Buffers as in the paper: 256 KiB on 3G-3G, else 1 MiB sending and 2 MiB receiving.",
];

const MECHANISM: &str = "\
    A page, or the first bulk of a game, waits for the end of its backlog before it takes 3G beside the \
    WLAN: there it would wait behind the competing flow in the long queue, and the reader waits in \
    order. What stays red on WLAN-3G: the handshake's first answer may come over 3G where the WLAN \
    loses the first packet, and a backlog that lasts opens 3G a little before the page ends. At p99 \
    the better path is often 3G, which loses nothing, and at p50 it is the WLAN: one copy of each \
    message cannot be on both. Differences of a few percent elsewhere are other draws of the losses; \
    why 3G-3G is red beside bulk is not known. \
    The table of modes names the steering mode that mends a red cell.";

fn run(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "applications.cells";
    let title = "Thirty cells: multipath against the best single path; figure 19";
    let mut exhibit = Exhibit::new(title, &task.command(id));
    exhibit.notes.extend(NOTES.map(str::to_owned));
    let repetitions = task.pick(3, 30);
    exhibit
        .notes
        .push(format!("{repetitions} repetitions of each cell."));
    if task.quick {
        let note = "A quick report leaves out the library's Cubic.";
        exhibit.notes.push(note.to_owned());
    }
    exhibit.notes.push(MECHANISM.to_owned());
    let mut all = Vec::new();
    for application in Application::ALL {
        for background in [false, true] {
            for pair in Pair::ALL {
                all.push(cells::run(
                    task,
                    application,
                    background,
                    pair,
                    repetitions,
                )?);
            }
        }
    }
    for quantile in [Quantile::P50, Quantile::P99] {
        let red = red_cells(&all, Transport::Braid, quantile);
        let id = format!("applications.red_cells.{}", quantile.name());
        exhibit
            .figures
            .push(Figure::at_most(id, "cells", None, 0.0, red as f64));
        for other in others(task) {
            let red = red_cells(&all, other, quantile);
            let id = format!(
                "applications.red_cells_of_{}.{}",
                other.id(),
                quantile.name()
            );
            exhibit
                .figures
                .push(Figure::shown(id, "cells", None, red as f64));
        }
    }
    for quantile in [Quantile::P50, Quantile::P99] {
        let id = format!("applications.red_cells_of_best_mode.{}", quantile.name());
        let red = all.iter().filter(|cell| is_red_by_all(cell, quantile));
        let red = red.count() as f64;
        exhibit
            .figures
            .push(Figure::at_most(id, "cells", None, 0.0, red));
    }
    exhibit.figures.extend(limits(&all));
    for quantile in [Quantile::P50, Quantile::P99] {
        let own = [(Transport::Braid, "Braid")];
        let others = others(task).into_iter().map(|other| (other, other.title()));
        for (transport, name) in own.into_iter().chain(others) {
            let chart = heat(&all, transport, name, quantile);
            let id = format!("applications.fig19_{}_{}", transport.id(), quantile.name());
            exhibit.plot(&id, chart);
        }
    }
    exhibit.plot(
        "applications.fig19_mptcp",
        paper("mptcp", "Paper: MPTCP against TCP"),
    );
    exhibit.plot(
        "applications.fig19_cmt_sctp",
        paper("cmt_sctp", "Paper: CMT-SCTP against SCTP"),
    );
    exhibit.tables.push(mended(&all));
    exhibit.tables.push(table(&all));
    exhibit.tables.push(shares(&all));
    for application in Application::ALL {
        if let Some((id, chart)) = boxes(&all, application) {
            exhibit.plot(&id, chart);
        }
    }
    Ok(exhibit)
}

/// Transports beside Braid with its automatic setting.
fn others(task: &Task<'_>) -> Vec<Transport> {
    let library = (!task.quick).then_some(Transport::Cubic);
    let modes = cells::MODES.into_iter().map(Transport::Steered);
    library.into_iter().chain(modes).collect()
}

/// Every cell that is red by the automatic setting, under each steering mode.
fn mended(all: &[CellRuns]) -> Table {
    let mut columns = vec!["application", "networks", "quantile", "auto"];
    columns.extend(cells::MODES.map(|mode| mode.name()));
    columns.push("mended by");
    let mut table = Table::new("Red cells under the steering modes: change", &columns);
    for cell in all {
        for quantile in [Quantile::P50, Quantile::P99] {
            let change = |transport| cell.change_percent(transport, quantile);
            let auto = change(Transport::Braid);
            if auto.is_none_or(|auto| auto <= SLIGHTLY_PERCENT) {
                continue;
            }
            let modes = cells::MODES.map(|mode| (mode, change(Transport::Steered(mode))));
            let mends = |(_, change): &&(Mode, Option<f64>)| {
                change.is_some_and(|change| change <= SLIGHTLY_PERCENT)
            };
            let mending = modes.iter().find(mends).map(|entry| entry.0.name());
            let percent = |change: Option<f64>| {
                change.map_or_else(|| "-".to_owned(), |change| format!("{change:+.1} %"))
            };
            let mut row = vec![
                row_name(cell.application, cell.background),
                cell.pair.title().to_owned(),
                quantile.name().to_owned(),
                percent(auto),
            ];
            row.extend(modes.map(|entry| percent(entry.1)));
            row.push(mending.unwrap_or("none of these").to_owned());
            table.row(row);
        }
    }
    table
}

/// Whether neither the automatic setting nor a steering mode keeps the cell from red.
fn is_red_by_all(cell: &CellRuns, quantile: Quantile) -> bool {
    let modes = cells::MODES.into_iter().map(Transport::Steered);
    let changes = modes
        .chain([Transport::Braid])
        .filter_map(|transport| cell.change_percent(transport, quantile));
    changes.fold(f64::INFINITY, f64::min) > SLIGHTLY_PERCENT
}

/// Thresholds of the paper's section 3, wherever the best single path keeps them.
fn limits(all: &[CellRuns]) -> Vec<Figure> {
    let limit = |what: &str| references::value(&format!("applications.limits.{what}.limit"));
    let broken =
        |applies: fn(Application) -> bool, get: fn(&CellRuns) -> Option<(f64, f64)>, limit: f64| {
            let own = all.iter().filter(|cell| applies(cell.application));
            let pairs = own.filter_map(get);
            pairs
                .filter(|(multi, single)| *single <= limit && *multi > limit)
                .count() as f64
        };
    let is_video = |application| application == Application::Video;
    let is_game = |application| matches!(application, Application::Game);
    let delay = |cell: &CellRuns| cell.both(Transport::Braid, Quantile::P99);
    let jitter = |cell: &CellRuns| cell.jitter_both(Transport::Braid);
    let rows: [(&str, f64); 3] = [
        (
            "video_delay",
            broken(is_video, delay, limit("video_delay").unwrap_or(150.0)),
        ),
        (
            "video_jitter",
            broken(is_video, jitter, limit("video_jitter").unwrap_or(30.0)),
        ),
        (
            "game_delay",
            broken(is_game, delay, limit("game_delay").unwrap_or(60.0)),
        ),
    ];
    rows.map(|(what, cells)| {
        let id = format!("applications.beyond_limit.{what}");
        Figure::at_most(id, "cells", None, 0.0, cells)
    })
    .into()
}

fn paper(protocol: &str, title: &str) -> Heat {
    let columns = Pair::ALL.map(Pair::title);
    let mut heat = Heat::new(title, &columns);
    for application in Application::ALL {
        for background in [false, true] {
            let key = application.key(background);
            let verdicts = [0, 1, 2].map(|pair| {
                let word = references::verdict(protocol, &key, pair);
                cells::paper_cell(word)
            });
            heat = heat.row(&row_name(application, background), verdicts.into());
        }
    }
    heat
}

fn table(all: &[CellRuns]) -> Table {
    let has_cubic = all.iter().any(|cell| cell.has(Transport::Cubic));
    let mut columns = vec!["application", "networks", "unit"];
    for quantile in [Quantile::P50, Quantile::P99] {
        columns.extend(match (has_cubic, quantile) {
            (true, Quantile::P50) => &["QUIC cubic, best path, p50", "MPQUIC cubic, p50"][..],
            (true, Quantile::P99) => &["QUIC cubic, best path, p99", "MPQUIC cubic, p99"],
            (false, _) => &[],
        });
        columns.extend(match quantile {
            Quantile::P50 => ["Braid, best path, p50", "Braid, p50"],
            Quantile::P99 => ["Braid, best path, p99", "Braid, p99"],
        });
    }
    let mut table = Table::new("Delay of messages, and time of pages", &columns);
    for cell in all {
        let mut row = vec![
            row_name(cell.application, cell.background),
            cell.pair.title().to_owned(),
            cell.application.unit().to_owned(),
        ];
        for quantile in [Quantile::P50, Quantile::P99] {
            let cubic = has_cubic.then_some(Transport::Cubic);
            for transport in cubic.into_iter().chain([Transport::Braid]) {
                let both = cell.both(transport, quantile);
                row.push(two(both.map(|both| both.1)));
                row.push(two(both.map(|both| both.0)));
            }
        }
        table.row(row);
    }
    table
}

/// Tables 4 to 12: the share of each path, beside the paper's where it has one.
fn shares(all: &[CellRuns]) -> Table {
    let has_cubic = all.iter().any(|cell| cell.has(Transport::Cubic));
    let mut columns = vec![
        "application",
        "networks",
        "paper: CMT-SCTP, path 1 [%]",
        "paper: MPTCP, path 1 [%]",
    ];
    columns.extend(has_cubic.then_some("MPQUIC cubic, path 1 [%]"));
    columns.push("Braid, path 1 [%]");
    let mut table = Table::new("Tables 4 to 12: share of the first path", &columns);
    for cell in all {
        let paper = |protocol: &str| {
            let key = cell.application.key(cell.background);
            let (table, row) = cell.application.in_tables(&key);
            let column = cell.pair.key();
            let id = format!("applications.shares.{table}_{protocol}.{row}.{column}_1");
            two(references::value(&id))
        };
        let mut row = vec![
            row_name(cell.application, cell.background),
            cell.pair.title().to_owned(),
            paper("cmt_sctp"),
            paper("mptcp"),
        ];
        row.extend(has_cubic.then(|| two(cell.share_of_first(Transport::Cubic))));
        row.push(two(cell.share_of_first(Transport::Braid)));
        table.row(row);
    }
    table
}

/// Box plots of one application, as figures 6 to 18 have them.
fn boxes(all: &[CellRuns], application: Application) -> Option<(String, Boxes)> {
    let axis = Axis::new(application.measure(), application.unit()).log();
    let mut boxes = Boxes::new(application.title(), axis);
    for pair in Pair::ALL {
        for background in [false, true] {
            let cell = all
                .iter()
                .find(|cell| cell.is(application, background, pair))?;
            let samples = cell.samples();
            let samples: Vec<(&str, &[f64])> = samples
                .iter()
                .map(|(name, values)| (*name, values.as_slice()))
                .collect();
            let beside = if background { " + bg" } else { "" };
            boxes = boxes.group(&format!("{}{beside}", pair.title()), &samples);
        }
    }
    Some((format!("applications.{}", application.key(false)), boxes))
}

/// The effect of the buffers' sizes on the pair with 3G, with background.
fn buffers(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "applications.buffers";
    let title = "Buffers of 256 KiB, 1 and 2 MiB";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(
        "The paper explains its 3G results by the buffers: competing flows fill the long queue of \
         3G as far as their buffers allow. Video with background, one size for sending and \
         receiving at all connections.",
    );
    let columns = [
        "buffers [KiB]",
        "networks",
        "Braid, best path, p50 [ms]",
        "Braid, p50 [ms]",
        "Braid, p99 [ms]",
    ];
    let mut table = Table::new("Delay of video frames by size of the buffers", &columns);
    for kib in [256, 1024, 2048] {
        for pair in [Pair::ThreeThree, Pair::WlanThree] {
            let cell = cells::run_with(
                task,
                Application::Video,
                true,
                pair,
                task.pick(1, 10),
                Some(kib * 1024),
            )?;
            let p50 = cell.both(Transport::Braid, Quantile::P50);
            let p99 = cell.both(Transport::Braid, Quantile::P99);
            table.row(vec![
                format!("{kib}"),
                pair.title().to_owned(),
                two(p50.map(|both| both.1)),
                two(p50.map(|both| both.0)),
                two(p99.map(|both| both.0)),
            ]);
        }
    }
    exhibit.tables.push(table);
    Ok(exhibit)
}
