//! One viewer's stream: a snapshot, then what changes, with a sign of life every two seconds.
//!
//! The queue to the browser is short. While it is full nothing is taken from the broadcast; when the broadcast has moved on
//! by more than it holds, the viewer gets a new snapshot instead of what it missed. Repeating is harmless: the page folds by
//! time and revision.

use std::sync::Arc;
use std::time::Duration;

use contracts::alerts::Alert;
use contracts::query::{
    ListPatientsResponse, PathsUpdate, Patient, SamplesUpdate, WatchResponse, watch_response,
};
use contracts::vitals::{Metric, Sample};
use store::Scope;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::App;
use super::query::store_status;
use crate::from_store;
use crate::live::{Update, What};
use crate::sessions::{Key, Person};
use crate::ward::Snapshot;

/// Messages on their way to one browser; a full queue makes the viewer skip, see above.
const QUEUE_MAX: usize = 64;
/// The page takes three times this without a message for a dead connection.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// The bus is ahead of the store: a sample may have passed before the viewer came, and be stored after its snapshot. So the recent samples
/// are sent once more, after this.
const STORE_BEHIND_MAX: Duration = Duration::from_secs(2);
/// Open alerts in a snapshot.
const SNAPSHOT_ALERTS_MAX: usize = 500;

struct Viewer {
    app: Arc<App>,
    person: Person,
    key: Key,
    /// Empty: the ward alone.
    patient: String,
    to: mpsc::Sender<Result<WatchResponse, Status>>,
}

/// Why a stream ends.
enum End {
    /// The browser has gone.
    Gone,
    Told(Status),
}

impl From<mpsc::error::SendError<Result<WatchResponse, Status>>> for End {
    fn from(_: mpsc::error::SendError<Result<WatchResponse, Status>>) -> End {
        End::Gone
    }
}

pub fn open(
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
    let viewer = Viewer {
        app,
        person,
        key,
        patient,
        to,
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
            // No room or nobody there: the stream ends all the same.
            let _ = viewer.to.try_send(Err(status));
        }
        metrics::gauge!("braid_dashboard_viewers").decrement(1.0);
    });
    Ok(ReceiverStream::new(from))
}

impl Viewer {
    async fn run(&self) -> End {
        match self.follow().await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, End> {
        // Subscribed before the snapshot is read: what arrives meanwhile is sent twice rather than never.
        let mut updates = self.app.live.updates();
        let mut snapshots = self.app.live.snapshots();
        let ward = self.of(&mut snapshots);
        self.snapshot(ward).await?;
        let mut again = Some(Instant::now() + STORE_BEHIND_MAX);
        let mut signs = tokio::time::interval(SIGN_OF_LIFE);
        signs.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Ok(update) => self.update(update).await?,
                    Err(RecvError::Lagged(skipped)) => {
                        metrics::counter!("braid_dashboard_updates_skipped_total").increment(skipped);
                        let ward = self.of(&mut snapshots);
                        self.snapshot(ward).await?;
                        again = Some(Instant::now() + STORE_BEHIND_MAX);
                    }
                    Err(RecvError::Closed) => return Err(End::Told(Status::unavailable("the dashboard ends"))),
                },
                changed = snapshots.changed() => {
                    if changed.is_err() {
                        return Err(End::Told(Status::unavailable("the dashboard ends")));
                    }
                    let ward = self.of(&mut snapshots);
                    self.ward(ward).await?;
                    signs.reset();
                }
                _ = signs.tick() => {
                    let ward = self.of(&mut snapshots);
                    self.ward(ward).await?;
                }
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                    again = None;
                    self.recent().await?;
                }
            }
            if !self.app.is_signed_in(&self.key) {
                return Err(End::Told(Status::unauthenticated("the session has ended")));
            }
        }
    }

    fn of(&self, snapshots: &mut watch::Receiver<Arc<Snapshot>>) -> Vec<Patient> {
        snapshots
            .borrow_and_update()
            .of(&self.person.tenant)
            .to_vec()
    }

    async fn snapshot(&self, ward: Vec<Patient>) -> Result<(), End> {
        self.ward(ward).await?;
        let scope = Scope::tenant(self.person.tenant.clone());
        let store = self.app.store.as_ref();
        let told = |error| End::Told(store_status(&error));
        let alerts = from_store::alerts(store, &scope, "", false, SNAPSHOT_ALERTS_MAX)
            .await
            .map_err(told)?;
        for alert in alerts {
            self.send(watch_response::Update::Alert(alert)).await?;
        }
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
        let samples = from_store::recent_samples(store, &scope, &self.patient, contracts::now_us())
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

    async fn ward(&self, patients: Vec<Patient>) -> Result<(), End> {
        self.send(watch_response::Update::Ward(ListPatientsResponse {
            patients,
        }))
        .await
    }

    /// Without samples of other patients and without what the page does not draw.
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
        metrics::counter!("braid_dashboard_updates_sent_total").increment(1);
        Ok(self
            .to
            .send(Ok(WatchResponse {
                update: Some(update),
            }))
            .await?)
    }
}
