#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bus::{Bus, EmbeddedBus, EmbeddedOptions, Record, Start, StartAt, Topic};
use clocks::{CheckedClock, Moment};
use contracts::vitals::{EdgeAlert, Metric, Sample, VitalsRecord, sample};
use parking_lot::Mutex;
use service_kit::Context;
use store::{
    AlertsQuery, AlertsStore, Claims, PatientEntry, QueryError, Scope, Spo2Scale, SqliteStore,
    Store,
};
use tokio::sync::{Barrier, watch};
use tokio::time::timeout;
use vitals::{Profile, RuleSet};

use super::*;
use crate::{
    from_bus::{
        GROUP, Records,
        deferred::Deferred,
        questions::{ASKED_AT_ONCE, Questions},
        register::Entries,
    },
    rule_engines::RuleEngines,
    to_store::Writer,
};

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;
/// A judging that waits for longer is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// Answers once this many queries are waiting.
struct Together(Barrier);

#[async_trait]
impl Entries for Together {
    async fn entry(&self, _: &str) -> Result<Option<PatientEntry>, QueryError> {
        self.0.wait().await;
        Ok(None)
    }
}

#[tokio::test]
async fn nobodys_question_waits_for_anothers() {
    let register: Arc<dyn Entries> = Arc::new(Together(Barrier::new(ASKED_AT_ONCE)));
    let questions = Questions::new(&register);
    let keys: Vec<String> = (0..2 * ASKED_AT_ONCE).map(|it| it.to_string()).collect();
    assert!(keys.iter().all(|key| questions.ask(key)));
    assert!(!questions.ask("0"), "it is asked for already");
    let mut answered = Vec::new();
    let asked = timeout(STUCK_AFTER, async {
        while answered.len() < keys.len() {
            questions.answered().await;
            answered.extend(questions.answers().into_iter().map(|(key, _)| key));
        }
    });
    asked.await.unwrap();
    answered.sort_unstable();
    assert_eq!(answered, keys);
}

/// A register that answers for everybody, but for ben only so often.
struct Forgetful {
    tenant: Mutex<String>,
    answers_for_ben: AtomicUsize,
}

#[async_trait]
impl Entries for Forgetful {
    async fn entry(&self, key: &str) -> Result<Option<PatientEntry>, QueryError> {
        if key == "ben" {
            let order = Ordering::Relaxed;
            let left = self.answers_for_ben.load(order);
            if left == 0 {
                std::future::pending::<()>().await;
            }
            self.answers_for_ben.store(left - 1, order);
        }
        Ok(Some(PatientEntry {
            id: key.to_owned(),
            tenant: self.tenant.lock().clone(),
            name: String::new(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        }))
    }
}

struct World {
    state: JudgingState,
    store: Arc<SqliteStore>,
    register: Arc<Forgetful>,
    passed_us: Arc<AtomicI64>,
    /// Offset of the next record.
    offset: u64,
    _dir: tempfile::TempDir,
}

fn world(answers_for_ben: usize) -> World {
    let dir = tempfile::tempdir().unwrap();
    let passed_us = Arc::new(AtomicI64::new(0));
    let passing = Arc::clone(&passed_us);
    let clock = CheckedClock::new(Arc::new(move || {
        let monotonic_us = passing.load(Ordering::Relaxed);
        Moment {
            wall_us: T0 + monotonic_us,
            monotonic_us,
        }
    }));
    let context = Context::with_clock("alerting", clock);
    let store = Arc::new(SqliteStore::open(dir.path()).unwrap());
    let of_state: Arc<dyn Store> = Arc::<SqliteStore>::clone(&store);
    let register = Arc::new(Forgetful {
        tenant: Mutex::default(),
        answers_for_ben: AtomicUsize::new(answers_for_ben),
    });
    let of_questions: Arc<dyn Entries> = Arc::<Forgetful>::clone(&register);
    let (_, in_force) = watch::channel(Arc::default());
    let turns = context.health().progress("from-bus", STUCK_AFTER);
    let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default());
    let bus: Arc<dyn Bus> = Arc::new(bus.unwrap());
    let state = JudgingState {
        bus: Arc::clone(&bus),
        register: Arc::<Forgetful>::clone(&register),
        questions: Questions::new(&of_questions),
        asked_for: BTreeMap::new(),
        deferred: Deferred::default(),
        waiting: context.health().warning("profiles"),
        refreshing: tokio::task::JoinSet::new(),
        claims: Claims::new(bus, Arc::clone(&of_state), GROUP),
        writer: Writer::new(of_state, Arc::default(), &context),
        engines: RuleEngines::new(Arc::new(RuleSet::default_set()), 600 * S),
        in_force,
        heard: Arc::new(crate::last_received::LastReceived::new(Some(120 * S))),
        positions: BTreeMap::new(),
        unstored_records: 0,
        heard_us: 0,
        turns: Arc::new(turns),
        context,
    };
    World {
        state,
        store,
        register,
        passed_us,
        offset: 0,
        _dir: dir,
    }
}

impl World {
    fn now_us(&self) -> i64 {
        T0 + self.passed_us.load(Ordering::Relaxed)
    }

    fn pulse(&self, patient: &str) -> VitalsRecord {
        let mut sample = Sample {
            device: format!("{patient}-belt"),
            patient: patient.into(),
            sequence: self.now_us() as u64,
            metric: Metric::HeartRate.into(),
            device_time_us: self.now_us(),
            ingest_time_us: self.now_us(),
            reading: Some(sample::Reading::Value(70.0)),
            ..Sample::default()
        };
        vitals::fill_defaults(&mut sample);
        VitalsRecord {
            samples: vec![sample],
            ..VitalsRecord::default()
        }
    }

    fn edge_alert(&self, patient: &str) -> VitalsRecord {
        let alert = EdgeAlert {
            device: format!("{patient}-belt"),
            patient: patient.into(),
            rule: "of-the-edge-alone".into(),
            time_us: self.now_us(),
            ingest_time_us: self.now_us(),
            ..EdgeAlert::default()
        };
        VitalsRecord {
            alerts: vec![alert],
            ..VitalsRecord::default()
        }
    }

    async fn judge(&mut self, records: Vec<(&str, VitalsRecord)>) {
        let count = records.len() as u64;
        let offsets = self.offset..self.offset + count;
        self.offset += count;
        let reached = [(Topic::Vitals, 3, self.offset)];
        let progress = self.state.claims.progress_to(reached);
        let readable = records.into_iter().map(|(key, it)| (3, key.to_owned(), it));
        let records = Records {
            readable: readable.collect(),
            offsets: offsets.collect(),
            newest_us: Some(self.now_us()),
        };
        let judging = timeout(STUCK_AFTER, self.state.evaluate(&records, &progress));
        let answer = judging.await.expect("nobody's question stops the judging");
        assert_eq!(answer, consumer::Answer::Taken);
    }

    /// Each partition gets more records than a test counts. A position behind the end of its log
    /// would be of another log.
    async fn fill_bus(&self) {
        let record = |number: usize| Record::new(number.to_string(), "");
        let records = (0..2_000).map(record).collect();
        let published = self.state.bus.publish(Topic::Vitals, records).await;
        published.unwrap();
    }

    /// Where another member would begin, after a takeover in passing.
    async fn stored_offset(&self) -> Start {
        let start = self.state.claims.start(Topic::Vitals, 3);
        start.await.unwrap()
    }

    async fn alerts_of(&self, patient: &str) -> usize {
        let query = AlertsQuery::default();
        let stored = self.store.alerts(&Scope::Service, &query).await.unwrap();
        stored.iter().filter(|it| it.patient == patient).count()
    }

    async fn tick(&mut self) {
        let ticking = timeout(STUCK_AFTER, self.state.on_tick());
        ticking.await.expect("no question stops the tick");
    }

    /// Both patients are known, and their profiles have expired.
    async fn with_old_profiles(&mut self) {
        let records = vec![("ben", self.pulse("ben")), ("ada", self.pulse("ada"))];
        self.judge(records).await;
        self.passed_us.fetch_add(61 * S, Ordering::Relaxed);
        let old = self.state.engines.with_old_profile(self.now_us(), 9);
        assert_eq!(old.len(), 2);
    }
}

#[tokio::test]
async fn no_alert_waits_for_a_known_patient_that_the_register_does_not_answer_for() {
    let mut world = world(1);
    world.with_old_profiles().await;
    for _ in 0..2 {
        world.tick().await;
        let ben = world.pulse("ben");
        let ada = world.edge_alert("ada");
        world.judge(vec![("ben", ben), ("ada", ada)]).await;
    }
    assert_eq!(world.alerts_of("ada").await, 1);
}

#[tokio::test]
async fn no_alert_waits_for_a_new_patient_that_the_register_does_not_answer_for() {
    let mut world = world(0);
    world.fill_bus().await;
    world.offset = 5;
    assert_eq!(world.stored_offset().await, Start::Oldest);
    let (ben, ada) = (world.edge_alert("ben"), world.edge_alert("ada"));
    // Ben's record comes first, and one for both patients follows.
    let mut both = world.edge_alert("cora");
    both.alerts.extend(world.edge_alert("ben").alerts);
    let records = vec![("ben", ben), ("ada", ada), ("gateway", both)];
    world.judge(records).await;
    let alerts = [
        world.alerts_of("ben").await,
        world.alerts_of("ada").await,
        world.alerts_of("cora").await,
    ];
    assert_eq!(alerts, [0, 1, 1]);
    // Progress does not pass ben's record, and a person sees it.
    assert_eq!(world.stored_offset().await, Start::At(5));
    world.tick().await;
    assert_eq!(world.state.deferred.len(), (1, 2));
    let warnings = world.state.context.health().warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");

    // A record of a known patient goes on, and takes no progress with it.
    let ada = world.pulse("ada");
    world.judge(vec![("ada", ada)]).await;
    world.state.store_unstored().await;
    assert_eq!(world.stored_offset().await, Start::At(5));

    world.register.answers_for_ben.store(9, Ordering::Relaxed);
    let judged = timeout(STUCK_AFTER, async {
        while world.state.deferred.len() != (0, 0) {
            world.tick().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    judged
        .await
        .expect("ben is judged once the register answers");
    assert_eq!(world.alerts_of("ben").await, 1);
    world.tick().await;
    assert_eq!(world.stored_offset().await, Start::At(9));
    assert!(world.state.context.health().warnings().is_empty());
}

#[tokio::test]
async fn deferred_records_of_a_lost_partition_are_the_next_members() {
    let mut world = world(0);
    let ben = world.pulse("ben");
    world.judge(vec![("ben", ben)]).await;
    assert_eq!(world.state.deferred.len(), (1, 1));
    world.state.release([3]);
    assert_eq!(world.state.deferred.len(), (0, 0));
    world.register.answers_for_ben.store(9, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(10)).await;
    world.tick().await;
    assert_eq!(world.state.engines.len(), 0);
}

#[tokio::test]
async fn a_changed_entry_takes_hold_though_another_patients_question_hangs() {
    for hangs_for_ben in [false, true] {
        let mut world = world(if hangs_for_ben { 1 } else { usize::MAX });
        "first".clone_into(&mut world.register.tenant.lock());
        for key in ["ben", "ada"] {
            let wanted = BTreeMap::from([(key.to_owned(), 3)]);
            world.state.ask_for_profiles(wanted).await;
        }
        "second".clone_into(&mut world.register.tenant.lock());
        world.passed_us.fetch_add(61 * S, Ordering::Relaxed);
        let now_us = world.now_us();
        // The hanging question may end the first round before the other one.
        let refreshed = timeout(STUCK_AFTER, async {
            while !world.state.engines.with_old_profile(now_us, 9).is_empty() {
                world.tick().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        refreshed.await.expect("every patient had its turn");
        let engines = &world.state.engines;
        let of_ben = if hangs_for_ben { "first" } else { "second" };
        assert_eq!(engines.tenant_of("ada"), Some("second"));
        assert_eq!(engines.tenant_of("ben"), Some(of_ben));
    }
}

#[tokio::test]
async fn the_next_question_waits_for_the_next_tick_while_the_register_is_away() {
    struct Away(Mutex<usize>);
    #[async_trait]
    impl Entries for Away {
        async fn entry(&self, _: &str) -> Result<Option<PatientEntry>, QueryError> {
            *self.0.lock() += 1;
            Err(QueryError::Unavailable("the test has stopped it".into()))
        }
    }
    let away = Arc::new(Away(Mutex::default()));
    let keys = (0..100).map(|number| number.to_string()).collect();
    let refreshed = refresh(Arc::<Away>::clone(&away), keys, T0).await;
    assert!(refreshed.answers.is_empty());
    assert_eq!(*away.0.lock(), 1);
}

#[test]
fn profiles_loaded_together_do_not_expire_together_and_the_oldest_is_asked_for_first() {
    let mut engines = RuleEngines::new(Arc::new(RuleSet::default_set()), 600 * S);
    let keys: Vec<String> = (0..1000).map(|number| format!("p{number}")).collect();
    for key in &keys {
        engines.set_profile(key, 3, "t", Profile::default(), T0);
    }
    let old_at = |engines: &RuleEngines, second: i64| {
        let now_us = T0 + second * S;
        engines.with_old_profile(now_us, keys.len()).len()
    };
    let by_second: Vec<usize> = (44..=61).map(|at| old_at(&engines, at)).collect();
    assert_eq!((by_second[0], by_second[17]), (0, 1000), "{by_second:?}");
    let in_one_second = by_second.windows(2).map(|two| two[1] - two[0]).max();
    assert!(in_one_second.unwrap() < 150, "{by_second:?}");
    // One without an answer is asked again in its turn, and blocks no other.
    engines.set_profile("first", 3, "t", Profile::default(), T0 - 60 * S);
    let now_us = T0 + 61 * S;
    assert_eq!(engines.with_old_profile(now_us, 1), ["first"]);
    engines.renew_profile("first", None, now_us);
    assert_eq!(engines.tenant_of("first"), Some("t"));
    let next = engines.with_old_profile(now_us, 1);
    assert_eq!(next.len(), 1);
    engines.renew_profile(&next[0], Some(("other", Profile::default())), now_us);
    assert_eq!(engines.tenant_of(&next[0]), Some("other"));
    let old = engines.with_old_profile(now_us, keys.len());
    assert!(old.len() == 999 && !old.contains(&next[0]));
    // An answer about a patient that another member has taken is dropped.
    engines.release(3);
    engines.renew_profile("first", Some(("t", Profile::default())), now_us);
    assert_eq!(engines.len(), 0);
}
