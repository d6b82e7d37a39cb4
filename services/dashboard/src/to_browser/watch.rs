//! One viewer's stream: a snapshot, then changes, with a sign of life every two seconds.
//!
//! The queue to the browser is short. While it is full, nothing is taken from the broadcast. A
//! viewer whom the broadcast has overtaken gets a new snapshot instead of the missed changes.
//! Repetitions are harmless, because the page folds by time and revision.
//! The ward view is large and soon out of date. So only its turn waits in the queue, once, and
//! sends the ward view of that moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use contracts::alerts::Alert;
use contracts::query::{AlertsUpdate, PathsUpdate, SamplesUpdate, WatchResponse, watch_response};
use contracts::vitals::{Metric, Sample};
use store::{AlertsQuery, Scope};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use super::app::App;
use super::calls::store_status;
use crate::from_store;
use crate::live::{Update, What};
use crate::sessions::{Key, Person};

/// Messages on their way to one browser. A full queue makes the viewer skip changes.
const QUEUE_MAX: usize = 64;
/// The page treats three times this without a message as a dead connection.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// The bus is ahead of the store: a sample may pass before the viewer subscribes and be stored
/// after its snapshot. So the recent samples are sent once more after this time.
const STORE_BEHIND_MAX: Duration = Duration::from_secs(2);
/// Open alerts in a snapshot, in one message. Further alerts, the least important ones, are
/// counted.
const SNAPSHOT_ALERTS_MAX: usize = 1_000;

/// Messages that wait for the browser.
enum Waiting {
    Ward,
    Update(Box<watch_response::Update>),
    End(Status),
}

struct Viewer {
    app: Arc<App>,
    person: Person,
    key: Key,
    /// Empty: only the ward view.
    patient: String,
    to: mpsc::Sender<Waiting>,
    ward_waits: Arc<AtomicBool>,
}

/// Why a stream ends.
enum End {
    /// The browser is gone.
    Gone,
    Told(Status),
}

impl From<mpsc::error::SendError<Waiting>> for End {
    fn from(_: mpsc::error::SendError<Waiting>) -> End {
        End::Gone
    }
}

pub(crate) fn open(
    app: Arc<App>,
    person: Person,
    key: Key,
    patient: String,
) -> Result<impl Stream<Item = Result<WatchResponse, Status>> + Send, Status> {
    let place = app
        .viewers
        .enter(&person)
        .map_err(|full| Status::resource_exhausted(full.to_string()))?;
    let (to, from) = mpsc::channel(QUEUE_MAX);
    let ward_waits = Arc::new(AtomicBool::new(false));
    let (live, tenant) = (Arc::clone(&app.live), person.tenant.clone());
    let viewer = Viewer {
        app,
        person,
        key,
        patient,
        to,
        ward_waits: Arc::clone(&ward_waits),
    };
    tokio::spawn(async move {
        let _place = place;
        metrics::gauge!("braid_dashboard_viewers").increment(1.0);
        let shutdown = viewer.app.shutdown.clone();
        let gone = viewer.to.clone();
        let end = tokio::select! {
            end = viewer.run() => end,
            () = gone.closed() => End::Gone,
            () = shutdown.requested() => End::Told(Status::unavailable("the dashboard restarts")),
        };
        if let End::Told(status) = end {
            // Without room or a receiver the stream ends as well.
            let _ = viewer.to.try_send(Waiting::End(status));
        }
        metrics::gauge!("braid_dashboard_viewers").decrement(1.0);
    });
    Ok(ReceiverStream::new(from).map(move |waiting| {
        let update = match waiting {
            Waiting::Ward => {
                // Before the look: later changes have a turn of their own.
                ward_waits.store(false, Ordering::Release);
                watch_response::Update::Ward(live.look(&tenant))
            }
            Waiting::Update(update) => *update,
            Waiting::End(status) => return Err(status),
        };
        metrics::counter!("braid_dashboard_updates_sent_total").increment(1);
        Ok(WatchResponse {
            update: Some(update),
        })
    }))
}

impl Viewer {
    async fn run(&self) -> End {
        match self.follow().await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, End> {
        // Subscribed before the snapshot is read, so that changes meanwhile are sent twice rather
        // than never.
        let mut updates = self.app.live.updates();
        let mut snapshots = self.app.live.snapshots();
        self.snapshot().await?;
        let mut again = Some(Instant::now() + STORE_BEHIND_MAX);
        let mut signs = tokio::time::interval(SIGN_OF_LIFE);
        signs.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Ok(update) => self.update(update).await?,
                    Err(RecvError::Lagged(skipped)) => {
                        metrics::counter!("braid_dashboard_updates_skipped_total").increment(skipped);
                        self.snapshot().await?;
                        again = Some(Instant::now() + STORE_BEHIND_MAX);
                    }
                    Err(RecvError::Closed) => return Err(End::Told(Status::unavailable("the dashboard ends"))),
                },
                changed = snapshots.changed() => {
                    if changed.is_err() {
                        return Err(End::Told(Status::unavailable("the dashboard ends")));
                    }
                    self.ward().await?;
                    signs.reset();
                }
                _ = signs.tick() => self.ward().await?,
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                    again = None;
                    self.recent().await?;
                }
            }
            // While the store does not answer, who watches goes on.
            if let Ok(None) = self.app.person(&self.key).await {
                return Err(End::Told(Status::unauthenticated("the session has ended")));
            }
        }
    }

    async fn snapshot(&self) -> Result<(), End> {
        self.ward().await?;
        let scope = Scope::tenant(self.person.tenant.clone());
        let store = self.app.store.as_ref();
        let told = |error| End::Told(store_status(&error));
        let query = AlertsQuery {
            limit: SNAPSHOT_ALERTS_MAX,
            ..AlertsQuery::default()
        };
        let listed = from_store::alerts(store, &scope, &query).await;
        let (alerts, counts) = listed.map_err(told)?;
        self.send(watch_response::Update::Alerts(AlertsUpdate {
            alerts,
            counts,
        }))
        .await?;
        let reports = store.latest_paths(&scope, None).await.map_err(told)?;
        self.send(watch_response::Update::Paths(PathsUpdate { reports }))
            .await?;
        self.recent().await
    }

    async fn recent(&self) -> Result<(), End> {
        if self.patient.is_empty() {
            return Ok(());
        }
        let scope = Scope::tenant(self.person.tenant.clone());
        let store = self.app.store.as_ref();
        let now_us = self.app.live.now_us();
        let samples = from_store::recent_samples(store, &scope, &self.patient, now_us)
            .await
            .map_err(|error| End::Told(store_status(&error)))?;
        self.samples(samples).await
    }

    async fn update(&self, update: Update) -> Result<(), End> {
        if *update.tenant != *self.person.tenant {
            return Ok(());
        }
        match update.what {
            What::Samples(samples) => {
                let mine = !self.patient.is_empty()
                    && samples.first().is_some_and(|s| s.patient == self.patient);
                if !mine {
                    return Ok(());
                }
                self.samples(samples.to_vec()).await
            }
            What::Alert(alert) => {
                self.send(watch_response::Update::Alert(Alert::clone(&alert)))
                    .await
            }
            What::Paths(reports) => {
                let update = PathsUpdate {
                    reports: reports.to_vec(),
                };
                self.send(watch_response::Update::Paths(update)).await
            }
        }
    }

    async fn ward(&self) -> Result<(), End> {
        if self.ward_waits.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        Ok(self.to.send(Waiting::Ward).await?)
    }

    /// Without samples of other patients and without samples that the page does not draw.
    async fn samples(&self, mut samples: Vec<Sample>) -> Result<(), End> {
        samples.retain(|sample| {
            sample.patient == self.patient && sample.metric() != Metric::Acceleration
        });
        if samples.is_empty() {
            return Ok(());
        }
        self.send(watch_response::Update::Samples(SamplesUpdate { samples }))
            .await
    }

    async fn send(&self, update: watch_response::Update) -> Result<(), End> {
        Ok(self.to.send(Waiting::Update(Box::new(update))).await?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use service_kit::Shutdown;
    use service_kit::tls::IdentityFiles;
    use store::{Account, DeviceEntry, PatientEntry, Role, Spo2Scale, SqliteStore, Store};
    use vitals::RuleSet;

    use super::*;
    use crate::Config;
    use crate::live::Live;
    use crate::to_browser::Clients;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        config: Config,
    }

    /// A browser that sleeps with an open page.
    #[tokio::test]
    async fn a_browser_that_takes_nothing_has_one_ward_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let line = "dashboard --cert c --key k --ca a --alerting-url http://127.0.0.1:1";
        let mut config = Line::try_parse_from(line.split(' ')).unwrap().config;
        config.identity = IdentityFiles::default();
        let clients = Clients {
            alerting: crate::to_alerting::client(&config.alerting_url, None).unwrap(),
            links: crate::to_links::client(&config.links_url, None).unwrap(),
        };
        let live = Arc::new(Live::new(
            RuleSet::default_set(),
            clocks::CheckedClock::of_machine(),
        ));
        let app = App::new(
            &config,
            store,
            Arc::clone(&live),
            clients,
            None,
            None,
            Shutdown::default(),
        );
        let vera = Account {
            name: "vera".into(),
            tenant: "t".into(),
            role: Role::Viewer,
            password_hash: String::new(),
            created_us: 0,
        };
        let (key, now_us) = ([7; 32], contracts::now_us());
        let opened = app.sessions.open(key, &vera, now_us, i64::MAX);
        opened.await.unwrap();
        let person = app.person(&key).await.unwrap().unwrap();
        let mut stream = Box::pin(open(app, person, key, String::new()).unwrap());

        let named = |name: String| PatientEntry {
            id: "p".into(),
            tenant: "t".into(),
            name,
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        let worn = DeviceEntry {
            id: "d".into(),
            tenant: "t".into(),
            gateway: "g".into(),
            patient: "p".into(),
            registered_us: 0,
        };
        let devices = std::slice::from_ref(&worn);
        for n in 0..QUEUE_MAX {
            live.on_register(&[named(format!("Name {n}"))], &[], devices);
            live.publish(now_us);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut wards = Vec::new();
        while let Some(Ok(update)) = tokio::select! {
            biased;
            update = stream.next() => update,
            () = std::future::ready(()) => None,
        } {
            if let Some(watch_response::Update::Ward(ward)) = update.update {
                wards.push(ward.patients);
            }
        }
        assert_eq!(wards.len(), 1);
        let newest = format!("Name {}", QUEUE_MAX - 1);
        assert_eq!(wards[0][0].name, newest, "as it is by then");
        // And again after it was taken.
        live.on_register(&[named("Ada".into())], &[], devices);
        live.publish(now_us);
        let next = tokio::time::timeout(Duration::from_secs(30), stream.next()).await;
        let update = next.unwrap().unwrap().unwrap().update;
        assert!(
            matches!(update, Some(watch_response::Update::Ward(ward)) if ward.patients[0].name == "Ada")
        );
    }
}
