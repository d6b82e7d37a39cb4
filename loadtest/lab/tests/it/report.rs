//! The report and its parts: files beside it, references for everything, resumption, scenario
//! files, and the traffic of applications.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lab::exhibit::Section;
use lab::mix::{Background, Mix};
use lab::references::{self, Comparison};
use lab::scenario::{Buffers, Controller, Direction, Half, Interface, Scenario, ScenarioError};
use lab::task::Time;
use lab::{Identity, Mechanisms, ReportOptions, run, studies};

fn options(out: &Path, only: &str) -> ReportOptions {
    ReportOptions {
        seed: 5,
        quick: true,
        out: out.to_owned(),
        only: Some(only.to_owned()),
        traces: Vec::new(),
        again: false,
        list: false,
    }
}

fn files(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_report_has_its_data_beside_it_and_a_reference_for_every_figure() {
    let folder = tempfile::tempdir().unwrap();
    options(folder.path(), "lte.fig").run().unwrap();
    let html = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    for part in ["<svg ", "lte.fig6", "--seed 5 --quick", "figure6.return1"] {
        assert!(html.contains(part), "{part}");
    }
    for bad in ["no entry in references.toml", "http://", "https://", "NaN"] {
        let html = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!html.contains(bad), "{bad}");
    }
    let charts = files(&folder.path().join("charts"));
    for ending in ["svg", "csv", "json"] {
        assert!(charts.contains(&format!("lte.fig6.{ending}")), "{charts:?}");
    }
    let rows = std::fs::read_to_string(folder.path().join("figures.json")).unwrap();
    assert!(rows.contains("figure6.return2"), "{rows}");
}

#[test]
fn a_finished_experiment_is_not_run_again_for_the_same_seed() {
    let folder = tempfile::tempdir().unwrap();
    let first = options(folder.path(), "lte.dataset");
    first.run().unwrap();
    let kept = folder.path().join("finished");
    let name = files(&kept).into_iter().next().unwrap();
    // A mark that only the kept experiment can have.
    let text = std::fs::read_to_string(kept.join(&name)).unwrap();
    std::fs::write(
        kept.join(&name),
        text.replace("Drives: cells", "Kept: cells"),
    )
    .unwrap();
    first.run().unwrap();
    let html = || std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(html().contains("Kept: cells"));
    ReportOptions {
        seed: 6,
        ..options(folder.path(), "lte.dataset")
    }
    .run()
    .unwrap();
    assert!(!html().contains("Kept: cells"));
    assert_eq!(files(&kept).len(), 2);
}

#[test]
fn experiments_have_ids_of_their_sections_and_none_is_named_twice() {
    let mut ids = BTreeSet::new();
    for experiment in studies::experiments() {
        let section = experiment.section.name();
        assert!(
            experiment.id.starts_with(section),
            "{} {section}",
            experiment.id
        );
        assert!(ids.insert(experiment.id), "{}", experiment.id);
    }
    assert!(ids.len() >= 30, "{ids:?}");
}

#[test]
fn experiments_over_sockets_are_in_kernel_time() {
    for experiment in studies::experiments() {
        let id = experiment.id;
        let sockets = id.ends_with(".kernel") || id.ends_with(".packets");
        assert_eq!(experiment.time == Time::Kernel, sockets, "{id}");
    }
}

#[test]
fn every_section_of_the_report_has_an_experiment() {
    let experiments = studies::experiments();
    for section in Section::ALL {
        let has_one = experiments.iter().any(|it| it.section == section);
        // Scenarios of a user come from files.
        assert_eq!(has_one, section != Section::Given, "{}", section.name());
    }
}

#[test]
fn the_fluid_model_is_in_the_report_with_its_slider_and_published_values() {
    let folder = tempfile::tempdir().unwrap();
    options(folder.path(), "fluid.s").run().unwrap();
    options(folder.path(), "fluid.r").run().unwrap();
    let html = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(html.contains("fluid.responsive.satellite.share"), "{html}");
    let rows = std::fs::read_to_string(folder.path().join("figures.json")).unwrap();
    assert!(
        rows.contains("80.3") && !rows.contains("\"met\": false"),
        "{rows}"
    );
    let convoy = lab::fluids::study("convoy").unwrap();
    let fragment = convoy.fragment.unwrap();
    assert!(fragment.contains("slider.type = \"range\""));
    assert!(!fragment.contains("https://"));
}

/// Ids of figures that the experiments of this project make: each has a reference, or a reason.
#[test]
fn every_family_of_figures_has_a_reference_or_says_why_there_is_none() {
    let families = [
        "pals.noloss.efficiency",
        "pals.handover.vitals_gap_p99",
        "pals_one_way.download.loss.worst",
        "regional.download.usa.best.ratio",
        "lte.residential.case4",
        "lte.upload.road.case3_no_worse_than_case2",
        "lte.dataset.op2.p50",
        "lte.deviation.body",
        "lte.recorded.case2",
        "lte.trunk.15",
        "figure6.return1",
        "rival.near.eight_flows",
        "rival.download.cut_first.gap",
        "unequal.two",
        "bottleneck.with.cubic",
        "robust.good",
        "kernel.report.pals.loss.ours_to_best",
        "applications.red_cells.p99",
        "yardstick.fiber_lte.ratio",
        "keepalive.example.k",
        "keepalive.packets_step.answered",
        "applications.red_cells_of_best_mode.p50",
        "fluid.speed.nine_minutes",
        "plan.shared.gateway1.error",
        "steering.download.auto.heavy_rate",
        "lab.speed",
    ];
    for id in families {
        assert_ne!(references::comparison(id), Comparison::Missing, "{id}");
    }
    let names = [
        "noloss.efficiency",
        "loss.efficiency",
        "handover.efficiency",
    ];
    for name in names {
        assert!(
            references::figure(&format!("pals.{name}")).is_some(),
            "{name}"
        );
    }
}

fn scenario_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Networks of the fluid model and plans are files of another kind.
        if path.is_dir() {
            if !path.ends_with("fluid") && !path.ends_with("plan") {
                scenario_files(&path, into);
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            into.push(path);
        }
    }
}

#[test]
fn every_example_scenario_is_accepted() {
    let mut files = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    scenario_files(&folder, &mut files);
    assert!(files.len() >= 30, "{}", files.len());
    for file in files {
        if let Err(error) = Scenario::from_file(&file) {
            panic!("{error}");
        }
    }
}

#[test]
fn a_csv_trace_is_read_beside_its_scenario_and_its_errors_name_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let text = std::fs::read_to_string(examples.join("own-trace.toml")).unwrap();
    std::fs::write(folder.path().join("mine.toml"), &text).unwrap();
    std::fs::write(folder.path().join("drive.csv"), "0,8\n1,-4\n").unwrap();
    let error = Scenario::from_file(&folder.path().join("mine.toml")).unwrap_err();
    assert!(matches!(error, ScenarioError::Csv { .. }), "{error}");
    let error = error.to_string();
    for part in ["drive.csv", "line 2", "rate_mbit", "for example"] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

fn over(interfaces: Vec<Interface>, mix: Mix) -> Scenario {
    let direction = Direction::Download;
    let mut scenario =
        Scenario::transfer("mix", 3, direction, 1, Controller::Ours, 60.0, interfaces);
    scenario.mix = Some(mix);
    scenario
}

fn two_links() -> Vec<Interface> {
    vec![
        Interface::symmetric("wlan", 20.0, 40.0, 0.01),
        Interface::symmetric("3g", 4.0, 140.0, 0.0),
    ]
}

fn video() -> Mix {
    Mix::Video {
        kbit: 950.0,
        frames_per_s: 30.0,
        seconds: 5.0,
    }
}

#[test]
fn every_frame_of_a_video_arrives_in_either_direction_no_sooner_than_the_link_allows() {
    let identity = Identity::new().unwrap();
    for direction in [Direction::Upload, Direction::Download] {
        let mut scenario = over(two_links(), video());
        scenario.direction = direction;
        let report = run(&scenario, &identity, Mechanisms::default()).unwrap();
        assert!(report.completed, "{:?}", report.error);
        assert_eq!(report.messages_ms.len(), 150);
        let least = report
            .messages_ms
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min);
        assert!((20.0..60.0).contains(&least), "{least}");
        assert!(report.carried_bytes.iter().sum::<u64>() > 590_000);
    }
}

#[test]
fn a_page_is_complete_with_its_last_object() {
    let identity = Identity::new().unwrap();
    let page = Mix::Page {
        objects: 54,
        bytes: 1_048_576,
        at_once: 6,
    };
    let report = run(&over(two_links(), page), &identity, Mechanisms::default()).unwrap();
    assert!(report.completed, "{:?}", report.error);
    assert_eq!(report.delivered_bytes, 1_048_576);
    // At 24 Mbit/s at the most, and with nine rounds of requests at the least.
    let seconds = report.page_s.unwrap();
    assert!((0.35..5.0).contains(&seconds), "{seconds}");
}

#[test]
fn background_and_small_buffers_slow_the_traffic() {
    let identity = Identity::new().unwrap();
    let links = || vec![Interface::symmetric("3g", 4.0, 140.0, 0.0)];
    let median = |scenario: &Scenario| {
        let report = run(scenario, &identity, Mechanisms::default()).unwrap();
        assert!(report.completed, "{:?}", report.error);
        let mut delays = report.messages_ms;
        delays.sort_by(f64::total_cmp);
        delays[delays.len() / 2]
    };
    let alone = over(links(), video());
    let mut beside = over(links(), video());
    beside.competitors = vec![Controller::Cubic];
    beside.background = Some(Background::of_the_paper());
    let (alone, beside) = (median(&alone), median(&beside));
    assert!(beside > alone + 20.0, "{beside} {alone}");
    let page = || {
        over(
            links(),
            Mix::Page {
                objects: 6,
                bytes: 2_000_000,
                at_once: 6,
            },
        )
    };
    let mut small = page();
    small.buffers = Some(Buffers {
        send_bytes: 30_000,
        receive_bytes: 30_000,
    });
    let time = |scenario: &Scenario| {
        run(scenario, &identity, Mechanisms::default())
            .unwrap()
            .page_s
            .unwrap()
    };
    let (small, usual) = (time(&small), time(&page()));
    assert!(small > usual * 1.5, "{small} {usual}");
}

#[test]
fn delays_losses_and_a_shared_link_change_a_transfer_as_asked() {
    let identity = Identity::new().unwrap();
    let half = Half::constant(10.0, 20.0);
    let transfer = |half: &Half| {
        let direction = Direction::Download;
        let interfaces = vec![Interface::alike("only", half.clone())];
        Scenario::transfer(
            "steps",
            4,
            direction,
            4_000_000,
            Controller::Ours,
            60.0,
            interfaces,
        )
    };
    let time = |scenario: &Scenario| {
        let report = run(scenario, &identity, Mechanisms::default()).unwrap();
        assert!(report.completed, "{:?}", report.error);
        report.from_connect_s
    };
    let usual = time(&transfer(&half));
    let mut late = half.clone();
    late.delay_steps = vec![(0.0, 200.0)];
    assert!(time(&transfer(&late)) > usual + 0.3);
    let mut lossy = half.clone();
    lossy.loss_steps = vec![(0.0, 0.2)];
    assert!(time(&transfer(&lossy)) > usual * 1.15);
    let mut shared = transfer(&half);
    shared.trunk_mbit = Some(2.0);
    let seconds = time(&shared);
    assert!((16.0..20.0).contains(&seconds), "{seconds}");
}

#[test]
fn mixes_out_of_bounds_are_refused_with_field_and_example() {
    let mut scenario = over(two_links(), video());
    scenario.mix = Some(Mix::Video {
        kbit: f64::NAN,
        frames_per_s: 30.0,
        seconds: 5.0,
    });
    let error = scenario.check().unwrap_err().to_string();
    assert!(
        error.contains("mix.video.kbit") && error.contains("for example"),
        "{error}"
    );
    let mut scenario = over(
        two_links(),
        Mix::Page {
            objects: 3,
            bytes: 300,
            at_once: 6,
        },
    );
    scenario.direction = Direction::Upload;
    assert!(
        scenario
            .check()
            .unwrap_err()
            .to_string()
            .contains("direction")
    );
    let mut scenario = over(two_links(), video());
    scenario.interfaces[1].to_client.loss_steps = vec![(-1.0, 0.1)];
    let error = scenario.check().unwrap_err().to_string();
    assert!(
        error.contains("interfaces[1].to_client.loss_steps[0]"),
        "{error}"
    );
}
