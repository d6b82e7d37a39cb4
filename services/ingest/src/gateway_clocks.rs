//! Knowledge about the clocks of gateways, and about the own clock that follows from them.

use std::time::Duration;

use clocks::{CheckedClock, Clocks, GatewayClock, Sent, SharedError};
use contracts::vitals::UploadRequest;
use parking_lot::Mutex;
use service_kit::{Context, Warning};

use crate::admission::{Arrival, GatewayId};

/// How often the gateways are checked for an error that they share.
const LOOK_EACH: Duration = Duration::from_secs(10);

pub(crate) struct GatewayClocks {
    own: CheckedClock,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    clocks: Clocks,
    /// Number of the own clock's last step after which the errors were learned anew.
    followed_step: u64,
}

impl GatewayClocks {
    pub(crate) fn new(own: CheckedClock) -> GatewayClocks {
        GatewayClocks {
            own,
            known: Mutex::default(),
        }
    }

    pub(crate) fn own(&self) -> &CheckedClock {
        &self.own
    }

    pub(crate) fn arrival(&self, now_us: i64) -> Arrival {
        Arrival {
            now_us,
            latest_us: self.own.latest_us(),
        }
    }

    /// Warns while most gateways share an error, until shutdown.
    pub(crate) async fn watch(&self, context: &Context) {
        let warning = context.health().warning("clock-of-gateways");
        let mut said = None;
        loop {
            let shared = self.known.lock().clocks.shared_error();
            if let Some(error) = shared
                && said.is_none()
            {
                tracing::warn!("{}", says(error));
            }
            said = shared;
            warning.set(shared.map(|error| Warning {
                says: says(error),
                to_do: "compare this machine's clock with a time server (NTP), then those of the gateways"
                    .to_owned(),
            }));
            tokio::select! {
                () = context.shutdown().requested() => return,
                () = tokio::time::sleep(LOOK_EACH) => {}
            }
        }
    }

    /// The state of the gateway's clocks after this upload. The time that the gateway sends is a
    /// witness for the clock of this machine.
    pub(crate) fn on_upload(
        &self,
        gateway: &GatewayId,
        upload: &UploadRequest,
        arrived_us: i64,
    ) -> Option<GatewayClock> {
        let sent = Sent {
            wall_us: upload.sent_time_us,
            uptime_us: upload.sent_uptime_us,
            boot: upload.sent_boot,
        };
        let mut known = self.known.lock();
        if let Some(step) = self.own.adopted_since(known.followed_step).last() {
            known.clocks.forget();
            known.followed_step = step.number;
        }
        let clock = known
            .clocks
            .on_request(&gateway.tenant, &gateway.id, sent, arrived_us)?;
        drop(known);
        if let Some(expected_us) = clock.expected_us {
            self.own.witness(expected_us);
        }
        Some(clock)
    }
}

fn says(error: SharedError) -> String {
    let seconds = error.behind_us.unsigned_abs() / 1_000_000;
    let direction = if error.behind_us > 0 {
        "ahead of"
    } else {
        "behind"
    };
    format!(
        "this machine's clock is {seconds} s {direction} those of {} of {} gateways; readings are stored by this machine's",
        error.agreeing, error.gateways
    )
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    };

    use clocks::{Moment, Taken};

    use super::*;

    const S: i64 = 1_000_000;
    const HOUR: i64 = 3600 * S;
    const T0: i64 = 1_800_000_000 * S;
    const GATEWAYS: usize = 5;

    /// Gateways with right clocks upload each second to an ingest whose clock steps. Returns how
    /// far readings are moved, and how far ahead of the allowed time they are.
    fn furthest_moved_us(by_us: i64) -> i64 {
        let (monotonic_us, error_us) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
        let of = (Arc::clone(&monotonic_us), Arc::clone(&error_us));
        let clocks = GatewayClocks::new(CheckedClock::new(Arc::new(move || {
            let monotonic_us = of.0.load(Ordering::Relaxed);
            Moment {
                wall_us: T0 + monotonic_us + of.1.load(Ordering::Relaxed),
                monotonic_us,
            }
        })));
        let mut furthest_us = 0;
        for second in 1..2000 {
            monotonic_us.store(second * S, Ordering::Relaxed);
            if second == 60 {
                error_us.store(by_us, Ordering::Relaxed);
            }
            for n in 0..GATEWAYS {
                let true_us = T0 + second * S;
                let upload = UploadRequest {
                    sent_time_us: true_us,
                    sent_uptime_us: second * S,
                    sent_boot: 7,
                    ..UploadRequest::default()
                };
                let gateway = GatewayId {
                    tenant: "t".into(),
                    id: format!("g{n}"),
                };
                let now_us = clocks.own().now_us();
                let taken = Taken {
                    wall_us: true_us,
                    uptime_us: second * S,
                    boot: 7,
                    behind_us: None,
                };
                if let Some(clock) = clocks.on_upload(&gateway, &upload, now_us) {
                    let moved_us = clock.event_us(true_us, taken) - true_us;
                    furthest_us = furthest_us.max(moved_us.abs());
                }
                assert!(true_us <= clocks.arrival(now_us).latest_us, "none is ahead");
            }
        }
        furthest_us
    }

    #[test]
    fn a_step_of_the_own_clock_moves_no_reading_of_right_gateways() {
        for by_us in [0, 90 * S, -90 * S, HOUR, -HOUR] {
            assert_eq!(furthest_moved_us(by_us), 0, "{by_us}");
        }
    }
}
