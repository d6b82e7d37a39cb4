//! The cells of figure 19 in kernel time: TCP and MPTCP of this machine, SCTP and CMT-SCTP of
//! userland, and the product's tunnel.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::cells::{
    CellRuns, Measured, Quantile, Runs, Transport, heat, measured_of, red_cells, row_name,
};
use super::traffic::{self, Application, Pair};
use crate::error::LabError;
use crate::exhibit::{Exhibit, Table};
use crate::figures::Figure;
use crate::kernel::application::relay::Relay;
use crate::kernel::application::{self, Carrier};
use crate::kernel::believed;
use crate::kernel::permission::refusal;
use crate::kernel::waiting;
use crate::kernel::{Identities, KernelError};
use crate::references;
use crate::scenario::Scenario;
use crate::seed::derive_seed;
use crate::studies::versions::{Paths, Version, two};
use crate::task::Task;
use crate::wire::NOT_COMPLETED;

pub(super) const ID: &str = "applications.kernel";
/// Length of video and games.
const SECONDS: (f64, f64) = (4.0, 30.0);
/// Runs in real time at once. Six videos take a sixth of a core together.
const AT_ONCE: usize = 18;
/// The same beside background, which fills the links.
const AT_ONCE_BESIDE: usize = 9;
/// Runs are made again until the machine keeps up, at most so often.
const ATTEMPTS: u32 = 3;
/// Cells of a quick report.
const QUICK: [(Application, bool, Pair); 2] = [
    (Application::Video, false, Pair::WlanThree),
    (Application::Small, false, Pair::WlanWlan),
];

const NOTE: &str = "\
    The same traffic and links in network namespaces through the emulator. TCP and MPTCP are this \
    machine's, with Cubic; SCTP is the library usrsctp in UDP, with NewReno on each path, bursts of \
    four packets and split buffers, as the paper has it. MPTCP is compared with TCP, CMT-SCTP with \
    SCTP, and Braid with itself over one path. The buffers are those of the virtual runs, but for \
    Braid's tunnel, which ships with its own. Time counts from when the connections are up. A page \
    has six connections, or six streams.";

/// The runs of one cell, how many of them are not to be believed, and what broke some.
#[derive(Serialize, Deserialize)]
struct Kept {
    runs: CellRuns,
    doubtful: u32,
    errors: Vec<String>,
}

pub(super) fn run(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let title = "Figure 19 in kernel time: MPTCP, CMT-SCTP and Braid";
    let mut exhibit = Exhibit::new(title, &task.command(ID)).note(NOTE);
    if let Some(reason) = refusal()? {
        exhibit.skipped.push(reason);
        return Ok(exhibit);
    }
    let relay = match Relay::build()? {
        Ok(relay) => Some(relay),
        Err(reason) => {
            exhibit.skipped.push(reason);
            None
        }
    };
    let identities = Identities::new().map_err(KernelError::from)?;
    let repetitions = task.pick(1, 3);
    let cells = cells(task.quick);
    if task.quick {
        exhibit
            .notes
            .push("A quick report has two cells of thirty: real time is dear.".to_owned());
    }
    let bar = task.runner.bar(ID, cells.len() as u64);
    let mut all = Vec::new();
    let (mut doubtful, mut errors) = (0, Vec::new());
    for (application, background, pair) in cells {
        let sctp = if relay.is_some() { "" } else { ".no_sctp" };
        let id = format!("{ID}.{}.{}{sctp}", application.key(background), pair.key());
        let seconds = if task.quick { SECONDS.0 } else { SECONDS.1 };
        let scenarios: Vec<Scenario> = (0..repetitions)
            .flat_map(|repetition| {
                let seed = derive_seed(task.seed, 5000 + u64::from(repetition));
                traffic::scenarios(application, background, pair, seed, seconds, None)
            })
            .collect();
        let kept = task.part(&id, || {
            let mut judged = Judged::default();
            let relay = relay.as_ref();
            let runs = cell(&scenarios, background, relay, &identities, &mut judged)?;
            let runs = CellRuns {
                application,
                background,
                pair,
                runs,
            };
            let Judged { doubtful, errors } = judged;
            Ok(Kept {
                runs,
                doubtful,
                errors,
            })
        })?;
        all.push(kept.runs);
        doubtful += kept.doubtful;
        errors.extend(kept.errors);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if doubtful > 0 {
        exhibit.notes.push(format!(
            "The machine did not keep up with {doubtful} runs in {ATTEMPTS} attempts; they are \
             counted nevertheless."
        ));
    }
    exhibit.notes.extend(broken(&errors));
    let transports: Vec<Transport> = [Transport::Mptcp, Transport::CmtSctp, Transport::Tunnel]
        .into_iter()
        .filter(|transport| all.iter().any(|cell| cell.has(*transport)))
        .collect();
    show(&mut exhibit, &all, &transports);
    Ok(exhibit)
}

fn show(exhibit: &mut Exhibit, all: &[CellRuns], transports: &[Transport]) {
    for quantile in [Quantile::P50, Quantile::P99] {
        for &transport in transports {
            let (name, part) = (transport.id(), quantile.name());
            let red = red_cells(all, transport, quantile) as f64;
            let id = format!("{ID}.red_cells_of_{name}.{part}");
            exhibit.figures.push(Figure::shown(id, "cells", None, red));
            let chart = heat(all, transport, transport.title(), quantile);
            exhibit.plot(&format!("{ID}_fig19_{name}_{part}"), chart);
        }
    }
    exhibit.tables.push(delays(all, transports));
    exhibit.tables.push(shares(all, transports));
}

fn cells(quick: bool) -> Vec<(Application, bool, Pair)> {
    if quick {
        return QUICK.to_vec();
    }
    let mut cells = Vec::new();
    for application in Application::ALL {
        for background in [false, true] {
            cells.extend(Pair::ALL.map(|pair| (application, background, pair)));
        }
    }
    cells
}

/// A run that broke counts with its limit, so that the reader must know.
fn broken(errors: &[String]) -> Option<String> {
    let first = errors.first()?;
    let count = errors.len();
    Some(format!(
        "Runs that broke and count with their limit: {count}; the first one: {first}."
    ))
}

/// Facts about the runs of a cell that its reader must know.
#[derive(Default)]
struct Judged {
    doubtful: u32,
    errors: Vec<String>,
}

/// Every transport over each path alone and over both, in every scenario.
fn cell(
    scenarios: &[Scenario],
    beside: bool,
    relay: Option<&Relay>,
    identities: &Identities,
    judged: &mut Judged,
) -> Result<Vec<Runs>, LabError> {
    let mut transports = vec![(Transport::Mptcp, Carrier::Tcp, Carrier::Mptcp)];
    if let Some(relay) = relay {
        let carrier = Carrier::Sctp(relay);
        transports.push((Transport::CmtSctp, carrier, carrier));
    }
    let tunnel = Carrier::Tunnel(identities);
    transports.push((Transport::Tunnel, tunnel, tunnel));
    let mut jobs = Vec::new();
    for (_, single, multi) in &transports {
        for (paths, carrier) in [
            (Paths::One(0), single),
            (Paths::One(1), single),
            (Paths::All, multi),
        ] {
            jobs.extend(scenarios.iter().map(|it| (of(paths, it), *carrier)));
        }
    }
    let noted = Mutex::new(judged);
    let one = |(scenario, carrier): (Scenario, Carrier<'_>)| -> Result<Measured, LabError> {
        let Some(mix) = &scenario.mix else {
            return Err(LabError::Kernel(KernelError::Endpoint("no mix".to_owned())));
        };
        let run = believed(ATTEMPTS, || application::run(&scenario, mix, carrier))?.0;
        let mut noted = noted.lock();
        noted.doubtful += u32::from(!run.kept.up);
        let error = run.report.error.as_deref();
        if let Some(error) = error.filter(|error| *error != NOT_COMPLETED) {
            noted.errors.push(format!("{}: {error}", scenario.name));
        }
        Ok(measured_of(&run.report, &scenario))
    };
    let at_once = if beside { AT_ONCE_BESIDE } else { AT_ONCE };
    let measured: Vec<Measured> = waiting::at_once(at_once, jobs, one)?;
    let mut parts = measured.chunks(scenarios.len().max(1)).map(<[_]>::to_vec);
    let mut runs = Vec::new();
    for (transport, ..) in transports {
        if let (Some(first), Some(second), Some(multi)) = (parts.next(), parts.next(), parts.next())
        {
            runs.push(Runs {
                transport,
                single: [first, second],
                multi,
            });
        }
    }
    Ok(runs)
}

fn of(paths: Paths, scenario: &Scenario) -> Scenario {
    let version = Version {
        name: "",
        controller: scenario.controller,
        paths,
    };
    version.of(scenario)
}

fn delays(all: &[CellRuns], transports: &[Transport]) -> Table {
    let mut columns = vec![
        "application".to_owned(),
        "networks".to_owned(),
        "unit".to_owned(),
    ];
    for transport in transports {
        let [_, _, name] = transport.names();
        for part in ["p50", "p99"] {
            columns.push(format!("{name}: best path, {part}"));
            columns.push(format!("{name}, {part}"));
        }
    }
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new("Kernel time: delay of messages, and time of pages", &names);
    for cell in all {
        let mut row = first_columns(cell);
        row.push(cell.application.unit().to_owned());
        for &transport in transports {
            for quantile in [Quantile::P50, Quantile::P99] {
                let both = cell.both(transport, quantile);
                row.push(two(both.map(|both| both.1)));
                row.push(two(both.map(|both| both.0)));
            }
        }
        table.row(row);
    }
    table
}

fn shares(all: &[CellRuns], transports: &[Transport]) -> Table {
    let mut columns = vec![
        "application".to_owned(),
        "networks".to_owned(),
        "paper: CMT-SCTP, path 1 [%]".to_owned(),
        "paper: MPTCP, path 1 [%]".to_owned(),
    ];
    for transport in transports {
        let [_, _, name] = transport.names();
        columns.push(format!("{name}, path 1 [%]"));
    }
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let title = "Kernel time: share of the first path, beside tables 4 to 12";
    let mut table = Table::new(title, &names);
    for cell in all {
        let key = cell.application.key(cell.background);
        let (own, line) = cell.application.in_tables(&key);
        let paper = |protocol: &str| {
            let column = cell.pair.key();
            let id = format!("applications.shares.{own}_{protocol}.{line}.{column}_1");
            two(references::value(&id))
        };
        let mut row = first_columns(cell);
        row.extend([paper("cmt_sctp"), paper("mptcp")]);
        row.extend(
            transports
                .iter()
                .map(|transport| two(cell.share_of_first(*transport))),
        );
        table.row(row);
    }
    table
}

fn first_columns(cell: &CellRuns) -> Vec<String> {
    vec![
        row_name(cell.application, cell.background),
        cell.pair.title().to_owned(),
    ]
}
