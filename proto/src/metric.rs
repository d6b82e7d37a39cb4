//! The code of a metric on the wire and in the stores: a number that follows from the metric's key.
//!
//! The twelve metrics of the first release keep the numbers of the enum in the contract. The number
//! of every other metric is a hash of its key. So all versions of all programs agree on it without
//! asking each other, and a program passes on a number that it does not know.

use std::fmt;

/// The code of a metric. Any number is one, because a newer program may know more metrics.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Metric(i32);

/// Keys of the numbers 1 to 12.
const NUMBERED: [&str; 12] = [
    "heart-rate",
    "respiration-rate",
    "spo2",
    "temperature",
    "systolic-pressure",
    "diastolic-pressure",
    "activity",
    "ecg",
    "consciousness",
    "supplemental-oxygen",
    "battery",
    "acceleration",
];

/// The smallest number that a hash can give.
const HASHED_FROM: i32 = 1 << 30;

#[allow(
    non_upper_case_globals,
    reason = "the names of the enum in the contract"
)]
impl Metric {
    pub const Unspecified: Metric = Metric(0);
    pub const HeartRate: Metric = Metric(1);
    pub const RespirationRate: Metric = Metric(2);
    pub const Spo2: Metric = Metric(3);
    pub const Temperature: Metric = Metric(4);
    pub const SystolicPressure: Metric = Metric(5);
    pub const DiastolicPressure: Metric = Metric(6);
    pub const Activity: Metric = Metric(7);
    pub const Ecg: Metric = Metric(8);
    pub const Consciousness: Metric = Metric(9);
    pub const SupplementalOxygen: Metric = Metric(10);
    pub const Battery: Metric = Metric(11);
    pub const Acceleration: Metric = Metric(12);
}

impl Metric {
    pub const fn from_number(number: i32) -> Metric {
        Metric(number)
    }

    pub const fn number(self) -> i32 {
        self.0
    }

    /// Whether a key can have this number.
    pub fn is_of_key(self) -> bool {
        (1..=NUMBERED.len() as i32).contains(&self.0) || self.0 >= HASHED_FROM
    }

    /// Whether programs of the first release know the metric.
    pub fn is_numbered(self) -> bool {
        self.is_of_key() && self.0 < HASHED_FROM
    }

    /// The metric of a key. It needs no catalogue.
    pub fn of_key(key: &str) -> Metric {
        match NUMBERED.iter().position(|known| *known == key) {
            Some(index) => Metric(index as i32 + 1),
            None => Metric(HASHED_FROM | (fnv_1a(key.as_bytes()) & 0x3fff_ffff).cast_signed()),
        }
    }
}

/// FNV-1a of 32 bits, folded so that the upper bits count in the lower 30.
fn fnv_1a(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    hash ^ (hash >> 30)
}

impl From<i32> for Metric {
    fn from(number: i32) -> Metric {
        Metric(number)
    }
}

impl From<Metric> for i32 {
    fn from(metric: Metric) -> i32 {
        metric.0
    }
}

impl fmt::Debug for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = usize::try_from(self.0)
            .ok()
            .and_then(|number| NUMBERED.get(number.checked_sub(1)?));
        match key {
            Some(key) => f.write_str(key),
            None => write!(f, "metric {}", self.0),
        }
    }
}

/// Messages with a metric.
macro_rules! has_metric {
    ($($message:path),* $(,)?) => {$(
        impl $message {
            pub fn metric(&self) -> Metric {
                Metric(self.metric)
            }
        }
    )*};
}

has_metric!(
    crate::alerts::Alert,
    crate::query::Vital,
    crate::query::Series,
    crate::vitals::EdgeAlert,
    crate::vitals::LocalAlert,
    crate::vitals::Sample,
);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::braid::vitals::v1::Metric as OfContract;

    #[test]
    fn the_enum_of_the_contract_keeps_its_numbers() {
        for (index, key) in NUMBERED.iter().enumerate() {
            let number = index as i32 + 1;
            let name = OfContract::try_from(number).unwrap().as_str_name();
            let expected = name.trim_start_matches("METRIC_").to_lowercase();
            assert_eq!(*key, expected.replace('_', "-"));
            assert_eq!(Metric::of_key(key).number(), number);
        }
        assert!(OfContract::try_from(NUMBERED.len() as i32 + 1).is_err());
        assert_eq!(Metric::of_key("acceleration"), Metric::Acceleration);
    }

    #[test]
    fn the_number_of_a_key_never_changes() {
        // Stores and gateways hold these numbers.
        assert_eq!(Metric::of_key("glucose").number(), GLUCOSE);
        assert_eq!(Metric::of_key("weight").number(), WEIGHT);
        for key in ["glucose", "weight", "", "x"] {
            assert!(Metric::of_key(key).number() >= HASHED_FROM, "{key}");
        }
    }

    const GLUCOSE: i32 = 1_469_018_181;
    const WEIGHT: i32 = 1_352_703_672;
}
