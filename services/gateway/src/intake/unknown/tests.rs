#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use contracts::vitals::{
    DeviceInterval, FollowRulesResponse, Metric, RecordRequest, RecordResponse,
    gateway_service_client::GatewayServiceClient, sample::Reading,
};
use service_kit::Context;
use tokio::{
    net::TcpListener,
    sync::{broadcast, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use vitals::RuleSet;

use super::*;
use crate::{
    carers::Newest,
    clock::Moment,
    core_followed::CoreFollowed,
    edge_rules::EdgeRules,
    from_carers::Carers,
    from_sensors::{self, Tokens},
    intake::{Patience, Recorded},
    journal::{
        Directory, Entry, Journal, Overflow,
        test_disk::{entries, small},
    },
    open_alerts::AlertsFile,
    rules_in_force::RulesInForce,
    sealing::Keys,
    serve::tests::Direct,
};

/// Reached only by a failing test, and well below the wait for an unknown sensor.
const AT_ONCE: Duration = KNOWN_WITHIN.checked_div(2).unwrap();
const START_US: i64 = 1_800_000_000_000_000;

/// The core reports all devices, and they are these.
fn knowing(devices: &[&str]) -> RulesInForce {
    let interval = |device: &&str| DeviceInterval {
        device: (*device).to_owned(),
        patient: format!("wearer-of-{device}"),
        ..DeviceInterval::default()
    };
    let answer = FollowRulesResponse {
        has_intervals: true,
        intervals: devices.iter().map(interval).collect(),
        ..FollowRulesResponse::default()
    };
    let (in_force, refused) = RulesInForce::default().take(answer);
    assert_eq!(refused, []);
    in_force
}

/// An acceleration, of which an impact and stillness make a fall.
fn acceleration(device: &str, second: i64, value_g: f64) -> Sample {
    Sample {
        device: device.into(),
        metric: Metric::Activity.into(),
        unit: "[g]".into(),
        device_time_us: START_US + second * 1_000_000,
        reading: Some(Reading::Value(value_g)),
        ..Sample::default()
    }
}

/// Without its last sample.
fn fall_of_belt() -> Vec<Sample> {
    let impact = [(0, 1.1), (1, 3.5)];
    let still = (2..20).map(|second| (second, 1.0));
    let all = impact.into_iter().chain(still);
    all.map(|(second, value_g)| acceleration("belt", second, value_g))
        .collect()
}

struct Bench {
    intake: Arc<Intake<Directory>>,
    vitals: Journal<Directory>,
    alerts: Journal<Directory>,
    above: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let above = tempfile::tempdir().unwrap();
        let open = |class: &'static str| {
            let disk = Directory::open(&above.path().join(class), Keys::none()).unwrap();
            small(disk, class, Overflow::Refuse)
        };
        let (vitals, alerts) = (open("vitals"), open("alerts"));
        let rules = EdgeRules::new(RuleSet::default_set());
        let following = CoreFollowed::default();
        following.set(true);
        let intake = Intake::new("g".into(), vitals.clone(), alerts.clone(), rules)
            .while_following(following);
        intake.judge_by(knowing(&["belt"]));
        Self {
            intake: Arc::new(intake),
            vitals,
            alerts,
            above,
        }
    }

    fn carers(&self, context: &Context) -> Arc<Carers<Directory>> {
        let disk = Directory::open(&self.above.path().join("open-alerts"), Keys::none()).unwrap();
        let (file, _) = AlertsFile::open(disk).unwrap();
        let uplink = Arc::new(Direct {
            identity: None,
            events: broadcast::channel(1).0,
        });
        Arc::new(Carers::new(
            (Arc::clone(&self.intake), file, Newest::default()),
            (uplink, [self.vitals.clone(), self.alerts.clone()]),
            (context.health().clone(), context.shutdown().clone()),
            ("g".into(), Duration::ZERO),
        ))
    }

    /// The belt falls and lies still, among samples of a stray device.
    fn post(&self) -> tokio::task::JoinHandle<Recorded> {
        let mut samples = vec![acceleration("stray", 0, 1.0)];
        samples.extend(fall_of_belt());
        samples.push(acceleration("belt", 20, f64::NAN));
        samples.push(acceleration("stray", 1, 1.0));
        let intake = Arc::clone(&self.intake);
        tokio::spawn(async move {
            let now = Moment {
                wall_us: START_US + 20_000_000,
                uptime_us: 1_000_000_000,
                boot: 7,
            };
            let recorded = intake.record(samples, now, Patience::Wait, None, None);
            recorded.await.unwrap()
        })
    }

    /// Returns when the journals have the belt's alert and its 20 samples.
    async fn belt_is_stored(&self) {
        let (mut vitals, mut alerts) = (self.vitals.durable(), self.alerts.durable());
        let stored = async {
            alerts.wait_for(|position| *position >= 1).await.unwrap();
            vitals.wait_for(|position| *position >= 20).await.unwrap();
        };
        let stored = timeout(AT_ONCE, stored).await;
        stored.expect("a known sensor does not wait for an unknown one");
        let is_fall = |entry: &Entry| matches!(entry, Entry::Alert(alert) if alert.rule == "fall");
        assert!(entries(&self.alerts).iter().any(is_fall));
    }

    /// The number of stored samples of a device.
    fn of(&self, device: &str) -> usize {
        self.seconds(device).len()
    }

    /// The stored times of a device, in the order of the journal.
    fn seconds(&self, of: &str) -> Vec<i64> {
        let second = |entry| match entry {
            Entry::Sample(sample) if sample.device == of => {
                Some((sample.device_time_us - START_US) / 1_000_000)
            }
            _ => None,
        };
        entries(&self.vitals)
            .into_iter()
            .filter_map(second)
            .collect()
    }
}

fn indices(recorded: &Recorded) -> Vec<usize> {
    recorded.refused.iter().map(|(index, _)| *index).collect()
}

#[tokio::test]
async fn an_alert_does_not_wait_for_an_unknown_sensor_in_the_same_request() {
    let bench = Bench::new();
    let posted = bench.post();
    bench.belt_is_stored().await;
    assert!(!posted.is_finished(), "the stray is waited for");
    // The core reports it, and one answer names all samples.
    bench.intake.judge_by(knowing(&["belt", "stray"]));
    let recorded = timeout(KNOWN_WITHIN, posted).await.unwrap().unwrap();
    assert_eq!((recorded.accepted, indices(&recorded)), (22, vec![21]));
    assert_eq!(bench.seconds("belt"), (0..20).collect::<Vec<_>>());
    assert_eq!(bench.seconds("stray"), [0, 1]);
}

#[tokio::test]
async fn samples_of_a_sensor_that_stays_unknown_are_refused_by_their_indices() {
    let bench = Bench::new();
    let posted = bench.post();
    bench.belt_is_stored().await;
    let recorded = posted.await.unwrap();
    assert_eq!(
        (recorded.accepted, indices(&recorded)),
        (20, vec![0, 21, 22])
    );
    assert!(bench.seconds("stray").is_empty());
}

/// The stream of a hub whose first message has only a sample of the stray device.
struct Hub {
    context: Context,
    requests: mpsc::Sender<RecordRequest>,
    answers: Streaming<RecordResponse>,
}

impl Hub {
    async fn start(bench: &Bench) -> Self {
        let context = Context::new("gateway");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (intake, of) = (Arc::clone(&bench.intake), context.clone());
        let carers = bench.carers(&context);
        tokio::spawn(async move {
            from_sensors::serve(listener, intake, carers, Tokens::default(), &of).await
        });
        let channel = service_kit::grpc::channel(&url, None).unwrap();
        let (requests, stream) = mpsc::channel(16);
        let mut client = GatewayServiceClient::new(channel);
        let answers = client.record(ReceiverStream::new(stream)).await.unwrap();
        let answers = answers.into_inner();
        Self {
            context,
            requests,
            answers,
        }
    }

    async fn send(&self, request: u64, mut samples: Vec<Sample>) {
        // The times of the other tests are far from the clock of this machine.
        let now_us = Moment::now().wall_us;
        for sample in &mut samples {
            sample.device_time_us += now_us - START_US - 20_000_000;
        }
        let request = RecordRequest { request, samples };
        self.requests.send(request).await.unwrap();
    }

    async fn answer(&mut self) -> (u64, u32, usize) {
        let answer = timeout(KNOWN_WITHIN * 3, self.answers.message()).await;
        let answer = answer.unwrap().unwrap().unwrap();
        (answer.request, answer.accepted, answer.rejections.len())
    }
}

#[tokio::test]
async fn an_alert_does_not_wait_for_an_unknown_sensor_in_an_earlier_message_of_the_stream() {
    let bench = Bench::new();
    let mut hub = Hub::start(&bench).await;
    hub.send(1, vec![acceleration("stray", 0, 1.0)]).await;
    hub.send(2, fall_of_belt()).await;
    let both = vec![
        acceleration("stray", 1, 1.0),
        acceleration("belt", 20, 1.0),
        acceleration("belt", 21, f64::NAN),
    ];
    hub.send(3, both).await;
    bench.belt_is_stored().await;
    assert_eq!(bench.of("stray"), 0);
    // The core reports it: its samples are stored in their order, and so are the answers.
    bench.intake.judge_by(knowing(&["belt", "stray"]));
    assert_eq!(hub.answer().await, (1, 1, 0));
    assert_eq!(hub.answer().await, (2, 20, 0));
    assert_eq!(hub.answer().await, (3, 2, 1));
    let stray = bench.seconds("stray");
    assert!(stray.len() == 2 && stray[0] < stray[1], "{stray:?}");
    hub.context.shutdown().request();
}

#[tokio::test]
async fn a_stream_answers_in_order_though_a_sensor_stays_unknown_and_the_stream_ends() {
    let bench = Bench::new();
    let mut hub = Hub::start(&bench).await;
    hub.send(1, vec![acceleration("stray", 0, 1.0)]).await;
    hub.send(2, fall_of_belt()).await;
    hub.send(3, vec![acceleration("stray", 1, 1.0)]).await;
    hub.requests = mpsc::channel(1).0;
    bench.belt_is_stored().await;
    assert_eq!(hub.answer().await, (1, 0, 1));
    assert_eq!(hub.answer().await, (2, 20, 0));
    assert_eq!(hub.answer().await, (3, 0, 1));
    assert!(hub.answers.message().await.unwrap().is_none());
    hub.context.shutdown().request();
}
