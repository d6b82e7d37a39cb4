//! Attributes a reading to the patient who wore the device at its event time. Gateway, ingest and
//! replay use this function.
//!
//! An interval is half-open: it contains its first moment but not its last. The intervals of one
//! device do not overlap, so a moment lies in at most one. A reading has no patient, and goes to
//! the quarantine, in three cases. It lies in no interval, or it came over another gateway, or the
//! clocks cannot exclude another patient shortly before or after.

/// A time interval in which a patient wore a device at a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    pub patient: String,
    pub gateway: String,
    /// Inclusive. [`i64::MIN`]: the beginning is unknown.
    pub from_us: i64,
    /// Exclusive. [`i64::MAX`]: the interval is open.
    pub until_us: i64,
}

impl Interval {
    pub fn contains(&self, time_us: i64) -> bool {
        (self.from_us..self.until_us).contains(&time_us)
    }
}

/// Reason why a reading has no patient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unattributed {
    #[error("the register does not know the device")]
    UnknownDevice,
    #[error("no patient wore the device at that time")]
    NobodyWoreIt,
    #[error("the device was with another gateway at that time")]
    OtherGateway,
    #[error("the device changed hands within the uncertainty of the clocks")]
    InDoubt,
}

impl Unattributed {
    /// Metric label, and kind in the quarantine.
    pub const fn kind(self) -> &'static str {
        match self {
            Unattributed::UnknownDevice => "unknown-device",
            Unattributed::NobodyWoreIt => "not-assigned",
            Unattributed::OtherGateway => "other-gateway",
            Unattributed::InDoubt => "in-doubt",
        }
    }
}

/// An event time with the uncertainty of its clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    pub from_us: i64,
    /// Inclusive. Equal to `from_us` for an event without duration.
    pub to_us: i64,
    /// Largest possible error of the clocks.
    pub doubt_us: i64,
}

impl When {
    pub const fn at(time_us: i64, doubt_us: i64) -> When {
        When {
            from_us: time_us,
            to_us: time_us,
            doubt_us,
        }
    }
}

/// The interval that contains a whole event which came over `gateway`. `intervals` belong to its
/// device, in any order.
pub fn attribute<'a>(
    intervals: &'a [Interval],
    gateway: &str,
    when: When,
) -> Result<&'a Interval, Unattributed> {
    if intervals.is_empty() {
        return Err(Unattributed::UnknownDevice);
    }
    let interval = intervals
        .iter()
        .find(|interval| interval.contains(when.from_us) && interval.contains(when.to_us))
        .ok_or(Unattributed::NobodyWoreIt)?;
    if interval.gateway != gateway {
        return Err(Unattributed::OtherGateway);
    }
    let earliest_us = when.from_us.saturating_sub(when.doubt_us);
    let latest_us = when.to_us.saturating_add(when.doubt_us);
    let may_be_anothers = |other: &Interval| {
        other.patient != interval.patient
            && other.from_us <= latest_us
            && earliest_us < other.until_us
    };
    if intervals.iter().any(may_be_anothers) {
        return Err(Unattributed::InDoubt);
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interval(patient: &str, gateway: &str, from_us: i64, until_us: i64) -> Interval {
        Interval {
            patient: patient.into(),
            gateway: gateway.into(),
            from_us,
            until_us,
        }
    }

    #[test]
    fn an_interval_has_its_first_moment_and_not_its_last() {
        let of = [
            interval("ada", "gw-1", i64::MIN, 10),
            interval("ben", "gw-1", 10, 20),
            interval("eve", "gw-2", 25, i64::MAX),
        ];
        let who =
            |gateway, time_us| attribute(&of, gateway, When::at(time_us, 0)).map(|it| &*it.patient);
        assert_eq!(who("gw-1", i64::MIN), Ok("ada"));
        assert_eq!(who("gw-1", 9), Ok("ada"));
        assert_eq!(who("gw-1", 10), Ok("ben"));
        assert_eq!(who("gw-1", 20), Err(Unattributed::NobodyWoreIt));
        assert_eq!(who("gw-1", 25), Err(Unattributed::OtherGateway));
        assert_eq!(who("gw-2", i64::MAX - 1), Ok("eve"));
        assert_eq!(
            attribute(&[], "gw-1", When::at(0, 0)),
            Err(Unattributed::UnknownDevice)
        );
        let stretch = |from_us, to_us, doubt_us| {
            let when = When {
                from_us,
                to_us,
                doubt_us,
            };
            attribute(&of, "gw-1", when).map(|it| &*it.patient)
        };
        assert_eq!(stretch(10, 19, 0), Ok("ben"));
        let of_two = stretch(9, 10, 0);
        assert_eq!(of_two, Err(Unattributed::NobodyWoreIt), "of two people");
        assert_eq!(stretch(12, 16, 2), Ok("ben"));
        assert_eq!(stretch(12, 16, 3), Err(Unattributed::InDoubt));
        assert_eq!(stretch(16, 16, 9), Err(Unattributed::InDoubt));
    }

    proptest! {
        /// Random moves of one device, read with a wrong clock: the named patient did wear it at
        /// that time.
        #[test]
        fn nothing_is_ever_anothers(
            moves in prop::collection::btree_map(0_i64..1000, (0_u8..4, 0_u8..3), 0..12),
            asked in prop::collection::vec((0_i64..1100, 0_u8..3, -20_i64..=20), 1..60),
        ) {
            // Patient 0 means that no patient wears the device.
            let ends: Vec<i64> = moves.keys().skip(1).copied().chain([i64::MAX]).collect();
            let mut intervals: Vec<Interval> = moves
                .iter()
                .zip(ends)
                .filter(|((_, (patient, _)), _)| *patient > 0)
                .map(|((from, (patient, gateway)), until)| {
                    interval(&format!("p{patient}"), &format!("g{gateway}"), *from, until)
                })
                .collect();
            intervals.reverse();
            for (time_us, gateway, wrong_us) in asked {
                let truth = moves.range(..=time_us).next_back().map(|(_, it)| *it);
                let ask = |time_us, doubt_us| {
                    let found = attribute(&intervals, &format!("g{gateway}"), When::at(time_us, doubt_us));
                    found.ok().map(|it| it.patient.clone())
                };
                let expected = truth
                    .filter(|(patient, at)| *patient > 0 && *at == gateway)
                    .map(|(patient, _)| format!("p{patient}"));
                prop_assert_eq!(ask(time_us, 0), expected);
                let wore = truth.map(|(patient, _)| format!("p{patient}"));
                if let Some(patient) = ask(time_us + wrong_us, wrong_us.abs()) {
                    // A device taken off belongs to no other patient.
                    let nobody = truth.is_none_or(|(patient, _)| patient == 0);
                    prop_assert!(nobody || Some(patient) == wore);
                }
            }
        }
    }
}
