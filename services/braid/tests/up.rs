//! `braid up` from a person's view: start, page, a sample by hand, a cut, Ctrl-C, restart.
#![allow(clippy::unwrap_used)]

#[path = "support/glucose.rs"]
mod glucose;
#[path = "support/grpc_web.rs"]
mod grpc_web;
#[path = "support/program.rs"]
mod program;
#[path = "support/proven.rs"]
mod proven;
#[path = "support/up.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod started;
#[path = "support/webhook.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod webhook;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use glucose::{CAPILLARY_GLUCOSE, LOW_GLUCOSE, alerts_say, newest_glucose, shows_the_metric};
use program::{Program, eventually, eventually_within, http, rows, run, run_with};
use proven::proves_complete;
use started::{ANYWHERE, Up, end, password, send_twice, up, up_with};

fn send(sensors: SocketAddr, number: u64) {
    assert_eq!(send_twice(sensors, number), [200, 200]);
}

#[test]
fn memory_given_back_is_not_filled_again_with_huge_pages() {
    let dir = tempfile::tempdir().unwrap();
    let up = up(dir.path());
    let status = up.program.status();
    let told = status.lines().find(|line| line.starts_with("THP_enabled:"));
    // Kernels before 5.0 do not report this.
    assert!(told.is_none_or(|told| told.ends_with('0')), "{status}");
    end(up);
}

#[test]
fn a_sample_by_hand_is_stored_once_through_a_cut_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data_flag = data.to_str().unwrap();
    let started = Instant::now();
    let webhook = webhook::Webhook::start();
    let url = format!("http://{}/", webhook.address);
    let running = up_with(dir.path(), &["--webhook", &url]);
    leads_to_the_gateway(&running);
    let (code, _, error) = run(&["episode", "patient-1", "fall", "--data", data_flag]);
    assert_eq!(code, 0, "{error}");
    eventually("a first row", || rows(&data, "wearable-%").0 > 0);
    println!(
        "first sample stored {} ms after the start",
        started.elapsed().as_millis()
    );

    finds_up_by_its_folder(data_flag);
    send(running.sensors, 1);
    eventually("the sample by hand", || {
        rows(&data, "guest-sensor") == (1, 1)
    });

    let (code, table, error) = run(&["link", "cut", "wifi", "--data", data_flag]);
    assert_eq!(code, 0, "{error}");
    assert_eq!(
        table.lines().filter(|line| line.contains("down")).count(),
        2,
        "{table}"
    );
    send(running.sensors, 2);
    eventually("the sample over LTE", || {
        rows(&data, "guest-sensor") == (2, 2)
    });
    let (_, table, _) = run(&[
        "link",
        "restore",
        "wifi",
        "--gateway",
        "gw-1",
        "--data",
        data_flag,
    ]);
    assert_eq!(
        table.lines().filter(|line| line.contains("up")).count(),
        1,
        "{table}"
    );

    let (code, _, error) = run(&["episode", "patient-2", "fever", "--data", data_flag]);
    assert_eq!(code, 0, "{error}");
    let (code, _, error) = run(&["episode", "nobody", "fever", "--data", data_flag]);
    assert!(
        code == 1 && error.contains("patient-1, patient-2"),
        "{error}"
    );

    eventually("the webhook is told of the fall", || {
        webhook.told(&alerts_of(&data, "patient-1")) > 0
    });

    refuses_a_second(data_flag);
    let first_password = password(&running.program.log());
    end(running);
    let before = rows(&data, "%");

    let running = up(dir.path());
    eventually("rows of the second run", || {
        rows(&data, "wearable-%").0 > before.0
    });
    send(running.sensors, 3);
    eventually("the sample after the restart", || {
        rows(&data, "guest-sensor") == (3, 3)
    });
    eventually("the password", || {
        running
            .program
            .log()
            .matches("sign in as admin with")
            .count()
            == 2
    });
    assert_eq!(password(&running.program.log()), first_password);

    // Without any network the gateways cannot upload their last samples; the end must be regular
    // all the same, and no sample lost.
    for link in ["wifi", "lte"] {
        let (code, _, error) = run(&["link", "cut", link, "--data", data_flag]);
        assert_eq!(code, 0, "{error}");
    }
    send(running.sensors, 4);
    end(running);
    assert_eq!(rows(&data, "guest-sensor"), (3, 3));
    let running = up(dir.path());
    eventually("the sample that was taken offline", || {
        rows(&data, "guest-sensor") == (4, 4)
    });
    proves_complete(&data, running.sensors, started.elapsed());
    end(running);
}

fn leads_to_the_gateway(running: &Up) {
    let page = |address| {
        let (status, body) = http(address, "GET", "/", "", "").unwrap();
        let is_page = body.to_lowercase().contains("<!doctype html");
        assert!(status == 200 && is_page, "{status} {body}");
        body
    };
    let first = page(running.page);
    let (_, link) = first.split_once("<a href=\"").unwrap();
    let (link, _) = link.split_once('"').unwrap();
    assert_eq!(link, format!("http://{}/", running.sensors));
    page(running.sensors);
}

/// It would use the same journals.
fn refuses_a_second(data: &str) {
    let mut second = vec!["up", "--data", data];
    second.extend(ANYWHERE);
    let (code, _, error) = run(&second);
    assert_eq!(code, 64, "{error}");
    assert!(error.contains("another `braid up`"), "{error}");
}

/// Its admin listener has any port.
fn finds_up_by_its_folder(data: &str) {
    eventually("health", || {
        let (code, says, error) = run(&["health", "--data", data]);
        assert!(error.is_empty(), "{error}");
        code == 0 && !says.is_empty()
    });
    let (code, table, error) = run(&["paths", "--data", data, "--interval-ms", "100"]);
    assert!(code == 0 && table.contains("wifi"), "{error}{table}");
    let of_one = ["--data", data, "--gateway", "gw-1"];
    for (verb, says) in [("start", "gw-1 is recorded"), ("stop", "gw-1")] {
        let (code, text, error) = run(&[&["qlog", verb], &of_one[..]].concat());
        assert!(code == 0 && text.contains(says), "{error}{text}");
    }
}

fn alerts_of(data: &Path, patient: &str) -> Vec<String> {
    let store = rusqlite::Connection::open(data.join("store.db")).unwrap();
    let mut found = store
        .prepare("SELECT DISTINCT id FROM alerts WHERE patient = ?1")
        .unwrap();
    let ids = found.query_map([patient], |row| row.get(0)).unwrap();
    ids.map(Result::unwrap).collect()
}

#[test]
fn a_port_in_use_is_named_with_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--sensors", "--admin"] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mut args = vec!["up", "--data", data.to_str().unwrap()];
        args.extend(ANYWHERE);
        let at = args.iter().position(|arg| *arg == flag).unwrap();
        args[at + 1] = &address;
        let (code, _, error) = run(&args);
        assert_eq!(code, 64, "{error}");
        assert!(
            error.contains(&taken.local_addr().unwrap().port().to_string()),
            "{error}"
        );
        assert!(error.contains(flag), "{flag} is not named: {error}");
        // Stopping what had been started is no reason for a warning.
        assert!(!error.contains("draining"), "{error}");
    }
}

#[test]
fn configuration_is_layered_and_printed_with_its_origins() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("braid.toml");
    std::fs::write(
        &file,
        "[gateway]\nsensor_token = \"a-long-secret\"\nproxy = \"proxy.example.org:4433\"\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let (_, text, _) = run(&[
        "config",
        "gateway",
        "--config",
        file,
        "--journal-gather-ms",
        "5",
    ]);
    assert!(
        text.contains("proxy = \"proxy.example.org:4433\"  # file"),
        "{text}"
    );
    assert!(text.contains("journal_gather_ms = 5  # flag"), "{text}");
    assert!(text.contains("sensor_token = \"***\"  # file"), "{text}");
    assert!(
        text.contains("listen = \"127.0.0.1:8090\"  # default"),
        "{text}"
    );
    assert!(!text.contains("a-long-secret"));

    let variables = [
        ("BRAID_GATEWAY_PROXY", "p:1"),
        ("BRAID_GATEWAY_JOURNAL_GATHER_MS", "7"),
    ];
    let args = [
        "config",
        "gateway",
        "--config",
        file,
        "--journal-gather-ms",
        "5",
    ];
    let (_, text, _) = run_with(&args, &variables);
    assert!(
        text.contains("proxy = \"p:1\"  # environment, BRAID_GATEWAY_PROXY"),
        "{text}"
    );
    assert!(text.contains("journal_gather_ms = 5  # flag"), "{text}");

    // README's example: the values are printed though the gateway has no certificate yet.
    let (code, text, error) = run(&["config", "gateway"]);
    assert_eq!(code, 0, "{error}");
    assert!(text.contains("proxy = "), "{text}");
    assert!(error.contains("note:") && error.contains("cert"), "{error}");

    std::fs::write(file, "[gateway]\nproxi = \"x:1\"\n").unwrap();
    let (code, _, error) = run(&["gateway", "--config", file]);
    assert_eq!(code, 64);
    assert!(
        error.contains("proxi") && error.contains("proxy = "),
        "{error}"
    );
}

/// The test alert is sent once a minute, so the test takes as long.
#[test]
fn the_test_alert_of_every_minute_arrives_and_belongs_to_no_patient() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let admin = program::free_port();
    let address = admin.to_string();
    let listeners = ["--listen", "127.0.0.1:0", "--sensors", "127.0.0.1:0"];
    let rest = ["--patients", "1", "--data", data, "--admin", &address];
    let args = [&["up"][..], &listeners, &rest].concat();
    let mut program = Program::start(dir.path(), "up", &args);
    let begun = Instant::now();
    let age_s = || {
        let (_, text) = http(admin, "GET", "/metrics", "", "").ok()?;
        let mut lines = text.lines();
        let age = lines.find_map(|it| it.strip_prefix("braid_dashboard_canary_age_seconds "));
        age?.parse::<f64>().ok()
    };
    // It is less than the time since the start once both halves have come.
    eventually_within(Duration::from_secs(150), "the test alert", || {
        age_s().is_some_and(|age_s| age_s + 5.0 < begun.elapsed().as_secs_f64())
    });
    let (code, text, _) = run(&["doctor", "--data", data]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("ok    canary"), "{text}");
    let (_, body) = http(admin, "GET", "/readyz", "", "").unwrap();
    assert!(body.contains("\"ready\":true"), "{body}");
    assert!(!body.contains(r#""warning":"canary""#), "{body}");
    let (code, listed, error) = run(&["alerts", "list", "--all", "--by", "Eve", "--data", data]);
    assert_eq!(code, 0, "{error}");
    assert!(!listed.contains("braid-canary"), "{listed}");
    program.interrupt();
    let status = program.wait(Duration::from_secs(20));
    assert!(status.success(), "{status}\n{}", program.log());
}

/// Data of the last landed version, which was killed with both networks cut. Readings 1 to 10 of
/// `guest-sensor` are stored, and 11 to 20 wait in the gateway's journal. `fixtures/README.md` has
/// the way in which it was made.
const LANDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/landed.tar.gz");
/// Versions of the schemas that this version reads.
const LANDED_STORE: i64 = 6;
const LANDED_BUS: i64 = 1;

fn schema(file: &Path) -> i64 {
    let connection = rusqlite::Connection::open(file).unwrap();
    connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap()
}

/// The way forward loses and doubles nothing, and names the positions. The way back is the copy
/// from before: the last landed version reads its schema, and that of the bus.
#[test]
fn an_upgrade_from_the_last_landed_version_and_the_way_back() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let tar = std::process::Command::new("tar")
        .args(["-xzf", LANDED, "-C", data.to_str().unwrap()])
        .status();
    assert!(tar.unwrap().success());
    let copy = dir.path().join("before");
    let data_flag = data.to_str().unwrap();
    let backup = |what: &str, of: &[&str]| {
        let (code, said, error) = run(&[&["backup", what, copy.to_str().unwrap()], of].concat());
        assert_eq!(code, 0, "{said}{error}");
    };
    let stored = rows(&data, "guest-sensor");
    assert!(stored.0 < 20 && stored.0 == stored.1, "{stored:?}");
    let (simulated, _) = rows(&data, "wearable-%");
    assert!(simulated > 0);
    backup("make", &["--data", data_flag]);

    let running = up(dir.path());
    eventually("the journal of before is stored", || {
        rows(&data, "guest-sensor") == (20, 20)
    });
    send(running.sensors, 21);
    eventually("a new sample", || rows(&data, "guest-sensor") == (21, 21));
    eventually("samples of today's sensors", || {
        rows(&data, "wearable-%").0 > simulated
    });
    end(running);
    assert!(schema(&data.join("store.db")) > LANDED_STORE);
    let connection = rusqlite::Connection::open(data.join("store.db")).unwrap();
    let count = |question: &str| -> i64 {
        connection
            .query_row(question, [], |row| row.get(0))
            .unwrap()
    };
    let unnamed = "SELECT count(*) FROM progress WHERE next_offset IS NOT NULL AND log = ''";
    assert_eq!(count(unnamed), 0, "each position names its log");
    assert_eq!(
        count("SELECT count(*) FROM log_gaps"),
        0,
        "it is the same log"
    );
    drop(connection);

    assert_eq!(schema(&copy.join("store.db")), LANDED_STORE);
    for file in ["bus.db", "bus-groups.db"] {
        assert_eq!(schema(&data.join(file)), LANDED_BUS, "{file}");
    }
    backup("check", &[]);
}

#[test]
fn a_metric_is_added_by_one_document_while_everything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data_flag = data.to_str().unwrap();
    let running = up(dir.path());
    let write = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let put = |noun: &str, file: &str, more: &[&str]| {
        let signed = ["--by", "Dr. Eve", "--reason", "meters of ward 3"];
        let args = [&[noun, "put", file, "--data", data_flag], &signed[..], more].concat();
        let (code, said, error) = run(&args);
        assert_eq!((code, error.as_str()), (0, ""), "{said}");
    };
    let measured = |value: &str, unit: &str| {
        let line = format!(
            "{{\"device\":\"guest-sensor\",\"metric\":\"capillary-glucose\",\"value\":{value}{unit}}}"
        );
        http(running.sensors, "POST", "/v1/samples", "", &line).unwrap()
    };
    let in_mg = r#","unit":"mg/dL""#;
    let unknown = measured("63", in_mg).1;
    assert!(unknown.contains("is unknown; there are"), "{unknown}");

    put("catalogue", &write("glucose.json", CAPILLARY_GLUCOSE), &[]);
    put(
        "rules",
        &write("rules.json", LOW_GLUCOSE),
        &["--for", "default"],
    );
    eventually("the gateway takes the metric", || {
        let (status, answer) = measured("63", in_mg);
        status == 200 && !answer.contains("is unknown")
    });
    let refused = measured("63", "").1;
    assert!(refused.contains("use several"), "{refused}");
    assert!(refused.contains("mmol/L or mg/dL"), "{refused}");
    let refused = measured("63", r#","unit":"mmol/L""#).1;
    assert!(
        refused.contains("63 is outside 0.5 to 60 mmol/L"),
        "{refused}"
    );
    let refused = measured("63.5", in_mg).1;
    assert!(refused.contains("more than the 0 decimals"), "{refused}");

    let mut stored = None;
    eventually("the converted reading is stored", || {
        stored = newest_glucose(&data);
        stored.is_some()
    });
    let (patient, value, unit, original, original_unit) = stored.unwrap();
    assert_eq!((value, &*unit), (630_000.0 / 180_156.0, "mmol/L"));
    assert_eq!((original, &*original_unit), (63.0, "mg/dL"), "as it came");

    eventually("the rule judges it", || {
        let says = "Capillary glucose 3.5 mmol/L, at or below 3.9";
        alerts_say(&data, &patient, says)
    });
    shows_the_metric(running.page, data_flag, &patient);
    let history = [
        "catalogue",
        "history",
        "capillary-glucose",
        "--data",
        data_flag,
    ];
    let (_, history, _) = run(&history);
    assert!(history.starts_with("version 1  "), "{history}");
    assert!(history.contains("by Dr. Eve") && history.ends_with(": meters of ward 3\n"));
    let (_, log, _) = run(&["audit", "--by", "Eve", "--data", data_flag]);
    assert!(
        log.contains("by command line, catalogue capillary-glucose 1"),
        "{log}"
    );
    let other = CAPILLARY_GLUCOSE.replacen("\"mmol/L\"", "\"g/L\"", 1);
    let file = write("other.json", &other);
    let (code, _, error) = run(&["catalogue", "check", &file, "--data", data_flag]);
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("readings are stored in the former unit"),
        "{error}"
    );
    end(running);
}
