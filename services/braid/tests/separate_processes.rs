//! The separate-process shape under load: each service is killed once with SIGKILL and started
//! again. Every sample that the gateway accepted is in the store exactly once.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/sensor.rs"]
mod sensor;
#[path = "support/separate.rs"]
mod separate;

use std::time::Duration;

use program::{eventually, http, rows};
use sensor::{Sensors, pause};
use separate::{NOUNS, Separate};

const DEVICES: usize = 8;
/// Samples that must be stored after a restart before the next service is killed.
const PROGRESS: u64 = 200;

#[test]
fn killing_each_service_once_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let devices: Vec<String> = (1..=DEVICES)
        .map(|number| format!("sensor-{number}"))
        .collect();
    let mut separate = Separate::prepare(dir.path(), &devices, &[]);
    for noun in NOUNS {
        separate.start(noun);
    }
    let sensors = Sensors::start(separate.sensors(), &devices, |number| 60 + number % 40);

    let data = separate.data.clone();
    let stored = || rows(&data, "sensor-%").0;
    eventually("the first rows", || stored() > PROGRESS);
    for noun in NOUNS {
        separate.kill(noun);
        // Meanwhile the other services go on or wait; their progress does not matter here.
        pause(Duration::from_millis(300));
        separate.start(noun);
        let then = stored();
        eventually(&format!("rows after {noun} was killed"), || {
            stored() >= then + PROGRESS
        });
    }
    eventually("the page", || {
        http(separate.page(), "GET", "/", "", "").is_ok_and(|(status, _)| status == 200)
    });

    let accepted = sensors.stop();
    eventually(&format!("{accepted} accepted samples in the store"), || {
        stored() >= accepted
    });
    let (rows, readings) = rows(&data, "sensor-%");
    println!("accepted {accepted}, stored {rows} rows of {readings} different readings");
    assert_eq!(
        (rows, readings),
        (accepted, accepted),
        "stored and different, of those accepted"
    );
    separate.assert_all_running();
}
