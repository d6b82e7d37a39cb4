//! Six places name each fault: `/readyz`, `/healthz`, `/metrics`, the log, `braid doctor` and the
//! banners of the page. They agree in each state.
#![allow(clippy::unwrap_used)]

#[path = "support/grpc_web.rs"]
mod grpc_web;
#[path = "support/six_places.rs"]
mod places;
#[path = "support/program.rs"]
mod program;
#[path = "support/up.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod started;

use places::Places;
use program::{eventually, http, rows, run};
use started::{Up, end, password, send_twice, up};

/// As a fault of the disk, or of an earlier version, leaves it.
const DAMAGED: &str = "INSERT INTO documents (kind, tenant, subject, version, until_us, payload)
    VALUES ('rules', 'default', 'patient:patient-1', 1, 9223372036854775807, x'ffffff')";

#[test]
fn six_places_say_the_same_of_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data_flag = data.to_str().unwrap();
    let running = up(dir.path());
    let credentials =
        serde_json::json!({"name": "admin", "password": password(&running.program.log())});
    let credentials = credentials.to_string();
    let headers = "content-type: application/json\r\n";
    let answer = http(running.page, "POST", "/api/token", headers, &credentials);
    let (status, answer) = answer.unwrap();
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let token = answer["token"].as_str().unwrap();
    let agreed = |running: &Up, what: &str, name: &str| {
        places::agree(what, name, || {
            let log = running.program.log();
            Places::look(running.admin, running.page, &log, data_flag, token)
        });
    };
    agreed(&running, "no channel exists", "alerting/nobody-told");
    let links = |act: &str| {
        for link in ["wifi", "lte"] {
            let (code, _, error) = run(&["link", act, link, "--data", data_flag]);
            assert_eq!(code, 0, "{error}");
        }
    };
    links("cut");
    agreed(&running, "both networks are cut", "gateway/no-network");
    links("restore");
    assert_eq!(send_twice(running.sensors, 1), [200, 200]);
    eventually("a reading of the guest", || {
        rows(&data, "guest-sensor").0 == 1
    });
    let guest = ["register", "end", "--device", "guest-sensor"];
    let how = ["--reason", "handed back", "--data", data_flag];
    let (code, _, error) = run(&[&guest[..], &how].concat());
    assert_eq!(code, 0, "{error}");
    let statuses = send_twice(running.sensors, 2);
    // 202: the gateway knows by now that nobody wears the sensor.
    assert!(statuses.iter().all(|it| matches!(it, 200 | 202)));
    agreed(&running, "a reading is of nobody", "ingest/quarantine");
    let store = rusqlite::Connection::open(data.join("store.db")).unwrap();
    store.execute(DAMAGED, []).unwrap();
    agreed(
        &running,
        "a document cannot be read",
        "alerting/damaged-documents",
    );
    end(running);
    // The others exist only at times.
    for file in ["bus.db", "bus.db-wal", "bus.db-shm"] {
        let _ = std::fs::remove_file(data.join(file));
    }
    let running = up(dir.path());
    agreed(
        &running,
        "the bus is another one",
        "ingest/storing-vitals-log",
    );
    end(running);
}
