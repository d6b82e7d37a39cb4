//! Silences over the real store while processes start, join and end, and their clocks step. A
//! seeded run is judged after each round by what truly arrived.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

/// Runs of the property; the environment variable asks for more.
const SEEDS: u64 = 3;
const SEEDS_VARIABLE: &str = "BRAID_SILENCE_SEEDS";
const STEPS: usize = 100;
const S: i64 = 1_000_000;
/// The limit of [`watch`].
const AFTER_US: i64 = 60 * S;
/// A process whose clock is behind by less than the tolerated difference is late by as much.
const LATE_US: i64 = 30 * S;
/// Sensors by gateway.
const SITES: [&[&str]; 3] = [&["a1", "a2"], &["b1"], &["c1"]];

/// The true time, and the beginning of the monotonic clock of the processes on it.
pub(super) struct Host {
    true_us: Arc<AtomicI64>,
}

impl Host {
    pub(super) fn new(second: i64) -> Host {
        let true_us = Arc::new(AtomicI64::new(T0_US + second * S));
        Host { true_us }
    }

    pub(super) fn true_us(&self) -> i64 {
        self.true_us.load(Ordering::Relaxed)
    }
}

/// A process of alerting with a wall clock that may be wrong.
pub(super) struct Life {
    watch: SilenceWatch,
    memory: Memory,
    clock: CheckedClock,
    error_us: Arc<AtomicI64>,
    /// True time of the first round that saw the present state of each sensor. A step of the clock
    /// begins anew.
    seen_us: BTreeMap<&'static str, i64>,
}

impl Life {
    pub(super) fn start(store: &Arc<dyn Store>, host: &Host, error_us: i64) -> Life {
        Life::start_with(store, host, error_us, AFTER_US)
    }

    pub(super) fn start_with(
        store: &Arc<dyn Store>,
        host: &Host,
        error_us: i64,
        silent_after_us: i64,
    ) -> Life {
        let error_us = Arc::new(AtomicI64::new(error_us));
        let begun_us = host.true_us();
        let (true_us, error) = (Arc::clone(&host.true_us), Arc::clone(&error_us));
        let clock = CheckedClock::new(Arc::new(move || {
            let true_us = true_us.load(Ordering::Relaxed);
            Moment {
                wall_us: true_us + error.load(Ordering::Relaxed),
                monotonic_us: true_us - begun_us,
            }
        }));
        let watch = SilenceWatch {
            store: Arc::clone(store),
            outbox: Arc::default(),
            rules: Arc::new(RuleSet::default_set()),
            heard: Arc::new(LastReceived::new(Some(silent_after_us))),
            silent_after_us,
            context: Context::with_clock("alerting", clock.clone()),
        };
        Life {
            memory: Memory::new(watch.silent_after_us),
            watch,
            clock,
            error_us,
            seen_us: BTreeMap::new(),
        }
    }

    pub(super) async fn round(&mut self) -> Round {
        self.watch.round(&mut self.memory).await.unwrap()
    }

    /// A reading of the sensor comes by the bus.
    pub(super) fn hear(&self, device: &str, host: &Host) {
        self.hear_late(device, host.true_us());
    }

    /// A reading that arrived at ingest some time ago comes by the bus.
    pub(super) fn hear_late(&self, device: &str, arrived_us: i64) {
        self.hear_reading(Sample {
            device: device.into(),
            sequence: arrived_us.cast_unsigned(),
            metric: Metric::HeartRate.into(),
            device_time_us: arrived_us,
            ingest_time_us: arrived_us,
            ..Sample::default()
        });
    }

    pub(super) fn hear_reading(&self, sample: Sample) {
        let record = contracts::vitals::VitalsRecord {
            samples: vec![sample],
            ..Default::default()
        };
        let records = [(0, String::new(), record)];
        self.watch.heard.note(None, &records, &self.clock);
    }

    /// Lets the time of the host pass while this process runs.
    pub(super) fn pass(&self, host: &Host, seconds: i64) {
        pass(host, seconds, std::slice::from_ref(self));
    }
}

fn pass(host: &Host, seconds: i64, lives: &[Life]) {
    let mut rest = seconds;
    while rest > 0 {
        // More often than a pause that a clock takes for a stopped process.
        let step = rest.min(20);
        host.true_us.fetch_add(step * S, Ordering::Relaxed);
        lives.iter().for_each(|life| {
            life.clock.now_us();
        });
        rest -= step;
    }
}

/// The true events, and the part of them that the store has.
struct Oracle {
    /// Newest reading by sensor.
    last_us: BTreeMap<&'static str, i64>,
    /// By alert id: its subject, and the newest reading of it when the alert was raised.
    raised: BTreeMap<String, (String, i64)>,
    open: BTreeSet<String>,
}

impl Oracle {
    fn newest(&self, alert: &Alert) -> i64 {
        let of = |sensors: &mut dyn Iterator<Item = &&'static str>| {
            sensors.map(|sensor| self.last_us[sensor]).max().unwrap()
        };
        match alert.rule.as_str() {
            silence::DEVICE => self.last_us[alert.device.as_str()],
            silence::GATEWAY => of(&mut SITES[site_of(&alert.gateway)].iter()),
            silence::PIPELINE => of(&mut SITES.iter().copied().flatten()),
            other => panic!("no {other} is due"),
        }
    }

    /// Judges what the last round changed.
    fn judge(&mut self, alerts: &[Alert], now_us: i64, what: &str) {
        for alert in alerts {
            let newest_us = self.newest(alert);
            let subject = subject_of(alert);
            let is_open = alert.state() != AlertState::Resolved;
            if !self.raised.contains_key(&alert.id) {
                assert!(now_us - newest_us > AFTER_US, "{what}: too early {alert:?}");
                let twice = self
                    .raised
                    .values()
                    .any(|it| *it == (subject.clone(), newest_us));
                assert!(!twice, "{what}: twice {alert:?}");
                self.raised.insert(alert.id.clone(), (subject, newest_us));
                self.open.insert(alert.id.clone());
            }
            if !is_open && self.open.remove(&alert.id) {
                let (_, raised_us) = &self.raised[&alert.id];
                assert!(
                    newest_us > *raised_us,
                    "{what}: ended without a reading {alert:?}"
                );
            }
        }
        let subjects: BTreeSet<&String> = self.open.iter().map(|id| &self.raised[id].0).collect();
        let count = self.open.len();
        assert_eq!(subjects.len(), count, "{what}: a subject is open twice");
    }

    /// A process that has looked for one interval has raised all that is silent.
    fn nothing_is_missing(&self, life: &Life, alerts: &[Alert], now_us: i64, what: &str) {
        let is_due = |sensor: &&str| {
            let seen_us = life.seen_us.get(sensor);
            seen_us.is_some_and(|seen_us| now_us - seen_us > AFTER_US + LATE_US)
        };
        let is_raised = |rule: &str, name: &str, newest_us: i64| {
            alerts.iter().any(|alert| {
                let (_, raised_us) = &self.raised[&alert.id];
                self.open.contains(&alert.id)
                    && alert.rule == rule
                    && (alert.device == name || alert.gateway == name && rule == silence::GATEWAY)
                    && *raised_us == newest_us
            })
        };
        for (number, sensors) in SITES.iter().enumerate() {
            let newest_us = sensors.iter().map(|it| self.last_us[it]).max().unwrap();
            let gateway = gateway_of(number);
            if sensors.iter().all(is_due) {
                let raised = is_raised(silence::GATEWAY, &gateway, newest_us);
                assert!(raised, "{what}: {gateway} is missing");
            }
            // Behind a silent gateway a sensor may wait.
            let is_gone = now_us - newest_us > AFTER_US;
            for sensor in sensors.iter().filter(|sensor| is_due(sensor) && !is_gone) {
                let raised = is_raised(silence::DEVICE, sensor, self.last_us[sensor]);
                assert!(raised, "{what}: {sensor} is missing");
            }
        }
    }
}

fn gateway_of(site: usize) -> String {
    format!("g{site}")
}

fn site_of(gateway: &str) -> usize {
    gateway.trim_start_matches('g').parse().unwrap()
}

/// The patient has the name of the sensor.
fn sensor_of<'a>(device: &'a str, gateway: &'a str) -> Sensor<'a> {
    Sensor {
        gateway,
        ..Sensor::named(device)
    }
}

async fn speak(store: &dyn Store, sensors: &[&'static str], at_us: i64) {
    let site = |sensor: &str| SITES.iter().position(|it| it.contains(&sensor)).unwrap();
    let gateways: Vec<String> = sensors.iter().map(|it| gateway_of(site(it))).collect();
    let sensors = sensors.iter().zip(&gateways);
    let sensors = sensors.map(|(device, gateway)| sensor_of(device, gateway));
    scene::hear(store, sensors, at_us).await;
}

async fn all_alerts(store: &dyn Store) -> Vec<Alert> {
    let query = AlertsQuery {
        include_resolved: true,
        limit: 10_000,
        ..AlertsQuery::default()
    };
    store.alerts(&Scope::Service, &query).await.unwrap()
}

fn wrong_by_us(random: &mut StdRng) -> i64 {
    const ERRORS_S: [i64; 8] = [0, 0, 0, 20, -20, 90, 10_800, -3_600];
    ERRORS_S[random.random_range(0..ERRORS_S.len())] * S
}

/// Every sensor of every site. The patient has the name of the sensor.
async fn register(store: &dyn Store) {
    for (number, site) in SITES.iter().enumerate() {
        let gateway = gateway_of(number);
        for device in *site {
            sensor_of(device, &gateway).wear(store, i64::MIN).await;
        }
    }
}

/// Returns how many alerts were raised.
async fn run(seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
    let host = Host::new(0);
    let sensors: Vec<&'static str> = SITES.iter().copied().flatten().copied().collect();
    register(store.as_ref()).await;
    speak(store.as_ref(), &sensors, host.true_us()).await;
    let mut oracle = Oracle {
        last_us: sensors.iter().map(|it| (*it, host.true_us())).collect(),
        raised: BTreeMap::new(),
        open: BTreeSet::new(),
    };
    let mut speaking: BTreeSet<&'static str> = sensors.iter().copied().collect();
    let mut lives = vec![Life::start(&store, &host, 0)];
    for step in 0..STEPS {
        let mut what = format!("seed {seed}, step {step}");
        match random.random_range(0..100) {
            0..12 => {
                let sensor = sensors[random.random_range(0..sensors.len())];
                if !speaking.remove(sensor) {
                    speaking.insert(sensor);
                }
            }
            12..15 => speaking.clear(),
            15..19 => speaking.extend(&sensors),
            19..27 => {
                lives[0] = Life::start(&store, &host, wrong_by_us(&mut random));
                what += ": a start";
            }
            27..31 if lives.len() < 3 => {
                lives.push(Life::start(&store, &host, wrong_by_us(&mut random)));
                what += ": another member";
            }
            31..34 if lives.len() > 1 => {
                lives.pop();
            }
            34..38 => {
                let which = random.random_range(0..lives.len());
                let life = &mut lives[which];
                let error_us = wrong_by_us(&mut random);
                if (life.error_us.swap(error_us, Ordering::Relaxed) - error_us).abs() > S {
                    life.seen_us.clear();
                }
                what += ": a step";
            }
            _ => {}
        }
        let seconds = match random.random_range(0..40) {
            0 => random.random_range(3_600..3 * 86_400),
            1..4 => random.random_range(60..900),
            _ => random.random_range(3..=10),
        };
        // No process looks for a while, and all are new after it.
        if random.random_range(0..40) == 0 {
            lives.clear();
            pass(&host, seconds, &lives);
            let error_us = wrong_by_us(&mut random);
            lives.push(Life::start(&store, &host, error_us));
            what += ": all new";
        } else {
            pass(&host, seconds, &lives);
        }
        if !speaking.is_empty() {
            let now: Vec<&'static str> = speaking.iter().copied().collect();
            speak(store.as_ref(), &now, host.true_us()).await;
            oracle
                .last_us
                .extend(now.iter().map(|it| (*it, host.true_us())));
        }
        for life in &mut lives {
            let now_us = host.true_us();
            let is_judged = matches!(life.round().await, Round::Written(_));
            let alerts = all_alerts(store.as_ref()).await;
            oracle.judge(&alerts, now_us, &what);
            if !is_judged {
                life.seen_us.clear();
                continue;
            }
            for sensor in &sensors {
                let last_us = oracle.last_us[sensor];
                let seen_us = life.seen_us.entry(sensor).or_insert(now_us);
                if *seen_us < last_us {
                    *seen_us = now_us;
                }
            }
            oracle.nothing_is_missing(life, &alerts, now_us, &what);
        }
    }
    oracle.raised.len()
}

#[tokio::test]
async fn no_silence_ends_without_a_reading_and_none_is_missing_or_raised_twice() {
    let asked = std::env::var(SEEDS_VARIABLE).ok();
    let seeds = asked.map_or(SEEDS, |count| count.parse().unwrap());
    let mut raised = 0;
    for seed in 0..seeds {
        raised += run(seed).await;
    }
    assert!(
        raised > 5 * seeds as usize,
        "{raised}: too few to show anything"
    );
}
