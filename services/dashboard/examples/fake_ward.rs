//! A ward for work on the page: the dashboard on the embedded engines, with simulated patients,
//! alerting and links. No other service runs. Start `cargo run -p dashboard --example fake_ward`.
//! Then run `npm run dev` in `web/`, or open the printed address.
//!
//! `fake_ward ADDRESS PATIENTS ALERTS` adds difficult cases. It adds patients, and open alerts of
//! low priority with one old fall among them. `patient-150` fell four minutes ago, and one patient
//! wears no sensor. The gateway of `patient-4` was lost eight minutes ago. One patient never sent
//! a reading, and two sensors without a patient did. A line `cut` on standard input stops all
//! readings and reports, and `restore` resumes them. `fall` raises a fall of `patient-7`.
//! `storm N` raises N further alerts of low priority at once, and prints when they are stored.
//! `kiosk NAME` prints the code of a wall display, `revoke NAME` ends it, and `restart` starts the
//! dashboard anew. The end of the input ends the ward. The further patients are spread over up to
//! 200 gateways. A steering document is in force, whose rule has a name that a page must escape.
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/ward.rs"]
#[allow(dead_code)]
mod ward;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use contracts::alerts::Document;
use contracts::alerts::{Alert, AlertState, Notice, NoticeOutcome, NoticeReason, NoticeResult};
use contracts::paths::{AccessRank, AccessUse, End, Link, PathReport, PathState, RuleUse};
use contracts::vitals::{Metric, Priority, Sample, sample::Reading};
use service_kit::tls::authority::LocalAuthority;
use store::{NoticesBatch, PatientEntry, Role, Scope, Spo2Scale};
use swarm::{Episode, Patient, Profile};
use tokio::sync::mpsc;
use ward::{PASSWORD, Ward, alert};

/// Time since the lost gateway was lost.
const LOST_US: i64 = 480_000_000;
/// Time since the active fall.
const FELL_US: i64 = 240_000_000;
/// Ticks between two measurements of the further patients.
const FURTHER_TICKS: u64 = 20;
/// Gateways of the further patients.
const GATEWAYS: usize = 200;
const RULE: &str = "<img src=x onerror=alert(1)>";
const TICK: Duration = Duration::from_millis(250);
const NAMES: [&str; 5] = [
    "Ada Berg",
    "Bruno Conti",
    "Clara Dubois",
    "Daniel Eriksen",
    "Elif Faruk",
];

/// Has the name of the first patient.
const NAMESAKE: &str = "patient-6";

fn gateway_of(patient: &str) -> String {
    let number: usize = patient.trim_start_matches("patient-").parse().unwrap();
    format!("gw-{}", 3 + number % GATEWAYS)
}

/// A patient with the id and the next sequence of each stream.
type Simulated = (String, Patient, HashMap<String, u64>);

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().unwrap();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let listen = args.first().map_or("127.0.0.1:8080", String::as_str);
    let listen = listen.to_owned();
    let number = |index: usize| args.get(index).map_or(0, |text| text.parse().unwrap());
    let (more_patients, alerts): (usize, usize) = (number(1), number(2));
    let is_hard = args.len() > 1;
    // The test alert is never sent here, and its banner would hide others in the end.
    let identities = dir.path().join("identities");
    LocalAuthority::open_or_create(&identities).unwrap();
    let authority = identities.to_str().unwrap();
    let flags = ["--canary-within-s", "0", "--authority", authority];
    let mut ward = Ward::start(dir.path(), &listen, &flags).await;
    let mut patients = first_patients(&ward).await;
    let further: Vec<String> = (NAMES.len() + 1..=more_patients)
        .map(|number| format!("patient-{number}"))
        .collect();
    let gateways: BTreeSet<String> = further.iter().map(|id| gateway_of(id)).collect();
    for id in &further {
        let name = match id.as_str() {
            NAMESAKE => NAMES[0].to_owned(),
            _ => format!("Patient {}", id.trim_start_matches("patient-")),
        };
        ward.patient(id, &name, "default", &gateway_of(id)).await;
    }
    if is_hard {
        hard_cases(&ward, &mut patients, alerts).await;
    }
    println!("http://{}  sign in as admin with {PASSWORD}", ward.address);

    let mut lines = lines();
    let mut is_cut = false;
    let mut ticks = tokio::time::interval(TICK);
    for tick in 0_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = tokio::signal::ctrl_c() => break,
            line = lines.recv(), if is_hard => match line.as_deref() {
                Some("cut") => is_cut = true,
                Some("restore") => is_cut = false,
                Some("fall") => {
                    let fall = fall("patient-7", "fell-now", contracts::now_us());
                    ward.alert(fall).await;
                }
                Some("restart") => ward = ward.restarted(&flags).await,
                Some(line) => command(&ward, line).await,
                None => break,
            }
        }
        if is_cut {
            continue;
        }
        if tick.is_multiple_of(FURTHER_TICKS) {
            let now_us = contracts::now_us();
            let samples = further
                .iter()
                .map(|id| healthy(id, &gateway_of(id), tick + 1, now_us));
            ward.vitals_of_many(samples.collect()).await;
            let of_gateway = |gateway: &String| {
                let reports = ["wifi", "lte"].map(|path| {
                    let link = Link {
                        gateway: gateway.clone(),
                        name: path.to_owned(),
                        ..Link::default()
                    };
                    report(&link, tick + 1, now_us)
                });
                (gateway.clone(), reports.to_vec())
            };
            ward.paths_of_many(gateways.iter().map(of_gateway).collect())
                .await;
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

/// Adds or revokes a wall display, or raises many alerts.
async fn command(ward: &Ward, line: &str) {
    let (store, tenant) = (ward.store.as_ref(), store::DEFAULT_TENANT);
    match line.split_once(' ') {
        Some(("kiosk", name)) => {
            let now_us = contracts::now_us();
            let code = dashboard::kiosks::add(store, tenant, name, now_us).await;
            println!("kiosk {name} {}", code.unwrap().text);
        }
        Some(("storm", count)) => {
            let count = count.parse().unwrap();
            ward.alerts(low_alerts("storm", count, contracts::now_us()))
                .await;
            println!("storm {count}");
        }
        Some(("revoke", name)) => assert!(store.revoke_kiosk(tenant, name).await.unwrap()),
        _ => {}
    }
}

/// Adds the cases that a page must show well.
async fn hard_cases(ward: &Ward, patients: &mut Vec<Simulated>, alerts: usize) {
    let (lost, ..) = patients.remove(3);
    lost_gateway(ward, &lost).await;
    ward.patient("patient-new", "Nora Fresh", "default", "gw-4")
        .await;
    let home = PatientEntry {
        id: "patient-home".to_owned(),
        tenant: "default".to_owned(),
        name: "Hanna Home".to_owned(),
        spo2_scale: Spo2Scale::One,
        ..PatientEntry::default()
    };
    ward.store.put_patient(&home).await.unwrap();
    many_alerts(ward, alerts).await;
    told(ward, "fell").await;
    for (device, count) in [("stray-belt", 12), ("stray-clip", 3)] {
        ward.quarantined("default", "gw-1", device, count).await;
    }
}

/// A person got an e-mail about the alert, and the next one has not yet.
async fn told(ward: &Ward, alert: &str) {
    let now_us = contracts::now_us();
    let scope = Scope::tenant(store::DEFAULT_TENANT);
    let about = ward.store.alert(&scope, alert).await.unwrap();
    let notice = |id: &str, name: &str, step: u32| Notice {
        id: id.to_owned(),
        alert: about.clone(),
        tenant: store::DEFAULT_TENANT.to_owned(),
        channel: "email".to_owned(),
        recipient: format!("{name}@example.org"),
        reason: NoticeReason::Escalation.into(),
        people: vec![name.to_owned()],
        step,
        created_us: now_us - FELL_US + i64::from(step) * 60_000_000,
        ..Notice::default()
    };
    let outcome = NoticeOutcome {
        notice: "told-1".to_owned(),
        result: NoticeResult::Delivered.into(),
        attempts: 1,
        at_us: now_us - FELL_US + 62_000_000,
        detail: String::new(),
    };
    let batch = NoticesBatch {
        notices: vec![notice("told-1", "eve", 1), notice("told-2", "carl", 2)],
        outcomes: vec![outcome],
        ..NoticesBatch::default()
    };
    ward.store.write_notices(batch).await.unwrap();
}

/// Adds the accounts, the first patients and their links and alerts.
async fn first_patients(ward: &Ward) -> Vec<Simulated> {
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
        patients.push((id, patient, HashMap::new()));
    }
    let document = Document {
        kind: store::STEERING.to_owned(),
        tenant: "default".to_owned(),
        subject: dashboard::explain::SUBJECT.to_owned(),
        version: 1,
        author: "eve".to_owned(),
        reason: "LTE is capped".to_owned(),
        body: format!(
            r#"{{"format":1,"access":[{{"name":"lte","price_per_gb":4.0,"cap_gb":5,"reset_day":15,
                "time_zone":"Europe/Zurich"}}],
                "rule":[{{"name":"{RULE}","match":{{"urgency":["bulk"]}},"mode":"priority",
                "accesses":["wifi","lte"]}}]}}"#
        ),
        ..Document::default()
    };
    ward.store.put_document(&document).await.unwrap();
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
    patients
}

/// Lines of the standard input, until it ends.
fn lines() -> mpsc::Receiver<String> {
    let (to, from) = mpsc::channel(1);
    std::thread::spawn(move || {
        let lines = std::io::stdin().lines().map_while(Result::ok);
        lines
            .take_while(|line| to.blocking_send(line.clone()).is_ok())
            .for_each(drop);
    });
    from
}

/// One reading of each metric in the score.
fn healthy(patient: &str, gateway: &str, sequence: u64, now_us: i64) -> Vec<Sample> {
    let values = [
        (Metric::RespirationRate, 15.0),
        (Metric::Spo2, 98.0),
        (Metric::SupplementalOxygen, 0.0),
        (Metric::SystolicPressure, 122.0),
        (Metric::DiastolicPressure, 78.0),
        (Metric::HeartRate, 68.0),
        (Metric::Consciousness, 0.0),
        (Metric::Temperature, 36.7),
    ];
    let sample = |(metric, value): (Metric, f64)| Sample {
        device: format!("{patient}-device"),
        stream: vitals::name(metric).to_owned(),
        sequence,
        metric: metric.into(),
        device_time_us: now_us,
        gateway_time_us: now_us,
        ingest_time_us: now_us,
        patient: patient.to_owned(),
        gateway: gateway.to_owned(),
        reading: Some(Reading::Value(value)),
        ..Sample::default()
    };
    values.map(sample).to_vec()
}

/// Two minutes of readings that end eight minutes ago, with the alert about the cause.
async fn lost_gateway(ward: &Ward, patient: &str) {
    let ended_us = contracts::now_us() - LOST_US;
    ward.patient(patient, "Daniel Eriksen", "default", "gw-2")
        .await;
    let profile = Profile {
        patient: patient.to_owned(),
        ..Profile::varied(4, format!("{patient}-lost"))
    };
    let mut simulated = Patient::new(4, profile, ended_us - 120_000_000);
    let mut samples = simulated.next(ended_us);
    for (sequence, sample) in (1_u64..).zip(&mut samples) {
        sample.patient = patient.to_owned();
        sample.gateway = "gw-2".to_owned();
        sample.ingest_time_us = sample.device_time_us;
        sample.sequence = sequence;
    }
    for samples in samples.chunks(200) {
        ward.vitals(samples.to_vec()).await;
    }
    ward.alert(Alert {
        gateway: "gw-2".to_owned(),
        patient: String::new(),
        device: String::new(),
        rule: "gateway-silent".to_owned(),
        metric: Metric::Unspecified.into(),
        since_us: ended_us,
        ..alert(
            "",
            "silent-gw-2",
            "Gateway gw-2 is silent for 120 s; the cause is the path: lte, wifi lost before",
            Priority::Medium,
        )
    })
    .await;
}

/// Adds open alerts. The last one is a fall, older than all others.
async fn many_alerts(ward: &Ward, count: usize) {
    let now_us = contracts::now_us();
    let mut alerts = low_alerts("many", count, now_us);
    if let Some(last) = alerts.last_mut() {
        last.priority = Priority::High.into();
        last.state = AlertState::Latched.into();
        last.rule = "fall".to_owned();
        last.metric = Metric::Acceleration.into();
        last.summary = "Fall: an impact and no movement for 30 s".to_owned();
        last.since_us = now_us - LOST_US * 10;
    }
    alerts.push(fall("patient-150", "fell", now_us - FELL_US));
    ward.alerts(alerts).await;
}

/// Each is a second older than the one before.
fn low_alerts(name: &str, count: usize, now_us: i64) -> Vec<Alert> {
    let low = |number: usize| {
        let patient = format!("patient-{}", number % NAMES.len() + 1);
        Alert {
            rule: "battery-low".to_owned(),
            metric: Metric::Battery.into(),
            since_us: now_us - number as i64 * 1_000_000,
            ..alert(
                &patient,
                &format!("{name}-{number}"),
                "Battery at 14 %, at or below 15 %",
                Priority::Low,
            )
        }
    };
    (1..=count).map(low).collect()
}

fn fall(patient: &str, id: &str, since_us: i64) -> Alert {
    let summary = "Fall: a blow of 2.5 g or more, then no movement for 10 s";
    Alert {
        rule: "fall".to_owned(),
        metric: Metric::Acceleration.into(),
        since_us,
        ..alert(patient, id, summary, Priority::High)
    }
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
        steering_version: 1,
        access: Some(access(link)),
        ..PathReport::default()
    }
}

/// Each gateway has used another part of its cap.
fn access(link: &Link) -> AccessUse {
    let wifi = link.name == "wifi";
    let number: u64 = (link.gateway.trim_start_matches("gw-").parse()).unwrap_or(0);
    let rule = |rule: &str, mode: &str| RuleUse {
        rule: rule.to_owned(),
        mode: mode.to_owned(),
        bytes: 0,
    };
    AccessUse {
        month_bytes: match wifi {
            true => 31_000_000_000 + number,
            // The one of gw-1 is nearly used up, the one of gw-150 is.
            false if number == 1 => 4_900_000_000,
            false => number * 33_400_000,
        },
        cap_bytes: (!wifi).then_some(5_000_000_000),
        reset_day: if wifi { 1 } else { 15 },
        time_zone: if wifi { "" } else { "Europe/Zurich" }.to_owned(),
        price_per_gb: if wifi { 0.0 } else { 4.0 },
        rank: match wifi {
            true => AccessRank::Active.into(),
            false => AccessRank::Spill.into(),
        },
        rules: vec![rule("", "auto"), rule(RULE, "priority")],
        ..AccessUse::default()
    }
}
