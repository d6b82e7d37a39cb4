//! The SQLite store passes the suite, and what is its own: schema versions and death by `kill -9`.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use contracts::{alerts::Document, vitals::Metric};
use store::{
    Account, Accounts, Assignment, Change, DOCUMENTS_MAX, DocumentsStore, Maintenance, Of,
    ProgressStore, REVOCATION, Register, Restore, Role, Scope, SqliteOptions, SqliteStore, Store,
    conformance::{Harness, Process, batch, log, ok, sample},
    removals,
    sqlite::{OpenError, backup},
};
use tempfile::TempDir;

struct Sqlite {
    dir: TempDir,
}

impl Sqlite {
    fn new() -> Sqlite {
        Sqlite {
            dir: tempfile::tempdir().unwrap(),
        }
    }
}

/// The suite's samples have fixed times, which retention by age would find old some day.
fn open(dir: &Path) -> Arc<dyn Store> {
    let options = SqliteOptions {
        vitals_age: Duration::MAX,
        waveforms_age: Duration::MAX,
        paths_age: Duration::MAX,
        alerts_age: Duration::MAX,
        audit_age: Duration::MAX,
    };
    Arc::new(SqliteStore::open_with(dir, options).unwrap())
}

#[async_trait]
impl Harness for Sqlite {
    async fn start(&self) -> Process {
        Process {
            store: open(self.dir.path()),
            // Everything that was answered is on disk; `kill_9_*` kills a real process.
            kill: Box::new(|| ()),
        }
    }
}

store::conformance_suite!(Sqlite::new());

#[test]
fn a_newer_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(SqliteStore::open(dir.path()).unwrap());
    let connection = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    let refused = SqliteStore::open(dir.path()).err();
    assert!(matches!(refused, Some(OpenError::Newer { found: 99, .. })));
}

#[tokio::test]
async fn the_audit_log_cannot_be_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let entry = store::AuditEntry {
        // The store removes old entries.
        time_us: contracts::now_us(),
        tenant: "one".into(),
        who: "ada".into(),
        action: "read series".into(),
        patient: "p".into(),
        detail: String::new(),
    };
    store::Accounts::append_audit(&store, vec![entry])
        .await
        .unwrap();
    let connection = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    let changed = connection.execute("UPDATE audit SET who = 'nobody'", []);
    assert!(changed.unwrap_err().to_string().contains("never changed"));
}

/// One ward with many rules is no reason for another's not to hold.
#[tokio::test]
async fn a_service_reads_the_rules_of_every_tenant_however_many_one_has() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    let connection = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    let many = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 10000)
         INSERT INTO documents (kind, tenant, subject, version, until_us, payload)
         SELECT 'rules', 'a', 'patient:' || n, 1, 9, x'' FROM n";
    assert_eq!(connection.execute(many, []).unwrap(), DOCUMENTS_MAX);
    let other = "INSERT INTO documents (kind, tenant, subject, version, until_us, payload)
         VALUES ('rules', 'b', 'default', 1, 9, x''), ('rules', 'a', 'zoe', 1, 9, x'')";
    connection.execute(other, []).unwrap();
    let read = async |scope| ok(store.stored_documents(&scope, "rules", 0).await).len();
    assert_eq!(read(Scope::Service).await, DOCUMENTS_MAX + 2);
    assert_eq!(read(Scope::tenant("a")).await, DOCUMENTS_MAX);
    assert_eq!(read(Scope::tenant("b")).await, 1);
}

#[test]
fn many_may_open_a_new_directory_at_once() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| SqliteStore::open(dir.path()).unwrap());
        }
    });
}

const CHILD: &str = "STORE_TEST_CHILD_DIR";

/// Not a test by itself: the process that `kill_9_*` starts and kills. Each write has a sample and
/// the progress over it.
#[tokio::test]
async fn child() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let store = open(dir.as_ref());
    let claim = ok(store.claim("group", bus::Topic::Vitals, 0, &log()).await);
    for n in claim.next_offset.unwrap_or(1).. {
        let heart = batch(vec![sample("belt", "ann", Metric::HeartRate, n)]);
        ok(store.write_vitals(heart, vec![claim.progress(n + 1)]).await);
        println!("stored {n}");
    }
}

#[tokio::test]
async fn kill_9_leaves_rows_and_progress_together() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().unwrap();
    let mut stored = 0;
    for round in 1..=4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some((_, n)) = line.split_once("stored ") {
                stored = n.trim().parse().unwrap();
            }
            if stored >= round * 30 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let store = open(dir.path());
        let (rows, highest) = ok(store.stream_count("belt", "heart-rate").await);
        let progress = ok(store.progress("group", bus::Topic::Vitals).await);
        assert!(rows >= stored, "what was acknowledged is there");
        assert_eq!(rows, highest, "nothing is missing");
        assert_eq!(
            progress,
            [(0, highest + 1)],
            "progress is where the rows are"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_on_the_machine_reads_its_files() {
    use std::{fs, os::unix::fs::PermissionsExt};
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("data");
    let is_private = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077 == 0;
    for _ in 0..2 {
        let store = open(&dir);
        let one = sample("belt", "ann", Metric::HeartRate, 1);
        ok(store.write_vitals(batch(vec![one]), Vec::new()).await);
        let mut files = vec![dir.clone()];
        let mut seen = 0;
        while let Some(path) = files.pop() {
            assert!(is_private(&path), "{}", path.display());
            seen += 1;
            if path.is_dir() {
                files.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
            }
        }
        assert!(seen >= 4, "{seen}");
        // As an older version left them.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let mode = if path.is_dir() { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

fn account(name: &str, created_us: i64) -> Account {
    Account {
        name: name.to_owned(),
        tenant: "home".to_owned(),
        role: Role::Clinician,
        password_hash: "x".to_owned(),
        created_us,
    }
}

fn worn(device: &str, patient: &str, from_us: i64) -> Assignment {
    Assignment {
        device: device.to_owned(),
        tenant: "home".to_owned(),
        gateway: "gw".to_owned(),
        patient: patient.to_owned(),
        from_us,
        until_us: i64::MAX,
        entered: Change::by_program("test"),
    }
}

fn revoked(version: u32) -> Document {
    Document {
        kind: REVOCATION.to_owned(),
        tenant: "home".to_owned(),
        subject: "gw".to_owned(),
        version,
        body: "{\"excepted\":[]}".to_owned(),
        ..Document::default()
    }
}

/// Acts of after the copy stay (revoked, removed, ended), and the rest is as in the copy.
#[tokio::test]
async fn a_restore_brings_nobody_back() {
    let dir = tempfile::tempdir().unwrap();
    let (data, copy) = (dir.path().join("data"), dir.path().join("copies/monday"));
    let list = dir.path().join("copies/removed.jsonl");
    let scope = Scope::Service;
    let store = SqliteStore::open(&data).unwrap();
    for name in ["eve", "bob"] {
        ok(store.put_account(&account(name, 1)).await);
    }
    for device in ["belt", "clip", "ring"] {
        ok(store.assign(&worn(device, "ann", 100)).await);
    }
    let claim = ok(store.claim("g", bus::Topic::Vitals, 0, &log()).await);
    let made = backup::make(&data, &copy, 7).unwrap();
    assert_eq!(made.tables["accounts"], 2);
    assert_eq!(backup::check(&copy).unwrap(), made);
    let again = backup::make(&data, &copy, 8).unwrap_err().to_string();
    assert!(again.contains("is there already"), "{again}");

    // After the copy.
    ok(store.remove_account("eve").await);
    ok(store.put_account(&account("new", i64::MAX - 1)).await);
    let change = Change::by_program("test");
    ok(store.end_assignment(&scope, "belt", 200, &change).await);
    ok(store.assign(&worn("belt", "ben", 200)).await);
    ok(store
        .remove_assignments(&scope, "clip", Some(100), &change)
        .await);
    ok(store.put_document(&revoked(1)).await);
    let known = removals::append(&list, backup::removals(&data).unwrap()).unwrap();
    assert_eq!(known.len(), 4, "{known:?}");
    drop(store);

    let restored = backup::restore(&data, &copy, &known, 300).unwrap();
    assert_eq!(restored, made);
    let store = SqliteStore::open(&data).unwrap();
    let names = ok(store.accounts(&scope).await);
    let names: BTreeSet<String> = names.into_iter().map(|it| it.name).collect();
    assert_eq!(names, BTreeSet::from(["bob".to_owned()]));
    let found = ok(store.assignments(&scope, Of::Everything).await);
    let found: BTreeSet<(String, String, i64, i64)> = found
        .into_iter()
        .map(|it| (it.device, it.patient, it.from_us, it.until_us))
        .collect();
    let expected = [("belt", 200), ("ring", i64::MAX)];
    let expected =
        expected.map(|(device, until_us)| (device.to_owned(), "ann".to_owned(), 100, until_us));
    assert_eq!(found, BTreeSet::from(expected));
    let documents = ok(store.documents(&scope, REVOCATION, 0).await);
    assert_eq!(documents.len(), 1, "the gateway stays revoked");
    let restore = Restore {
        restored_us: 300,
        made_us: 7,
    };
    assert_eq!(ok(store.last_restore().await), Some(restore));
    let next = ok(store.claim("g", bus::Topic::Vitals, 0, &log()).await);
    assert!(next.epoch > claim.epoch + 1, "a member of before is fenced");
    drop(store);

    // The store of before is kept, and a second restore does not overwrite it.
    let before = SqliteStore::open(&data.join("store-before-restore")).unwrap();
    assert!(ok(before.account("new").await).is_some());
    drop(before);
    let second = backup::restore(&data, &copy, &known, 400).unwrap_err();
    assert!(
        second.to_string().contains("store-before-restore"),
        "{second}"
    );
    std::fs::remove_dir_all(data.join("store-before-restore")).unwrap();
    // The list outlives the acts in the store.
    std::fs::remove_file(data.join("store.db")).unwrap();
    let known = removals::read(&list).unwrap();
    backup::restore(&data, &copy, &known, 500).unwrap();
    let store = SqliteStore::open(&data).unwrap();
    assert_eq!(ok(store.account("eve").await), None);
    drop(store);
    a_copy_that_was_cut_short_is_refused(&copy);
}

fn a_copy_that_was_cut_short_is_refused(copy: &Path) {
    let mut bytes = std::fs::read(copy.join("store.db")).unwrap();
    let middle = bytes.len() / 2;
    bytes.truncate(middle);
    std::fs::write(copy.join("store.db"), bytes).unwrap();
    let damaged = backup::check(copy).unwrap_err().to_string();
    assert!(damaged.contains("is not what was written"), "{damaged}");
}
