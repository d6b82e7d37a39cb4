//! When measurements are looked at next. An access near its cap is looked at more often, so that
//! little is carried beyond the cap. Sans-IO.

use std::time::Duration;

use tunnel::steering_rules::{Document, Measurements};

/// How often measurements are looked at. Flows that begin, documents, and paths that come and go
/// are looked at at once.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The same while flows are open and an access is near its cap.
const LOOK_BEFORE_CAP: Duration = Duration::from_millis(20);
/// Bytes before its cap at which an access is near it: 100 Mbit/s for the longer interval.
const NEAR_BYTES: u64 = 3_000_000;

/// Whether some access has not reached its cap, and is near it.
pub(super) fn is_near_cap(measurements: &Measurements, document: &Document) -> bool {
    measurements.iter().any(|(name, measured)| {
        let terms = document.terms_of(name).0;
        let cap = terms.and_then(|terms| terms.nearest_cap(&measured.used));
        cap.is_some_and(|cap| (1..=NEAR_BYTES).contains(&cap.left_bytes))
    })
}

/// The pause until the next look.
pub(super) fn pause(is_near_cap: bool, has_flows: bool) -> Duration {
    match is_near_cap && has_flows {
        true => LOOK_BEFORE_CAP,
        false => LOOK_EVERY,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tunnel::steering_rules::{Measurement, Used};

    use super::*;

    #[test]
    fn an_access_near_its_cap_is_looked_at_more_often() {
        let text = "format = 1\n[[access]]\nname = \"lte\"\ncap_gb = 0.01\n";
        let document = Document::from_toml(text, "test").unwrap();
        let is_near = |month_bytes| {
            let measurement = Measurement {
                used: Used {
                    month_bytes,
                    ..Used::default()
                },
                ..Measurement::default()
            };
            let measurements = Measurements::from([("lte".to_owned(), measurement)]);
            is_near_cap(&measurements, &document)
        };
        assert!(!is_near(6_000_000));
        assert!(is_near(8_000_000) && is_near(9_999_999));
        assert!(!is_near(10_000_000), "it is reached");
        assert_eq!(pause(true, true), LOOK_BEFORE_CAP);
        assert_eq!(pause(true, false), LOOK_EVERY);
    }
}
