#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bus::{EmbeddedBus, EmbeddedOptions};
use clocks::{CheckedClock, Moment};
use contracts::vitals::{EdgeAlert, Metric, Sample, VitalsRecord, sample};
use parking_lot::Mutex;
use service_kit::Context;
use store::{AlertsQuery, AlertsStore, Claims, Scope, Spo2Scale, SqliteStore, Store};
use tokio::sync::{Barrier, watch};
use tokio::time::timeout;
use vitals::{Profile, RuleSet};

use super::*;
use crate::{
    from_bus::{GROUP, Records, register::Entries},
    rule_engines::RuleEngines,
    to_store::Writer,
};

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;
/// A judging that waits for longer is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(20);

#[tokio::test]
async fn nobodys_question_waits_for_anothers() {
    let keys = (0..2 * ASKED_AT_ONCE).map(|number| (number.to_string(), 3));
    // Answers once this many queries are waiting.
    let together = Barrier::new(ASKED_AT_ONCE);
    let ask = |key: String| async {
        together.wait().await;
        key
    };
    let asking = ask_side_by_side(keys.clone().collect(), ask);
    let asked = tokio::time::timeout(Duration::from_secs(30), asking);
    let mut answers = asked.await.unwrap();
    answers.sort_unstable();
    let mut expected: Vec<(String, u32)> = keys.collect();
    expected.sort_unstable();
    assert_eq!(answers, expected);
}

/// A register that answers for everybody. With `hangs_for_ben`, it answers for ben only once.
#[derive(Default)]
struct Forgetful {
    tenant: Mutex<String>,
    hangs_for_ben: bool,
    has_told_of_ben: AtomicBool,
}

#[async_trait]
impl Entries for Forgetful {
    async fn entry(&self, key: &str) -> Result<Option<PatientEntry>, QueryError> {
        let is_told = key == "ben" && self.has_told_of_ben.swap(true, Ordering::Relaxed);
        if is_told && self.hangs_for_ben {
            std::future::pending::<()>().await;
        }
        Ok(Some(PatientEntry {
            id: key.to_owned(),
            tenant: self.tenant.lock().clone(),
            name: String::new(),
            spo2_scale: Spo2Scale::One,
        }))
    }
}

struct World {
    state: JudgingState,
    store: Arc<SqliteStore>,
    register: Arc<Forgetful>,
    passed_us: Arc<AtomicI64>,
    _dir: tempfile::TempDir,
}

fn world(hangs_for_ben: bool) -> World {
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
        hangs_for_ben,
        ..Forgetful::default()
    });
    let (_, in_force) = watch::channel(Arc::default());
    let turns = context.health().progress("from-bus", STUCK_AFTER);
    let state = JudgingState {
        bus: Arc::new(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap()),
        register: Arc::<Forgetful>::clone(&register),
        refreshing: tokio::task::JoinSet::new(),
        claims: Claims::new(Arc::clone(&of_state), GROUP),
        writer: Writer::new(of_state, Arc::default(), &context),
        engines: RuleEngines::new(Arc::new(RuleSet::default_set()), 600 * S),
        in_force,
        heard: Arc::default(),
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
        let readable = records.into_iter().map(|(key, it)| (3, key.to_owned(), it));
        let records = Records {
            readable: readable.collect(),
            newest_us: Some(self.now_us()),
        };
        let judging = timeout(STUCK_AFTER, self.state.evaluate(&records, &[]));
        let answer = judging.await.expect("nobody's question stops the judging");
        assert_eq!(answer, consumer::Answer::Taken);
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
    let mut world = world(true);
    world.with_old_profiles().await;
    for _ in 0..2 {
        world.tick().await;
        let ben = world.pulse("ben");
        let ada = world.edge_alert("ada");
        world.judge(vec![("ben", ben), ("ada", ada)]).await;
    }
    let query = AlertsQuery::default();
    let stored = world.store.alerts(&Scope::Service, &query).await.unwrap();
    let of_ada = |it: &&contracts::alerts::Alert| it.rule == "of-the-edge-alone";
    assert_eq!(stored.iter().filter(of_ada).count(), 1, "{stored:?}");
}

#[tokio::test]
async fn a_changed_entry_takes_hold_though_another_patients_question_hangs() {
    for hangs_for_ben in [false, true] {
        let mut world = world(hangs_for_ben);
        "first".clone_into(&mut world.register.tenant.lock());
        for key in ["ben", "ada"] {
            let wanted = BTreeMap::from([(key.to_owned(), 3)]);
            assert!(world.state.fetch_profiles(wanted, T0).await);
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
