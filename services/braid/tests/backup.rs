//! `infra/backup/backup.py` on a real TimescaleDB beside a real Kafka. The cases are a copy under
//! load, a restored database with the bus's later records, and the loss of the bus. No sample is
//! lost or stored twice, nobody is told twice, and what was removed stays so.
#![allow(clippy::unwrap_used)]

#[path = "backup/encrypted.rs"]
mod encrypted;
#[path = "support/program.rs"]
mod program;
#[path = "support/sensor.rs"]
mod sensor;
#[path = "support/separate.rs"]
mod separate;
#[path = "support/webhook.rs"]
mod webhook;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use contracts::alerts::Document;
use contracts::patients::Operation;

use program::{PATIENCE, eventually_within};
use sensor::Sensors;
use separate::{NOUNS, Separate};
use serde_json::Value;
use store::{
    Account, Accounts, Change, DocumentsStore, PatientsStore, REVOCATION, Register, Role, Scope,
    TimescaleOptions, TimescaleStore,
};
use testkit::kafka::Cluster;
use testkit::timescale_server::{PASSWORD, ServerOptions, TimescaleServer};
use tokio::runtime::Runtime;
use webhook::Webhook;

/// Time in which a group notices the death of its members on a busy machine; no figure depends on
/// it.
const LIMIT: Duration = Duration::from_secs(240);
/// Samples that are stored before and after the copy.
const PROGRESS: u64 = 300;
const ILL_PULSE: u64 = 190;

const INFRA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../infra");

/// The content that sensors sent, without the keys and times that storing adds.
const CONTENT: &str = "SELECT count(*), count(DISTINCT (device, sensor_sequence)), coalesce(sum(hashtext(line)::bigint), 0)::bigint
    FROM (SELECT h.device, s.sensor_sequence, concat_ws('|', h.device, s.sensor_sequence, s.time, s.value, s.gateway_time) AS line
          FROM samples s JOIN series e ON e.key = s.series JOIN streams t ON t.key = e.stream JOIN device_heads h ON h.key = t.device) found";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    rows: u64,
    readings: u64,
    sum: i64,
}

struct House {
    runtime: Runtime,
    server: TimescaleServer,
    separate: Separate,
}

impl House {
    /// A migrated database, and services for these devices on the cluster, none of them started.
    fn prepare(dir: &Path, cluster: &Cluster, devices: &[String]) -> House {
        let runtime = Runtime::new().unwrap();
        let server = TimescaleServer::start(ServerOptions::default());
        runtime.block_on(async {
            let superuser = server.superuser().await;
            // The role that the views are granted to: a restore must bring the grants back.
            for order in ["CREATE ROLE braid_reader NOLOGIN", "CREATE DATABASE braid"] {
                superuser.batch_execute(order).await.unwrap();
            }
        });
        let url = server.url("braid");
        let options = TimescaleOptions::new(&url, PASSWORD);
        runtime.block_on(TimescaleStore::migrate(&options)).unwrap();
        let (store, password) = (
            format!("--store={url}"),
            format!("--store-password={PASSWORD}"),
        );
        let mut separate = Separate::prepare_on(dir, devices, &[], &[&store, &password]);
        separate.bus = on(cluster);
        House {
            runtime,
            server,
            separate,
        }
    }

    /// Connects for each question, since a restore needs the database alone. `None` while the
    /// database does not exist.
    fn ask(&self, question: &str) -> Option<tokio_postgres::Row> {
        let mut config: tokio_postgres::Config = self.server.url("braid").parse().unwrap();
        config.password(PASSWORD);
        self.runtime.block_on(async {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await.ok()?;
            tokio::spawn(connection);
            client.query_one(question, &[]).await.ok()
        })
    }

    fn content(&self) -> Content {
        let row = self.ask(CONTENT);
        row.map_or(
            Content {
                rows: 0,
                readings: 0,
                sum: 0,
            },
            |row| Content {
                rows: row.get::<_, i64>(0) as u64,
                readings: row.get::<_, i64>(1) as u64,
                sum: row.get(2),
            },
        )
    }

    fn count(&self, question: &str) -> i64 {
        self.ask(question).map_or(0, |row| row.get(0))
    }

    fn alerts_of(&self, patient: &str) -> i64 {
        self.count(&format!(
            "SELECT count(*) FROM alerts WHERE patient = '{patient}'"
        ))
    }

    fn alert_ids(&self, patient: &str) -> Vec<String> {
        let ids = "SELECT coalesce(array_agg(id), '{}') FROM alerts WHERE patient";
        let row = self.ask(&format!("{ids} = '{patient}'"));
        row.map_or_else(Vec::new, |row| row.get(0))
    }

    fn store(&self) -> TimescaleStore {
        let options = TimescaleOptions::new(self.server.url("braid"), PASSWORD);
        self.runtime
            .block_on(TimescaleStore::open(&options))
            .unwrap()
    }

    async fn change_patient(store: &TimescaleStore, operation: Operation) {
        let change = contracts::patients::Change {
            patient: "gone".to_owned(),
            operation: operation.into(),
            ..Default::default()
        };
        let by = Change::by_program("mistake");
        let changed = store
            .change_patients(store::DEFAULT_TENANT, &[change], &by)
            .await;
        changed.unwrap();
    }

    /// Two accounts and a patient, before the copy.
    fn make_accounts(&self) {
        let store = self.store();
        for name in ["eve", "bob"] {
            let account = Account {
                name: name.to_owned(),
                tenant: store::DEFAULT_TENANT.to_owned(),
                role: Role::Viewer,
                password_hash: String::new(),
                created_us: 1,
            };
            self.runtime.block_on(store.put_account(&account)).unwrap();
        }
        let expected = House::change_patient(&store, Operation::Expect);
        self.runtime.block_on(expected);
    }

    /// After the copy: an account is removed, a patient is erased, a gateway is revoked, and a
    /// wearer hands a device back.
    fn remove(&self, device: &str) {
        let store = self.store();
        self.runtime.block_on(async {
            assert!(store.remove_account("eve").await.unwrap());
            House::change_patient(&store, Operation::Erase).await;
            let revoked = Document {
                kind: REVOCATION.to_owned(),
                tenant: store::DEFAULT_TENANT.to_owned(),
                subject: "gw-stolen".to_owned(),
                version: 1,
                body: "{\"excepted\":[]}".to_owned(),
                ..Document::default()
            };
            store.put_document(&revoked).await.unwrap();
            let change = Change::by_program("test");
            let now_us = contracts::now_us();
            let ended = store.end_assignment(&Scope::Service, device, now_us, &change);
            assert!(ended.await.unwrap().is_some());
        });
    }

    /// Accounts with records of patients, revocations and ended intervals.
    fn removed(&self) -> (i64, i64, i64) {
        (
            self.count("SELECT count(*) FROM accounts WHERE name = 'eve'")
                + self.count("SELECT count(*) FROM patients WHERE id = 'gone' AND tenant <> ''"),
            self.count("SELECT count(*) FROM documents WHERE subject = 'gw-stolen'"),
            self.count("SELECT count(*) FROM assignments WHERE until_us < 9223372036854775807"),
        )
    }

    fn moves_on(&self, what: &str) {
        let then = self.content().rows;
        eventually_within(LIMIT, what, || self.content().rows >= then + PROGRESS);
    }

    fn backup(&self, arguments: &[&str]) -> Result<String, String> {
        let tool = format!(
            "{INFRA}/airgap/timescaledb.sh tool {}",
            self.server.folder().display()
        );
        let output = Command::new(format!("{INFRA}/backup/backup.py"))
            .args(arguments)
            .args(["--server", &tool])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        print!("{said}{error}");
        if output.status.success() {
            Ok(said)
        } else {
            Err(error)
        }
    }

    fn start_all(&mut self) {
        for noun in NOUNS {
            self.separate.start(noun);
        }
    }

    /// After the services' end, the server closes their connections a moment later.
    fn restore(&self, folder: &str) {
        let mut said = Err(String::new());
        eventually_within(PATIENCE, "nobody uses the database", || {
            said = self.backup(&["restore", folder]);
            !matches!(&said, Err(reason) if reason.contains("is in use"))
        });
        said.unwrap();
    }
}

/// Moves the manifest's values of sequences that have begun.
fn shift_sequences(backup: &Path, by: i64) {
    let file = backup.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for value in manifest["sequences"].as_object_mut().unwrap().values_mut() {
        if let Ok(last) = value.as_str().unwrap().parse::<i64>() {
            *value = (last + by).to_string().into();
        }
    }
    std::fs::write(&file, manifest.to_string()).unwrap();
}

/// Flags of services on a cluster with one node.
fn on(cluster: &Cluster) -> Vec<String> {
    vec![
        format!("--bus=kafka://{}", cluster.brokers().join(",")),
        "--bus-replication=1".to_owned(),
        "--bus-in-sync-min=1".to_owned(),
    ]
}

fn damage(folder: &Path) {
    let dump = folder.join("database.dump");
    let mut bytes = std::fs::read(&dump).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(dump, bytes).unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for name in ["database.dump", "manifest.json"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[test]
fn a_copy_made_under_load_and_the_bus_restore_everything() {
    let Some(cluster) = Cluster::start(1, "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let well: Vec<String> = (1..=3).map(|number| format!("well-{number}")).collect();
    let [ill, later] = ["ill", "later"].map(|device| vec![device.to_owned()]);
    let spare = vec!["spare".to_owned()];
    let devices = [well.clone(), ill.clone(), later.clone(), spare].concat();
    let mut house = House::prepare(dir.path(), &cluster, &devices);
    let webhook = Webhook::start();
    house.separate.environment.push((
        "BRAID_ALERTING_WEBHOOK".to_owned(),
        format!("http://{}/", webhook.address),
    ));
    house.make_accounts();
    house.start_all();

    // A copy while samples are being stored.
    let sensors = Sensors::start(house.separate.sensors(), &well, |number| 60 + number % 40);
    house.moves_on("the first rows");
    let (kept, broken) = (dir.path().join("kept"), dir.path().join("broken"));
    let kept_flag = kept.to_str().unwrap();
    house.backup(&["make", kept_flag]).unwrap();
    let again = house.backup(&["make", kept_flag]).unwrap_err();
    assert!(again.contains("is there already"), "{again}");
    // As if each sequence had given one number between the manifest and its copy.
    shift_sequences(&kept, -1);
    house.moves_on("rows after the copy");
    // A patient falls ill who is not in the copy.
    let racing = Sensors::start(house.separate.sensors(), &ill, |_| ILL_PULSE);
    eventually_within(LIMIT, "the alert", || house.alerts_of("wearer-of-ill") > 0);
    let told_of = house.alert_ids("wearer-of-ill");
    eventually_within(LIMIT, "the alert is told", || webhook.told(&told_of) > 0);
    house.remove("spare");
    assert_eq!(house.removed(), (0, 1, 1));
    let mut accepted = racing.stop() + sensors.stop();
    eventually_within(LIMIT, "every sample is stored", || {
        house.content().rows >= accepted
    });
    let before = house.content();
    let alerts = house.alerts_of("wearer-of-ill");
    assert_eq!((before.rows, before.readings), (accepted, accepted));

    refusals(&mut house, &kept, &broken);

    let told = webhook.told(&told_of);
    house.restore(kept_flag);
    assert_eq!(house.removed(), (0, 1, 1), "what was removed stays so");
    let bob = "SELECT count(*) FROM accounts WHERE name = 'bob'";
    assert_eq!(house.count(bob), 1);
    let differs = house.backup(&["check", kept_flag]).unwrap_err();
    for table in ["accounts", "documents", "assignments"] {
        assert!(differs.contains(&format!("{table}: ")), "{differs}");
    }
    assert!(!differs.contains("samples: "), "{differs}");
    shift_sequences(&kept, 1_000_000);
    let behind = house.backup(&["check", kept_flag]).unwrap_err();
    assert!(behind.contains("streams_key_seq: "), "{behind}");
    let copied = house.content();
    assert!(copied.rows < accepted && copied.rows > 0);
    assert_eq!(house.alerts_of("wearer-of-ill"), 0);
    let granted =
        "SELECT count(*) FROM information_schema.role_table_grants WHERE grantee = 'braid_reader'";
    assert_eq!(house.count(granted), 10, "the views that a reader may see");

    // The bus brings the later records.
    house.start_all();
    eventually_within(LIMIT, "the bus brings what came since", || {
        house.content().rows >= accepted && house.alerts_of("wearer-of-ill") >= alerts
    });
    assert_eq!(house.content(), before);
    assert_eq!(house.alerts_of("wearer-of-ill"), alerts);
    // Another patient falls ill. By the time that this is told, the alert of before was decided.
    let racing = Sensors::start(house.separate.sensors(), &later, |_| ILL_PULSE);
    eventually_within(LIMIT, "an alert after the restore is told", || {
        webhook.told(&house.alert_ids("wearer-of-later")) > 0
    });
    let since = racing.stop();
    eventually_within(LIMIT, "every sample is stored", || {
        house.content().rows >= accepted + since
    });
    assert_eq!(webhook.told(&told_of), told, "nobody is told again");
    println!(
        "accepted {accepted}, in the copy {}, after the restore and the bus {}, lost 0, doubled 0, alerts {alerts}",
        copied.rows, before.rows
    );
    accepted += since;

    a_new_bus(&mut house, cluster, accepted);
}

/// Cases that restore and check refuse. The services are stopped afterwards.
fn refusals(house: &mut House, kept: &Path, broken: &Path) {
    let (before, kept_flag) = (house.content(), kept.to_str().unwrap());
    let differs = house.backup(&["check", kept_flag]).unwrap_err();
    assert!(differs.contains("samples: "), "{differs}");
    let in_use = house.backup(&["restore", kept_flag]).unwrap_err();
    assert!(in_use.contains("stop the services first"), "{in_use}");
    house.separate.stop_all();
    copy(kept, broken);
    damage(broken);
    let damaged = house.backup(&["restore", broken.to_str().unwrap()]);
    assert!(damaged.unwrap_err().contains("SHA-256 differs"));
    assert_eq!(house.content(), before, "a refusal changes nothing");
}

/// The bus is lost, and a new one begins at zero.
fn a_new_bus(house: &mut House, former: Cluster, mut accepted: u64) {
    house.separate.stop_all();
    drop(former);
    let cluster = Cluster::start(1, "").unwrap();
    house.separate.bus = on(&cluster);
    let gaps = "SELECT count(*) FROM log_gaps WHERE grp = 'ingest-store'";
    assert_eq!(house.count(gaps), 0);
    house.start_all();
    let more = vec!["well-1".to_owned()];
    let sensors = Sensors::start(house.separate.sensors(), &more, |number| 60 + number % 40);
    house.moves_on("rows by way of the new bus");
    let resent = sensors.stop();
    accepted += resent;
    eventually_within(LIMIT, "every sample is stored", || {
        house.content().rows >= accepted
    });
    assert_eq!(house.content().rows, accepted);
    assert!(
        house.count(gaps) > 0,
        "what the old bus may have lost is said"
    );
    println!("a new bus: {resent} more accepted, {accepted} stored, lost 0, doubled 0");
    house.separate.assert_all_running();
}

/// Replaces PostgreSQL's programs: answers the questions of `backup.py make`, and copies as
/// configured.
const PROGRAMS: &str = r"#!/bin/bash
how=$1
case $2 in
  psql)
    while IFS= read -r line; do
      case $line in
        \\echo*) echo '-- end of the answer --' ;;
        *pg_export_snapshot* | *server_version_num* | *extversion* | *datdba*) echo 170000 ;;
      esac
    done ;;
  pg_dump)
    head -c 100000 /dev/zero
    case $how in
      full) echo 'pg_dump: error: No space left on device' >&2; exit 1 ;;
      slow) exec sleep 600 ;;
    esac ;;
esac
";

#[test]
fn a_copy_that_ends_early_leaves_nothing_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let programs = dir.path().join("programs");
    std::fs::write(&programs, PROGRAMS).unwrap();
    let backups = dir.path().join("every day's copy");
    std::fs::create_dir(&backups).unwrap();
    let make = |how: &str| {
        let server = format!("bash {} {how}", programs.display());
        let mut make = Command::new("python3");
        make.arg(Path::new(INFRA).join("backup/backup.py"))
            .arg("make")
            .arg(backups.join("2026-11-22"))
            .args(["--server", &server])
            .stderr(Stdio::piped());
        make
    };
    let left = || std::fs::read_dir(&backups).unwrap().count();

    let full = make("full").output().unwrap();
    let said = String::from_utf8(full.stderr).unwrap();
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(left(), 0, "after a full disk");

    let mut slow = make("slow").spawn().unwrap();
    let dump = backups.join("2026-11-22.part/database.dump");
    eventually_within(PATIENCE, "nothing is copied", || {
        dump.metadata().is_ok_and(|dump| dump.len() > 0)
    });
    let pid = slow.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    let mut said = String::new();
    slow.stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(slow.wait().unwrap().code(), Some(1), "{said}");
    assert_eq!(said, "backup: interrupted\n");
    assert_eq!(left(), 0, "after an interruption");

    let whole = make("whole").status().unwrap();
    assert!(whole.success());
    assert!(backups.join("2026-11-22/manifest.json").is_file());
    assert!(backups.join("removed.jsonl").is_file());
    assert_eq!(left(), 2, "a copy and the list, and nothing beside them");
}
