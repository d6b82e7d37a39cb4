//! For work on the page: the dashboard over the embedded engines with simulated patients and made-up alerting and links, and
//! none of the other services. `cargo run -p dashboard --example fake_ward`, then `npm run dev` in `web/` or the printed address.
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/ward.rs"]
#[allow(dead_code)]
mod ward;

use std::time::Duration;

use contracts::paths::{End, Link, PathReport, PathState};
use contracts::vitals::Priority;
use store::Role;
use swarm::{Episode, Patient, Profile};
use ward::{PASSWORD, Ward, alert};

const TICK: Duration = Duration::from_millis(250);
const NAMES: [&str; 5] = [
    "Ada Berg",
    "Bruno Conti",
    "Clara Dubois",
    "Daniel Eriksen",
    "Elif Faruk",
];

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().unwrap();
    let listen = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let ward = Ward::start(dir.path(), &listen, &[]).await;
    ward.account(dashboard::accounts::FIRST_ACCOUNT, Role::Administrator)
        .await;
    ward.account("viewer", Role::Viewer).await;
    let mut patients = Vec::new();
    for (index, name) in (1_u64..).zip(NAMES) {
        let id = format!("patient-{index}");
        ward.patient(&id, name, "default", "gw-1").await;
        let profile = Profile {
            patient: id.clone(),
            ..Profile::varied(index, format!("{id}-device"))
        };
        let mut patient = Patient::new(index, profile, contracts::now_us() - 120_000_000);
        if index == 2 {
            patient.trigger(Episode::Tachycardia);
        }
        patients.push((id, patient, std::collections::HashMap::<String, u64>::new()));
    }
    for name in ["wifi", "lte"] {
        let link = Link {
            gateway: "gw-1".to_owned(),
            name: name.to_owned(),
            up: true,
            ..Link::default()
        };
        ward.links.lock().push(link);
    }
    ward.alert(alert(
        "patient-2",
        "a1",
        "Heart rate 138 per minute, at or above 131 for 10 s",
        Priority::High,
    ))
    .await;
    ward.alert(alert(
        "patient-3",
        "a2",
        "SpO2 89 %, at or below 90 % for 15 s",
        Priority::Medium,
    ))
    .await;
    println!("http://{}  sign in as admin with {PASSWORD}", ward.address);

    let mut ticks = tokio::time::interval(TICK);
    for tick in 0_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        let now = contracts::now_us();
        for (id, patient, sequences) in &mut patients {
            let mut samples = patient.next(now);
            for sample in &mut samples {
                sample.patient = id.clone();
                sample.gateway = "gw-1".to_owned();
                let next = sequences.entry(sample.stream.clone()).or_default();
                *next += 1;
                sample.sequence = *next;
            }
            for samples in samples.chunks(200) {
                ward.vitals(samples.to_vec()).await;
            }
        }
        if tick.is_multiple_of(4) {
            let links = ward.links.lock().clone();
            let reports = links
                .iter()
                .filter(|link| link.up)
                .map(|link| report(link, tick / 4 + 1, now));
            ward.paths("gw-1", reports.collect()).await;
        }
    }
    ward.end().await;
}

fn report(link: &Link, sequence: u64, now: i64) -> PathReport {
    let wifi = link.name == "wifi";
    let wave = (sequence % 7) as f64;
    PathReport {
        gateway: link.gateway.clone(),
        path: link.name.clone(),
        end: End::Gateway.into(),
        state: PathState::Available.into(),
        time_us: now,
        interval_ms: 1_000,
        sent_bytes: if wifi { 5_400 } else { 2_200 } + sequence % 9 * 60,
        sent_packets: 40,
        lost_packets: u64::from(sequence.is_multiple_of(11)),
        rtt_ms: if wifi { 18.0 + wave } else { 72.0 + 3.0 * wave },
        sequence,
        ..PathReport::default()
    }
}
