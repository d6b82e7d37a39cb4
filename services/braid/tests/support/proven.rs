//! Proofs of completeness by the command line, and a signed file.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use dashboard::moment::shown;

use super::program::{eventually, eventually_within, rows, run};
use super::send;

/// The exit status and the JSON of a proof of the guest's readings until now.
fn proof(data: &Path, from_us: i64, more: &[&str]) -> (i32, serde_json::Value) {
    let (from, to) = (shown(from_us), shown(contracts::now_us() - 1_000_000));
    let data = data.to_str().unwrap();
    let mut args = vec!["proof", "--patient", "guest", "--json", "--data", data];
    args.extend(["--from", from.as_str(), "--to", to.as_str()]);
    args.extend(more);
    let (code, json, error) = run(&args);
    let json = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{error}"));
    (code, json)
}

/// A row that is lost behind the acknowledgement is missed, asked for, and sent again by the
/// gateway. A signed file shows the gap without the installation.
pub fn proves_complete(data: &Path, sensors: SocketAddr, past: Duration) {
    let to_us = contracts::now_us();
    let from_us = to_us - past.as_micros() as i64;
    let folder = data.to_str().unwrap();
    let limit = Duration::from_secs(60);
    let link = |verb: &str, name: &str| {
        let (code, _, error) = run(&["link", verb, name, "--data", folder]);
        assert_eq!(code, 0, "{error}");
    };
    let until = |proof: &serde_json::Value| proof["complete_until"].as_str().unwrap().to_owned();
    eventually_within(limit, "an account since the restart", || {
        let (_, proof) = proof(data, from_us, &[]);
        until(&proof) > shown(to_us)
    });
    send(sensors, 5);
    send(sensors, 6);
    eventually("two more samples", || rows(data, "guest-sensor") == (6, 6));
    let store = rusqlite::Connection::open(data.join("store.db")).unwrap();
    store.busy_timeout(Duration::from_secs(5)).unwrap();
    let lose = "DELETE FROM samples WHERE sensor_sequence = 5 AND
        stream IN (SELECT key FROM streams WHERE device = 'guest-sensor')";
    assert_eq!(store.execute(lose, []).unwrap(), 1);
    // Another link has another account.
    link("cut", "wifi");
    let key = data.join("proof.key");
    let file = data.join("guest.proof");
    let signs = [
        "--out",
        file.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    eventually_within(limit, "the loss is known", || {
        let (code, proof) = proof(data, from_us, &signs);
        let gaps = proof["streams"][0]["gaps"].as_array().unwrap();
        code == 3 && gaps.iter().any(|gap| gap["cause"] == "unexplained")
    });
    let public = data.join("proof.pub");
    let args = [
        "proof",
        "verify",
        signs[1],
        "--key",
        public.to_str().unwrap(),
    ];
    let (code, text, error) = run(&args);
    assert!(code == 3 && text.contains("unexplained"), "{error}{text}");
    link("restore", "wifi");
    link("cut", "lte");
    eventually_within(limit * 2, "the gateway has sent it again", || {
        proof(data, from_us, &[]);
        rows(data, "guest-sensor") == (6, 6)
    });
    let (_, after) = proof(data, from_us, &[]);
    assert_eq!(
        after["streams"][0]["gaps"].as_array().unwrap().len(),
        0,
        "{after}"
    );
}
