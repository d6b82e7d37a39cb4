//! A handshake within its time and its place, and the log of failures.
//!
//! Anybody can make handshakes fail, without a certificate. So each failure is counted by transport
//! and reason, and at most one line is logged in [`LOG_INTERVAL`]. The first failure is logged at
//! once, and the number of further ones at the interval's end.

use std::{
    fmt,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::ServerSession;
use crate::server::places::Place;

/// Longest handshake; then it is dropped.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Least interval between two log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Reason of a failed handshake, from a small set.
pub(super) trait Reason: fmt::Display {
    fn reason(&self) -> &'static str;
}

/// The time of the last log line, and the failures since.
#[derive(Debug, Default)]
struct Log {
    written_at: Option<Instant>,
    left_out: u64,
}

/// The handling of a further failure.
#[derive(Debug, PartialEq, Eq)]
enum Say {
    Now,
    /// The first omitted failure: a line is due at this time.
    At(Instant),
    Nothing,
}

impl Log {
    fn on_failure(&mut self, now: Instant) -> Say {
        let next = self.written_at.map(|at| at + LOG_INTERVAL);
        match next {
            Some(next) if now < next || self.left_out > 0 => {
                self.left_out += 1;
                if self.left_out == 1 {
                    Say::At(next)
                } else {
                    Say::Nothing
                }
            }
            _ => {
                self.written_at = Some(now);
                Say::Now
            }
        }
    }

    /// The number of omitted failures; taking it counts as a log line.
    fn take_left_out(&mut self, now: Instant) -> u64 {
        self.written_at = Some(now);
        std::mem::take(&mut self.left_out)
    }
}

/// The handshakes of one server, by QUIC and by TCP.
#[derive(Debug, Clone, Default)]
pub(super) struct Handshakes {
    log: Arc<Mutex<Log>>,
}

impl Handshakes {
    /// `None` if the handshake fails.
    pub(super) async fn shake<E: Reason>(
        &self,
        place: &Place,
        remote: SocketAddr,
        by: &'static str,
        shaking: impl Future<Output = Result<ServerSession, E>>,
    ) -> Option<ServerSession> {
        let (reason, error) = match place
            .hold(tokio::time::timeout(HANDSHAKE_MAX, shaking))
            .await
        {
            Some(Ok(Ok(session))) => return Some(session),
            Some(Ok(Err(error))) => (error.reason(), error.to_string()),
            Some(Err(_)) => ("timeout", "it took too long".to_owned()),
            None => ("displaced", "replaced by a newer handshake".to_owned()),
        };
        metrics::counter!("braid_tunnel_handshakes_failed_total", "by" => by, "reason" => reason)
            .increment(1);
        tracing::debug!(%remote, by, reason, error, "handshake failed");
        let say = self.log.lock().on_failure(Instant::now());
        match say {
            Say::Now => tracing::info!(%remote, by, reason, error, "handshake failed"),
            Say::At(at) => {
                let log = self.log.clone();
                tokio::spawn(async move {
                    tokio::time::sleep_until(at.into()).await;
                    let more = log.lock().take_left_out(Instant::now());
                    tracing::info!(more, "further handshakes failed");
                });
            }
            Say::Nothing => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_is_one_line_in_an_interval() {
        let start = Instant::now();
        let mut log = Log::default();
        assert_eq!(log.on_failure(start), Say::Now);
        let due = start + LOG_INTERVAL;
        assert_eq!(
            log.on_failure(start + Duration::from_millis(1)),
            Say::At(due)
        );
        for ms in 2..1_000 {
            let now = start + Duration::from_millis(ms * 20);
            assert_eq!(
                log.on_failure(now),
                Say::Nothing,
                "also while the line is late"
            );
        }
        let late = due + Duration::from_secs(11);
        assert_eq!(log.take_left_out(late), 999);
        let next = late + LOG_INTERVAL;
        assert_eq!(log.on_failure(late + Duration::from_secs(9)), Say::At(next));
        assert_eq!(log.take_left_out(next), 1);
        assert_eq!(log.on_failure(next + LOG_INTERVAL), Say::Now);
    }
}
