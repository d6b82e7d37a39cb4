//! The dashboards' SQL on a real TimescaleDB. A panel must not show the last value as the present.
//! Cases are a patient behind a lost gateway, a patient without any reading, and an alert without a
//! patient.

use crate::support::fresh;
use contracts::alerts::{Alert, AlertState, Document};
use contracts::paths::{AccessRank, AccessUse, End, PathReport, RuleUse};
use contracts::vitals::{Metric, Priority, Sample, sample::Reading};
use serde_json::Value;
use store::{
    AlertsBatch, AlertsStore, CATALOGUE, CATALOGUE_TENANT, DocumentsStore, PathsStore,
    PatientEntry, Register, Spo2Scale, VitalsStore,
    conformance::{batch, ok, sample},
};
use tokio_postgres::Client;

const WARD: &str = include_str!("../../../../../infra/grafana/dashboards/ward.json");
const ALERTS: &str = include_str!("../../../../../infra/grafana/dashboards/alerts.json");
const PATHS: &str = include_str!("../../../../../infra/grafana/dashboards/paths.json");
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
        .replace("$priority", "'high','medium','low'")
        .replace("$gateway", "'gw-1','gw-2'")
        .replace("$path", "'wifi','lte'")
        .replace(
            "$__timeGroup(time, $__interval)",
            "time_bucket('10s', time)",
        );
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
            ..PatientEntry::default()
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
            ..PatientEntry::default()
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

#[tokio::test]
async fn the_month_of_a_path_has_its_cap_its_cost_and_the_share_of_each_rule() {
    let (store, client) = fresh().await;
    let now_us = contracts::now_us();
    let rule = |rule: &str, mode: &str, bytes| RuleUse {
        rule: rule.to_owned(),
        mode: mode.to_owned(),
        bytes,
    };
    let report = |path: &str, sequence: u64, month_bytes, rule_uses| PathReport {
        gateway: "gw-1".to_owned(),
        path: path.to_owned(),
        end: End::Gateway.into(),
        session: 1,
        time_us: now_us - (30 - 10 * sequence as i64) * SECOND_US,
        interval_ms: 10_000,
        sequence,
        steering_version: 3,
        access: Some(AccessUse {
            month_bytes,
            cap_bytes: (path == "lte").then_some(5_000_000_000),
            reset_day: 15,
            time_zone: if path == "lte" { "Europe/Zurich" } else { "" }.to_owned(),
            price_per_gb: if path == "lte" { 4.0 } else { 0.0 },
            rank: AccessRank::Spill.into(),
            rules: Vec::new(),
            ..AccessUse::default()
        }),
        rule_uses,
        ..PathReport::default()
    };
    let older = PathReport {
        gateway: "gw-2".to_owned(),
        access: None,
        ..report("lte", 1, 0, Vec::new())
    };
    let uses = vec![rule("bulk", "priority", 300), rule("", "", 100)];
    let reports = vec![
        report("lte", 1, 4_000_000_000, uses),
        report("lte", 2, 4_900_000_000, Vec::new()),
        // More than any real path carries.
        report("wifi", 1, u64::MAX, vec![rule("", "auto", u64::MAX)]),
        older,
    ];
    ok(store.write_paths(reports, Vec::new()).await);

    let rows = panel(&client, PATHS, "Data of the month", &[]).await;
    let paths: Vec<_> = rows.iter().map(|row| row["Path"].as_str()).collect();
    assert_eq!(
        paths,
        [Some("lte"), Some("wifi")],
        "nearest to its cap first"
    );
    let lte = &rows[0];
    assert_eq!(lte["Month"], 4_900_000_000_u64);
    assert_eq!(
        (&lte["Left"], &lte["Reset day"]),
        (&100_000_000.into(), &15.into())
    );
    let zones: Vec<_> = rows.iter().map(|row| row["Time zone"].as_str()).collect();
    assert_eq!(zones, [Some("Europe/Zurich"), Some("UTC")]);
    assert_eq!(
        (&lte["Rank"], &lte["Version"]),
        (&"spill".into(), &3.into())
    );
    assert_eq!(lte["Cost"].as_f64(), Some(19.6));
    let rows = panel(&client, PATHS, "Used part of the cap", &[]).await;
    assert_eq!(rows[0]["metric"], "gw-1 lte");
    assert_eq!(rows[0]["value"].as_f64(), Some(98.0));
    let rows = panel(&client, PATHS, "Share by steering rule", &[]).await;
    let shares: f64 = rows.iter().filter_map(|row| row["value"].as_f64()).sum();
    assert!((shares - 100.0).abs() < 1e-6, "{rows:?}");
    let mut rules: Vec<_> = rows.iter().map(|row| row["metric"].as_str()).collect();
    rules.sort_unstable();
    let none = Some("no flow (uploads, packets, headers)");
    assert_eq!(
        rules,
        [Some("bulk (priority)"), none, Some("no rule (auto)")]
    );
    for title in [
        "Bytes by steering mode",
        "Cost of the month by path",
        "Bytes of the month",
    ] {
        assert!(
            !panel(&client, PATHS, title, &[]).await.is_empty(),
            "{title}"
        );
    }
}

#[tokio::test]
async fn a_metric_of_a_document_is_shown_with_its_name_and_what_came_is_kept() {
    let (store, client) = fresh().await;
    let document = Document {
        kind: CATALOGUE.into(),
        tenant: CATALOGUE_TENANT.into(),
        subject: "capillary-glucose".into(),
        version: 1,
        ..Document::default()
    };
    ok(store.put_document(&document).await);
    let metric = Metric::of_key("capillary-glucose");
    let time_us = contracts::now_us() - SECOND_US;
    let converted = Sample {
        unit: "mmol/L".into(),
        original_value: Some(63.0),
        original_unit: "mg/dL".into(),
        ..reading("ann", metric, 3.5, time_us)
    };
    ok(store.write_vitals(batch(vec![converted]), Vec::new()).await);
    let rows = panel(&client, WARD, "Other metrics", &["ann"]).await;
    assert_eq!(rows[0]["metric"], "ann capillary_glucose mmol/L");
    assert_eq!(rows[0]["value"], 3.5);
    let came = "SELECT metric, original_value, original_unit FROM vitals_converted_view";
    let row = client.query_one(came, &[]).await.unwrap();
    let came: (String, f64, String) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(came, ("capillary_glucose".into(), 63.0, "mg/dL".into()));
}
