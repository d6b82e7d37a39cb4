//! Alerting on the embedded bus and store, and its input.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{path::Path, sync::Arc, time::Duration};

use alerting::Config;
use bus::{Bus, EmbeddedBus, EmbeddedOptions, Record, Topic};
use clap::{Args, FromArgMatches};
use contracts::{
    alerts::{
        Alert, AlertState, NoticeRecord, NoticeResult, alerts_service_client::AlertsServiceClient,
    },
    vitals::{Metric, Sample, VitalsRecord, sample},
};
use prost::Message;
use service_kit::{
    Context,
    grpc::channel,
    tls::{Identity, IdentityFiles, PeerId, authority::LocalAuthority},
};
use store::{Scope, SqliteStore, Store};
use tonic::transport::Channel;

pub const S: i64 = 1_000_000;
pub const LIMIT: Duration = Duration::from_secs(30);

pub struct World {
    pub bus: Arc<dyn Bus>,
    pub store: Arc<dyn Store>,
    pub authority: LocalAuthority,
    pub files: IdentityFiles,
    pub dir: tempfile::TempDir,
}

pub struct Running {
    pub context: Context,
    pub joined: tokio::task::JoinHandle<Result<(), alerting::RunError>>,
}

impl World {
    pub fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
        let files = authority.issue(&PeerId::service("alerting"), &[]).unwrap();
        let data: &Path = dir.path();
        World {
            bus: Arc::new(EmbeddedBus::open(data, EmbeddedOptions::default()).unwrap()),
            store: Arc::new(SqliteStore::open(data).unwrap()),
            authority,
            files,
            dir,
        }
    }

    /// The default configuration with changes.
    pub fn config(files: &IdentityFiles) -> Config {
        let command = Config::augment_args(clap::Command::new("test").no_binary_name(true));
        let matches = command.get_matches_from(std::iter::empty::<&str>());
        let mut config = Config::from_arg_matches(&matches).unwrap();
        config.listen = "127.0.0.1:0".parse().unwrap();
        config.identity = files.clone();
        config
    }

    pub fn start_with(&self, change: impl FnOnce(&mut Config)) -> Running {
        self.start_in(Context::new("alerting"), change)
    }

    pub fn start_in(&self, context: Context, change: impl FnOnce(&mut Config)) -> Running {
        let mut config = World::config(&self.files);
        change(&mut config);
        let joined = tokio::spawn(alerting::run(
            config,
            Arc::clone(&self.bus),
            Arc::clone(&self.store),
            context.clone(),
        ));
        Running { context, joined }
    }

    pub async fn client(&self, running: &Running, id: &PeerId) -> AlertsServiceClient<Channel> {
        let address = running.context.address("grpc").await.unwrap();
        let identity = Identity::load(&self.authority.issue(id, &[]).unwrap()).unwrap();
        let url = format!("https://127.0.0.1:{}", address.port());
        AlertsServiceClient::new(channel(&url, Some(&identity)).unwrap())
    }

    pub async fn publish(&self, key: &str, record: VitalsRecord) {
        let record = Record::new(key, record.encode_to_vec());
        self.bus.publish(Topic::Vitals, vec![record]).await.unwrap();
    }

    pub async fn alerts(&self) -> Vec<Alert> {
        let query = store::AlertsQuery {
            include_resolved: true,
            ..store::AlertsQuery::default()
        };
        self.store.alerts(&Scope::Service, &query).await.unwrap()
    }

    /// Waits for an alert of the rule in this state.
    pub async fn alert(&self, rule: &str, state: AlertState) -> Alert {
        self.alert_of("", rule, state).await
    }

    /// Waits for an alert of one patient. Empty: any patient.
    pub async fn alert_of(&self, patient: &str, rule: &str, state: AlertState) -> Alert {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let alerts = self.alerts().await;
            let found = alerts.iter().find(|a| {
                a.rule == rule && a.state() == state && (patient.is_empty() || a.patient == patient)
            });
            if let Some(alert) = found {
                return alert.clone();
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{rule} {state:?} in {alerts:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits for this number of notices of the alert with this outcome.
    pub async fn outcomes(
        &self,
        alert: &str,
        count: usize,
        result: NoticeResult,
    ) -> Vec<NoticeRecord> {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let mut records = self.store.notices(&Scope::Service, alert).await.unwrap();
            let all = records.clone();
            records.retain(|record| {
                record
                    .outcome
                    .as_ref()
                    .is_some_and(|o| o.result() == result)
            });
            if records.len() >= count {
                return records;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{count} {result:?} in {all:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Running {
    pub async fn stop(self) {
        self.context.shutdown().request();
        self.joined.await.unwrap().unwrap();
    }
}

/// One reading a second from `first_sequence` on, the first at `from_us`.
pub fn readings(
    metric: Metric,
    patient: &str,
    first_sequence: u64,
    from_us: i64,
    values: &[f64],
) -> VitalsRecord {
    let samples = values.iter().enumerate().map(|(index, value)| {
        let mut sample = Sample {
            device: format!("{patient}-belt"),
            gateway: "gateway-1".into(),
            patient: patient.into(),
            sequence: first_sequence + index as u64,
            metric: metric.into(),
            device_time_us: from_us + index as i64 * S,
            gateway_time_us: from_us + index as i64 * S,
            device_offset_us: Some(0),
            ingest_time_us: contracts::now_us(),
            reading: Some(sample::Reading::Value(*value)),
            ..Sample::default()
        };
        vitals::fill_defaults(&mut sample);
        sample
    });
    VitalsRecord {
        samples: samples.collect(),
        ..VitalsRecord::default()
    }
}

pub fn pulses(patient: &str, first_sequence: u64, from_us: i64, values: &[f64]) -> VitalsRecord {
    readings(Metric::HeartRate, patient, first_sequence, from_us, values)
}

pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
