use std::sync::Arc;

use contracts::vitals::{Gap, Metric, Sample, sample::Reading};

use super::{Harness, SECOND_US, START_US, batch, ok, sample, waveform};
use crate::{Expire, Scope, SeriesQuery, VitalsBatch, Written, each_latest_vital};

const ALL: Scope = Scope::Service;

pub async fn samples_come_back_as_they_were(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let odd = Sample {
        traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
        sensor_sequence: Some(i64::MAX as u64),
        // Clocks that disagree by years, in both directions.
        gateway_time_us: START_US - 100_000_000_000_000,
        ingest_time_us: START_US + 100_000_000_000_000,
        reading: Some(Reading::Value(-0.125)),
        original_value: Some(31.775),
        original_unit: "[degF]".into(),
        ..sample("belt", "ann", Metric::of_key("a-metric-of-a-document"), 2)
    };
    let given = vec![
        sample("belt", "ann", Metric::HeartRate, 1),
        odd,
        waveform("belt", "ann", 3, vec![0.5, -1.25, f32::MAX]),
    ];
    let mut mixed = given.clone();
    mixed.push(sample("other", "bob", Metric::HeartRate, 1));
    let written = ok(store.write_vitals(batch(mixed), Vec::new()).await);
    assert_eq!(
        written,
        Written {
            new: 4,
            duplicate: 0
        }
    );
    let got = ok(store
        .samples(&ALL, "ann", START_US, START_US + 9 * SECOND_US, 100)
        .await);
    assert_eq!(got, given, "in order of device time, and nobody else's");
    let first = ok(store
        .samples(&ALL, "ann", START_US, START_US + 9 * SECOND_US, 1)
        .await);
    assert_eq!(first, given[..1]);
    let to_is_exclusive = ok(store
        .samples(
            &ALL,
            "ann",
            START_US + SECOND_US,
            START_US + 2 * SECOND_US,
            100,
        )
        .await);
    assert_eq!(to_is_exclusive, given[..1]);
    assert_eq!(ok(store.samples(&ALL, "nobody", 0, i64::MAX, 10).await), []);
}

pub async fn duplicates_are_left_out_and_counted(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let heart = |sequence| sample("belt", "ann", Metric::HeartRate, sequence);
    let first = batch(vec![
        heart(1),
        heart(2),
        waveform("belt", "ann", 1, vec![1.0]),
    ]);
    ok(store.write_vitals(first, Vec::new()).await);
    let changed = Sample {
        reading: Some(Reading::Value(999.0)),
        ..heart(2)
    };
    let again = batch(vec![
        heart(1),
        changed,
        heart(3),
        heart(3),
        waveform("belt", "ann", 1, vec![2.0]),
        // The same sequence of another stream and of another device are no duplicates.
        sample("belt", "ann", Metric::Spo2, 1),
        sample("belt-2", "ann", Metric::HeartRate, 1),
    ]);
    let written = ok(store.write_vitals(again, Vec::new()).await);
    assert_eq!(
        written,
        Written {
            new: 3,
            duplicate: 4
        }
    );
    assert_eq!(ok(store.stream_count("belt", "heart-rate").await), (3, 3));
    assert_eq!(ok(store.stream_count("belt", "ecg").await), (1, 1));
    assert_eq!(ok(store.stream_count("belt", "none").await), (0, 0));
    let rows = ok(store.samples(&ALL, "ann", 0, i64::MAX, 100).await);
    assert!(rows.contains(&heart(2)), "the first one stays");
}

pub async fn latest_follows_device_time(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let heart = |sequence| sample("belt", "ann", Metric::HeartRate, sequence);
    // Newest in the middle of the batch; then a backfill, which must not show as the latest.
    ok(store
        .write_vitals(
            batch(vec![
                heart(4),
                heart(9),
                heart(5),
                waveform("belt", "ann", 1, vec![1.0]),
            ]),
            Vec::new(),
        )
        .await);
    ok(store
        .write_vitals(batch(vec![heart(2), heart(3)]), Vec::new())
        .await);
    ok(store
        .write_vitals(
            batch(vec![sample("clip", "bob", Metric::Spo2, 1)]),
            Vec::new(),
        )
        .await);
    let all = ok(store.latest_vitals(&ALL, None).await);
    let view: Vec<_> = all
        .iter()
        .map(|v| {
            (
                v.patient.as_str(),
                v.metric,
                v.value,
                v.device_time_us,
                v.device.as_str(),
                v.gateway.as_str(),
            )
        })
        .collect();
    assert_eq!(
        view,
        [
            (
                "ann",
                Metric::HeartRate,
                69.0,
                START_US + 9 * SECOND_US,
                "belt",
                "gw-1"
            ),
            (
                "bob",
                Metric::Spo2,
                61.0,
                START_US + SECOND_US,
                "clip",
                "gw-1"
            ),
        ]
    );
    let ann = ok(store.latest_vitals(&ALL, Some("ann")).await);
    assert_eq!(ann, all[..1]);
}

pub async fn what_a_clock_ahead_wrote_is_not_the_newest_for_hours(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let now_us = contracts::now_us();
    let heart = |sequence, time_us| Sample {
        device_time_us: time_us,
        ingest_time_us: time_us + 70,
        ..sample("belt", "ann", Metric::HeartRate, sequence)
    };
    let (ahead, right) = (heart(1, now_us + 3600 * SECOND_US), heart(2, now_us));
    let late = heart(3, now_us - SECOND_US);
    for one in [ahead, right.clone(), late] {
        ok(store.write_vitals(batch(vec![one]), Vec::new()).await);
    }
    let latest = ok(store.latest_vitals(&ALL, Some("ann")).await);
    assert_eq!(latest[0].ingest_time_us, right.ingest_time_us);
}

pub async fn series_are_thinned_without_losing_extremes(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let mut samples: Vec<Sample> = (1..=1000)
        .map(|sequence| sample("belt", "ann", Metric::HeartRate, sequence))
        .collect();
    samples[499].reading = Some(Reading::Value(-7.0));
    samples[700].reading = Some(Reading::Value(7000.0));
    samples.push(sample("belt", "ann", Metric::Spo2, 1));
    ok(store.write_vitals(batch(samples), Vec::new()).await);
    let query = |metrics: Vec<Metric>, points| SeriesQuery {
        patient: "ann".into(),
        metrics,
        from_us: START_US,
        to_us: START_US + 1001 * SECOND_US,
        points,
    };
    let thin = ok(store
        .series(&ALL, &query(vec![Metric::HeartRate], 50))
        .await);
    let [series] = thin.as_slice() else {
        panic!("one series: {thin:?}")
    };
    assert!(series.times_us.len() <= 50 && series.times_us.len() >= 25);
    assert!(series.times_us.is_sorted());
    assert!(series.values.contains(&-7.0) && series.values.contains(&7000.0));
    let whole = ok(store.series(&ALL, &query(Vec::new(), 5000)).await);
    let lengths: Vec<_> = whole
        .iter()
        .map(|s| (s.metric, s.times_us.len(), s.values.len()))
        .collect();
    assert_eq!(
        lengths,
        [(Metric::HeartRate, 1000, 1000), (Metric::Spo2, 1, 1)]
    );
    let none = ok(store
        .series(&ALL, &query(vec![Metric::Temperature], 50))
        .await);
    assert_eq!(none, []);
}

pub async fn waveforms_become_points_of_their_own_times(harness: &dyn Harness) {
    let store = harness.start().await.store;
    // Two chunks of 1 s at 250 Hz.
    let chunk = |from: u16| (from..from + 250).map(f32::from).collect();
    ok(store
        .write_vitals(
            batch(vec![
                waveform("belt", "ann", 1, chunk(0)),
                waveform("belt", "ann", 2, chunk(250)),
            ]),
            Vec::new(),
        )
        .await);
    let query = SeriesQuery {
        patient: "ann".into(),
        metrics: vec![Metric::Ecg],
        // Begins and ends inside of the chunks.
        from_us: START_US + SECOND_US + 100 * 4000,
        to_us: START_US + 2 * SECOND_US + 100 * 4000,
        points: 1000,
    };
    let series = ok(store.series(&ALL, &query).await);
    assert_eq!(series.len(), 1);
    let expected: Vec<f64> = (100..350).map(f64::from).collect();
    assert_eq!(series[0].values, expected);
    assert_eq!(series[0].times_us[0], query.from_us);
    assert_eq!(series[0].times_us[249], query.to_us - 4000);
}

pub async fn gaps_that_overlap_are_found(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let gap = |first: u64, last: u64| Gap {
        device: "belt".into(),
        stream: "ecg".into(),
        first_sequence: first,
        last_sequence: last,
        from_time_us: START_US + first.cast_signed() * SECOND_US,
        to_time_us: START_US + last.cast_signed() * SECOND_US,
        patient: "ann".into(),
        gateway: "gw-1".into(),
        ..Gap::default()
    };
    let gaps = Arc::new(VitalsBatch {
        gaps: vec![gap(10, 19), gap(30, 39), gap(50, 59)],
        ..VitalsBatch::default()
    });
    assert_eq!(
        ok(store.write_vitals(Arc::clone(&gaps), Vec::new()).await).new,
        3
    );
    assert_eq!(ok(store.write_vitals(gaps, Vec::new()).await).duplicate, 3);
    let at = |seconds| START_US + seconds * SECOND_US;
    let found = ok(store.gaps(&ALL, "ann", at(15), at(40)).await);
    assert_eq!(found, [gap(10, 19), gap(30, 39)]);
    assert_eq!(ok(store.gaps(&ALL, "bob", at(0), at(100)).await), []);
}

pub async fn expiry_removes_only_what_is_older(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let mut samples: Vec<Sample> = (1..=5000)
        .map(|sequence| {
            sample(
                "belt",
                if sequence % 2 == 0 { "ann" } else { "bob" },
                Metric::HeartRate,
                sequence,
            )
        })
        .collect();
    samples.extend((1..=10).map(|sequence| waveform("belt", "ann", sequence, vec![1.0; 10])));
    ok(store.write_vitals(batch(samples), Vec::new()).await);
    let before = START_US + 4991 * SECOND_US;
    assert_eq!(ok(store.expire(Expire::Vitals, before).await), 4990);
    assert_eq!(
        ok(store.stream_count("belt", "heart-rate").await),
        (10, 5000)
    );
    assert_eq!(
        ok(store.stream_count("belt", "ecg").await),
        (10, 10),
        "waveforms have an age of their own"
    );
    assert_eq!(ok(store.expire(Expire::Waveforms, before).await), 10);
    assert_eq!(ok(store.expire(Expire::Vitals, before).await), 0);
}

pub async fn newest_values_are_read_in_pages(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let mut samples = Vec::new();
    for patient in ["ann", "bob", "cy-2", "cy1", "dan"] {
        for metric in [Metric::HeartRate, Metric::Spo2] {
            samples.push(sample(patient, patient, metric, samples.len() as u64 + 1));
        }
    }
    // Has no newest value, and ends no reading.
    samples.push(waveform("eve", "bea", 1, vec![0.5]));
    ok(store.write_vitals(batch(samples), Vec::new()).await);
    let whole = ok(store.latest_vitals(&ALL, None).await);
    assert_eq!(whole.len(), 10);
    for patients in [1, 2, 6, 7] {
        let (mut after, mut read) = (Some(String::new()), Vec::new());
        while let Some(patient) = after {
            let page = store.latest_vitals_page(&ALL, &patient, patients).await;
            let (values, next) = ok(page);
            assert!(values.len() <= 2 * patients);
            read.extend(values);
            after = next;
        }
        assert_eq!(read, whole, "pages of {patients} patients");
    }
    let mut read = Vec::new();
    ok(each_latest_vital(&*store, &ALL, |value| read.push(value)).await);
    assert_eq!(read, whole);
    let nobody = Scope::tenant("nobody");
    let page = store.latest_vitals_page(&nobody, "", 10).await;
    assert_eq!(ok(page), (Vec::new(), None));
}
