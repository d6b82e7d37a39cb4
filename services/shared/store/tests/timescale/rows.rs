//! Behaviour of TimescaleDB itself: rows are unique whatever their time, roll-ups equal the rows,
//! hot queries use indexes.

use std::{collections::BTreeSet, sync::Arc};

use crate::support::{fresh, options};
use contracts::vitals::{Metric, Sample, sample::Reading};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use store::{
    Expire, Maintenance, Scope, SeriesQuery, TimescaleStore, VitalsBatch, VitalsStore, WriteError,
    conformance::{START_US, batch, ok, sample},
};
use testkit::timescale_server::TimescaleServer;
use tokio_postgres::Client;

const ALL: Scope = Scope::Service;
const MINUTE_US: i64 = 60_000_000;

#[tokio::test]
async fn a_sample_that_comes_again_with_another_time_is_the_same_sample() {
    let (store, _) = fresh().await;
    let first = sample("belt", "ann", Metric::HeartRate, 7);
    ok(store
        .write_vitals(batch(vec![first.clone()]), Vec::new())
        .await);
    for days in [-3, 1, 40] {
        let again = Sample {
            device_time_us: first.device_time_us + days * 24 * 60 * MINUTE_US,
            // Another patient or gateway makes it no other sample either.
            patient: "bob".into(),
            gateway: "gw-2".into(),
            ..first.clone()
        };
        let written = ok(store.write_vitals(batch(vec![again]), Vec::new()).await);
        assert_eq!((written.new, written.duplicate), (0, 1), "{days} days");
    }
    assert_eq!(ok(store.stream_count("belt", "heart-rate").await), (1, 7));
}

#[derive(Debug, Clone)]
struct Step {
    process: usize,
    /// Stream, sequence, and by how many hours its time differs from what its sequence says.
    samples: Vec<(u8, u64, i64)>,
    again: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sequence = prop_oneof![8 => 1_u64..60, 1 => 500_u64..520, 1 => (i64::MAX as u64 - 3)..=(i64::MAX as u64)];
    let samples = prop::collection::vec((0_u8..3, sequence, -60_i64..60), 0..25);
    let step =
        (0_usize..2, samples, prop::bool::weighted(0.2)).prop_map(|(process, samples, again)| {
            Step {
                process,
                samples,
                again,
            }
        });
    prop::collection::vec(step, 1..12)
}

fn of_step(step: &Step) -> Arc<VitalsBatch> {
    let samples = step.samples.iter().map(|(stream, sequence, hours)| Sample {
        stream: format!("s{stream}"),
        sequence: *sequence,
        device_time_us: START_US
            + (*sequence).min(1000).cast_signed() * 1_000_000
            + hours * 60 * MINUTE_US,
        ..sample("belt", "ann", Metric::HeartRate, 1)
    });
    batch(samples.collect())
}

/// Late, again, out of order, with other times, through two processes: a (device, stream, sequence)
/// is new exactly once.
#[test]
fn rows_are_unique_whatever_comes() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut runner = TestRunner::new(Config {
        cases: 12,
        failure_persistence: None,
        ..Config::default()
    });
    let url = runtime.block_on(TimescaleServer::shared().database());
    let processes = [(); 2].map(|()| {
        runtime
            .block_on(TimescaleStore::open(&options(&url)))
            .unwrap()
    });
    let case = std::cell::Cell::new(0);
    let outcome = runner.run(&steps(), |steps| {
        case.set(case.get() + 1);
        let device = format!("belt-{}", case.get());
        runtime.block_on(async {
            let mut stored: BTreeSet<(u8, u64)> = BTreeSet::new();
            for step in &steps {
                let mut batch = of_step(step).as_ref().clone();
                for sample in &mut batch.samples {
                    sample.device.clone_from(&device);
                }
                let batch = Arc::new(batch);
                let given = batch.samples.len() as u64;
                let before = stored.len() as u64;
                stored.extend(
                    step.samples
                        .iter()
                        .map(|(stream, sequence, _)| (*stream, *sequence)),
                );
                let expected = stored.len() as u64 - before;
                let written = ok(processes[step.process]
                    .write_vitals(Arc::clone(&batch), Vec::new())
                    .await);
                prop_assert_eq!(
                    (written.new, written.duplicate),
                    (expected, given - expected)
                );
                if step.again {
                    let again = ok(processes[1 - step.process]
                        .write_vitals(batch, Vec::new())
                        .await);
                    prop_assert_eq!((again.new, again.duplicate), (0, given));
                }
            }
            for stream in 0..3 {
                let of_stream = || stored.iter().filter(|(s, _)| *s == stream);
                let highest = of_stream().map(|(_, n)| *n).max().unwrap_or(0);
                let counted = ok(processes[0]
                    .stream_count(&device, &format!("s{stream}"))
                    .await);
                prop_assert_eq!(counted, (of_stream().count() as u64, highest));
            }
            Ok(())
        })
    });
    outcome.unwrap();
}

#[tokio::test]
async fn a_device_with_more_streams_than_its_head_holds_stays_exact() {
    let (store, client) = fresh().await;
    let round = |sequence| {
        let samples = (0..100).map(|n| Sample {
            stream: format!("s{n}"),
            ..sample("belt", "ann", Metric::HeartRate, sequence)
        });
        batch(samples.collect())
    };
    for sequence in [1, 2, 5, 4, 3, 6] {
        assert_eq!(
            ok(store.write_vitals(round(sequence), Vec::new()).await).new,
            100
        );
        assert_eq!(
            ok(store.write_vitals(round(sequence), Vec::new()).await).duplicate,
            100
        );
    }
    for n in [0, 50, 99] {
        assert_eq!(
            ok(store.stream_count("belt", &format!("s{n}")).await),
            (6, 6)
        );
    }
    let runs: i64 = client
        .query_one("SELECT count(*) FROM stream_runs", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(runs, 36, "holes were closed: only evicted heads are left");
}

#[tokio::test]
async fn what_the_server_cannot_represent_is_the_callers_fault() {
    let (store, _) = fresh().await;
    let good = sample("belt", "ann", Metric::HeartRate, 1);
    let zero_byte = Sample {
        unit: "a\0b".into(),
        ..good.clone()
    };
    let no_time = Sample {
        ingest_time_us: i64::MIN,
        ..good.clone()
    };
    let beyond = Sample {
        sequence: u64::MAX,
        ..good.clone()
    };
    let no_number = Sample {
        reading: Some(Reading::Value(f64::NAN)),
        ..good.clone()
    };
    let empty = Sample {
        reading: None,
        ..good.clone()
    };
    // Errors found before the server is queried have the store's own text.
    for (bad, is_own) in [
        (zero_byte, false),
        (no_time, true),
        (beyond, true),
        (no_number, true),
        (empty, true),
    ] {
        let refused = store
            .write_vitals(batch(vec![good.clone(), bad.clone()]), Vec::new())
            .await;
        let is_as_told = match refused {
            Err(WriteError::Invalid(_)) => is_own,
            Err(WriteError::Unfit(_)) => !is_own,
            _ => false,
        };
        assert!(is_as_told, "{bad:?}: {refused:?}");
    }
    assert_eq!(
        ok(store.write_vitals(batch(vec![good]), Vec::new()).await).new,
        1
    );
}

/// The expected roll-ups, computed from the samples.
const WANTED: &str = "SELECT series, time_bucket($1::text::interval, time) AS bucket, count(*), sum(value), min(value), max(value)
    FROM samples GROUP BY 1, 2 ORDER BY 1, 2";

async fn compare(client: &Client, table: &str, interval: &str) -> usize {
    let read = |rows: Vec<tokio_postgres::Row>| {
        rows.iter()
            .map(|row| {
                let bucket: std::time::SystemTime = row.get(1);
                let numbers: (i64, f64, f64, f64) =
                    (row.get(2), row.get(3), row.get(4), row.get(5));
                (row.get::<_, i32>(0), bucket, numbers)
            })
            .collect::<Vec<_>>()
    };
    let wanted = read(client.query(WANTED, &[&interval]).await.unwrap());
    let found = read(
        client
            .query(
                &format!("SELECT series, bucket, count, sum, min, max FROM {table} ORDER BY 1, 2"),
                &[],
            )
            .await
            .unwrap(),
    );
    assert_eq!(found, wanted, "{table}");
    found.len()
}

#[tokio::test]
async fn roll_ups_follow_the_rows_also_late_ones() {
    let (store, client) = fresh().await;
    let at = |device: &str, sequence: u64, second: i64, value: f64| Sample {
        device_time_us: START_US + second * 1_000_000,
        reading: Some(Reading::Value(value)),
        ..sample(device, "ann", Metric::HeartRate, sequence)
    };
    // Three hours of one device, one and a half of another.
    let first: Vec<Sample> = (1..=10_800)
        .map(|n| at("belt", n, n.cast_signed(), (n % 97) as f64))
        .collect();
    let other: Vec<Sample> = (1..=5_400)
        .map(|n| at("clip", n, n.cast_signed(), (n % 89) as f64))
        .collect();
    ok(store.write_vitals(batch(first), Vec::new()).await);
    ok(store.write_vitals(batch(other), Vec::new()).await);
    assert!(ok(store.roll_up().await) > 0);
    compare(&client, "vitals_1m", "1 minute").await;
    compare(&client, "vitals_1h", "1 hour").await;
    assert_eq!(ok(store.roll_up().await), 0, "nothing is stale");

    // Late ones: far before, in the middle, and some of what is there again.
    let late = vec![
        at("belt", 20_000, -90_000, 1000.0),
        at("belt", 20_001, 5_000, -50.0),
        at("belt", 5, 5, 1e9),
        at("clip", 20_000, 200_000, 3.0),
    ];
    assert_eq!(ok(store.write_vitals(batch(late), Vec::new()).await).new, 3);
    assert!(ok(store.roll_up().await) > 0);
    compare(&client, "vitals_1m", "1 minute").await;
    compare(&client, "vitals_1h", "1 hour").await;

    // Expired samples leave their roll-ups.
    let before: i64 = client
        .query_one("SELECT count(*) FROM vitals_1m", &[])
        .await
        .unwrap()
        .get(0);
    ok(store
        .expire(Expire::Vitals, START_US + 3600 * 1_000_000)
        .await);
    ok(store.roll_up().await);
    let after: i64 = client
        .query_one("SELECT count(*) FROM vitals_1m", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_coarse_chart_from_roll_ups_shows_the_same_extremes() {
    let (store, _) = fresh().await;
    let value = |n: u64| match n {
        7_000 => -500.0,
        33_333 => 900.0,
        _ => 60.0 + (n % 40) as f64,
    };
    for from in (0..40_000_u64).step_by(10_000) {
        let samples = (from + 1..=from + 10_000).map(|n| Sample {
            reading: Some(Reading::Value(value(n))),
            ..sample("belt", "ann", Metric::HeartRate, n)
        });
        ok(store
            .write_vitals(batch(samples.collect()), Vec::new())
            .await);
    }
    let query = SeriesQuery {
        patient: "ann".into(),
        metrics: vec![Metric::HeartRate],
        from_us: START_US + 30_500_000,
        to_us: START_US + 39_990_700_000,
        points: 200,
    };
    let raw = ok(store.series(&ALL, &query).await);
    ok(store.roll_up().await);
    let rolled = ok(store.series(&ALL, &query).await);
    for series in [&raw, &rolled] {
        assert!(series[0].values.contains(&-500.0) && series[0].values.contains(&900.0));
        assert!(series[0].times_us.len() <= 200);
        assert!(series[0].times_us.is_sorted());
    }
    let at = |series: &[store::SeriesPoints], value: f64| {
        let n = series[0].values.iter().position(|v| *v == value).unwrap();
        series[0].times_us[n]
    };
    for extreme in [-500.0, 900.0] {
        assert_eq!(at(&raw, extreme), at(&rolled, extreme), "with its own time");
    }
    // Something late shows at once, before the roll-ups know it.
    let late = Sample {
        reading: Some(Reading::Value(5000.0)),
        device_time_us: START_US + 10_000_500_000,
        ..sample("belt", "ann", Metric::HeartRate, 50_000)
    };
    ok(store.write_vitals(batch(vec![late]), Vec::new()).await);
    let shown = ok(store.series(&ALL, &query).await);
    assert_eq!(at(&shown, 5000.0), START_US + 10_000_500_000);
}

#[tokio::test]
async fn rows_that_must_not_change_do_not() {
    let (_, client) = fresh().await;
    for table in ["alert_transitions", "audit"] {
        let refused = client
            .execute(&format!("UPDATE {table} SET patient = 'x'"), &[])
            .await
            .unwrap_err();
        assert!(
            refused
                .as_db_error()
                .unwrap()
                .message()
                .contains("never changed")
        );
    }
}

/// The hot questions on tables that are large enough for a sequential scan to be tempting.
#[tokio::test]
async fn hot_questions_use_indexes() {
    let (store, client) = fresh().await;
    for n in 0..40 {
        let samples = (1..=500).flat_map(|sequence| {
            [
                sample(
                    &format!("belt-{n}"),
                    &format!("p{n}"),
                    Metric::HeartRate,
                    sequence,
                ),
                sample(
                    &format!("belt-{n}"),
                    &format!("p{n}"),
                    Metric::Spo2,
                    sequence,
                ),
            ]
        });
        ok(store
            .write_vitals(batch(samples.collect()), Vec::new())
            .await);
    }
    // Keys and progress as a large installation has them.
    client
        .batch_execute(
            "INSERT INTO device_heads (device, head) SELECT 'd' || n, repeat('x', 300)::bytea FROM generate_series(1, 20000) n;
             INSERT INTO patients (id, tenant, name, spo2_scale) SELECT 'x' || n, 't', 'x', 1 FROM generate_series(1, 20000) n;
             INSERT INTO alerts SELECT 'a' || n, 'x' || n % 500, 'g', 5, n, n, 1, ''::bytea FROM generate_series(1, 20000) n;
             INSERT INTO outbox (payload) SELECT ''::bytea FROM generate_series(1, 5000);
             INSERT INTO audit (time_us, tenant, who, action, patient, detail)
                 SELECT n, 't', 'w', 'a', 'x' || n % 500, '' FROM generate_series(1, 20000) n;
             ANALYZE",
        )
        .await
        .unwrap();
    let range = "'2020-01-01'::timestamptz AND time < '2030-01-01'::timestamptz";
    for (sql, index) in [
        (format!("SELECT time, value FROM samples WHERE series = ANY(ARRAY[1]) AND time >= {range}"), "samples_series"),
        (format!("SELECT * FROM samples WHERE series = ANY(ARRAY[1, 2]) AND time >= {range} ORDER BY time LIMIT 100"), "samples_series"),
        ("SELECT key, head FROM device_heads WHERE key = ANY(ARRAY[1, 2, 3]) ORDER BY key FOR NO KEY UPDATE".to_owned(), "device_heads_pkey"),
        ("UPDATE device_heads h SET head = w.head FROM unnest(ARRAY[1, 2], ARRAY['a', 'b']::bytea[]) AS w (key, head) WHERE h.key = w.key".to_owned(), "device_heads_pkey"),
        ("SELECT e.key FROM patients p JOIN series e ON e.patient = p.key WHERE p.id = 'p1' AND p.tenant = 't'".to_owned(), "patients_tenant"),
        ("SELECT payload FROM alerts a WHERE a.patient = 'x1' AND a.state <> 9 ORDER BY since_us DESC LIMIT 10".to_owned(), "alerts_patient"),
        ("SELECT payload FROM alerts a WHERE a.state <> 9 ORDER BY since_us DESC, id COLLATE \"C\" LIMIT 200".to_owned(), "alerts_since"),
        ("SELECT payload, id FROM outbox ORDER BY id LIMIT 100".to_owned(), "outbox_pkey"),
        ("SELECT detail FROM audit WHERE patient = 'x7' AND time_us >= 1 AND time_us < 20000 ORDER BY time_us DESC LIMIT 100".to_owned(), "audit_patient"),
    ] {
        let plan: Vec<String> = client
            .query(&format!("EXPLAIN {sql}"), &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        let plan = plan.join("\n");
        assert!(plan.contains(index), "{sql}\n{plan}");
    }
}
