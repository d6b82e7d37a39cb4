//! `braid trial`: one reading through an installation, from a gateway's entry to the store, and
//! read back. `helm test` runs it.
//!
//! Its patient is in a separate tenant, so that no ward shows it. It sends a piece of a waveform,
//! whose end raises no alert. A device that measured a single value and stopped would be reported
//! as silent. The device is removed from the register at the end.

use std::time::Duration;

use contracts::vitals::gateway_service_client::GatewayServiceClient;
use contracts::vitals::sample::Reading;
use contracts::vitals::{Metric, RecordRequest, Sample, Waveform};
use serde::Serialize;
use service_kit::config::parse_address;
use service_kit::tls::PeerId;
use service_kit::{Backoff, ConfigError, Secret};
use store::{DeviceEntry, Scope, Store};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::engines::{StoreConfig, default_url};
use crate::process::{self, Failure};

/// Also the name of the device, of its patient and of its gateway.
const TENANT: &str = "trial";
/// Period of a waveform of 250 values a second.
const PERIOD_US: u32 = 4_000;
const VALUES: [f32; 8] = [0.0, 0.1, 0.2, 1.0, -0.3, 0.0, 0.1, 0.0];
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Samples of the trial that one query of the store returns.
const FOUND_MAX: usize = 8;

#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(
    mut_arg("store", |arg| arg.default_value(default_url())),
    after_help = "Example:\n  braid trial --to http://127.0.0.1:8090 \\\n      --store postgres://braid@timescaledb/braid --store-ca ca.pem\n\nThe gateway shows a certificate for the gateway `trial` of the tenant `trial`: `braid secrets make --for trial`."
)]
pub struct TrialCommand {
    #[command(flatten)]
    store: StoreConfig,
    /// The gateway's address for sensors.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8090")]
    to: String,
    /// The gateway's token for sensors.
    #[arg(long, value_name = "TOKEN")]
    sensor_token: Option<Secret>,
    /// Seconds for the reading, including the start of the gateway.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=3600))]
    within_s: u32,
}

/// Identity of the trial's gateway.
pub fn gateway() -> PeerId {
    PeerId::gateway(TENANT, TENANT)
}

impl TrialCommand {
    pub fn run(self) -> Result<(), Failure> {
        if let Err(reason) = parse_address(&self.to, &["http"]) {
            return Err(Failure::Config(ConfigError::new(
                "to",
                format!("{:?} {reason}", self.to),
                "--to http://127.0.0.1:8090",
            )));
        }
        process::block_on(async move {
            let began = Instant::now();
            let deadline = began + Duration::from_secs(self.within_s.into());
            let store = self.store.open_now().await?;
            register(store.as_ref()).await?;
            let tried = self.try_it(store.as_ref(), deadline).await;
            let scope = Scope::tenant(TENANT);
            let removed = store.remove_device(&scope, TENANT).await;
            let (sent_after, stored_after) = tried?;
            removed.map_err(Failure::other)?;
            println!(
                "sent after {:.1} s, in the store after {:.1} s, read back as sent",
                (sent_after - began).as_secs_f64(),
                (stored_after - began).as_secs_f64()
            );
            Ok(())
        })?
    }

    async fn try_it(
        &self,
        store: &dyn Store,
        deadline: Instant,
    ) -> Result<(Instant, Instant), Failure> {
        let sample = sample();
        let mut backoff = Backoff::for_reconnect();
        let sent = loop {
            match timeout_at(deadline, self.send(sample.clone())).await {
                Ok(Ok(())) => break Instant::now(),
                Ok(Err(Refusal::ForGood(reason))) => return Err(Failure::other(reason)),
                Ok(Err(Refusal::ForNow(reason))) if Instant::now() < deadline => {
                    eprintln!("the gateway at {}: {reason}", self.to);
                    backoff.wait().await;
                }
                _ => return Err(self.late("the gateway refuses the reading")),
            }
        };
        let (at, scope) = (sample.device_time_us, Scope::tenant(TENANT));
        while Instant::now() < deadline {
            let found = store
                .samples(&scope, TENANT, at, at + 1, FOUND_MAX)
                .await
                .map_err(Failure::other)?;
            if let Some(found) = found.first() {
                return if found.reading == sample.reading && found.device == sample.device {
                    Ok((sent, Instant::now()))
                } else {
                    Err(Failure::other(format!(
                        "sent {:?}, stored {:?}",
                        sample.reading, found.reading
                    )))
                };
            }
            sleep(LOOK_EVERY).await;
        }
        Err(self.late("the gateway accepted the reading, but the store does not have it"))
    }

    fn late(&self, what: &str) -> Failure {
        Failure::other(format!("{what} within {} s", self.within_s))
    }

    async fn send(&self, sample: Sample) -> Result<(), Refusal> {
        let for_now = |error: &dyn std::fmt::Display| Refusal::ForNow(error.to_string());
        let mut client = GatewayServiceClient::connect(self.to.clone())
            .await
            .map_err(|error| for_now(&error))?;
        let request = RecordRequest {
            request: 1,
            samples: vec![sample],
        };
        let mut request = Request::new(tokio_stream::once(request));
        if let Some(token) = &self.sensor_token {
            let value: MetadataValue<_> =
                format!("Bearer {}", token.expose()).parse().map_err(|_| {
                    Refusal::ForGood("the sensor token is not a valid header value".to_owned())
                })?;
            request.metadata_mut().insert("authorization", value);
        }
        let mut answers = client
            .record(request)
            .await
            .map_err(|status| for_now(&status))?
            .into_inner();
        match answers.message().await.map_err(|status| for_now(&status))? {
            Some(answer) => match answer.rejections.first() {
                // The gateway does not know the device yet.
                Some(rejection) if rejection.reason.contains(gateway::NOT_REGISTERED) => {
                    Err(Refusal::ForNow(rejection.reason.clone()))
                }
                Some(rejection) => Err(Refusal::ForGood(rejection.reason.clone())),
                None => Ok(()),
            },
            None => Err(Refusal::ForNow("no answer".to_owned())),
        }
    }
}

enum Refusal {
    ForNow(String),
    ForGood(String),
}

async fn register(store: &dyn Store) -> Result<(), Failure> {
    let entry = DeviceEntry {
        id: TENANT.to_owned(),
        tenant: TENANT.to_owned(),
        gateway: TENANT.to_owned(),
        patient: TENANT.to_owned(),
        registered_us: contracts::now_us(),
    };
    store.put_device(&entry).await.map_err(Failure::other)
}

fn sample() -> Sample {
    Sample {
        device: TENANT.to_owned(),
        metric: Metric::Ecg.into(),
        unit: "mV".to_owned(),
        device_time_us: contracts::now_us(),
        reading: Some(Reading::Waveform(Waveform {
            period_us: PERIOD_US,
            values: VALUES.to_vec(),
        })),
        ..Sample::default()
    }
}
