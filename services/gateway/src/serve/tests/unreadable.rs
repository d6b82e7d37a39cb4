//! A journal that cannot be read for a while, as when the process has no file left to open.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use contracts::vitals::EdgeAlert;
use service_kit::{Context, Health};
use testkit::disk::{Crash, FakeDisk};
use tokio::sync::{Notify, broadcast, mpsc, watch};

use super::{
    direct::Direct,
    fake_ingest::{FakeIngest, Running},
    under_test::until,
};
use crate::{
    clock::{CoreClock, Moment},
    journal::{
        Disk, Journal, Overflow,
        test_disk::{Faulty, TestDisk, TestFile, small},
    },
    revocation::Revocation,
    sealing::Keys,
    to_ingest::{Courier, DeadLetters, Options},
};

const EMFILE: i32 = 24;
pub const CHECK: &str = "alerts-uplink";

/// A disk that may refuse reads, while it takes writes.
#[derive(Clone)]
struct Refusing {
    disk: TestDisk,
    refuses: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Faulty for Refusing {
    type File = TestFile;

    fn disk(&self) -> &TestDisk {
        &self.disk
    }
    fn new_file(&self, name: &str) -> io::Result<TestFile> {
        self.disk.create(name)
    }
    fn read(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        if self.refuses.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
        self.disk.read_at(name, offset, length)
    }
}

fn alert(rule: &str) -> Vec<EdgeAlert> {
    vec![EdgeAlert {
        gateway: "g1".into(),
        device: "d1".into(),
        rule: rule.into(),
        time_us: 1_800_000_000_000_000,
        ..EdgeAlert::default()
    }]
}

/// A journal whose only alert is not in memory, because it was written before a restart.
async fn restarted() -> (Journal<Refusing>, Refusing) {
    let fake = FakeDisk::new(3);
    let disk = Refusing {
        disk: TestDisk(fake.clone()),
        refuses: Arc::default(),
        refused: Arc::default(),
    };
    let before = small(disk.clone(), "alerts", Overflow::Refuse);
    before.append_alerts(alert("before")).await.unwrap();
    before.close().await;
    fake.restart(Crash::Process);
    (small(disk.clone(), "alerts", Overflow::Refuse), disk)
}

pub fn courier<D: Disk>(
    journal: &Journal<D>,
    running: &Running,
    health: &Health,
    dead_letters: &tempfile::TempDir,
) -> Courier<D> {
    Courier {
        options: Options::ALERTS,
        journal: journal.clone(),
        uplink: Arc::new(Direct {
            identity: None,
            events: broadcast::channel(16).0,
        }),
        url: format!("http://{}", running.address),
        dead_letters: Arc::new(DeadLetters::new(
            dead_letters.path().join("refused"),
            Keys::none(),
            Health::new().warning("rejected"),
        )),
        check: health.check(CHECK),
        clock: Moment::now,
        core: Arc::<CoreClock>::default(),
        revocation: Revocation::default(),
        rules: None,
        alarmed: watch::Sender::new(false).subscribe(),
        freshness: watch::Sender::default().subscribe(),
        urgent: Arc::<Notify>::default(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_leave_while_the_journal_cannot_be_read_and_the_others_once_it_can() {
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let (journal, disk) = restarted().await;
    disk.refuses.store(true, Ordering::SeqCst);
    let context = Context::new("gateway");
    let (health, files) = (context.health(), tempfile::tempdir().unwrap());
    let courier = courier(&journal, &running, health, &files);
    let task = tokio::spawn(courier.run(mpsc::channel(1).1, context.shutdown().clone()));

    let says = |part: &str| {
        let failing = health.failing();
        failing.iter().any(|(_, reason)| reason.contains(part))
    };
    until("readiness says it", &ingest, |_| says("cannot be read")).await;
    // With all its links the courier has nothing else to wake for.
    let all = 2 + Options::ALERTS.limits.copies as u32;
    until("all links", &ingest, |got| got.connections == all).await;
    let refused = || disk.refused.load(Ordering::SeqCst);
    let before = refused();
    until("it tries again", &ingest, |_| refused() >= before + 3).await;

    journal.append_alerts(alert("now")).await.unwrap();
    until("the new alert does not wait", &ingest, |got| {
        got.alerts.contains_key(&0)
    })
    .await;
    {
        let got = ingest.got.lock();
        let rules: Vec<_> = got.alerts.values().map(|it| it.rule.as_str()).collect();
        assert_eq!(rules, ["now"]);
    }
    assert_eq!(journal.waiting(), 2, "one that was passed by is kept");

    disk.refuses.store(false, Ordering::SeqCst);
    until("both arrive in their order", &ingest, |got| {
        let rules = got.alerts.iter().filter(|(sequence, _)| **sequence > 0);
        rules.map(|(_, it)| it.rule.as_str()).eq(["before", "now"])
    })
    .await;
    until("readiness", &ingest, |_| health.is_ready()).await;
    until("nothing waits", &ingest, |_| journal.waiting() == 0).await;
    context.shutdown().request();
    task.await.unwrap();
}
