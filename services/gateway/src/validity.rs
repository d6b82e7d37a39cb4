//! Whether the gateway's certificate is in force. Without it no connection to the core stands, and
//! nothing else names the cause.

use std::time::{Duration, SystemTime};

use service_kit::{CheckHandle, Shutdown, tls::Identity};

/// Interval of looks. A renewed certificate, or a clock that was set, shows within this time.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Sets the check, and logs the end of the certificate once, until shutdown.
pub(crate) async fn watch(
    identity: Identity,
    clock: fn() -> SystemTime,
    check: CheckHandle,
    shutdown: Shutdown,
) {
    let mut was_well = true;
    loop {
        let ended = match identity.valid_until() {
            Ok(until) => ended(until, clock()),
            Err(error) => Some(format!("the certificate of --cert cannot be read: {error}")),
        };
        match &ended {
            None => check.ok(),
            Some(reason) => check.failing(reason.clone()),
        }
        if let Some(reason) = ended.as_ref().filter(|_| was_well) {
            tracing::error!(reason, "the core refuses this gateway");
        }
        was_well = ended.is_none();
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Why the certificate is not in force.
fn ended(until: SystemTime, now: SystemTime) -> Option<String> {
    let ago = now.duration_since(until).ok().filter(|it| !it.is_zero())?;
    let ago = match ago.as_secs() {
        seconds @ 0..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    };
    Some(format!(
        "the certificate of this gateway ended {ago} ago, so the core refuses it: make a token by \
         `braid gateways enrol`, and start the gateway with --enrol TOKEN; or set its clock, if that \
         is wrong"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use service_kit::{
        Health,
        tls::{PeerId, authority::LocalAuthority},
    };

    use super::*;

    #[test]
    fn the_end_is_said_with_its_age() {
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert_eq!(ended(until, until), None);
        assert_eq!(ended(until, SystemTime::UNIX_EPOCH), None);
        for (later_s, age) in [(61, "1 min"), (7_200, "2 h"), (200_000, "2 days")] {
            let reason = ended(until, until + Duration::from_secs(later_s)).unwrap();
            assert!(reason.contains(&format!("ended {age} ago")), "{reason}");
        }
    }

    #[tokio::test]
    async fn a_certificate_that_has_ended_is_the_cause_in_readyz() {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let files = authority
            .issue(&PeerId::gateway("default", "gw-1"), &[])
            .unwrap();
        let identity = Identity::load(&files).unwrap();
        for (clock, is_well) in [
            (SystemTime::now as fn() -> SystemTime, true),
            (
                || SystemTime::now() + Duration::from_secs(100 * 365 * 86_400),
                false,
            ),
        ] {
            let (health, shutdown) = (Health::new(), Shutdown::default());
            let check = health.check("certificate");
            let watching = watch(identity.clone(), clock, check, shutdown.clone());
            let watching = tokio::spawn(watching);
            let is_named = |(name, reason): &(&str, String)| {
                *name == "certificate" && reason.contains("certificate of this gateway ended")
            };
            let shows = || match is_well {
                true => health.failing().is_empty(),
                false => health.failing().iter().any(is_named),
            };
            let waiting = async {
                while !shows() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
            assert!(waited.is_ok(), "{:?}", health.failing());
            shutdown.request();
            watching.await.unwrap();
        }
    }
}
