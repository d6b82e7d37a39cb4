//! Proves from time to time that an engine takes a write, also while nobody writes to it.

use std::fmt::Display;
use std::time::Duration;

use crate::{CheckHandle, Shutdown};

/// Interval of the proofs. A failure is known after this time and [`Pace::within`].
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub while_ready: Duration,
    pub while_not: Duration,
    /// An engine that takes longer counts as not ready.
    pub within: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            while_ready: Duration::from_secs(5),
            while_not: Duration::from_millis(500),
            within: Duration::from_secs(5),
        }
    }
}

/// Sets `check` by the answers of `prove`, until shutdown is requested.
pub async fn keep_proving<E: Display, F: Future<Output = Result<(), E>>>(
    check: CheckHandle,
    prove: impl Fn() -> F,
    pace: Pace,
    shutdown: Shutdown,
) {
    while !shutdown.is_requested() {
        let answer = match tokio::time::timeout(pace.within, prove()).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {:?}", pace.within)),
        };
        let pause = match answer {
            Ok(()) => {
                check.ok();
                pace.while_ready
            }
            Err(reason) => {
                check.failing(reason);
                pace.while_not
            }
        };
        tokio::select! {
            () = shutdown.requested() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::Health;

    #[tokio::test]
    async fn an_engine_that_refuses_or_hangs_is_known_without_a_write_of_others() {
        let (health, shutdown) = (Health::new(), Shutdown::new());
        let state = Arc::new(Mutex::new("takes"));
        let asked = Arc::clone(&state);
        let prove = move || {
            let state = *asked.lock();
            async move {
                match state {
                    "takes" => Ok(()),
                    "hangs" => std::future::pending().await,
                    reason => Err(reason),
                }
            }
        };
        let pace = Pace {
            while_ready: Duration::from_millis(1),
            while_not: Duration::from_millis(1),
            within: Duration::from_millis(5),
        };
        let proving = keep_proving(health.check("store"), prove, pace, shutdown.clone());
        let proving = tokio::spawn(proving);
        let until = async |reason: Option<&str>| {
            let says = || health.failing().first().map(|(_, says)| says.clone());
            let reached = async {
                while match (says(), reason) {
                    (Some(says), Some(reason)) => !says.contains(reason),
                    (says, reason) => says.is_some() != reason.is_some(),
                } {
                    tokio::time::sleep(pace.while_not).await;
                }
            };
            let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
            assert!(reached.is_ok(), "{reason:?}: {:?}", says());
        };
        until(None).await;
        for (to, says) in [("disk full", "disk full"), ("hangs", "no answer within")] {
            *state.lock() = to;
            until(Some(says)).await;
            *state.lock() = "takes";
            until(None).await;
        }
        shutdown.request();
        assert!(proving.await.is_ok());
    }
}
