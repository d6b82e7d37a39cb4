//! Rows that other people and machines wrote, on a terminal. No command prints a line that a name
//! begins, and no byte that moves the cursor.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::path::Path;

use contracts::alerts::{Alert, Document, Notice};
use contracts::vitals::{Metric, Quarantined, Sample, quarantined::Entry, sample::Reading};
use program::run;
use store::{
    Account, Accounts, AlertsBatch, AlertsStore, AuditEntry, DEFAULT_TENANT, DeviceEntry,
    DocumentsStore, GatewayEntry, NoticesBatch, NoticesStore, PatientEntry, Register, Role,
    Spo2Scale, SqliteStore, VitalsBatch, VitalsStore,
};

/// A whole false line of the audit log, a tab, and what moves the cursor or turns the direction.
const NASTY: &str =
    "x\n2026-01-01T00:00:00Z  eve  read audit\r\t\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}y";

fn document(kind: &str, subject: &str, until_us: i64, body: String) -> Document {
    Document {
        kind: kind.into(),
        tenant: DEFAULT_TENANT.into(),
        subject: subject.into(),
        version: 1,
        author: NASTY.into(),
        reason: NASTY.into(),
        at_us: contracts::now_us(),
        until_us,
        body,
    }
}

async fn people(store: &SqliteStore) {
    let tenant = || DEFAULT_TENANT.to_owned();
    for id in ["ada", NASTY] {
        let entry = PatientEntry {
            id: id.into(),
            tenant: tenant(),
            name: NASTY.into(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        store.put_patient(&entry).await.unwrap();
    }
    let gateway = GatewayEntry {
        id: NASTY.into(),
        tenant: tenant(),
    };
    store.put_gateway(&gateway).await.unwrap();
    let device = DeviceEntry {
        id: NASTY.into(),
        tenant: tenant(),
        gateway: NASTY.into(),
        patient: NASTY.into(),
        registered_us: 0,
    };
    store.put_device(&device).await.unwrap();
    let account = Account {
        name: NASTY.into(),
        tenant: tenant(),
        role: Role::Viewer,
        password_hash: String::new(),
        created_us: 0,
    };
    store.put_account(&account).await.unwrap();
    let entry = AuditEntry {
        time_us: contracts::now_us(),
        tenant: tenant(),
        who: NASTY.into(),
        action: NASTY.into(),
        patient: NASTY.into(),
        detail: NASTY.into(),
    };
    store.append_audit(vec![entry]).await.unwrap();
}

async fn decisions(store: &SqliteStore) {
    let hour_us = 3_600_000_000;
    let until_us = contracts::now_us() + hour_us;
    let rules = r#"{"name": "NASTY", "version": 1, "rules": []}"#;
    let nasty =
        |text: &str| text.replace("NASTY", &NASTY.replace(['\n', '\r', '\t', '\u{1b}'], "z"));
    let revoked = serde_json::json!({"by": NASTY, "reason": NASTY, "at_us": 1, "excepted": []});
    for document in [
        document("silence", NASTY, until_us, NASTY.into()),
        document(
            "team",
            "default",
            0,
            nasty(r#"{"contacts": [{"id": "a", "name": "NASTY"}]}"#),
        ),
        document("rules", "patient:ada", 0, nasty(rules)),
        document("steering", "default", 0, "format = NASTY".into()),
        document("revocation", NASTY, 0, revoked.to_string()),
    ] {
        store.put_document(&document).await.unwrap();
    }
}

async fn events(store: &SqliteStore) {
    let now_us = contracts::now_us();
    let alert = |id: &str| Alert {
        id: id.into(),
        patient: "ada".into(),
        gateway: NASTY.into(),
        rule: NASTY.into(),
        summary: NASTY.into(),
        acknowledged_by: NASTY.into(),
        note: NASTY.into(),
        since_us: now_us,
        changed_us: now_us,
        recorded_us: now_us,
        revision: 1,
        ..Alert::default()
    };
    let batch = AlertsBatch {
        transitions: vec![alert("a-1"), alert(NASTY)],
        states: Vec::new(),
    };
    store.write_alerts(batch, Vec::new()).await.unwrap();
    let notice = Notice {
        id: "n-1".into(),
        alert: Some(alert("a-1")),
        channel: NASTY.into(),
        recipient: NASTY.into(),
        created_us: now_us,
        ..Notice::default()
    };
    let notices = NoticesBatch {
        notices: vec![notice],
        ..NoticesBatch::default()
    };
    store.write_notices(notices).await.unwrap();
    let apart = Quarantined {
        tenant: DEFAULT_TENANT.into(),
        gateway: NASTY.into(),
        kind: NASTY.into(),
        reason: NASTY.into(),
        arrived_us: 1,
        entry: Some(Entry::Sample(Sample {
            device: "belt".into(),
            stream: NASTY.into(),
            patient: NASTY.into(),
            unit: NASTY.into(),
            metric: Metric::HeartRate.into(),
            sequence: 1,
            device_time_us: now_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        })),
    };
    let batch = VitalsBatch {
        quarantined: vec![apart],
        ..VitalsBatch::default()
    };
    store.write_vitals(batch.into(), Vec::new()).await.unwrap();
}

/// Every command that lists what is stored.
const LISTS: [&[&str]; 20] = [
    &["audit", "--by", "eve"],
    &["audit", "--by", "eve", "--json"],
    &["accounts", "list"],
    &["accounts", "list", "--json"],
    &["gateways", "list"],
    &["gateways", "list", "--json"],
    &["alerts", "list", "--by", "eve", "--all"],
    &["alerts", "list", "--by", "eve", "--all", "--json"],
    &["alerts", "history", "a-1", "--by", "eve"],
    &["alerts", "silences", "--by", "eve"],
    &["alerts", "team", "show", "--by", "eve"],
    &["register", "list"],
    &["register", "list", "--json"],
    &["quarantine", "list"],
    &["quarantine", "list", "--json"],
    &[
        "quarantine",
        "show",
        "--device",
        "belt",
        "--by",
        "eve",
        "--reason",
        "why",
    ],
    &["rules", "list", "--by", "eve"],
    &["rules", "list", "patient:ada", "--by", "eve"],
    &["rules", "show", "--for", "patient:ada", "--by", "eve"],
    &["steering", "history", "--by", "eve"],
];

fn listed(data: &Path) -> Vec<String> {
    let data = data.to_str().unwrap();
    let mut found = Vec::new();
    for list in LISTS {
        let (code, said, error) = run(&[list, &["--data", data]].concat());
        assert_eq!(code, 0, "{list:?}: {error}");
        for shown in [&said, &error] {
            for line in shown.lines() {
                assert!(contracts::text::is_plain(line), "{list:?} shows {line:?}");
                let is_forged = line.starts_with("2026-01-01");
                assert!(!is_forged, "{list:?} shows a line of a name: {line:?}");
            }
            assert!(!shown.contains('\r'), "{list:?}");
        }
        if list.contains(&"--json") {
            serde_json::from_str::<serde_json::Value>(&said).unwrap();
        }
        found.push(said);
    }
    found
}

#[tokio::test]
async fn no_stored_row_moves_a_terminal_or_begins_a_line() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = SqliteStore::open(dir.path()).unwrap();
        people(&store).await;
        decisions(&store).await;
        events(&store).await;
    }
    let found = listed(dir.path());
    // The rows are there, and shown escaped.
    let shown = found
        .iter()
        .filter(|said| said.contains("2026-01-01T00:00:00Z  eve"));
    assert!(shown.count() > 12, "{found:#?}");
}

#[test]
fn what_is_typed_holds_no_control_character() {
    let forged = "eve\n2026-01-01T00:00:00Z  ann  read audit";
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let (code, _, error) = run(&["audit", "--by", forged, "--data", data]);
    assert_eq!(code, 64, "{error}");
    assert!(
        error.contains("has the control character U+000A"),
        "{error}"
    );
}
