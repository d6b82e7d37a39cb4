//! The dashboards' SQL on a real TimescaleDB. A panel must not show the last value as the present.
//! Cases are a patient behind a lost gateway, a patient without any reading, and an alert without a
//! patient.

#![allow(clippy::unwrap_used)]

#[path = "support/timescale.rs"]
mod support;

use contracts::alerts::{Alert, AlertState};
use contracts::vitals::{Metric, Priority, Sample, sample::Reading};
use serde_json::Value;
use store::{
    AlertsBatch, AlertsStore, PatientEntry, Register, Spo2Scale, VitalsStore,
    conformance::{batch, ok, sample},
};
use support::fresh;
use tokio_postgres::Client;

const WARD: &str = include_str!("../../../../infra/grafana/dashboards/ward.json");
const ALERTS: &str = include_str!("../../../../infra/grafana/dashboards/alerts.json");
const SECOND_US: i64 = 1_000_000;

/// A panel's rows, its macros and variables expanded as Grafana does it: the last quarter of an
/// hour, everybody.
async fn panel(client: &Client, dashboard: &str, title: &str, patients: &[&str]) -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let panel = panels.iter().find(|panel| panel["title"] == title).unwrap();
    let sql = panel["targets"][0]["rawSql"].as_str().unwrap();
    let quoted: Vec<String> = patients.iter().map(|id| format!("'{id}'")).collect();
    let (from, to) = ("(now() - interval '15 minutes')", "now()");
    let mut sql = sql
        .replace("$__timeFrom()", from)
        .replace("$__timeTo()", to)
        .replace("$patient", &quoted.join(","))
        .replace("$priority", "'high','medium','low'");
    while let Some(start) = sql.find("$__timeFilter(") {
        let end = start + sql[start..].find(')').unwrap();
        let column = sql[start + "$__timeFilter(".len()..end].to_owned();
        sql.replace_range(start..=end, &format!("{column} BETWEEN {from} AND {to}"));
    }
    let json = format!("SELECT coalesce(json_agg(row_to_json(r)), '[]')::text FROM ({sql}) r");
    let row = client.query_one(&json, &[]).await.unwrap();
    serde_json::from_str(row.get(0)).unwrap()
}

fn reading(patient: &str, metric: Metric, value: f64, time_us: i64) -> Sample {
    Sample {
        device_time_us: time_us,
        ingest_time_us: time_us,
        reading: Some(Reading::Value(value)),
        ..sample(&format!("{patient}-{metric:?}"), patient, metric, 1)
    }
}

#[tokio::test]
async fn no_panel_shows_an_old_value_as_the_present() {
    let (store, client) = fresh().await;
    for id in ["cut", "never", "well"] {
        let entry = PatientEntry {
            id: id.into(),
            tenant: "t".into(),
            name: format!("name of {id}"),
            spo2_scale: Spo2Scale::One,
        };
        ok(store.put_patient(&entry).await);
    }
    let now_us = contracts::now_us();
    let ago = |seconds: i64| now_us - seconds * SECOND_US;
    let samples = vec![
        reading("well", Metric::HeartRate, 70.0, ago(2)),
        // Its sensor fell off while the heart rate goes on.
        reading("well", Metric::Spo2, 97.0, ago(11 * 60)),
        reading("cut", Metric::HeartRate, 71.0, ago(12 * 60)),
        reading("cut", Metric::SystolicPressure, 120.0, ago(12 * 60)),
    ];
    ok(store.write_vitals(batch(samples), Vec::new()).await);

    let everybody = ["cut", "never", "well"];
    let rows = panel(&client, WARD, "Latest readings", &everybody).await;
    let column = |name: &str| -> Vec<Value> { rows.iter().map(|row| row[name].clone()).collect() };
    assert_eq!(column("id"), ["never", "cut", "well"], "unknown first");
    assert_eq!(column("State"), ["unknown", "unknown", "heard"]);
    let none = Value::Null;
    assert_eq!(
        column("Heart rate"),
        [none.clone(), none.clone(), 70.into()]
    );
    assert_eq!(
        column("SpO2"),
        [none.clone(), none.clone(), none.clone()],
        "too old"
    );
    assert_eq!(
        column("Systolic"),
        [none.clone(), 120.into(), none],
        "measured once in a while"
    );

    let rows = panel(&client, WARD, "Silent for", &everybody).await;
    let silent: Vec<_> = rows.iter().map(|row| row["metric"].as_str()).collect();
    assert_eq!(silent, [Some("never"), Some("cut"), Some("well")]);
    assert!(
        rows[0]["value"].as_f64().unwrap() >= 900.0,
        "nobody is left out"
    );
}

#[tokio::test]
async fn the_longest_silent_are_shown_and_the_others_are_counted() {
    let (store, client) = fresh().await;
    let ids: Vec<String> = (0..25).map(|n| format!("p{n:02}")).collect();
    let now_us = contracts::now_us();
    let samples = (1..).zip(&ids).map(|(n, id)| {
        let time_us = now_us - n * 10 * SECOND_US;
        reading(id, Metric::HeartRate, 70.0, time_us)
    });
    ok(store
        .write_vitals(batch(samples.collect()), Vec::new())
        .await);
    for id in &ids {
        let entry = PatientEntry {
            id: id.clone(),
            tenant: "t".into(),
            name: id.clone(),
            spo2_scale: Spo2Scale::One,
        };
        ok(store.put_patient(&entry).await);
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let rows = panel(&client, WARD, "Silent for", &ids).await;
    assert_eq!(rows.len(), 21);
    assert_eq!(rows[0]["metric"], "p24");
    assert_eq!(rows[20]["metric"], "5 more, at most");
}

#[tokio::test]
async fn an_alert_of_a_gateway_is_open_too() {
    let (store, client) = fresh().await;
    let silent = Alert {
        id: "silent".into(),
        gateway: "gw-1".into(),
        rule: "gateway-silent".into(),
        priority: Priority::Medium.into(),
        state: AlertState::Active.into(),
        changed_us: contracts::now_us() - SECOND_US,
        revision: 1,
        ..Alert::default()
    };
    let batch = AlertsBatch {
        transitions: vec![silent],
        ..AlertsBatch::default()
    };
    ok(store.write_alerts(batch, Vec::new()).await);
    let rows = panel(&client, ALERTS, "Open", &["p"]).await;
    let medium = rows.iter().find(|row| row["metric"] == "medium").unwrap();
    assert_eq!(medium["value"], 1);
    let rows = panel(&client, ALERTS, "Transitions", &["p"]).await;
    assert_eq!(rows[0]["Patient"], "gateway or core");
}
