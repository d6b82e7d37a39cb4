//! Rules of the core at the edge: a real gateway, a real ingest on the embedded engines, and
//! changes of the rules.

use std::{path::Path, sync::Arc, time::Duration};

use contracts::vitals::{
    EdgeAlert, Metric, RecordRequest, RecordResponse, Sample,
    gateway_service_client::GatewayServiceClient, sample::Reading,
};
use service_kit::{Context, Warning, grpc::channel, tls::Identity};
use tokio::{sync::broadcast, task::JoinHandle};

use super::{
    core::{Core, Ingest},
    direct::Direct,
    serve,
    under_test::{config_at, stored_rules},
};
use crate::{
    LISTENER, RunError,
    journal::{Directory, Entry, Journal, Limits, Options, Overflow},
};

/// Only a failing test reaches this time.
const PATIENCE: Duration = Duration::from_secs(60);

const S: i64 = 1_000_000;

struct Gateway {
    context: Context,
    sensors: String,
    task: JoinHandle<Result<(), RunError>>,
}

impl Gateway {
    async fn start(directory: &Path, ingest: &str, identity: Identity) -> Gateway {
        let mut config = config_at(directory);
        ingest.clone_into(&mut config.ingest);
        let context = Context::new("gateway");
        let uplink = Arc::new(Direct {
            identity: Some(identity),
            events: broadcast::channel(1).0,
        });
        let task = tokio::spawn({
            let context = context.clone();
            async move {
                let ended = serve(config, "gw".into(), uplink, &context).await;
                context.drain_tasks().await;
                context.end();
                ended
            }
        });
        let address = context.address(LISTENER).await.unwrap();
        Gateway {
            context,
            sensors: format!("http://{address}"),
            task,
        }
    }

    /// A minute of readings, one a second, the last at `end_us`; all are accepted.
    async fn minute(&self, device: &str, end_us: i64, value: f64) {
        let answer = self.answer(device, end_us, value).await;
        assert_eq!((answer.accepted, answer.rejections), (60, vec![]));
    }

    async fn answer(&self, device: &str, end_us: i64, value: f64) -> RecordResponse {
        let samples = (0..60).map(|second| Sample {
            device: device.into(),
            metric: Metric::HeartRate.into(),
            device_time_us: end_us - (60 - second) * S,
            reading: Some(Reading::Value(value)),
            ..Sample::default()
        });
        let request = RecordRequest {
            request: 1,
            samples: samples.collect(),
        };
        let mut client = GatewayServiceClient::new(channel(&self.sensors, None).unwrap());
        let answers = client.record(tokio_stream::iter([request])).await.unwrap();
        answers.into_inner().message().await.unwrap().unwrap()
    }

    fn warning(&self) -> Option<Warning> {
        let warnings = self.context.health().warnings();
        warnings
            .into_iter()
            .find(|it| it.0 == "rules")
            .map(|it| it.1)
    }

    async fn stop(self) {
        self.context.shutdown().request();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("it drains")
            .unwrap()
            .unwrap();
    }
}

/// Subject and version of each set that the gateway has stored.
fn kept(directory: &Path) -> Vec<(String, u32)> {
    let in_force = stored_rules(directory).unwrap_or_default();
    let documents = in_force.documents.into_iter();
    documents.map(|it| (it.subject, it.version)).collect()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, waiting).await.is_ok(),
        "{what}"
    );
}

async fn until_kept(directory: &Path, subject: &str, version: u32) {
    let wanted = (subject.to_owned(), version);
    until(&format!("{wanted:?} is kept"), || {
        kept(directory).contains(&wanted)
    })
    .await;
}

/// The alerts that wait in the journal of a stopped gateway.
fn waiting(directory: &Path) -> Vec<EdgeAlert> {
    let options = Options {
        class: "alerts",
        limits: Limits {
            bytes_max: 32 << 20,
            segment_bytes: 4 << 20,
            overflow: Overflow::Refuse,
        },
        gather: Duration::ZERO,
    };
    let keys = config_at(directory);
    let keys = keys.existing_keys().unwrap().for_folder("alerts");
    let directory = Directory::open(&directory.join("journal/alerts"), keys).unwrap();
    let (journal, _) = Journal::open(directory, options).unwrap();
    let chunk = journal.reader().read(0, 10_000, 1 << 20).unwrap();
    let entries = chunk.entries.into_iter();
    let alerts = entries.filter_map(|(_, entry)| match entry {
        Entry::Alert(alert) => Some(alert),
        _ => None,
    });
    alerts.collect()
}

/// The rules that raised each of these alerts; all are of this device.
fn judged_by<'a>(alerts: &'a [EdgeAlert], device: &str) -> Vec<(&'a str, u32)> {
    assert!(
        alerts.iter().all(|alert| alert.device == device),
        "{alerts:?}"
    );
    let raised = alerts
        .iter()
        .filter(|alert| alert.rule == "heart-rate-high");
    raised
        .map(|alert| (alert.rules_subject.as_str(), alert.rule_version))
        .collect()
}

/// Alerts raised without a network reach the bus and name their rules.
async fn alerts_name_their_rules(core: &Core, gateway: &Gateway, after_us: i64) -> Ingest {
    let mut heard = core.edge_alerts().await;
    let ingest = core.ingest().await;
    until("the link stands", || gateway.context.health().is_ready()).await;
    let told = heard.until(|alert| alert.rule == "heart-rate-high" && alert.time_us > after_us);
    let told = tokio::time::timeout(PATIENCE, told)
        .await
        .expect("it is told");
    assert_eq!(
        (&*told.patient, &*told.rules_subject),
        ("ada", "patient:ada")
    );
    assert_eq!(told.rule_version, 2);
    ingest
}

/// Corrected; then withdrawn, so that the tenant's rules apply.
async fn corrected_rules_hold_and_withdrawn_ones_do_not(
    core: &Core,
    gateway: &Gateway,
    data: &Path,
) {
    core.put_rules("one", "patient:ada", 4, 120.0).await;
    until_kept(data, "patient:ada", 4).await;
    until("the warning ends", || gateway.warning().is_none()).await;
    core.put_body("one", "patient:ada", 5, "").await;
    until_kept(data, "default", 1).await;
    assert!(
        kept(data)
            .iter()
            .all(|(subject, _)| subject != "patient:ada")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_threshold_that_is_changed_holds_at_the_edge_without_a_network() {
    let core = Core::start().await;
    let data = core.directory().join("gateway");
    core.register("one", "belt-1", "ada").await;
    core.register("one", "belt-2", "ben").await;
    core.put_team(
        "one",
        r#"{"contacts": [], "patients": {"ben": {"group": "athletes"}}}"#,
    )
    .await;
    core.put_rules("one", "default", 1, 200.0).await;
    core.put_rules("one", "group:athletes", 1, 210.0).await;
    // For a gateway of the same name in another tenant.
    core.put_rules("two", "default", 1, 60.0).await;

    let ingest = core.ingest().await;
    let gateway = Gateway::start(&data, core.url(), core.identity("one")).await;
    until_kept(&data, "default", 1).await;
    until_kept(&data, "group:athletes", 1).await;
    // For one patient, while the gateway runs.
    core.put_rules("one", "patient:ada", 1, 100.0).await;
    until_kept(&data, "patient:ada", 1).await;
    core.put_rules("one", "patient:ada", 2, 80.0).await;
    until_kept(&data, "patient:ada", 2).await;
    assert_eq!(gateway.warning(), None);

    // Without a network: 90 a minute is high for Ada since the change, and for no other patient.
    ingest.stop().await;
    let minute = |n: i64| contracts::now_us() - 3600 * S + n * 60 * S;
    for n in 1..=3 {
        gateway.minute("belt-1", minute(n), 90.0).await;
        gateway.minute("belt-2", minute(n), 90.0).await;
    }
    gateway.stop().await;
    let alerts = waiting(&data);
    assert_eq!(judged_by(&alerts, "belt-1"), [("patient:ada", 2)]);
    let raised = alerts.len();

    // Started without a network, with only its disk.
    let gateway = Gateway::start(&data, core.url(), core.identity("one")).await;
    for n in 4..=6 {
        gateway.minute("belt-1", minute(n), 90.0).await;
        gateway.minute("belt-2", minute(n), 90.0).await;
    }
    gateway.stop().await;
    assert_eq!(waiting(&data).len(), raised, "the stretch is raised once");
    // It ends, by the same rules, after a further start.
    let gateway = Gateway::start(&data, core.url(), core.identity("one")).await;
    for n in 7..=9 {
        gateway.minute("belt-1", minute(n), 60.0).await;
    }
    gateway.stop().await;
    let alerts = waiting(&data);
    assert!(alerts[raised..].iter().all(|alert| alert.resolved));
    assert_eq!(judged_by(&alerts[raised..], "belt-1"), [("patient:ada", 2)]);

    // A set that no gateway can read: logged, and without effect, across a restart as well.
    core.put_body("one", "patient:ada", 3, r#"{"rules": "all of them"}"#)
        .await;
    let ingest = core.ingest().await;
    let gateway = Gateway::start(&data, core.url(), core.identity("one")).await;
    until("the gateway says what it refuses", || {
        gateway.warning().is_some_and(|warning| {
            warning
                .says
                .contains("\"patient:ada\" version 3 are not used")
        })
    })
    .await;
    until_kept(&data, "patient:ada", 2).await;
    ingest.stop().await;
    gateway.stop().await;
    let gateway = Gateway::start(&data, core.url(), core.identity("one")).await;
    for n in 21..=23 {
        gateway.minute("belt-1", minute(n), 90.0).await;
    }

    let ingest = alerts_name_their_rules(&core, &gateway, minute(20)).await;
    corrected_rules_hold_and_withdrawn_ones_do_not(&core, &gateway, &data).await;
    gateway.stop().await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_the_same_name_in_another_tenant_gets_no_rules() {
    let core = Core::start().await;
    core.register("one", "belt-1", "ada").await;
    core.put_rules("one", "default", 1, 80.0).await;
    core.put_rules("two", "default", 1, 70.0).await;
    let ingest = core.ingest().await;
    let (own, foreign) = (
        core.directory().join("own"),
        core.directory().join("foreign"),
    );
    let theirs = Gateway::start(&foreign, core.url(), core.identity("two")).await;
    until("the link stands", || theirs.context.health().is_ready()).await;
    let ours = Gateway::start(&own, core.url(), core.identity("one")).await;
    until_kept(&own, "default", 1).await;
    core.put_rules("one", "default", 2, 75.0).await;
    until_kept(&own, "default", 2).await;
    assert_eq!(kept(&foreign), [], "no patient of its own");
    // The core reports that the gateway has no device. So a reading of another tenant's device is
    // refused by its line.
    let hour_ago_us = contracts::now_us() - 3600 * S;
    let answer = theirs.answer("belt-1", hour_ago_us, 90.0).await;
    assert_eq!((answer.accepted, answer.rejections.len()), (0, 60));
    let reason = &answer.rejections[0].reason;
    assert!(
        reason.contains("is not registered at this gateway"),
        "{reason}"
    );
    ours.minute("belt-1", hour_ago_us, 60.0).await;
    // Without the core no reading is refused: the core attributes them later.
    ingest.stop().await;
    theirs.stop().await;
    let theirs = Gateway::start(&foreign, core.url(), core.identity("two")).await;
    for n in 1..=3 {
        theirs
            .minute("belt-1", hour_ago_us + n * 60 * S, 90.0)
            .await;
    }
    theirs.stop().await;
    ours.stop().await;
    assert_eq!(waiting(&foreign), [], "well by the built-in rules");
}
