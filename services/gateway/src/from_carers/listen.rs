//! Programs that follow the open alerts.

use std::{sync::Arc, time::Duration};

use contracts::vitals::LocalAlert;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::Carers;
use crate::journal::Disk;

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

/// The open alerts at once, and again after each change. `None`: too many listen already.
pub fn listen<D: Disk, T: Send + 'static>(
    carers: Arc<Carers<D>>,
    form: impl Fn(News) -> T + Send + 'static,
) -> Option<mpsc::Receiver<T>> {
    let place = Arc::clone(&carers.listeners).try_acquire_owned().ok()?;
    let (unread, listening) = mpsc::channel(UNREAD_MAX);
    tokio::spawn(async move {
        let _place = place;
        let mut changes = carers.intake.open_alerts().changes();
        let mut news = News::Alerts(carers.alerts());
        loop {
            let sent = tokio::select! {
                () = carers.shutdown.requested() => return,
                sent = timeout(SLOW_AFTER, unread.send(form(news))) => sent,
            };
            match sent {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    metrics::counter!("braid_gateway_local_listeners_closed_total").increment(1);
                    return;
                }
            }
            news = tokio::select! {
                () = carers.shutdown.requested() => return,
                () = unread.closed() => return,
                changed = changes.changed() => match changed {
                    Ok(()) => News::Alerts(carers.alerts()),
                    Err(_) => return,
                },
                () = sleep(ALIVE_EVERY) => News::Nothing,
            };
        }
    });
    Some(listening)
}
