//! Whether readings arrive from a patient and, if not, since when and why. Sans-IO.
//!
//! A patient is unwatched when the newest reading is older than the pause that the sensors may
//! make. For a worn sensor this is [`SILENT_AFTER_US`]; for single measurements it is the rules'
//! `stale_after_s`. Event time decides, so a late backlog does not count as watching.
//!
//! The cause is that of the widest open silence alert. Such an alert comes up to two minutes later.
//! Until then the cause follows from the gateway's path reports, its other patients, and all other
//! gateways.

use std::collections::BTreeMap;

use contracts::query::{Unknown, UnknownCause};
use contracts::vitals::Metric;
use vitals::RuleSet;
use vitals::silence::{self, DEVICE, GATEWAY, PIPELINE, SIGNAL};

/// A worn sensor sends each second. A hand-over between networks takes a few seconds.
pub(crate) const SILENT_AFTER_US: i64 = 30_000_000;
/// Reports of paths that go on for this long after the last reading show that gateways are
/// connected.
const OUTLAST_US: i64 = 15_000_000;
/// A metric that was not measured for this long before the newest reading is no longer expected.
const EXPECTED_US: i64 = 86_400_000_000;

/// The longest pause that the measured metrics allow. `newest_us` is the event time of the newest
/// reading.
pub(crate) fn pause_us(
    rules: &RuleSet,
    measured: impl Iterator<Item = (Metric, i64)>,
    has_waveform: bool,
    newest_us: i64,
) -> i64 {
    if has_waveform {
        return SILENT_AFTER_US;
    }
    measured
        .filter(|(_, time_us)| newest_us - time_us <= EXPECTED_US)
        .map(|(metric, _)| {
            let stale_us = rules.stale_after_us(metric);
            if silence::is_worn(stale_us) {
                SILENT_AFTER_US
            } else {
                stale_us.max(SILENT_AFTER_US)
            }
        })
        .min()
        .unwrap_or(SILENT_AFTER_US)
}

/// Knowledge of a gateway besides its patients' readings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reports {
    /// When a path of the gateway was last well.
    pub well_us: i64,
    /// The newest report of any path says that it was lost.
    pub lost: bool,
}

/// The surroundings of one patient.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around<'a> {
    pub gateway: &'a str,
    /// When any patient of the gateway was last heard.
    pub gateway_heard_us: i64,
    pub reports: Reports,
    /// When any patient of any gateway was last heard, and how many gateways there are.
    pub anybody_heard_us: i64,
    pub gateways: usize,
    /// When a path of any gateway was last well: gateways are connected, and the bus works.
    pub anybody_well_us: i64,
}

/// Rule and summary of open silence alerts that concern the patient.
pub(crate) type Silences<'a> = BTreeMap<&'a str, &'a str>;

/// Why a patient is unwatched, from the widest cause to the narrowest.
pub(crate) fn why(
    since_us: i64,
    now_us: i64,
    around: &Around<'_>,
    silences: &Silences<'_>,
) -> Unknown {
    let (cause, because) =
        told(silences).unwrap_or_else(|| guessed(since_us, now_us, around, silences));
    Unknown {
        cause: cause.into(),
        since_us,
        because,
    }
}

fn told(silences: &Silences<'_>) -> Option<(UnknownCause, String)> {
    let (rule, summary) = [PIPELINE, GATEWAY, DEVICE]
        .into_iter()
        .find_map(|rule| silences.get_key_value(rule))?;
    let said = silence::cause_of(summary)?;
    let cause = match *rule {
        PIPELINE => UnknownCause::Pipeline,
        GATEWAY if said.starts_with("the path") => UnknownCause::Path,
        GATEWAY => UnknownCause::Gateway,
        _ if said.starts_with("the path") => UnknownCause::Path,
        _ => UnknownCause::Device,
    };
    Some((cause, format!("the cause is {said}")))
}

fn guessed(
    since_us: i64,
    now_us: i64,
    around: &Around<'_>,
    silences: &Silences<'_>,
) -> (UnknownCause, String) {
    let is_recent = |time_us: i64| now_us - time_us <= SILENT_AFTER_US;
    let gateway = around.gateway;
    if around.gateways > 1 && !is_recent(around.anybody_heard_us) {
        // Reports that ended with the readings prove nothing.
        let outlast_us = around.anybody_well_us - around.anybody_heard_us;
        let (cause, text) = if is_recent(around.anybody_well_us) && outlast_us > OUTLAST_US {
            let text = "gateways are connected, and no reading of any arrives";
            (UnknownCause::Pipeline, text)
        } else {
            let text =
                "nothing arrives from any gateway; the cause is unknown: network, proxy or core";
            (UnknownCause::Unspecified, text)
        };
        return (cause, text.to_owned());
    }
    if is_recent(around.gateway_heard_us) || is_recent(around.reports.well_us) {
        let text = match silences
            .get(SIGNAL)
            .and_then(|summary| silence::cause_of(summary))
        {
            Some(said) => format!("the cause is {said}"),
            None => format!("gateway {gateway} answers; the sensor is off, out of reach or empty"),
        };
        return (UnknownCause::Device, text);
    }
    if gateway.is_empty() || since_us == 0 {
        return (UnknownCause::Unspecified, "nothing arrives".to_owned());
    }
    if around.reports.lost {
        let text = format!("gateway {gateway} has lost its paths");
        return (UnknownCause::Path, text);
    }
    let text = format!("gateway {gateway} is not heard; it or its paths may be the cause");
    (UnknownCause::Gateway, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000_000;
    const SECOND: i64 = 1_000_000;

    fn pause(metrics: &[(Metric, i64)], has_waveform: bool) -> i64 {
        let rules = RuleSet::default_set();
        pause_us(&rules, metrics.iter().copied(), has_waveform, NOW)
    }

    #[test]
    fn a_worn_sensor_may_pause_for_seconds_and_a_cuff_for_hours() {
        let hours = 4 * 3_600 * SECOND;
        assert_eq!(pause(&[(Metric::SystolicPressure, NOW)], false), hours);
        let both = [(Metric::SystolicPressure, NOW), (Metric::HeartRate, NOW)];
        assert_eq!(pause(&both, false), SILENT_AFTER_US);
        let once = [(Metric::SystolicPressure, NOW), (Metric::HeartRate, 0)];
        assert_eq!(pause(&once, false), hours, "the belt was put away days ago");
        assert_eq!(
            pause(&[(Metric::SystolicPressure, NOW)], true),
            SILENT_AFTER_US
        );
    }

    #[test]
    fn the_widest_alert_says_why() {
        let around = Around::default();
        let device =
            "Device d is silent for 121 s; the cause is the device: its battery was at 4 %";
        let path = "Gateway g is silent for 121 s; the cause is the path: wifi lost before";
        let unknown = why(NOW, NOW, &around, &Silences::from([(DEVICE, device)]));
        assert_eq!(unknown.cause(), UnknownCause::Device);
        assert_eq!(
            unknown.because,
            "the cause is the device: its battery was at 4 %"
        );
        let unknown = why(
            NOW,
            NOW,
            &around,
            &Silences::from([(DEVICE, device), (GATEWAY, path)]),
        );
        assert_eq!(unknown.cause(), UnknownCause::Path);
        assert_eq!(unknown.because, "the cause is the path: wifi lost before");
    }

    #[test]
    fn before_any_alert_the_cause_follows_from_what_else_is_heard() {
        let old = NOW - 60 * SECOND;
        // A cut of everything: the reports end with the readings, or a moment later.
        let just_now = NOW - 29 * SECOND;
        let around = |gateway_heard_us, well_us, lost, anybody_heard_us| Around {
            gateway: "g",
            gateway_heard_us,
            reports: Reports { well_us, lost },
            anybody_heard_us,
            gateways: 2,
            anybody_well_us: well_us,
        };
        for (around, expected) in [
            (around(NOW, 0, false, NOW), UnknownCause::Device),
            (around(old, NOW, false, NOW), UnknownCause::Device),
            (around(old, old, true, NOW), UnknownCause::Path),
            (around(old, old, false, NOW), UnknownCause::Gateway),
            (around(old, NOW, false, old), UnknownCause::Pipeline),
            // Without evidence no part is blamed.
            (around(old, old, false, old), UnknownCause::Unspecified),
            (around(old, old, true, old), UnknownCause::Unspecified),
            (
                around(old, just_now, false, just_now - 2 * SECOND),
                UnknownCause::Unspecified,
            ),
        ] {
            let unknown = why(old, NOW, &around, &Silences::new());
            assert_eq!(unknown.cause(), expected, "{around:?}");
            assert!(!unknown.because.is_empty());
        }
    }
}
