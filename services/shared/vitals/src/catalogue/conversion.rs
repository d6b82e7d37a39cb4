//! Converts a reading from an accepted unit to the unit of its metric.
//!
//! The conversion is exact: it computes with the decimal digits that the sensor wrote, and rounds
//! once, to the nearest number. So 98.6 [degF] is 37 Cel, and not 36.99999999999999.

use serde::{Deserialize, Serialize};

/// Digits of a factor. With them, every product below fits into 128 bits.
const FACTOR_DIGITS_MAX: u32 = 9;
/// Digits of a reading that are computed exactly, before and after the decimal point together. A
/// reading with more is converted by floating point.
const READING_DIGITS_MAX: usize = 17;
/// Digits of the quotient: more than a floating-point number holds.
const QUOTIENT_DIGITS: u32 = 20;

/// A unit that sensors may send. The value in the metric's own unit is
/// `(value - subtract) * multiply / divide`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accepted {
    /// UCUM.
    pub unit: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub subtract: f64,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub multiply: f64,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub divide: f64,
    /// Most digits after the decimal point in this unit. `None`: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decimals: Option<u8>,
}

fn one() -> f64 {
    1.0
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_one(value: &f64) -> bool {
    *value == 1.0
}

/// `digits / 10^scale`.
#[derive(Clone, Copy, Debug)]
struct Decimal {
    digits: i128,
    scale: u32,
}

impl Decimal {
    /// The shortest decimal that is read as this number. `None`: it has too many digits.
    fn of(value: f64, digits_max: usize) -> Option<Decimal> {
        let text = value.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let count = whole.trim_start_matches(['-', '0']).len() + fraction.len();
        if count > digits_max {
            return None;
        }
        Some(Decimal {
            digits: format!("{whole}{fraction}").parse().ok()?,
            scale: u32::try_from(fraction.len()).ok()?,
        })
    }

    fn factor(value: f64) -> Option<Decimal> {
        Decimal::of(value, FACTOR_DIGITS_MAX as usize)
    }

    fn minus(self, other: Decimal) -> Option<Decimal> {
        let scale = self.scale.max(other.scale);
        let at = |it: Decimal| {
            it.digits
                .checked_mul(10_i128.checked_pow(scale - it.scale)?)
        };
        Some(Decimal {
            digits: at(self)?.checked_sub(at(other)?)?,
            scale,
        })
    }

    fn times(self, other: Decimal) -> Option<Decimal> {
        Some(Decimal {
            digits: self.digits.checked_mul(other.digits)?,
            scale: self.scale + other.scale,
        })
    }

    /// The number nearest to the quotient.
    fn over(self, other: Decimal) -> Option<f64> {
        // 10^shift more digits, so that the quotient has enough.
        let has = self.digits.unsigned_abs().checked_ilog10().unwrap_or(0);
        let divides = other.digits.unsigned_abs().checked_ilog10()?;
        let shift = (QUOTIENT_DIGITS + divides).saturating_sub(has);
        let scaled = self.digits.checked_mul(10_i128.checked_pow(shift)?)?;
        let (mut digits, rest) = (scaled / other.digits, scaled % other.digits);
        let mut exponent = i64::from(other.scale) - i64::from(self.scale) - i64::from(shift);
        if rest != 0 {
            // One more digit says that the quotient is not exactly on the border of two numbers.
            digits = digits.checked_mul(10)?.checked_add(scaled.signum())?;
            exponent -= 1;
        }
        format!("{digits}e{exponent}").parse().ok()
    }
}

impl Accepted {
    /// The value in the metric's own unit.
    pub fn convert(&self, value: f64) -> f64 {
        self.exactly(value)
            .unwrap_or((value - self.subtract) * self.multiply / self.divide)
    }

    fn exactly(&self, value: f64) -> Option<f64> {
        if !value.is_finite() {
            return None;
        }
        Decimal::of(value, READING_DIGITS_MAX)?
            .minus(Decimal::factor(self.subtract)?)?
            .times(Decimal::factor(self.multiply)?)?
            .over(Decimal::factor(self.divide)?)
    }

    /// The reason why the conversion cannot be used.
    pub(super) fn flaw(&self) -> Option<String> {
        let factors = [self.subtract, self.multiply, self.divide];
        if factors
            .iter()
            .any(|it| !it.is_finite() || Decimal::factor(*it).is_none())
        {
            return Some(format!(
                "{} has a number of more than {FACTOR_DIGITS_MAX} digits",
                self.unit
            ));
        }
        if self.multiply <= 0.0 || self.divide <= 0.0 {
            return Some(format!("{} multiplies or divides by 0 or less", self.unit));
        }
        None
    }
}

/// Conversions that do not depend on what is measured: unit, subtract, multiply, divide, own unit.
const PHYSICAL: [(&str, f64, f64, f64, &str); 8] = [
    ("[degF]", 32.0, 5.0, 9.0, "Cel"),
    ("K", 273.15, 1.0, 1.0, "Cel"),
    ("[lb_av]", 0.0, 0.453_592_37, 1.0, "kg"),
    ("g", 0.0, 1.0, 1000.0, "kg"),
    ("mL", 0.0, 1.0, 1000.0, "L"),
    ("L", 0.0, 1000.0, 1.0, "mL"),
    ("kPa", 0.0, 7.500_616_83, 1.0, "mm[Hg]"),
    ("L/s", 0.0, 60.0, 1.0, "L/min"),
];

/// The reason why an accepted unit contradicts physics.
pub(super) fn contradiction(accepted: &Accepted, own: &str) -> Option<String> {
    let (unit, subtract, multiply, divide, _) = PHYSICAL
        .into_iter()
        .find(|(unit, .., to)| *unit == accepted.unit && *to == own)?;
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1e-3);
    let (given, known) = (accepted.multiply / accepted.divide, multiply / divide);
    (!near(given, known) || !near(accepted.subtract, subtract)).then(|| {
        format!("{unit} is subtract {subtract}, multiply {multiply}, divide {divide} of {own}")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn accepted(unit: &str, subtract: f64, multiply: f64, divide: f64) -> Accepted {
        Accepted {
            unit: unit.into(),
            subtract,
            multiply,
            divide,
            decimals: None,
        }
    }

    #[test]
    fn well_known_readings_are_exact() {
        let fahrenheit = accepted("[degF]", 32.0, 5.0, 9.0);
        for (from, to) in [(98.6, 37.0), (32.0, 0.0), (212.0, 100.0), (-40.0, -40.0)] {
            assert_eq!(fahrenheit.convert(from), to, "{from}");
        }
        assert_eq!(accepted("mg/dL", 0.0, 1.0, 18.0156).convert(180.156), 10.0);
        assert_eq!(
            accepted("[lb_av]", 0.0, 0.45359237, 1.0).convert(100.0),
            45.359237
        );
        assert!(fahrenheit.convert(f64::NAN).is_nan());
        assert_eq!(fahrenheit.convert(1e300), (1e300 - 32.0) * 5.0 / 9.0);
    }

    #[test]
    fn a_conversion_against_physics_is_known() {
        for (unit, subtract, multiply, divide, own) in PHYSICAL {
            let right = accepted(unit, subtract, multiply, divide);
            assert_eq!((contradiction(&right, own), right.flaw()), (None, None));
            let wrong = accepted(unit, subtract, divide, multiply * 1.1);
            assert!(contradiction(&wrong, own).is_some(), "{unit}");
        }
        let of_a_substance = accepted("mg/dL", 0.0, 1.0, 18.0156);
        assert_eq!(contradiction(&of_a_substance, "mmol/L"), None);
        for (multiply, divide) in [(0.0, 1.0), (1.0, 0.0), (1.0, -1.0), (f64::NAN, 1.0)] {
            assert!(accepted("x", 0.0, multiply, divide).flaw().is_some());
        }
        assert!(accepted("x", 0.0, 1.0 / 3.0, 1.0).flaw().is_some());
    }

    proptest! {
        /// A quotient of two whole numbers, which floating point divides exactly, is the measure.
        #[test]
        fn every_reading_is_the_nearest_number(tenths in -100_000_i32..=100_000) {
            let value = f64::from(tenths) / 10.0;
            let celsius = accepted("[degF]", 32.0, 5.0, 9.0).convert(value);
            prop_assert_eq!(celsius, f64::from(tenths - 320) / 18.0);
            let molar = accepted("mg/dL", 0.0, 1.0, 18.0156).convert(value);
            prop_assert_eq!(molar, f64::from(tenths) * 1000.0 / 180_156.0);
        }

        /// The result is that of floating point, up to its last digits, for all factors.
        #[test]
        fn exact_and_approximate_agree(
            value in -1e9..1e9_f64,
            subtract in 0_u16..1000,
            multiply in 1_u32..999_999_999,
            divide in 1_u32..999_999_999,
        ) {
            let it = accepted("x", f64::from(subtract), f64::from(multiply), f64::from(divide));
            let approximate = (value - it.subtract) * it.multiply / it.divide;
            let off = (it.convert(value) - approximate).abs();
            prop_assert!(off <= 1e-9 * approximate.abs().max(1e-9), "{off}");
        }

        /// Order is kept, so no reading passes another one by its unit.
        #[test]
        fn order_is_kept(a in 0.0..10_000.0_f64, b in 0.0..10_000.0_f64) {
            let it = accepted("[degF]", 32.0, 5.0, 9.0);
            prop_assert!(it.convert(a.min(b)) <= it.convert(a.max(b)));
        }
    }
}
