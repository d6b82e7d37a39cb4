//! Real processes whose wall clock steps. No sensor is called silent because of a step, and no
//! false alarm about the core is raised. A real silence is found afterwards.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/sensor.rs"]
mod sensor;
#[path = "support/separate.rs"]
mod separate;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use contracts::alerts::Alert;
use program::{eventually, rows};
use sensor::{Sensors, pause};
use separate::{NOUNS, Separate};
use store::{AlertsQuery, AlertsStore, Scope, SqliteStore};
use vitals::silence;

/// A silence counts after so long; a step delays verdicts by as much.
const SILENT_AFTER_S: u64 = 10;
/// Between two looks for silent sensors.
const ROUND_S: u64 = 5;
/// Time to find a silence, with a round and some seconds for a slow machine.
const FOUND_WITHIN: Duration = Duration::from_secs(2 * SILENT_AFTER_S + 2 * ROUND_S);
/// Reached only by a failing test.
const PATIENCE: Duration = Duration::from_secs(120);

/// A wall clock that is wrong by what its file has.
struct WrongClock {
    library: PathBuf,
    file: PathBuf,
}

impl WrongClock {
    /// Compiles the library; `cc` is there on every machine that can build the tests.
    fn new(dir: &Path) -> WrongClock {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/wrong_clock.c");
        let (library, file) = (dir.join("wrong_clock.so"), dir.join("wrong_by_s"));
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([&library, &source])
            .status()
            .expect("cc, which infra/dev/need.sh installs");
        assert!(built.success(), "wrong_clock.c does not compile");
        let clock = WrongClock { library, file };
        clock.set(0);
        clock
    }

    /// As one change: a reader sees the old or the new number.
    fn set(&self, wrong_by_s: i64) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, wrong_by_s.to_string()).unwrap();
        std::fs::rename(&new, &self.file).unwrap();
    }

    fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        vec![
            ("LD_PRELOAD".to_owned(), text(&self.library)),
            ("WRONG_CLOCK_FILE".to_owned(), text(&self.file)),
        ]
    }
}

/// Alerts about silence that are in the store, open or not.
fn silences(data: &Path) -> Vec<Alert> {
    let store = SqliteStore::open(data).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let query = AlertsQuery {
        include_resolved: true,
        limit: 10_000,
        ..AlertsQuery::default()
    };
    let alerts = runtime.block_on(store.alerts(&Scope::Service, &query));
    let is_silence = |alert: &Alert| silence::ALL.contains(&alert.rule.as_str());
    let of_devices = |alert: &Alert| alert.rule != silence::PATH && is_silence(alert);
    alerts.unwrap().into_iter().filter(of_devices).collect()
}

/// Services whose clock steps, while the other services and the sensors have a right clock.
fn step(stepping: &[&'static str]) {
    let dir = tempfile::tempdir().unwrap();
    let clock = WrongClock::new(dir.path());
    let devices: Vec<String> = (1..=3).map(|number| format!("sensor-{number}")).collect();
    let mut separate = Separate::prepare(dir.path(), &devices, &[]);
    for noun in NOUNS {
        separate.environment = match stepping.contains(&noun) {
            true => clock.environment(),
            false => Vec::new(),
        };
        let after = format!("--silent-after-s={SILENT_AFTER_S}");
        match noun {
            "alerting" => separate.start_with(noun, &[&after]),
            _ => separate.start(noun),
        }
    }
    let lasting = Sensors::start(separate.sensors(), &devices[..2], |_| 70);
    let ending = Sensors::start(separate.sensors(), &devices[2..], |_| 70);
    let data = separate.data.clone();
    eventually("rows of every sensor", || {
        devices.iter().all(|device| rows(&data, device).0 > 0)
    });
    // Silence is judged by now, and there is none. No step has delayed the verdict.
    pause(Duration::from_secs(SILENT_AFTER_S + ROUND_S));
    assert_eq!(silences(&data), [], "before any step");
    for wrong_by_s in [90, 90 - 3_600] {
        clock.set(wrong_by_s);
        pause(FOUND_WITHIN);
        assert_eq!(silences(&data), [], "{wrong_by_s} s off");
    }
    ending.stop();
    program::eventually_within(PATIENCE, "the silence of sensor-3", || {
        let found = silences(&data);
        let is_of_third = |alert: &Alert| alert.device == "sensor-3";
        assert!(found.iter().all(is_of_third), "{found:?}");
        !found.is_empty()
    });
    separate.assert_all_running();
    lasting.stop();
}

#[test]
fn a_step_of_alertings_clock_calls_nobody_silent_and_hides_no_silence() {
    step(&["alerting"]);
}

#[test]
fn a_step_of_the_cores_clock_calls_nobody_silent_and_hides_no_silence() {
    step(&["alerting", "ingest", "path-telemetry", "dashboard", "proxy"]);
}
