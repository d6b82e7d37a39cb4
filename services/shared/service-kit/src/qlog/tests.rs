#![allow(clippy::unwrap_used)]

use serde_json::Value;

use super::*;
use crate::path_table::PathRow;

fn row(gateway: &str, session: u64, path_id: u64, sent_bytes: u64) -> PathRow {
    PathRow {
        gateway: gateway.to_owned(),
        path: "wi\"fi\n".to_owned(),
        session,
        path_id,
        state: "available".to_owned(),
        rtt_ms: 20.5,
        rtt_min_ms: 18.0,
        sent_bytes,
        congestion_window_bytes: 14_000,
        modes: vec!["auto".to_owned()],
        local_address: "192.0.2.9".to_owned(),
        remote_address: "[2001:db8::1]:443".to_owned(),
        ..PathRow::default()
    }
}

/// The records of a file, which must be a JSON text sequence (RFC 7464).
fn records(bytes: &[u8]) -> Vec<Value> {
    assert_eq!(bytes.first(), Some(&0x1e), "begins with a separator");
    let texts = bytes.split(|byte| *byte == 0x1e).skip(1);
    texts
        .map(|text| {
            assert_eq!(text.last(), Some(&b'\n'), "each record ends with a newline");
            serde_json::from_slice(text).unwrap()
        })
        .collect()
}

/// Draft 13 of the main schema for the file, and draft 12 of QUIC's events for each event.
fn check(records: &[Value]) {
    let header = &records[0];
    assert_eq!(
        header["file_schema"],
        "urn:ietf:params:qlog:file:sequential"
    );
    assert_eq!(header["serialization_format"], "application/qlog+json-seq");
    let trace = &header["trace"];
    let vantage_point = trace["vantage_point"]["type"].as_str().unwrap();
    assert!(["client", "server", "network", "unknown"].contains(&vantage_point));
    let schemas: Vec<&str> = trace["event_schemas"]
        .as_array()
        .unwrap()
        .iter()
        .map(|schema| schema.as_str().unwrap())
        .collect();
    assert!(schemas.contains(&"urn:ietf:params:qlog:events:quic-12"));
    assert!(schemas.iter().all(|schema| schema.starts_with("urn:")));
    let reference = &trace["common_fields"]["reference_time"];
    assert_eq!(reference["clock_type"], "monotonic");
    assert_eq!(reference["epoch"], "unknown");
    assert!(
        reference["wall_clock_time"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
    let mut before = 0.0;
    let mut tuples = Vec::new();
    for event in &records[1..] {
        let time = event["time"].as_f64().unwrap();
        assert!(time >= before, "{event}");
        before = time;
        let data = event["data"].as_object().unwrap();
        let required: &[&str] = match event["name"].as_str().unwrap() {
            "quic:connection_started" => &["local", "remote"],
            "quic:tuple_assigned" => &["tuple_id"],
            "quic:recovery_metrics_updated" | "quic:connection_closed" => &[],
            "braid:path_updated" => &["path_id", "state"],
            other => panic!("{other} is in no declared schema"),
        };
        assert!(
            required.iter().all(|field| data.contains_key(*field)),
            "{event}"
        );
        if event["name"] == "quic:tuple_assigned" {
            tuples.push(data["tuple_id"].clone());
        }
        if !event["tuple"].is_null() {
            assert!(tuples.contains(&event["tuple"]), "{event} before its tuple");
        }
    }
}

fn names(records: &[Value]) -> Vec<&str> {
    let names = records.iter().filter_map(|it| it["name"].as_str());
    names.collect()
}

#[test]
fn only_changes_are_events() {
    let mut trace = Trace::default();
    let began = calendar::rfc3339_ms(1_709_210_096_007_000).unwrap();
    let head = || trace::header("gateway", "gw-1", "client", &began);
    let mut file = head();
    file.extend(trace.events(0.0, &[row("gw-1", 1, 0, 10)]));
    assert!(trace.events(100.0, &[row("gw-1", 1, 0, 10)]).is_empty());
    file.extend(trace.events(200.0, &[row("gw-1", 1, 0, 11), row("gw-1", 1, 1, 5)]));
    file.extend(trace.events(300.0, &[row("gw-1", 1, 1, 5)]));
    file.extend(trace.events(400.0, &[]));
    let records = records(&file);
    check(&records);
    assert_eq!(
        names(&records),
        [
            "quic:connection_started",
            "quic:tuple_assigned",
            "quic:recovery_metrics_updated",
            "braid:path_updated",
            "braid:path_updated",
            "quic:tuple_assigned",
            "quic:recovery_metrics_updated",
            "braid:path_updated",
            "braid:path_updated",
            "braid:path_updated",
            "quic:connection_closed",
        ]
    );
    assert_eq!(records[1]["data"]["local"]["ip_v4"], "192.0.2.9");
    assert_eq!(records[1]["data"]["remote"]["port_v6"], 443);
    assert_eq!(records[3]["data"]["smoothed_rtt"], 20.5);
    let reference = &records[0]["trace"]["common_fields"]["reference_time"];
    assert_eq!(reference["wall_clock_time"], "2024-02-29T12:34:56.007Z");
}

fn wanted(gateway: &str) -> Wanted {
    Wanted {
        gateway: Some(gateway.to_owned()),
        files: 2,
        file_bytes: *FILE_BYTES.start(),
        seconds: 60,
    }
}

/// Each look at the table changes many paths, so files fill at once.
fn busy(paths: u64) -> PathTable {
    let count = std::sync::atomic::AtomicU64::new(0);
    Arc::new(move |only| {
        let sent = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let gateway = only.unwrap_or("gw-1");
        (0..paths).map(|id| row(gateway, 1, id, sent)).collect()
    })
}

#[test]
fn a_recording_stays_within_its_files_and_each_can_be_read_alone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("qlog");
    let recorder = Recorder::new("proxy", root.clone(), busy(30), Shutdown::new());
    recorder.start(&wanted("gw-1")).unwrap();
    let again = recorder.start(&wanted("gw-1"));
    assert_eq!(again, Err(QlogError::Recorded("gw-1".to_owned())));
    let deadline = Instant::now() + Duration::from_secs(60);
    while recorder.list()[0].written_bytes < 5 * FILE_BYTES.start() {
        assert!(Instant::now() < deadline, "{:?}", recorder.list());
        std::thread::park_timeout(SAMPLE_EVERY);
    }
    let ended = recorder.stop(None);
    assert_eq!((ended.len(), ended[0].failed.clone()), (1, None));
    assert_eq!(recorder.list(), []);
    let kept = files(&root.join("gw-1")).unwrap();
    assert_eq!(kept.len(), 2);
    for (_, file, bytes) in kept {
        assert!(bytes <= *FILE_BYTES.start(), "{bytes}");
        check(&records(&fs::read(file).unwrap()));
    }
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let two: PathTable = Arc::new(|only| match only {
        None => vec![row("gw-1", 1, 0, 1), row("gw-2", 2, 0, 1)],
        Some("gw-9") => Vec::new(),
        Some(gateway) => vec![row(gateway, 1, 0, 1)],
    });
    let root = folder.path().join("qlog");
    let recorder = Recorder::new("proxy", root, two, Shutdown::new());
    let start = |gateway: Option<&str>| {
        let gateway = gateway.map(str::to_owned);
        recorder.start(&Wanted {
            gateway,
            ..wanted("")
        })
    };
    assert_eq!(start(None), Err(QlogError::Several));
    assert_eq!(start(Some("gw-9")), Err(QlogError::NoPath));
    for name in ["", "..", "../x", "a/b", ".hidden"] {
        assert_eq!(start(Some(name)), Err(QlogError::Name(name.to_owned())));
    }
    for wrong in [
        Wanted {
            files: 0,
            ..wanted("a")
        },
        Wanted {
            files: 17,
            ..wanted("a")
        },
        Wanted {
            file_bytes: 1,
            ..wanted("a")
        },
        Wanted {
            seconds: 0,
            ..wanted("a")
        },
    ] {
        let refused = recorder.start(&wrong);
        assert!(matches!(refused, Err(QlogError::Limit { .. })), "{wrong:?}");
    }
    for number in 0..RECORDINGS_MAX {
        start(Some(&format!("g{number}"))).unwrap();
    }
    assert_eq!(start(Some("one-more")), Err(QlogError::Full));
    assert_eq!(recorder.stop(Some("g3")).len(), 1);
    start(Some("one-more")).unwrap();
    assert_eq!(recorder.stop(None).len(), RECORDINGS_MAX);
}

#[test]
fn a_recording_ends_with_its_service() {
    let folder = tempfile::tempdir().unwrap();
    let shutdown = Shutdown::new();
    let root = folder.path().join("qlog");
    let recorder = Recorder::new("gateway", root, busy(1), shutdown.clone());
    recorder.start(&wanted("gw-1")).unwrap();
    shutdown.request();
    let deadline = Instant::now() + Duration::from_secs(60);
    while recorder.list()[0].seconds_left > 0 {
        assert!(Instant::now() < deadline);
        std::thread::park_timeout(SAMPLE_EVERY);
    }
}
