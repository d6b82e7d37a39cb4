//! The closest open project: its benchmark profiles, and the profiles of its own report.

use crate::error::LabError;
use crate::exhibit::{Exhibit, Section, Table};
use crate::figures::Figure;
use crate::plot::{Axis, Bar, Bars};
use crate::references;
use crate::report::{mean, percentile, sorted};
use crate::rival as of_rival;
use crate::scenario::{Controller, Direction, Scenario};
use crate::seed::derive_seed;
use crate::studies::versions::{self, Paths, Ran, Version, two};
use crate::task::{Experiment, Task, Time};

/// The profiles, as scenario files.
const FILES: [(&str, &str); 16] = [
    (
        "baseline",
        include_str!("../../scenarios/yardstick/baseline.toml"),
    ),
    (
        "rtt_40",
        include_str!("../../scenarios/yardstick/rtt_40.toml"),
    ),
    (
        "rtt_70",
        include_str!("../../scenarios/yardstick/rtt_70.toml"),
    ),
    (
        "rtt_120",
        include_str!("../../scenarios/yardstick/rtt_120.toml"),
    ),
    (
        "rtt_320",
        include_str!("../../scenarios/yardstick/rtt_320.toml"),
    ),
    (
        "jit_5",
        include_str!("../../scenarios/yardstick/jit_5.toml"),
    ),
    (
        "jit_20",
        include_str!("../../scenarios/yardstick/jit_20.toml"),
    ),
    (
        "loss_05",
        include_str!("../../scenarios/yardstick/loss_05.toml"),
    ),
    (
        "loss_2",
        include_str!("../../scenarios/yardstick/loss_2.toml"),
    ),
    (
        "bw_4to1",
        include_str!("../../scenarios/yardstick/bw_4to1.toml"),
    ),
    (
        "bw_10to1",
        include_str!("../../scenarios/yardstick/bw_10to1.toml"),
    ),
    (
        "dual_lte",
        include_str!("../../scenarios/yardstick/dual_lte.toml"),
    ),
    (
        "fiber_lte",
        include_str!("../../scenarios/yardstick/fiber_lte.toml"),
    ),
    (
        "lte_starlink",
        include_str!("../../scenarios/yardstick/lte_starlink.toml"),
    ),
    (
        "lte_geo",
        include_str!("../../scenarios/yardstick/lte_geo.toml"),
    ),
    (
        "congested",
        include_str!("../../scenarios/yardstick/congested.toml"),
    ),
];
/// Least share of the best single path, everywhere.
const RATIO_MIN: f64 = 0.98;
/// Profiles for which more is asked.
const RATIOS_MIN: [(&str, f64); 2] = [("lte_starlink", 1.2), ("fiber_lte", 1.05)];

/// The names of all profiles.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.0)
}

/// The scenario file of a profile.
pub(crate) fn file_of(profile: &str) -> Option<&'static str> {
    let found = FILES.iter().find(|file| file.0 == profile);
    found.map(|file| file.1)
}

/// Target of a profile, in times the best single path.
pub(crate) fn ratio_min(profile: &str) -> f64 {
    let asked = RATIOS_MIN.iter().find(|asked| asked.0 == profile);
    asked.map_or(RATIO_MIN, |asked| asked.1)
}

pub(super) fn experiments() -> Vec<Experiment> {
    let experiment = |id, cost_s, run| Experiment {
        id,
        section: Section::Yardstick,
        time: Time::Virtual,
        cost_s,
        run,
    };
    vec![
        experiment(
            "yardstick.profiles",
            (10, 120),
            profiles as fn(&Task<'_>) -> _,
        ),
        experiment("yardstick.rival", (12, 12), rival),
    ]
}

const fn ours(name: &'static str, paths: Paths) -> Version {
    Version {
        name,
        controller: Controller::Ours,
        paths,
    }
}

const fn other(name: &'static str, controller: Controller, path: usize) -> Version {
    Version {
        name,
        controller,
        paths: Paths::One(path),
    }
}

fn profiles(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "yardstick.profiles";
    let title = "Sixteen benchmark profiles of mqvpn";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(
        "A download of 20 MiB over both paths and over each alone, with one automatic setting for \
         all profiles: loadtest/lab/scenarios/yardstick. The ratio is by the best single path of \
         Braid, Cubic or BBR in the same run. The reference is the best of the project's settings \
         by hand for each profile. Theirs is an inner QUIC flow in datagrams of a tunnel; here it \
         is a stream of the multipath connection, which is how Braid carries TCP. yardstick.kernel \
         has an inner flow in datagrams, in kernel time.",
    );
    let versions = [
        ours("Braid, path a", Paths::One(0)),
        ours("Braid, path b", Paths::One(1)),
        ours("Braid", Paths::All),
        other("QUIC cubic, path a", Controller::Cubic, 0),
        other("QUIC cubic, path b", Controller::Cubic, 1),
        other("QUIC bbr, path a", Controller::Bbr, 0),
        other("QUIC bbr, path b", Controller::Bbr, 1),
    ];
    let columns = [
        "profile",
        "mqvpn: path a [Mbit/s]",
        "path b",
        "best of its settings",
        "ratio",
        "Braid: path a [Mbit/s]",
        "path b",
        "both",
        "best single of all",
        "ratio",
        "worst run's ratio",
    ];
    let mut table = Table::new("Goodput from connect()", &columns);
    let (mut theirs, mut own) = (Vec::new(), Vec::new());
    let scenarios = FILES
        .iter()
        .map(|(_, text)| repeated(task, text))
        .collect::<Result<Vec<_>, LabError>>()?;
    let each: Vec<(Version, &[Scenario])> = scenarios
        .iter()
        .flat_map(|own| versions.map(|version| (version, own.as_slice())))
        .collect();
    let ran = versions::run_each(task, id, &each)?;
    for ((name, _), ran) in FILES.iter().zip(ran.chunks(versions.len())) {
        let name = *name;
        let [a, b, both, others @ ..] = ran else {
            continue;
        };
        let singles: Vec<&Ran> = [a, b].into_iter().chain(others).collect();
        let ratios = ratios(&singles, both);
        let best_single = best_single(&singles);
        let ratio = percentile(&ratios, 0.5).unwrap_or_default();
        let id = format!("yardstick.{name}.ratio");
        let target = ratio_min(name);
        exhibit.figures.push(Figure::at_least(
            &*id,
            "x",
            references::figure(&id),
            target,
            ratio,
        ));
        let value = |column: &str| references::value(&format!("yardstick.{name}.{column}"));
        let best = value("wlb")
            .zip(value("minrtt"))
            .map(|(wlb, minrtt)| wlb.max(minrtt));
        table.row(vec![
            name.to_owned(),
            two(value("path_a")),
            two(value("path_b")),
            two(best),
            two(value("best_ratio")),
            two(Some(a.mean(versions::goodput))),
            two(Some(b.mean(versions::goodput))),
            two(Some(both.mean(versions::goodput))),
            two(Some(mean(&best_single))),
            two(Some(mean(&ratios))),
            two(ratios.first().copied()),
        ]);
        theirs.push(value("best_ratio").map_or_else(Bar::none, Bar::value));
        own.push(Bar::value(ratio));
    }
    exhibit.tables.push(table);
    let names = FILES.map(|file| file.0);
    let axis = Axis::new("goodput by the best single path", "x").from_zero();
    let bars = Bars::new("Multipath against the best single path", axis, &names)
        .series("mqvpn, best settings by hand", &theirs)
        .series("Braid, one setting", &own)
        .level("equal", 1.0);
    exhibit.plot("yardstick.profiles", bars);
    Ok(exhibit)
}

/// A profile with the losses of each repetition.
fn repeated(task: &Task<'_>, text: &str) -> Result<Vec<Scenario>, LabError> {
    let scenario = Scenario::from_toml(text)?;
    let repetitions = u64::from(task.pick(1, 5));
    let each = (0..repetitions).map(|repetition| Scenario {
        seed: derive_seed(task.seed, 6000 + repetition),
        ..scenario.clone()
    });
    Ok(each.collect())
}

/// Goodput of the best single path of any of the transports, run by run.
fn best_single(singles: &[&Ran]) -> Vec<f64> {
    let each: Vec<Vec<f64>> = singles
        .iter()
        .map(|ran| ran.of(versions::goodput))
        .collect();
    let runs = each.first().map_or(0, Vec::len);
    let best = |run: usize| {
        each.iter()
            .filter_map(|own| own.get(run).copied())
            .fold(0.0, f64::max)
    };
    (0..runs).map(best).collect()
}

/// Goodput over both paths divided by that of the best single path, for each run, sorted.
fn ratios(singles: &[&Ran], both: &Ran) -> Vec<f64> {
    let pairs = both
        .of(versions::goodput)
        .into_iter()
        .zip(best_single(singles));
    sorted(pairs.map(|(both, best)| both / best.max(1e-9)))
}

fn rival(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "yardstick.rival";
    let title = "Profiles of its own report, and silent cuts";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(
        "Efficiency is of what headers leave of the capacity, from stream open, over ten seconds. \
         A silent cut of five seconds; a restored path carries traffic from a tenth of its rate.",
    );
    for (direction, prefix) in [
        (Direction::Upload, "rival"),
        (Direction::Download, "rival.download"),
    ] {
        let (figures, _) =
            of_rival::run(task.runner, prefix, task.seed, Controller::Ours, direction)?;
        exhibit.figures.extend(figures);
        if task.quick {
            let note = "A quick report has uploads alone.";
            exhibit.notes.push(note.to_owned());
            break;
        }
    }
    Ok(exhibit)
}
