//! The real shape (three Kafka brokers, TimescaleDB, six services) under load during a sequence of
//! failures. No sample is lost or stored twice, and alerts of patients who fall ill meanwhile come
//! late at worst. Prints a table of counts.
//!
//! With BRAID_TEST_LONG the outages last a minute and fifty services are killed.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/sensor.rs"]
mod sensor;
#[path = "support/separate.rs"]
mod separate;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bus::{Bus, Event, KafkaBus, KafkaOptions, Record, Topic};
use contracts::alerts::Alert;
use program::{PATIENCE, eventually_within};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sensor::{Sensors, pause};
use separate::{NOUNS, Separate};
use store::{AlertsQuery, AlertsStore, Scope, TimescaleOptions, TimescaleStore};
use testkit::kafka::Cluster;
use testkit::timescale_server::{PASSWORD, ServerOptions, TimescaleServer};
use tokio::runtime::Runtime;

/// Samples that must be stored after a failure before the next one.
const PROGRESS: u64 = 200;
/// The rule that a heart rate of 190 breaks.
const RULE: &str = "heart-rate-very-high";
const ILL_PULSE: u64 = 190;
/// Time for three brokers on a busy machine to elect leaders, and for a group to notice a death; no
/// figure depends on it.
const LIMIT: Duration = Duration::from_secs(240);
/// Records of the bus that are published a second time.
const REPEATED: usize = 60;

struct Ward {
    runtime: Runtime,
    cluster: Option<Cluster>,
    server: TimescaleServer,
    url: String,
    separate: Separate,
    counts: tokio_postgres::Client,
    alerts: TimescaleStore,
    outage: Duration,
    kills: u32,
}

impl Ward {
    fn stored(&self) -> u64 {
        self.rows().map_or(0, |(rows, _)| rows)
    }

    /// Rows, and different readings; `None` while the database is away.
    fn rows(&self) -> Option<(u64, u64)> {
        const COUNT: &str = "SELECT count(*), count(DISTINCT (h.device, s.sensor_sequence))
            FROM samples s JOIN series e ON e.key = s.series JOIN streams t ON t.key = e.stream JOIN device_heads h ON h.key = t.device";
        let row = self
            .runtime
            .block_on(self.counts.query_one(COUNT, &[]))
            .ok()?;
        Some((row.get::<_, i64>(0) as u64, row.get::<_, i64>(1) as u64))
    }

    fn connect_again(&mut self) {
        self.counts = self.runtime.block_on(connect(&self.url));
    }

    fn moves_on(&self, after: &str) {
        let then = self.stored();
        eventually_within(LIMIT, &format!("rows after {after}"), || {
            self.stored() >= then + PROGRESS
        });
    }

    /// Number of each patient's alerts of the rule.
    fn alerts(&self) -> BTreeMap<String, usize> {
        let query = AlertsQuery {
            include_resolved: true,
            ..AlertsQuery::default()
        };
        let asked = self.alerts.alerts(&Scope::Service, &query);
        let found: Vec<Alert> = self.runtime.block_on(asked).unwrap_or_default();
        let mut by_patient = BTreeMap::new();
        for alert in found.into_iter().filter(|alert| alert.rule == RULE) {
            *by_patient.entry(alert.patient).or_default() += 1;
        }
        by_patient
    }

    fn cluster(&mut self) -> &mut Cluster {
        self.cluster.as_mut().unwrap()
    }

    fn bus(&self) -> KafkaBus {
        let brokers = self.cluster.as_ref().unwrap().brokers();
        let options = KafkaOptions::new(brokers);
        let open = KafkaBus::open(options, |reason| println!("{reason}"));
        self.runtime.block_on(open).unwrap()
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    config.password(PASSWORD);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match config.connect(tokio_postgres::NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                return client;
            }
            Err(error) => assert!(Instant::now() < deadline, "TimescaleDB: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

type Failure = (&'static str, fn(&mut Ward));

const FAILURES: [Failure; 7] = [
    ("one of three brokers killed", |ward| {
        ward.cluster().kill(0);
        ward.moves_on("a broker was killed");
        ward.cluster().restart(0);
    }),
    ("all brokers down", |ward| {
        ward.cluster().kill_all();
        pause(ward.outage);
        ward.cluster().start_all();
    }),
    ("database down", |ward| {
        ward.server.kill();
        pause(ward.outage);
        ward.server.run();
        ward.connect_again();
    }),
    ("ingest and alerting killed at random", |ward| {
        let mut random = StdRng::seed_from_u64(0xb4a1d);
        for _ in 0..ward.kills {
            let noun = ["ingest", "alerting"][random.random_range(0..2)];
            ward.separate.kill(noun);
            pause(Duration::from_millis(random.random_range(0..300)));
            ward.separate.start(noun);
            pause(Duration::from_millis(random.random_range(0..1500)));
        }
    }),
    ("members join, one leaves and one is killed", |ward| {
        for noun in ["ingest", "alerting"] {
            let leaving = ward.separate.another(noun);
            let mut killed = ward.separate.another(noun);
            pause(Duration::from_secs(3));
            leaving.interrupt();
            killed.kill();
            let mut leaving = leaving;
            leaving.wait(PATIENCE);
        }
    }),
    ("records published twice and out of order", |ward| {
        let bus = ward.bus();
        let again = ward.runtime.block_on(async {
            let mut reader = bus.read_back(Topic::Vitals).await.unwrap();
            let mut records = Vec::new();
            while records.len() < REPEATED {
                let Event::Batch(batch) = reader.next(REPEATED).await.unwrap() else {
                    continue;
                };
                records.extend(batch.into_iter().map(|it| Record {
                    key: it.key,
                    value: it.value,
                    headers: it.headers,
                }));
            }
            records.reverse();
            let count = records.len();
            for some in records.chunks(10) {
                bus.publish(Topic::Vitals, some.to_vec()).await.unwrap();
            }
            count
        });
        assert!(again >= REPEATED);
    }),
    ("poison", |ward| {
        let bus = ward.bus();
        let poison = Record::new("ada", &b"\xff\xff\xff\xff"[..]);
        ward.runtime.block_on(async {
            bus.publish(Topic::Vitals, vec![poison]).await.unwrap();
        });
        let runtime = &ward.runtime;
        eventually_within(LIMIT, "both consumers bury it", || {
            let lag = runtime.block_on(async {
                let mut reader = bus.read_back(Topic::DeadLetters).await.unwrap();
                reader.lag().await
            });
            lag.is_ok_and(|lag| lag >= 2)
        });
    }),
];

#[test]
fn nothing_is_lost_or_doubled_and_no_alert_is_missing_whatever_fails() {
    let Some(cluster) = Cluster::start(3, "") else {
        return;
    };
    let long = std::env::var_os("BRAID_TEST_LONG").is_some();
    let runtime = Runtime::new().unwrap();
    let server = TimescaleServer::start(ServerOptions {
        durable: true,
        ..ServerOptions::default()
    });
    let url = runtime.block_on(server.database());
    let options = TimescaleOptions::new(&url, PASSWORD);
    runtime.block_on(TimescaleStore::migrate(&options)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let well: Vec<String> = (1..=4).map(|number| format!("well-{number}")).collect();
    let ill = (0..FAILURES.len()).map(|number| format!("ill-{number}"));
    let all: Vec<String> = well.iter().cloned().chain(ill).collect();
    let (store, password) = (
        format!("--store={url}"),
        format!("--store-password={PASSWORD}"),
    );
    let mut separate = Separate::prepare_on(dir.path(), &all, &[], &[&store, &password]);
    separate.bus = vec![format!("--bus=kafka://{}", cluster.brokers().join(","))];
    for noun in NOUNS {
        separate.start(noun);
    }
    let counts = runtime.block_on(connect(&url));
    let alerts = runtime.block_on(TimescaleStore::open(&options)).unwrap();
    let mut ward = Ward {
        runtime,
        cluster: Some(cluster),
        server,
        url,
        separate,
        counts,
        alerts,
        outage: Duration::from_secs(if long { 60 } else { 8 }),
        kills: if long { 50 } else { 6 },
    };
    let sensors = Sensors::start(ward.separate.sensors(), &well, |number| 60 + number % 40);
    eventually_within(LIMIT, "the first rows", || ward.stored() > PROGRESS);

    let mut accepted = 0;
    println!("{:<44} {:>8} {:>16}", "failure", "took s", "alert after s");
    for (number, (what, fail)) in FAILURES.into_iter().enumerate() {
        let began = Instant::now();
        // A patient falls ill now.
        let ill = vec![format!("ill-{number}")];
        let racing = Sensors::start(ward.separate.sensors(), &ill, |_| ILL_PULSE);
        fail(&mut ward);
        let took = began.elapsed().as_secs_f64();
        ward.moves_on(what);
        let patient = format!("wearer-of-ill-{number}");
        eventually_within(LIMIT, &format!("{what}: the alert of {patient}"), || {
            ward.alerts().contains_key(&patient)
        });
        let alerted = began.elapsed().as_secs_f64();
        println!("{what:<44} {took:>8.1} {alerted:>16.1}");
        accepted += racing.stop();
    }

    accepted += sensors.stop();
    let last = Instant::now();
    eventually_within(
        LIMIT,
        &format!("{accepted} accepted samples in the store"),
        || ward.stored() >= accepted,
    );
    let caught_up_s = last.elapsed().as_secs_f64();
    let (rows, readings) = ward.rows().unwrap();
    let alerts = ward.alerts();
    let raised: usize = alerts.values().sum();
    println!(
        "accepted {accepted}, stored {rows}, lost {}, doubled {}, alerts due {}, raised {raised}, caught up {caught_up_s:.1} s after the last sample",
        accepted - readings,
        rows - readings,
        FAILURES.len(),
    );
    assert_eq!((rows, readings), (accepted, accepted));
    for number in 0..FAILURES.len() {
        let patient = format!("wearer-of-ill-{number}");
        assert_eq!(alerts.get(&patient), Some(&1), "{patient}");
    }
    assert_eq!(raised, FAILURES.len(), "nobody else: {alerts:?}");
    ward.separate.assert_all_running();
}
