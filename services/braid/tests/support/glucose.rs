//! A metric that is not built in, a rule about it, and the page that shows it.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;

use super::grpc_web;
use super::program::{eventually, http, run};

/// A metric of no built-in entry, for meters that speak either unit.
pub const CAPILLARY_GLUCOSE: &str = r#"{
  "key": "capillary-glucose",
  "names": {"en": "Capillary glucose", "de": "Kapillarer Blutzucker", "es": "Glucosa capilar"},
  "loinc": "14743-9",
  "unit": "mmol/L",
  "accepted": [{"unit": "mg/dL", "divide": 18.0156, "decimals": 0}],
  "range": [0.5, 60],
  "example": 5.6,
  "decimals": 1,
  "reading": {"kind": "value"},
  "stale_after_s": 28800,
  "rhythm": "occasional",
  "chart": {"group": "metabolism", "order": 111}
}"#;

pub const LOW_GLUCOSE: &str = r#"{
  "name": "glucose", "version": 1, "extends": "built-in",
  "rules": [{"id": "capillary-glucose-low", "priority": "high",
    "condition": {"kind": "below", "metric": "capillary-glucose", "limit": 3.9, "clear": 4.2}}]
}"#;

/// The page's interface has the words of the metric, and its newest value in its own unit.
pub fn shows_the_metric(page: SocketAddr, data: &str, patient: &str) {
    let account = ["accounts", "put", "vera", "--role", "viewer", "--by", "Eve"];
    let password = ["--password", "correct horse", "--data", data];
    let (code, _, error) = run(&[&account[..], &password].concat());
    assert_eq!(code, 0, "{error}");
    let json = "content-type: application/json\r\n";
    let credentials = r#"{"name":"vera","password":"correct horse"}"#;
    let (status, answer) = http(page, "POST", "/api/token", json, credentials).unwrap();
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let token = answer["token"].as_str().unwrap();
    let metrics: contracts::query::ListMetricsResponse =
        grpc_web::call(page, token, "ListMetrics").unwrap();
    let shown = metrics
        .metrics
        .iter()
        .find(|it| it.key == "capillary-glucose");
    let shown = shown.unwrap();
    assert_eq!(
        (&*shown.unit, &*shown.accepted_units[0]),
        ("mmol/L", "mg/dL")
    );
    assert_eq!(shown.names["de"], "Kapillarer Blutzucker");
    eventually("the ward shows it", || {
        let ward = grpc_web::call(page, token, "ListPatients");
        let ward: contracts::query::ListPatientsResponse = ward.unwrap();
        let ill = ward.patients.iter().find(|it| it.id == patient);
        let vital = ill.and_then(|it| it.latest.iter().find(|it| it.metric == shown.metric));
        vital.is_some_and(|it| it.unit == "mmol/L" && it.value == 630_000.0 / 180_156.0)
    });
}

/// Patient, value and unit of the newest reading, and the value and the unit as they came.
pub fn newest_glucose(data: &Path) -> Option<(String, f64, String, f64, String)> {
    let store = rusqlite::Connection::open(data.join("store.db")).unwrap();
    let newest = "SELECT p.id, v.value, u.unit, v.original_value, o.unit FROM samples v
         JOIN streams s ON s.key = v.stream JOIN patients p ON p.key = v.patient
         JOIN units u ON u.key = v.unit JOIN units o ON o.key = v.original_unit
         WHERE s.device = 'guest-sensor' AND s.stream = 'capillary-glucose'
         ORDER BY v.time_us DESC LIMIT 1";
    let columns = |row: &rusqlite::Row<'_>| -> rusqlite::Result<_> {
        let came = (row.get(3)?, row.get(4)?);
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, came.0, came.1))
    };
    store.query_row(newest, [], columns).ok()
}

/// Whether an alert of the patient has these words.
pub fn alerts_say(data: &Path, patient: &str, words: &str) -> bool {
    let store = rusqlite::Connection::open(data.join("store.db")).unwrap();
    let mut found = store
        .prepare("SELECT payload FROM alerts WHERE patient = ?1")
        .unwrap();
    let alerts = found.query_map([patient], |row| row.get::<_, Vec<u8>>(0));
    let mut alerts = alerts.unwrap().map(Result::unwrap);
    alerts.any(|payload| String::from_utf8_lossy(&payload).contains(words))
}
