//! Programs that follow the open alerts.

use std::{sync::Arc, time::Duration};

use contracts::vitals::LocalAlert;
use service_kit::Shutdown;
use tokio::{
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};

use crate::{clock::Moment, open_alerts::OpenAlerts};

/// Programs that follow at once; a further one is refused.
pub const LISTENERS_MAX: usize = 16;
/// Lists that a listener has not read; at the bound it is given [`SLOW_AFTER`].
const UNREAD_MAX: usize = 4;
/// A listener that reads nothing for this time is closed. It sees the list again when it
/// reconnects.
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// Interval of signs of life while nothing changes.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

pub enum News {
    Alerts(Vec<LocalAlert>),
    /// A sign of life.
    Nothing,
}

/// The places of listeners.
pub struct Listeners {
    alerts: OpenAlerts,
    shutdown: Shutdown,
    places: Arc<Semaphore>,
}

impl Listeners {
    pub fn new(alerts: OpenAlerts, shutdown: Shutdown) -> Self {
        Self {
            alerts,
            shutdown,
            places: Arc::new(Semaphore::new(LISTENERS_MAX)),
        }
    }

    /// The open alerts at once, and again after each change. `None`: too many listen already.
    pub fn listen<T: Send + 'static>(
        &self,
        form: impl Fn(News) -> T + Send + 'static,
    ) -> Option<mpsc::Receiver<T>> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let (alerts, shutdown) = (self.alerts.clone(), self.shutdown.clone());
        let (unread, listening) = mpsc::channel(UNREAD_MAX);
        tokio::spawn(async move {
            let _place = place;
            let mut changes = alerts.changes();
            let list = || News::Alerts(alerts.list(Moment::now()));
            let mut news = list();
            loop {
                let sent = tokio::select! {
                    () = shutdown.requested() => return,
                    sent = timeout(SLOW_AFTER, unread.send(form(news))) => sent,
                };
                match sent {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return,
                    Err(_) => {
                        metrics::counter!("braid_gateway_local_listeners_closed_total")
                            .increment(1);
                        return;
                    }
                }
                news = tokio::select! {
                    () = shutdown.requested() => return,
                    () = unread.closed() => return,
                    changed = changes.changed() => match changed {
                        Ok(()) => list(),
                        Err(_) => return,
                    },
                    () = sleep(ALIVE_EVERY) => News::Nothing,
                };
            }
        });
        Some(listening)
    }
}
